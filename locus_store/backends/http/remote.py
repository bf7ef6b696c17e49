"""The service that backends, stores and message logs share: its description and its calls."""

from __future__ import annotations

from math import inf
from time import monotonic
from typing import TYPE_CHECKING, Any, Final

from locus_store.backend import StorageBackend
from locus_store.backends.http.sdk_service import SdkServiceBackend
from locus_store.errors import (
    BackendError,
    ConnectionFailedError,
    InvalidArgumentError,
    UnsupportedError,
)
from locus_store.types import CheckpointerCapabilities
from locus_store.wire import bodies
from locus_store.wire.calls import VERSION
from locus_store.wire.description import DESCRIPTION, SERVICE, Description

if TYPE_CHECKING:
    from locus_store.backends.http.connections import HTTPClient, HTTPConnections
    from locus_store.wire.calls import WireCall

ELSEWHERE: Final = frozenset({404, 405})
"""The statuses of a server that does not have our wire."""

SDK_WIRE: Final = "the Locus SDK's wire"
SDK_SECONDS: Final = 60.0
"""The time after which a service of the SDK's wire is asked again whether it has ours."""

SDK_DESCRIPTION: Final = Description(
    version=SDK_WIRE,
    capabilities=CheckpointerCapabilities(persistent_checkpoint_ids=True),
    has_store=False,
    dimension=None,
    metric=None,
    has_messages=False,
    rights=[],
    max_body=0,
)


class RemoteService:
    """A service, asked for its description before the first call."""

    def __init__(self, connections: HTTPConnections, *, max_state_bytes: int) -> None:
        self._connections = connections
        self._sdk = SdkServiceBackend(connections, max_state_bytes=max_state_bytes)
        self.where = connections.where
        self.description: Description | None = None
        """``None``: it was not asked yet."""

        self._until = 0.0

    async def home(self) -> HTTPClient:
        """Return the running loop's client, once the service is known."""
        home = await self._connections.home()
        if self.description is None or monotonic() > self._until:
            self.description = found = await _described(home)
            self._until = monotonic() + SDK_SECONDS if found is SDK_DESCRIPTION else inf
        home.max_body = self.description.max_body or None
        return home

    async def described(self) -> Description:
        """Return the description that the service gives of itself.

        Raises:
            ConnectionFailedError: There is no such service.
        """
        await self.home()
        assert self.description is not None  # noqa: S101  (home asked)
        return self.description

    async def sdk(self) -> SdkServiceBackend | None:
        """Return the backend of a service that speaks the Locus SDK's wire only."""
        return self._sdk if (await self.described()).version == SDK_WIRE else None

    async def ask(self, call: WireCall, arguments: dict[str, Any]) -> Any:
        """Send a call; return its result. A write continues after the caller is cancelled.

        Raises:
            UnsupportedError: The service speaks the Locus SDK's wire only, which has no such call.
        """
        if sdk := await self.sdk():
            if call.contract is not StorageBackend:
                raise UnsupportedError(f"{self.where} has no {call.name}: it only keeps states")
            return await getattr(sdk, call.name)(**arguments)
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


async def _is_of_the_sdk(home: HTTPClient) -> bool:
    """Return whether a service of the Locus SDK's wire is there; a wrong URL has none."""
    answer = await home.send("GET", "/health", b"", {}, True)
    return answer.is_success and SERVICE.encode() not in answer.body


async def _described(home: HTTPClient) -> Description:
    answer = await home.send("GET", VERSION, b"", {}, True)
    if answer.status in ELSEWHERE and await _is_of_the_sdk(home):
        return SDK_DESCRIPTION
    if answer.status in ELSEWHERE:
        raise ConnectionFailedError(
            f"there is no locus-store service at {home.where}: {VERSION} answered {answer.status}"
        )
    if not answer.is_success:
        raise home.refusal(answer)
    try:
        read = bodies.received(answer.body, answer.media_type)
        found: Description = DESCRIPTION.read(*read)
    except InvalidArgumentError as exc:
        raise BackendError(f"the service gave an answer that is not valid: {exc}") from exc
    return found
