"""Methods of a contract that are requests."""

from __future__ import annotations

from abc import update_abstractmethods
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from locus_store.wire.calls import calls_of

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from locus_store.wire.calls import Call, Part

K = TypeVar("K", bound="type[Any]")


class Asks(Protocol):
    """An object that sends calls."""

    async def ask(self, call: Call, arguments: dict[str, Any]) -> Any:
        """Send a call; return its result."""


def asks(part: Part) -> Callable[[K], K]:
    """Give a class each method of a part of the service that it does not have itself."""

    def decorate(kind: K) -> K:
        for call in calls_of(part):
            if call.name not in vars(kind):
                setattr(kind, call.name, _method(call))
        return update_abstractmethods(kind)

    return decorate


def _method(call: Call) -> Callable[..., Coroutine[Any, Any, Any]]:
    async def method(self: Asks, *args: Any, **kwargs: Any) -> Any:
        return await self.ask(call, call.bound(args, kwargs))

    method.__name__, method.__qualname__ = call.name, f"{call.contract.__name__}.{call.name}"
    method.__doc__ = f"Ask the service; see ``{method.__qualname__}``."
    return method
