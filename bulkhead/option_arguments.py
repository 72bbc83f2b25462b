"""Options as keyword arguments: `bulkhead.options(…)`, and functions of ours that take `**options`.

Names and types come from the fields of `Options`, for type checkers and for `help` alike, so that an option is written
down once. Nothing is checked here; Options does that.
"""

from __future__ import annotations

import functools
import inspect
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

from bulkhead.errors import ConfigurationError
from bulkhead.option_rows import shown
from bulkhead.option_set import Options

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

P = ParamSpec("P")
A = TypeVar("A")
R = TypeVar("R")


def gathered(make: Callable[..., Options], given: Mapping[str, Any], name: object = None) -> Options | None:
    """Keyword arguments as Options, by this name where they have none; None for none given.

    `**bulkhead.options(…)` is understood too.
    """
    if not given:
        return None
    ready = given.get("bulkhead")
    if isinstance(ready, Options):
        if len(given) > 1:
            raise ConfigurationError("give either bulkhead=Options or single options, not both")
        nameless = ready.name is None and ready.identifier is None
        return ready.replace(name=name) if nameless and isinstance(name, str) else ready
    if isinstance(name, str) and "name" not in given and "identifier" not in given:
        given = {"name": name, **given}
    return make(**given)


def _as_argument(make: Callable[P, Options]) -> Callable[P, dict[str, Any]]:
    """Names and types of the fields become those of `options`, for type checkers too."""

    def options(*args: P.args, **given: P.kwargs) -> dict[str, Any]:
        """Options for a client: `redis.Redis(host=…, **bulkhead.options(name="inventory", tickets=16))`.

        Returns {"bulkhead": Options}. ConfigurationError for a wrong option, or for two that contradict each other.
        """
        return {"bulkhead": make(*args, **given)}

    vars(options)["__signature__"] = inspect.signature(make)
    return options


options = _as_argument(Options)


def _taking(
    make: Callable[P, Options],
) -> Callable[[Callable[[A, Options | None], R]], Callable[Concatenate[A, P], R]]:
    """Names and types of the fields become keyword arguments of a function that is written for Options."""

    def decorate(function: Callable[[A, Options | None], R]) -> Callable[Concatenate[A, P], R]:
        @functools.wraps(function)
        def wrapper(first: A, /, *args: P.args, **given: P.kwargs) -> R:
            if args:
                raise ConfigurationError(f"options are given by name, like tickets=16, not as {shown(args[0])}")
            chosen = gathered(make, given, first)
            if chosen is not None and chosen.dynamic:
                raise ConfigurationError(
                    f"{chosen.label}: dynamic=True belongs in the answer of a callable, "
                    "which is then asked on each call"
                )
            return function(first, chosen)

        own, taken = inspect.signature(function), inspect.signature(make)
        subject = next(iter(own.parameters.values()))
        title = f"{subject.name}_" if subject.name in taken.parameters else subject.name
        subject = subject.replace(name=title, kind=inspect.Parameter.POSITIONAL_ONLY)
        vars(wrapper)["__signature__"] = own.replace(parameters=[subject, *taken.parameters.values()])
        return wrapper

    return decorate


taking_options = _taking(Options)
"""Decorator: `(name_or_client, Options | None)` becomes `(name_or_client, **options)`, typed. A str goes in as name."""
