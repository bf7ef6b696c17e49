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
    from locus_store.backends.opensearch.index_status import IndexStatus


def upgrade(url: str, revision: str, *, prefix: str, schema: str | None) -> str:
    """Create the index of threads if there is none; return the version of its mapping.

    Raises:
        InvalidArgumentError: Only ``head`` can be reached.
        SchemaError: This index, or that of the store, has another mapping.
    """
    if revision != "head":
        raise InvalidArgumentError(f"an index is upgraded to 'head' only, not to {revision!r}")
    with _indexes(url, prefix, schema) as (threads, store):
        store.own()
        threads.create()
        return str(threads.layout.version)


def downgrade(url: str, revision: str, *, prefix: str, schema: str | None) -> str:
    """Refuse: an index has one mapping.

    Raises:
        UnsupportedError: Always.
    """
    raise UnsupportedError(
        f"an index of OpenSearch is not downgraded to {revision!r}; restore a snapshot of it"
    )


def current(url: str, *, prefix: str, schema: str | None) -> str | None:
    """Return the version of the mapping of threads."""
    with _indexes(url, prefix, schema) as (threads, _):
        return _status(threads).revision


def check(url: str, *, prefix: str, schema: str | None) -> IndexStatus:
    """Return the status of the index of threads, or of the store's if that is not usable."""
    with _indexes(url, prefix, schema) as both:
        threads, store = map(_status, both)
    return store if threads.usable and not store.usable else threads


def _status(index: IndexClient) -> IndexStatus:
    module = importlib.import_module("locus_store.backends.opensearch.index_status")
    found: IndexStatus = module.check(index)
    return found


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
