"""The store of a service."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from locus_store.backends.http.backend import DEFAULT_URL, HTTPBackend
from locus_store.backends.http.connections import requests
from locus_store.errors import InvalidArgumentError, UnsupportedError
from locus_store.store import BaseStore
from locus_store.wire.calls import BY_PATH
from locus_store.wire.records import SentItem

if TYPE_CHECKING:
    from collections.abc import Sequence

    from typing_extensions import Unpack

    from locus_store.backends.http.options import HTTPURLOptions
    from locus_store.store import Embed
    from locus_store.types.items import Change
    from locus_store.values.vectors import Metric
    from locus_store.wire.calls import WireCall


_Requests: Any = requests("store")
"""Type checkers see the methods of the contract."""


class HTTPStore(_Requests, BaseStore):  # type: ignore[misc]
    """The items of a service of ``locus-store serve``.

    Args:
        base_url: See ``HTTPBackend``, as its other options.
        dimension: That of the service, or ``None``; see ``BaseStore``.
        metric: The metric of the service.
        embed: Computes embeddings here, before they are sent.
        backend: Use the connections of this backend; it closes them.
        options: Those of ``HTTPBackend``.

    Raises:
        InvalidArgumentError: An option is not valid, or the service keeps other embeddings.
    """

    def __init__(
        self,
        base_url: str = DEFAULT_URL,
        *,
        dimension: int | None = None,
        metric: Metric = "cosine",
        embed: Embed | None = None,
        backend: HTTPBackend | None = None,
        **options: Unpack[HTTPURLOptions],
    ) -> None:
        if backend is not None and (options or base_url != DEFAULT_URL):
            raise InvalidArgumentError("a backend has its own URL and options; leave them out")
        self.backend = backend or HTTPBackend(base_url, **options)
        self._owns = backend is None
        super().__init__(
            dimension=dimension,
            metric=metric,
            embed=embed,
            max_state_bytes=self.backend.max_state_bytes,
        )

    def __repr__(self) -> str:
        return f"HTTPStore({self.backend.service.where!r})"

    async def setup(self) -> None:
        """See ``BaseStore``, also for the following methods."""
        found = await self.backend.service.described()
        if not found.has_store:
            raise UnsupportedError("this service has no store")
        self.stored_dimension = found.dimension
        if self.dimension is not None and (self.dimension, self.metric) != (
            found.dimension,
            found.metric,
        ):
            raise InvalidArgumentError(
                f"the service keeps embeddings of dimension {found.dimension} and metric "
                f"{found.metric}, not {self.dimension} and {self.metric}"
            )

    async def ask(self, call: WireCall, arguments: dict[str, Any]) -> Any:
        """Send a call; return its result."""
        return await self.backend.service.ask(call, arguments)

    async def apply(self, changes: Sequence[Change]) -> list[int]:
        found: list[int] = await self.ask(_APPLY, {"changes": [SentItem.of(it) for it in changes]})
        return found

    async def close(self) -> None:
        if self._owns:
            await self.backend.close()


_APPLY = BY_PATH["/v1/store/apply"]
