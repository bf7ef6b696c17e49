"""The name of a database in messages, and the command that upgrades it."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote

from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError

from locus_store.sql.schema.names import DEFAULT_PREFIX

if TYPE_CHECKING:
    from sqlalchemy.engine import Connection

    from locus_store.sql.schema.tables import Tables

PLACE: Final = "locus_store_place"
"""Execution option of a connection whose engine's URL does not say where it leads."""


@dataclass(frozen=True, slots=True)
class DatabasePlace:
    """A database as messages show it."""

    shown: str
    """The URL without secrets."""
    is_whole: bool
    """``shown`` is the complete URL, so that a command to type may repeat it."""

    def within(self, schema: str | None) -> str:
        """Return the URL, with the database schema if one is named."""
        return f"{self.shown} (schema {schema})" if schema else self.shown

    def command(self, ours: Tables) -> str:
        """Return the command that upgrades the schema."""
        url = self.shown if self.is_whole else "…"
        only = "" if ours.prefix == DEFAULT_PREFIX else f" --prefix {ours.prefix}"
        only += f" --schema {ours.schema}" if ours.schema else ""
        return f"locus-store db upgrade --url '{url}'{only}"


def place_of(found: Connection | URL) -> DatabasePlace:
    """Return the place of a connection or URL."""
    if not isinstance(found, URL):
        place = found.get_execution_options().get(PLACE)
        if isinstance(place, DatabasePlace):
            return place
        found = found.engine.url
    shown = masked(found)
    return DatabasePlace(shown, is_whole=shown == found.render_as_string(hide_password=False))


def names(text: str, engine: object) -> bool:
    """Return whether a URL names the database of an engine; its password is not compared."""
    theirs = getattr(engine, "url", None)
    try:
        asked = make_url(text)
    except (ArgumentError, ValueError):
        return False
    if not isinstance(theirs, URL):
        return False
    if any(getattr(asked, it) != getattr(theirs, it) for it in ("username", "host", "port")):
        return False
    return _database(asked) == _database(theirs) and asked.query.items() <= theirs.query.items()


def _database(url: URL) -> str:
    """Return the database; without a host it may be a file."""
    name = unquote(url.database or "").replace(":memory:", "")
    return name if url.host or not name else os.path.realpath(name)


def masked(url: URL) -> str:
    """Return the URL for messages, without passwords, those in the query string included."""
    hidden = {key: "hidden" for key in url.query if _is_secret(key)}
    return url.update_query_dict(hidden).render_as_string(hide_password=True)


def _is_secret(option: str) -> bool:
    return "passw" in option.lower() or "secret" in option.lower()
