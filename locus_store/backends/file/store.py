"""A store in a directory, beside the files of threads or alone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from locus_store.backends.documents.store import DocumentStore
from locus_store.backends.file.backend import DEFAULT_DIRECTORY, FileBackend
from locus_store.types.arguments import check_backend

if TYPE_CHECKING:
    import os

    from locus_store.store import Embed
    from locus_store.values.vectors import Metric


class FileStore(DocumentStore):
    """Keeps items in the subdirectory ``store`` of a directory; see ``DocumentStore``.

    Args:
        directory: See ``FileBackend``; ``.locus_checkpoints`` where none is given.
        dimension: See ``BaseStore``, as the next two options.
        metric: How embeddings are compared.
        embed: Computes the embeddings of strings.
        backend: A backend whose directory is used instead of ``directory`` and the options, for
            example ``checkpointer.backend``.
        options: Of ``FileBackend``.

    Raises:
        InvalidArgumentError: An option is not valid.
        UnsupportedError: The operating system has no POSIX file locks.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str] | None = None,
        *,
        dimension: int | None = None,
        metric: Metric = "cosine",
        embed: Embed | None = None,
        backend: FileBackend | None = None,
        **options: Any,
    ) -> None:
        if backend is not None:
            check_backend(backend, FileBackend, is_alone=directory is None and not options)
        place = DEFAULT_DIRECTORY if directory is None else directory
        made = backend or FileBackend(place, **options)
        super().__init__(
            made.item_documents(),
            dimension=dimension,
            metric=metric,
            embed=embed,
            max_state_bytes=made.max_state_bytes,
        )
