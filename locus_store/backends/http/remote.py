"""The service that backends, stores and message logs share: its description and its calls."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from locus_store.errors import BackendError, InvalidArgumentError
from locus_store.wire import bodies
from locus_store.wire.calls import VERSION
from locus_store.wire.description import DESCRIPTION

if TYPE_CHECKING:
    from locus_store.backends.http.connections import Connections, LoopClient
    from locus_store.wire.calls import Call
    from locus_store.wire.description import Description


class RemoteService:
    """A service, asked for its description before the first call."""

    def __init__(self, connections: Connections) -> None:
        self._connections = connections
        self.where = connections.where
        self.description: Description | None = None
        """``None``: it was not asked yet."""

    async def home(self) -> LoopClient:
        """Return the running loop's client, once the service is known."""
        home = await self._connections.home()
        if self.description is None:
            self.description = await _described(home)
        return home

    async def described(self) -> Description:
        """Return the description that the service gives of itself.

        Raises:
            ConnectionFailedError: There is no such service.
        """
        await self.home()
        assert self.description is not None  # noqa: S101  (home asked)
        return self.description

    async def ask(self, call: Call, arguments: dict[str, Any]) -> Any:
        """Send a call; return its result. A write continues after its caller is cancelled."""
        home = await self.home()
        if call.right == "read":
            return await home.ask(call, arguments)
        threads = _threads(arguments)
        if not threads:
            return await home.shielded(home.ask(call, arguments))
        return await home.in_order(threads[0], lambda: home.ask(call, arguments), *threads[1:])

    async def close(self) -> None:
        """Release the connections."""
        await self._connections.close()


def _threads(arguments: dict[str, Any]) -> list[str]:
    """Return the threads that a write changes; writes of one thread keep their order."""
    named = [it for name, it in arguments.items() if name.endswith("thread_id")]
    found = [*named, *(getattr(it, "thread_id", None) for it in arguments.values())]
    return [it for it in found if isinstance(it, str)]


async def _described(home: LoopClient) -> Description:
    response = await home.send("GET", VERSION.encode(), b"", {}, True)
    if not response.is_success:
        raise home.refusal(response)
    try:
        read = bodies.received(response.content, response.headers.get("content-type", ""))
        found: Description = DESCRIPTION.read(*read)
    except InvalidArgumentError as exc:
        raise BackendError(f"the service gave an answer that is not valid: {exc}") from exc
    return found
