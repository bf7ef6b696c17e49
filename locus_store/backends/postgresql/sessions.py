"""Facts about sessions, as the server reports them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sqlalchemy.engine import Connection

_BUSY: Final = """
SELECT pg_backend_pid(), ARRAY(SELECT pid FROM pg_stat_activity
  WHERE pid = ANY ($1::int[]) AND (state LIKE 'idle%'
    AND state_change < clock_timestamp() - interval '2 seconds') IS NOT TRUE)
"""
"""The sessions that work on a statement, or did so just now."""


def only_reads(driver: Any) -> bool:
    """Return whether a connection leads to a primary that is read-only by default.

    By what the server reported when the session began; a pooler may not pass on either setting.
    """
    settings = driver.get_settings()
    return (
        getattr(settings, "default_transaction_read_only", "off") == "on"
        and getattr(settings, "in_hot_standby", "on") == "off"
    )


def forgotten(connection: Connection, drivers: Sequence[Any]) -> list[Any]:
    """Return those of asyncpg's connections whose sessions do no work.

    A pooler invents the numbers of sessions, so nothing is known behind one.
    """
    pids = [it.get_server_pid() for it in drivers]
    own, busy = connection.exec_driver_sql(_BUSY, (pids,)).one()
    driver: Any = connection.connection.driver_connection
    if driver.get_server_pid() != own:
        return []
    return [it for it, pid in zip(drivers, pids, strict=True) if pid not in busy]
