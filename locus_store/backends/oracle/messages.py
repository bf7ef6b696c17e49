"""The message log in Oracle, beside the checkpoints or alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

from locus_store.backends.oracle.backend import OracleBackend
from locus_store.sql.messages.message_log import SqlMessageLog
from locus_store.types.arguments import check_backend

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from locus_store.backends.oracle.options import OracleOptions


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
        if backend is not None:
            is_alone = dsn is None and user is None and password is None
            check_backend(backend, OracleBackend, is_alone=is_alone and not options)
        super().__init__(
            backend or OracleBackend(dsn, user, password, **options),
            owns=backend is None,
            ttl_seconds=ttl_seconds,
        )

    def __repr__(self) -> str:
        return repr(self.backend).replace("Backend", "MessageLog", 1)
