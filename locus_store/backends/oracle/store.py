"""The store and the message log in an Oracle Database."""

from __future__ import annotations

from typing import TYPE_CHECKING

from locus_store.backends.oracle.backend import OracleBackend
from locus_store.backends.oracle.items import OracleItems
from locus_store.sql.connections.backend import backend_of
from locus_store.sql.message_log import SqlMessageLog
from locus_store.sql.store import ServerStore

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from locus_store.backends.oracle.options import OracleOptions
    from locus_store.store import Embed
    from locus_store.values.vectors import Metric


class OracleStore(ServerStore):
    """Keeps items in an Oracle database; see ``OracleBackend``.

    Embeddings are of type ``VECTOR(n, FLOAT32)``; ``locus-store db vector-index`` creates an index.

    Args:
        dsn: An alias, EZConnect or a descriptor.
        user: The user that connects.
        password: The user's password.
        dimension: See ``BaseStore``, as the next two options; it cannot be changed later.
        metric: How embeddings are compared.
        embed: Computes the embeddings of strings.
        backend: A backend whose connections are used instead of ``dsn`` and the options, for
            example ``checkpointer.backend``. It is left open.
        options: Of ``OracleBackend``.

    Raises:
        InvalidArgumentError: An option is not valid.
        MissingExtraError: python-oracledb is not installed, or NumPy, which a dimension needs.
    """

    items = OracleItems
    backend: OracleBackend

    def __init__(
        self,
        dsn: str | None = None,
        user: str | None = None,
        password: str | None = None,
        *,
        dimension: int | None = None,
        metric: Metric = "cosine",
        embed: Embed | None = None,
        backend: OracleBackend | None = None,
        **options: Unpack[OracleOptions],
    ) -> None:
        super().__init__(
            backend_of(backend, OracleBackend, dsn, user, password, **options),
            owns=backend is None,
            dimension=dimension,
            metric=metric,
            embed=embed,
        )


class OracleMessageLog(SqlMessageLog):
    """Keeps message logs in an Oracle database; see ``OracleBackend``.

    Args:
        dsn: An alias, EZConnect or a descriptor.
        user: The user that connects.
        password: The user's password.
        ttl_seconds: See ``BaseMessageLog``.
        backend: A backend whose connections are used instead of ``dsn`` and the options, for
            example ``checkpointer.backend``. It is left open.
        options: Of ``OracleBackend``.

    Raises:
        InvalidArgumentError: An option is not valid.
        MissingExtraError: python-oracledb is not installed.
    """

    backend: OracleBackend

    def __init__(
        self,
        dsn: str | None = None,
        user: str | None = None,
        password: str | None = None,
        *,
        ttl_seconds: float | None = None,
        backend: OracleBackend | None = None,
        **options: Unpack[OracleOptions],
    ) -> None:
        super().__init__(
            backend_of(backend, OracleBackend, dsn, user, password, **options),
            owns=backend is None,
            ttl_seconds=ttl_seconds,
        )
