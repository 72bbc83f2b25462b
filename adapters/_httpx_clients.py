"""How clients of httpx and httpx2 become protected: their constructors take `bulkhead=`, existing ones by `protect`.

Only the transports of a protected client are replaced, by delegating ones; classes and methods of the library stay as
they are, apart from the two constructors. The library is a parameter throughout.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from adapters._httpx_choice import Choice, declared_by
from adapters._httpx_transports import Guarded
from bulkhead.adapter import ConfigurationError, Outcome

if TYPE_CHECKING:
    from collections.abc import Callable

    from bulkhead.adapter import Adapter, Options


def outcomes(library: Any) -> Callable[[Exception, Options], Outcome]:
    """What the errors of this library mean: the network and the server's protocol count, what is local does not."""
    local = library.PoolTimeout  # may come from a healthy origin: connections are lost on cancellation
    sick = (
        library.NetworkError,
        library.TimeoutException,
        library.ProxyError,
        library.RemoteProtocolError,
    )
    told = library.HTTPStatusError

    def outcome(error: Any, options: Options) -> Outcome:  # noqa: ARG001  the form of an outcome function
        if isinstance(error, told):  # ours, for open_circuit_server_errors
            return Outcome.FAILURE if error.response.is_server_error else Outcome.SUCCESS
        return Outcome.FAILURE if isinstance(error, sick) and not isinstance(error, local) else Outcome.IGNORED

    return outcome


class Clients:
    """The clients of one library, and how they are protected. `sync` and `coroutine`: its guarded transports."""

    def __init__(self, library: Any, adapter: Adapter, sync: type[Guarded], coroutine: type[Guarded]) -> None:
        self.library, self.adapter = library, adapter
        self._kinds = {library.Client: sync, library.AsyncClient: coroutine}

    def patch(self) -> None:
        """Let both constructors take `bulkhead=`."""
        for kind in self._kinds:
            self._kinds[kind].driver.wrap(kind, "__init__", self._construct)

    def _construct(self, wrapped: Any, client: Any, args: Any, kwargs: Any) -> None:
        declared = declared_by(kwargs.pop("bulkhead", None), self.adapter)
        wrapped(*args, **kwargs)
        if declared is not None:
            self._protect(client, declared)

    def protect(self, client: Any, options: Options) -> bool:
        """For `bulkhead.protect`: False if it is no client of this library."""
        kinds: Any = tuple(self._kinds)
        if not isinstance(client, kinds):
            return False
        there = client._transport  # noqa: SLF001  the only place where a client keeps it
        if not isinstance(there, Guarded):
            declared = declared_by(options, self.adapter)
            self._protect(client, declared)
        elif there.choice.declared != options:
            raise ConfigurationError(
                f"this {type(client).__name__} is protected with other options already ({there.choice.declared!r})"
            )
        return True

    def _protect(self, client: Any, declared: object) -> None:
        choice = Choice(self.adapter, declared, client.base_url, client.timeout.read)
        guarded = next(guarded for kind, guarded in self._kinds.items() if isinstance(client, kind))

        def guard(transport: Any) -> Any:
            # The transport of another protected client: that client's options are its own, not the transport's.
            inner = transport.inner if isinstance(transport, Guarded) else transport
            return guarded(inner, choice)

        client._transport = guard(client._transport)  # noqa: SLF001
        client._mounts = {  # noqa: SLF001
            pattern: None if transport is None else guard(transport)  # None: this pattern uses no proxy
            for pattern, transport in client._mounts.items()  # noqa: SLF001
        }
