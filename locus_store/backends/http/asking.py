"""Methods of a contract that are requests."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from locus_store.wire.calls import calls_of

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from locus_store.wire.calls import Part, WireCall


class Asks(Protocol):
    """An object that sends calls."""

    async def ask(self, call: WireCall, arguments: dict[str, Any]) -> Any:
        """Send a call; return its result."""


def requests(part: Part) -> Any:
    """Return a class with each method of a part of the service, to inherit before the contract."""
    methods = {call.name: _method(call) for call in calls_of(part)}
    return type(f"Requests_{part}", (), {"__doc__": f"The calls of {part}.", **methods})


def _method(call: WireCall) -> Callable[..., Coroutine[Any, Any, Any]]:
    async def method(self: Asks, *args: Any, **kwargs: Any) -> Any:
        return await self.ask(call, call.bound(args, kwargs))

    method.__name__, method.__qualname__ = call.name, f"{call.contract.__name__}.{call.name}"
    method.__doc__ = f"Ask the service; see ``{method.__qualname__}``."
    return method
