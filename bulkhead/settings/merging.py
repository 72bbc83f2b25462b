"""pydantic-settings: it reads the TOML file, takes nested variables apart, and lays the environment over the file.

The only file that knows it (extra `settings`), imported by `sources` when there is something to read. It is told
nothing about keys and values: those are the rows' business, and texts of the environment come back as texts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pydantic import create_model
from pydantic_settings import BaseSettings, EnvSettingsSource, InitSettingsSource, TomlConfigSettingsSource

from bulkhead.settings.sections import RESOURCES, sections

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from pydantic_settings import PydanticBaseSettingsSource

PREFIX = "BULKHEAD_"
DELIMITER = "__"


class _Environment(EnvSettingsSource):
    def decode_complex_value(self, field_name: str, field: Any, value: Any) -> Any:  # noqa: ARG002  its signature
        """Texts stay texts."""
        return value


def read(file: Path) -> Any:
    """What stands in the file. tomllib.TOMLDecodeError, UnicodeDecodeError, OSError."""
    return TomlConfigSettingsSource(BaseSettings, file).toml_data


def exploded(variables: Mapping[str, str]) -> dict[str, Any]:
    """Variables, by their names in lower case, as nested tables of texts."""
    source = _Environment(_model(), case_sensitive=False, env_prefix=PREFIX, env_nested_delimiter=DELIMITER)
    source.env_vars = variables
    return source()


def merged(environment: dict[str, Any], file: dict[str, Any]) -> dict[str, Any]:
    """Both together; the environment wins, key by key, within tables too."""
    base = _model()

    class Both(base):  # type: ignore[misc, valid-type]
        @classmethod
        def settings_customise_sources(
            cls, settings_cls: type[BaseSettings], *_: object, **__: object
        ) -> tuple[PydanticBaseSettingsSource, ...]:
            return InitSettingsSource(settings_cls, environment), InitSettingsSource(settings_cls, file)

    together: dict[str, Any] = Both().model_dump()
    return together


def _model() -> type[BaseSettings]:
    """A table of anything for each section, and one more level for resources."""
    table = dict[str, Any]
    fields: dict[str, Any] = {name: (table, {}) for name in sections()}
    fields[RESOURCES] = (dict[str, table], {})
    return create_model("Sections", __base__=BaseSettings, **fields)
