"""A checkpointer by URL: the scheme chooses the backend."""

from __future__ import annotations

import inspect
from importlib import import_module
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, unquote, urlsplit

from locus_store.errors import InvalidArgumentError

if TYPE_CHECKING:
    from collections.abc import Callable

    from locus_store.checkpointer import StorageBackendAdapter

SCHEMES = {
    "memory": ("memory", "memory_checkpointer"),
    "sqlite": ("sqlite", "sqlite_checkpointer"),
    "sqlite+aiosqlite": ("sqlite", "sqlite_checkpointer"),
    "sqlite+pysqlite": ("sqlite", "sqlite_checkpointer"),
}
"""Scheme to (module under ``backends``, factory)."""


def open_checkpointer(url: str, **options: Any) -> StorageBackendAdapter:
    """Return the checkpointer that ``url`` names.

    ``sqlite:///relative.db``, ``sqlite:////absolute.db``, ``sqlite://`` (in memory), also with a
    driver (``sqlite+aiosqlite``); ``memory://``. Options of the factory may stand in the query
    string, where keyword arguments win over them.

    Raises:
        InvalidArgumentError: The scheme or a value makes no sense.
        TypeError: The factory has no such option.
    """
    scheme, separator, _ = str(url).partition("://")
    if not separator or scheme not in SCHEMES:
        raise InvalidArgumentError(
            f"no backend for the URL scheme {scheme!r}; there are: "
            + ", ".join(f"{it}://" for it in SCHEMES)
        )
    module, name = SCHEMES[scheme]
    factory = getattr(import_module(f"locus_store.backends.{module}"), name)
    parts = urlsplit(str(url))
    if module == "sqlite":
        options = {"path": _sqlite_path(parts.netloc, parts.path), **options}
    return _called(factory, {**_from_query(factory, parts.query), **options})


def _sqlite_path(host: str, path: str) -> str:
    """Three slashes are relative, four absolute, as SQLAlchemy has it."""
    if host:
        raise InvalidArgumentError(
            f"sqlite://{host} has a host in it; write sqlite:///file.db or sqlite:////absolute.db"
        )
    return unquote(path.removeprefix("/")) or ":memory:"


def _from_query(factory: Callable[..., Any], query: str) -> dict[str, Any]:
    known = _options(factory)
    found: dict[str, Any] = {}
    for name, text in parse_qsl(query, keep_blank_values=True, strict_parsing=bool(query)):
        found[name] = _value(name, text, known.get(name))
    return found


def _options(factory: Callable[..., Any]) -> dict[str, str]:
    """Option names and their annotations; a ``**options`` function means its class."""
    parameters = inspect.signature(factory).parameters.values()
    if any(it.kind is it.VAR_KEYWORD for it in parameters):
        parameters = inspect.signature(
            inspect.get_annotations(factory, eval_str=True)["return"]
        ).parameters.values()
    return {it.name: str(it.annotation) for it in parameters}


def _value(name: str, text: str, annotation: str | None) -> Any:
    """A text of the query string as what the option takes."""
    if annotation is None:
        return text  # the factory tells that it does not know the option
    try:
        if "AutoMigrate" in annotation or "bool" in annotation:
            return {"true": True, "1": True, "false": False, "0": False}.get(text.lower(), text)
        if "int" in annotation.replace("|", " ").split():
            return int(text)
        if "float" in annotation.replace("|", " ").split():
            return float(text)
    except ValueError as exc:
        raise InvalidArgumentError(f"{name}={text!r} in the URL is no number") from exc
    return text


def _called(factory: Callable[..., Any], options: dict[str, Any]) -> StorageBackendAdapter:
    made: StorageBackendAdapter = factory(**options)
    return made
