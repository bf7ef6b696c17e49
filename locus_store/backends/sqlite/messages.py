"""The message log in an SQLite file, beside the checkpoints or alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

from locus_store.backends.sqlite.backend import DEFAULT_PATH, SQLiteBackend
from locus_store.sql.messages.message_log import SqlMessageLog
from locus_store.types.arguments import check_backend

if TYPE_CHECKING:
    import os

    from typing_extensions import Unpack

    from locus_store.backends.sqlite.options import SQLiteOptions


class SQLiteMessageLog(SqlMessageLog):
    """Keeps message logs in an SQLite database; see ``SQLiteBackend``.

    Args:
        path: Path of the file, created if missing; ``":memory:"`` lives as long as this object.
        table_name: As in the Locus SDK: ``x`` or ``x_store`` means prefix ``x_``.
        ttl_seconds: See ``BaseMessageLog``.
        backend: A backend whose database is used instead of ``path`` and the options, for
            example ``checkpointer.backend``. It is left open.
        options: Of ``SQLiteBackend``.

    Raises:
        InvalidArgumentError: An option is not valid.
    """

    backend: SQLiteBackend

    def __init__(
        self,
        path: str | os.PathLike[str] = DEFAULT_PATH,
        table_name: str | None = None,
        *,
        ttl_seconds: float | None = None,
        backend: SQLiteBackend | None = None,
        **options: Unpack[SQLiteOptions],
    ) -> None:
        if backend is not None:
            is_alone = path == DEFAULT_PATH and table_name is None and not options
            check_backend(backend, SQLiteBackend, is_alone=is_alone)
        super().__init__(
            backend or SQLiteBackend(path, table_name, **options),
            owns=backend is None,
            ttl_seconds=ttl_seconds,
        )

    def __repr__(self) -> str:
        return repr(self.backend).replace("Backend", "MessageLog", 1)
