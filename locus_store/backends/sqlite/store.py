"""A store in an SQLite file, beside the checkpoints or alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

from locus_store.backends.sqlite.backend import DEFAULT_PATH, SQLiteBackend
from locus_store.backends.sqlite.items import SQLiteItems
from locus_store.sql.store.store import SqlStore
from locus_store.types.arguments import check_backend

if TYPE_CHECKING:
    import os

    from typing_extensions import Unpack

    from locus_store.backends.sqlite.options import SQLiteOptions
    from locus_store.store import Embed
    from locus_store.values.vectors import Metric


class SQLiteStore(SqlStore):
    """Keeps items in an SQLite database; see ``SQLiteBackend``.

    Embeddings are compared one by one: with the extension ``sqlite-vec`` where it is installed and
    Python's SQLite may load it, else with NumPy; the answers are the same.

    Args:
        path: Path of the file, created if missing; ``":memory:"`` lives as long as this object.
        table_name: As in the Locus SDK: ``x`` or ``x_store`` means prefix ``x_``.
        dimension: See ``BaseStore``, as the next two options; it cannot be changed later.
        metric: How embeddings are compared.
        embed: Computes the embeddings of strings.
        backend: A backend whose database is used instead of ``path`` and the options, for
            example ``checkpointer.backend``. It is left open.
        options: Of ``SQLiteBackend``.

    Raises:
        InvalidArgumentError: An option is not valid.
        MissingExtraError: There is a dimension, and NumPy is not installed.
    """

    items = SQLiteItems
    backend: SQLiteBackend

    def __init__(
        self,
        path: str | os.PathLike[str] = DEFAULT_PATH,
        table_name: str | None = None,
        *,
        dimension: int | None = None,
        metric: Metric = "cosine",
        embed: Embed | None = None,
        backend: SQLiteBackend | None = None,
        **options: Unpack[SQLiteOptions],
    ) -> None:
        if backend is not None:
            is_alone = path == DEFAULT_PATH and table_name is None and not options
            check_backend(backend, SQLiteBackend, is_alone=is_alone)
        super().__init__(
            backend or SQLiteBackend(path, table_name, **options),
            owns=backend is None,
            dimension=dimension,
            metric=metric,
            embed=embed,
        )

    def __repr__(self) -> str:
        return repr(self.backend).replace("Backend", "Store", 1)
