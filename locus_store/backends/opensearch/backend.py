"""OpenSearch backend: each thread is a head and segments in an index."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from locus_store.backends.documents.backend import DocumentBackend
from locus_store.backends.documents.object_documents import ObjectDocuments
from locus_store.backends.documents.segmented import SegmentedForm
from locus_store.backends.opensearch.access import (
    DEFAULT_INDEX,
    POOL_SIZE,
    RETRY_SECONDS,
    TIMEOUT_SECONDS,
    IndexAccess,
    Refresh,
    place_of,
    require,
)
from locus_store.backends.opensearch.client import IndexObjects
from locus_store.backends.opensearch.diagnostics import facts
from locus_store.checkpointer import S, StorageBackendAdapter
from locus_store.runtime.factories import factory
from locus_store.values.encoding import MAX_STATE_BYTES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from locus_store.types import OnConflict
    from locus_store.types.facts import Fact


class OpenSearchBackend(DocumentBackend):
    """Keeps threads in an index of OpenSearch; see docs/opensearch.md.

    Args:
        hosts: Of the cluster: ``host``, ``host:9200`` or ``https://host:9200``, one or several.
        index_name: The alias of the index, which is created at the first save.
        username: With ``password``; ``None``: no credentials.
        password: Of ``username``.
        use_ssl: Hosts without a scheme are asked by HTTPS.
        verify_certs: Refuse certificates that are not valid.
        ca_certs: A file of certificates to trust; ``None``: those of certifi.
        client: An ``opensearchpy.OpenSearch`` used instead of ``hosts``, and left open.
        language: Searches also find other forms of a word in this language, as ``german``; it is
            that of the index.
        refresh: ``interval``: lists and searches follow a save within the refresh interval of the
            index; ``wait``: a save returns when they show it.
        pool_size: Calls at once, at most.
        retry_seconds: How long a call is retried after 429, 503, a timeout or a lost connection.
        timeout_seconds: For each connection and each answer.
        max_state_bytes: The largest state that is saved or read, as compact JSON.

    Raises:
        InvalidArgumentError: An option is not valid.
        MissingExtraError: opensearch-py is not installed.
    """

    factory = "opensearch_checkpointer"

    def __init__(
        self,
        hosts: str | Sequence[str] | None = None,
        *,
        index_name: str = DEFAULT_INDEX,
        username: str | None = None,
        password: str | None = None,
        use_ssl: bool = True,
        verify_certs: bool = True,
        ca_certs: str | None = None,
        client: Any = None,
        language: str | None = None,
        refresh: Refresh = "interval",
        pool_size: int = POOL_SIZE,
        retry_seconds: float = RETRY_SECONDS,
        timeout_seconds: float = TIMEOUT_SECONDS,
        max_state_bytes: int = MAX_STATE_BYTES,
    ) -> None:
        access = IndexAccess(
            username=username,
            password=password,
            verify_certs=verify_certs,
            ca_certs=ca_certs,
            client=client,
            language=language,
            refresh=refresh,
            pool_size=pool_size,
            retry_seconds=retry_seconds,
            timeout_seconds=timeout_seconds,
        )
        require(access)
        place = place_of(hosts, index_name, use_ssl=use_ssl, client=client)
        self.index = IndexObjects(place, access)
        documents = ObjectDocuments(self.index)
        form = SegmentedForm(documents)
        super().__init__(documents, form=form, max_state_bytes=max_state_bytes)

    def __repr__(self) -> str:
        return f"OpenSearchBackend({str(self.index.place)!r})"

    async def facts(self) -> list[Fact]:
        """See ``StorageBackend``, also for the following method."""
        return [*await super().facts(), *await self._look(facts, self.index)]

    async def close(self) -> None:
        """Release threads and connections; later calls open them again."""
        await super().close()
        self.index.close()


class OpenSearchCheckpointer(StorageBackendAdapter[S]):
    """A checkpointer over an index of OpenSearch.

    A save is one conditional put of the thread's head; see docs/opensearch.md.

    Args:
        hosts: See ``OpenSearchBackend``, as the other options up to ``max_state_bytes``.
        state_type: See ``StorageBackendAdapter``, as the other options.

    Raises:
        InvalidArgumentError: An option is not valid.
        MissingExtraError: opensearch-py is not installed.
    """

    def __init__(
        self,
        hosts: str | Sequence[str] | None = None,
        *,
        index_name: str = DEFAULT_INDEX,
        username: str | None = None,
        password: str | None = None,
        use_ssl: bool = True,
        verify_certs: bool = True,
        ca_certs: str | None = None,
        client: Any = None,
        language: str | None = None,
        refresh: Refresh = "interval",
        pool_size: int = POOL_SIZE,
        retry_seconds: float = RETRY_SECONDS,
        timeout_seconds: float = TIMEOUT_SECONDS,
        max_state_bytes: int = MAX_STATE_BYTES,
        state_type: type[S] | None = None,
        on_conflict: OnConflict = "raise",
        keep_last: int | None = None,
        ttl_seconds: float | None = None,
        refresh_on_read: bool = False,
    ) -> None:
        backend = OpenSearchBackend(
            hosts,
            index_name=index_name,
            username=username,
            password=password,
            use_ssl=use_ssl,
            verify_certs=verify_certs,
            ca_certs=ca_certs,
            client=client,
            language=language,
            refresh=refresh,
            pool_size=pool_size,
            retry_seconds=retry_seconds,
            timeout_seconds=timeout_seconds,
            max_state_bytes=max_state_bytes,
        )
        super().__init__(
            backend,
            state_type=state_type,
            on_conflict=on_conflict,
            keep_last=keep_last,
            ttl_seconds=ttl_seconds,
            refresh_on_read=refresh_on_read,
        )


opensearch_checkpointer = factory(
    OpenSearchCheckpointer,
    "opensearch_checkpointer",
    "Return a checkpointer over OpenSearch; options as ``OpenSearchBackend``.",
)
