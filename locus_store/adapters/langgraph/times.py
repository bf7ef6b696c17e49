"""Times to live of graphs' threads, in the spellings of LangGraph's configurations."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from locus_store.errors import InvalidArgumentError
from locus_store.types.arguments import checked_ttl

if TYPE_CHECKING:
    from collections.abc import Mapping

    from langchain_core.runnables import RunnableConfig

TTL_SECONDS: Final = "ttl_seconds"
"""The ``configurable`` key of the seconds from a run's last checkpoint to its thread's expiry."""

_SECONDS: Final = 60
_KNOWN: Final = ("default_ttl", "refresh_on_read")


def ttl_of(config: RunnableConfig) -> float | None:
    """Return the time to live that a run's config gives its thread.

    Raises:
        InvalidArgumentError: It is not a time.
    """
    return checked_ttl(config["configurable"].get(TTL_SECONDS))


def options_of_ttl(ttl: Mapping[str, Any] | None, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of a saver for ``ttl={"default_ttl": minutes, "refresh_on_read": True}``.

    Raises:
        InvalidArgumentError: It has another key, or an option says the same.
    """
    if ttl is None:
        return {}
    for key in ttl:
        if key not in _KNOWN:
            raise InvalidArgumentError(f"ttl= takes {', '.join(_KNOWN)}, not {key!r}")
    for name in ("ttl_seconds", "refresh_on_read"):
        if name in options:
            raise InvalidArgumentError(f"give ttl= or {name}=, not both")
    minutes = ttl.get("default_ttl")
    if minutes is not None and (isinstance(minutes, bool) or not isinstance(minutes, int | float)):
        raise InvalidArgumentError(f"ttl= takes default_ttl in minutes, not {minutes!r}")
    return {
        "ttl_seconds": None if minutes is None else minutes * _SECONDS,
        "refresh_on_read": ttl.get("refresh_on_read", False),
    }
