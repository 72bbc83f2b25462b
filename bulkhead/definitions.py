"""Named options, and every form in which options can reach a client, brought to one.

It builds no resource: it answers "which options does this client have?". What it does not decide: how a driver passes
`bulkhead=` on, and what a resource is. A name may be used before it is defined; who asks later gets it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, TypeGuard

from bulkhead.errors import ConfigurationError
from bulkhead.option_arguments import taking_options
from bulkhead.option_rows import nearest, shown
from bulkhead.option_set import Options
from bulkhead.tenancy import text_fault

Ask = Callable[[str, "str | None", "int | None", Mapping[str, Any]], object]
"""callable(driver, host, port, extra) -> any form of options."""

_known: dict[str, Options] = {}
_superseded: dict[str, Options] = {}  # by a reload of the settings: name -> the definition before
_resolver: Ask | None = None


@taking_options
def define(name: str, options: Options | None) -> None:
    """Give options a name that clients can be built with: `bulkhead="inventory"`, before or after this.

    Defining a name again with the same options is harmless, with others a ConfigurationError (lax: logged).
    """
    fault = text_fault(name)
    if fault is not None:
        raise ConfigurationError(f"define: the name {shown(name)} cannot be used: {fault}")
    wanted = options or Options(name=name)
    first = _known.setdefault(name, wanted)
    if first == wanted:
        return
    told = ", ".join(f"{one}: {shown(old)} and {shown(new)}" for one, (old, new) in first.differences(wanted).items())
    wanted.complain(
        f"{shown(name)} is defined twice with different options ({told or 'their names'}); the first definition "
        "holds. Use another name for the other options"
    )


def defined(name: str) -> Options:
    """The options defined under this name; ConfigurationError that names the nearest one, or lists all."""
    try:
        return _known[name]
    except KeyError:
        raise ConfigurationError(
            f"no options are defined under the name {shown(name)}; define them with bulkhead.define(name, …): "
            f"{nearest(name, known_names())}"
        ) from None


def known(name: str) -> Options | None:
    """The options defined under this name; None = there are none."""
    return _known.get(name)


def supersede(name: str) -> None:
    """The definition under this name is about to be replaced: clients that still ask with it are not wrong."""
    if name in _known:
        _superseded[name] = _known[name]


def redefine(name: str, options: Options) -> None:
    """Replace the definition under this name; for a reload of the settings."""
    _known[name] = options


def superseded(options: Options) -> bool:
    """Whether these options are a definition that was replaced, or is about to be."""
    return options in _superseded.values()


def known_names() -> list[str]:
    """The defined names, sorted."""
    return sorted(_known)


class Dynamic:
    """Options that are asked for on each call: a callable whose answer had dynamic=True, and what to ask it with."""

    __slots__ = ("_about", "_ask")

    def __init__(self, ask: Ask, about: tuple[str, str | None, int | None, Mapping[str, Any]]) -> None:
        self._ask, self._about = ask, about

    def now(self) -> Options | None:
        """The options of this call; None = it is unprotected. ConfigurationError for an answer that is none."""
        answer = _asked(self._ask, self._about)
        return defined(answer) if isinstance(answer, str) else answer

    def __repr__(self) -> str:
        return f"<options asked of {_title(self._ask)} on each call>"


def interpret(
    raw: object,
    *,
    driver: str,
    host: str | None = None,
    port: int | None = None,
    extra: Mapping[str, Any] | None = None,
) -> Options | Dynamic | str | None:
    """What a client was given as `bulkhead=`: its options; None = unprotected; a str = a name not defined yet.

    None means that nothing was given: the resolver is asked, where one is set. False is never protected.
    """
    about = (driver, host, port, {} if extra is None else extra)
    if raw is None and _resolver is not None:
        raw = _resolver
    if _can_be_asked(raw):
        answer = _asked(raw, about)
        return Dynamic(raw, about) if isinstance(answer, Options) and answer.dynamic else answer
    plain = _plain(raw)
    if isinstance(plain, Options) and plain.dynamic:
        raise ConfigurationError(
            "dynamic=True belongs in the answer of a callable, which is then asked on each call; "
            "pass bulkhead=callable(driver, host, port, extra)"
        )
    return plain


def _plain(raw: object) -> Options | str | None:
    """All forms but callables."""
    if raw is None or raw is False:
        return None
    if isinstance(raw, Options):
        return raw
    if isinstance(raw, Mapping):
        if len(raw) == 1 and "bulkhead" in raw:  # bulkhead=bulkhead.options(…), without the stars
            return _plain(raw["bulkhead"])
        return Options(**{_option_name(name): value for name, value in raw.items()})
    if isinstance(raw, str):
        fault = text_fault(raw)
        if fault is not None:
            raise ConfigurationError(f"bulkhead={shown(raw)} is no name of defined options: {fault}")
        return _known.get(raw) or str.__str__(raw)
    hint = "True says nothing; give the options" if raw is True else f"not {shown(raw)}"
    raise ConfigurationError(
        f"bulkhead= takes options (use **bulkhead.options(…)), a mapping of them, the name of defined ones, a callable "
        f"(driver, host, port, extra), or False: {hint}"
    )


def _asked(ask: Ask, about: tuple[str, str | None, int | None, Mapping[str, Any]]) -> Options | str | None:
    try:
        answer = ask(*about)
    except Exception as error:
        ours = f": {error}" if isinstance(error, ConfigurationError) else ""
        raise ConfigurationError(
            f"{_title(ask)} was asked for the options of a {about[0]} client and raised {type(error).__name__}{ours}; "
            "it takes (driver, host, port, extra) and returns options, a name, or None"
        ) from error
    if inspect.iscoroutine(answer):
        answer.close()
    if callable(answer):
        raise ConfigurationError(f"{_title(ask)} answered with a callable, {shown(answer)}; it must return options")
    try:
        return _plain(answer)
    except ConfigurationError as error:
        raise ConfigurationError(f"{_title(ask)} answered with options that cannot be used: {error}") from error


def _can_be_asked(raw: object) -> TypeGuard[Ask]:
    return callable(raw) and not isinstance(raw, type)


def _title(function: object) -> str:
    name = getattr(function, "__qualname__", type(function).__qualname__)
    return f"{getattr(function, '__module__', '?')}.{name}"


def _option_name(name: object) -> str:
    if isinstance(name, str):
        return name
    raise ConfigurationError(f"options are named by text, not by {shown(name)}")


def set_resolver(resolver: Ask | None) -> Ask | None:
    """Ask this for the options of clients that were given none; None = nobody. Returns the one before."""
    global _resolver
    if resolver is not None and not _can_be_asked(resolver):
        raise ConfigurationError(f"resolve takes a callable (driver, host, port, extra), not {shown(resolver)}")
    before, _resolver = _resolver, resolver
    return before


def resolver() -> Ask | None:
    """What is asked for the options of clients that were given none."""
    return _resolver
