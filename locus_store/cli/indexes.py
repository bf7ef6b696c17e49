"""``locus-store db …`` on OpenSearch: the mappings of its two indexes."""

from __future__ import annotations

import importlib
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from locus_store.cli.opening import DEFAULT_PREFIX, opened, run
from locus_store.errors import InvalidArgumentError, UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from locus_store.backends.opensearch.client import IndexClient
    from locus_store.backends.opensearch.upgrading import IndexStatus


def upgrade(url: str, revision: str, *, prefix: str, schema: str | None) -> str:
    """Upgrade the index of threads, and that of the store if there is one.

    Raises:
        InvalidArgumentError: Only ``head`` can be reached.
    """
    if revision != "head":
        raise InvalidArgumentError(f"an index is upgraded to 'head' only, not to {revision!r}")
    upgrading = _upgrading()
    with _indexes(url, prefix, schema) as (threads, store):
        reached = upgrading.upgrade(threads)
        if upgrading.check(store).state != "missing":
            upgrading.upgrade(store)
    return str(reached)


def downgrade(url: str, revision: str, *, prefix: str, schema: str | None) -> str:
    """Refuse: the documents of a newer mapping do not fit into an older one.

    Raises:
        UnsupportedError: Always.
    """
    raise UnsupportedError(
        f"an index of OpenSearch is not downgraded to {revision!r}; restore a snapshot of it"
    )


def current(url: str, *, prefix: str, schema: str | None) -> str | None:
    """Return the version of the mapping of threads."""
    with _indexes(url, prefix, schema) as (threads, _):
        found: str | None = _upgrading().check(threads).revision
    return found


def check(url: str, *, prefix: str, schema: str | None) -> IndexStatus:
    """Return the status of the index of threads, or of the store's if that is not usable."""
    upgrading = _upgrading()
    with _indexes(url, prefix, schema) as both:
        threads, store = map(upgrading.check, both)
    worse: IndexStatus = store if threads.usable and not store.usable else threads
    return worse


def _upgrading() -> Any:
    return importlib.import_module("locus_store.backends.opensearch.upgrading")


@contextmanager
def _indexes(url: str, prefix: str, schema: str | None) -> Iterator[tuple[IndexClient, ...]]:
    """Yield the indexes of threads and of items that a URL names.

    Raises:
        InvalidArgumentError: An index has no prefix of tables and no schema.
    """
    if prefix != DEFAULT_PREFIX or schema is not None:
        raise InvalidArgumentError(
            "an opensearch:// URL names the index: leave out --prefix and --schema"
        )
    backend: Any = opened(url)
    items = importlib.import_module("locus_store.backends.opensearch.item_index")
    store = items.item_index(backend.index.place, backend.index.access)
    try:
        yield backend.index, store
    finally:
        store.close()
        run(backend.close())
