"""The compiled statements of SQLAlchemy, shared by the engines of a process."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from sqlalchemy.util import LRUCache

if TYPE_CHECKING:
    from sqlalchemy.engine.interfaces import Compiled


class StatementCache(LRUCache[Any, "Compiled"]):
    """SQLAlchemy's cache of compiled statements, for several engines.

    SQLAlchemy's keys begin with the engine's dialect, so two engines never share a statement. Here,
    dialects of one class, driver and server version are equal: an engine that the library creates
    has no other settings that change a statement.
    """

    def get(self, key: Any, default: Any = None) -> Any:
        """Return the compiled statement of one of SQLAlchemy's keys."""
        return super().get(_shared(key), default)

    def __setitem__(self, key: Any, compiled: Compiled) -> None:
        super().__setitem__(_shared(key), compiled)


def _shared(key: Any) -> Any:
    dialect, *rest = key
    return type(dialect), dialect.dbapi, dialect.server_version_info, *rest


STATEMENT_CACHE: Final = StatementCache(1000)
"""The value of an engine's execution option ``compiled_cache``."""
