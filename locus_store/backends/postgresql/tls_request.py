"""asyncpg's request for TLS, whose error would otherwise be reported as never retrieved."""

from __future__ import annotations

from typing import Any

try:
    from asyncpg import connect_utils  # type: ignore[import-untyped]
except ImportError:  # reported when something is opened
    connect_utils = None


def quiet(protocol: type[Any]) -> type[Any]:
    """Return a class for that request's protocol that marks its error as retrieved.

    A caller that awaits the answer still gets the error. No caller awaits it if a task is cancelled
    between the connection and the request, as at the end of ``asyncio.run``: asyncio then prints
    "Future exception was never retrieved". asyncpg has no hook for it (0.32.0).
    """

    class Quiet(protocol):  # type: ignore[misc]  # a class of asyncpg's, given as an argument
        def connection_lost(self, exc: Exception | None) -> None:
            super().connection_lost(exc)
            answer = getattr(self, "on_data", None)  # of this asyncpg, maybe not of another
            if answer and answer.done() and not answer.cancelled():
                answer.exception()

    return Quiet


def install() -> None:
    """Make asyncpg use the quiet protocol; do nothing if its parts have other names."""
    found = getattr(connect_utils, "TLSUpgradeProto", None)
    if found is not None and found.__name__ != "Quiet":
        connect_utils.TLSUpgradeProto = quiet(found)
