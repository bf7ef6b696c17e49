"""Opens a checkpointer, saver or store by URL; the scheme selects the backend."""

from __future__ import annotations

import inspect
import re
from importlib import import_module
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, unquote, urlsplit

from locus_store.checkpointer import StorageBackendAdapter
from locus_store.errors import InvalidArgumentError
from locus_store.saver import CheckpointSaver
from locus_store.types.arguments import did_you_mean, is_path, not_a_url

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from collections.abc import Set as AbstractSet
    from urllib.parse import SplitResult

    from typing_extensions import Unpack

    from locus_store.backends.options import CheckpointerOptions, StoreOptions
    from locus_store.checkpointer import S
    from locus_store.messages import BaseMessageLog
    from locus_store.store import BaseStore, Embed
    from locus_store.values.vectors import Metric

SCHEMES = {
    "file": ("file", "file_checkpointer"),
    "http": ("http", "http_checkpointer"),
    "https": ("http", "http_checkpointer"),
    "memory": ("memory", "memory_checkpointer"),
    "oci": ("oci", "oci_bucket_checkpointer"),
    "opensearch": ("opensearch", "opensearch_checkpointer"),
    "opensearch+https": ("opensearch", "opensearch_checkpointer"),
    "oracle": ("oracle", "oracle_checkpointer"),
    "oracle+oracledb": ("oracle", "oracle_checkpointer"),
    "oracle+oracledb_async": ("oracle", "oracle_checkpointer"),
    "postgresql": ("postgresql", "postgresql_checkpointer"),
    "postgresql+asyncpg": ("postgresql", "postgresql_checkpointer"),
    "postgresql+psycopg": ("postgresql", "postgresql_checkpointer"),
    "postgresql+psycopg2": ("postgresql", "postgresql_checkpointer"),
    "postgres": ("postgresql", "postgresql_checkpointer"),
    "redis": ("redis", "redis_checkpointer"),
    "rediss": ("redis", "redis_checkpointer"),
    "redis+cluster": ("redis", "redis_checkpointer"),
    "rediss+cluster": ("redis", "redis_checkpointer"),
    "valkey": ("redis", "redis_checkpointer"),
    "valkeys": ("redis", "redis_checkpointer"),
    "valkey+cluster": ("redis", "redis_checkpointer"),
    "valkeys+cluster": ("redis", "redis_checkpointer"),
    "s3": ("s3", "s3_checkpointer"),
    "unix": ("redis", "redis_checkpointer"),
    "sqlite": ("sqlite", "sqlite_checkpointer"),
    "sqlite+aiosqlite": ("sqlite", "sqlite_checkpointer"),
    "sqlite+pysqlite": ("sqlite", "sqlite_checkpointer"),
}
"""Scheme to (module under ``backends``, factory)."""

STORES = {
    "file": "FileStore",
    "http": "HTTPStore",
    "memory": "InMemoryStore",
    "oci": "OCIBucketStore",
    "opensearch": "OpenSearchStore",
    "oracle": "OracleStore",
    "postgresql": "PostgreSQLStore",
    "redis": "RedisStore",
    "s3": "S3Store",
    "sqlite": "SQLiteStore",
}
"""Module to class of a store."""

MESSAGE_LOGS = {
    "file": "FileMessageLog",
    "http": "HTTPMessageLog",
    "memory": "InMemoryMessageLog",
    "oci": "OCIBucketMessageLog",
    "opensearch": "OpenSearchMessageLog",
    "oracle": "OracleMessageLog",
    "postgresql": "PostgreSQLMessageLog",
    "s3": "S3MessageLog",
    "sqlite": "SQLiteMessageLog",
}
"""Module to class of a message log."""

BACKENDS = {
    "file": "FileBackend",
    "http": "HTTPBackend",
    "oci": "OCIBucketBackend",
    "opensearch": "OpenSearchBackend",
    "oracle": "OracleBackend",
    "postgresql": "PostgreSQLBackend",
    "redis": "RedisBackend",
    "s3": "S3Backend",
    "sqlite": "SQLiteBackend",
}
"""Module to the class under ``backends`` whose options a store takes."""

PLACES = frozenset(
    ("dsn", "path", "directory", "base_dir", "base_url", "url", "bucket_name", "namespace")
) | {"hosts", "index_name", "use_ssl"}
"""Names of the factories' parameters for the part of a URL before its ``?``."""

DSN_PARTS = frozenset({"password", "host", "port", "database", "user"})
"""Options that are read as a part of the DSN where they stand in its query string."""

HANDED_IN = {
    "opensearch": ("client",),
    "oracle": ("engine", "pool"),
    "postgresql": ("engine", "pool"),
    "redis": ("client",),
    "sqlite": ("engine",),
}
"""Module to the options whose objects have a place of their own, beside which a URL has none."""

TEXTS: dict[str, Callable[[str], Any]] = {
    "str": str,
    "str | None": str,
    "OnConflict": str,
    "AddressingStyle": str,
    "AuthType": str,
    "Refresh": str,
    "AutoMigrate": bool,
    "bool": bool,
    "int": int,
    "int | None": int,
    "float": float,
    "float | None": float,
}
"""Annotations of the options that may stand in a query string, and how they are read."""


def open_checkpointer(
    url: str, *, state_type: type[S] | None = None, **options: Unpack[CheckpointerOptions]
) -> StorageBackendAdapter[S]:
    """Return the checkpointer that ``url`` names.

    ``sqlite:///relative.db``, ``sqlite:////absolute.db``, ``sqlite://`` (in memory), also with a
    driver (``sqlite+aiosqlite``); ``postgresql://`` or ``postgres://``, as your provider issues it;
    ``oracle://user:password@alias`` or ``oracle://user:password@host:1521/service``;
    ``redis://``, ``rediss://`` (TLS), ``unix:///socket``, ``valkey://``, ``redis+cluster://``;
    ``oci://namespace/bucket/prefix``; ``s3://bucket/prefix``;
    ``opensearch://host:9200/index`` (several hosts with commas) or ``opensearch+https://``;
    ``file:///absolute/directory`` or ``file:relative``; ``memory://``; ``http://``
    or ``https://`` of a service. The query string may have options of the factory; keyword
    arguments override them.

    Beside ``engine=``, ``pool=``, or the ``client=`` of Redis and OpenSearch, the URL selects the
    kind of database only, as in ``postgresql://``. It may name the database of the engine.

    Args:
        url: As above.
        state_type: See ``StorageBackendAdapter``.
        options: Options of the factory.

    Raises:
        InvalidArgumentError: The scheme, an option in the URL or its value is not valid, or the
            URL names another place than the given engine, pool or client.
        TypeError: The factory takes no such keyword argument.
    """
    module, factory = _factory(str(url))
    found = _read(str(url), module, factory, options)
    return _called(factory, {**found, "state_type": state_type, **options})


def open_store(
    url: str,
    *,
    dimension: int | None = None,
    metric: Metric = "cosine",
    embed: Embed | None = None,
    **options: Unpack[StoreOptions],
) -> BaseStore:
    """Return the store that ``url`` names; see ``open_checkpointer`` for URLs.

    A checkpointer's URL is valid: options of checkpoints in its query string (``on_conflict``,
    ``keep_last``, ``ttl_seconds``, ``refresh_on_read``) are ignored.

    Args:
        url: Of any storage.
        dimension: Dimensions of the embeddings; ``None``: no embeddings.
        metric: How they are compared: ``cosine``, ``l2`` or ``ip``.
        embed: Computes the embeddings of strings; see ``BaseStore``.
        options: Options of the store, which override those of the URL.

    Raises:
        InvalidArgumentError: The scheme has no store, or an option is not valid.
        TypeError: The store takes no such keyword argument.
    """
    vectors = {"dimension": dimension, "metric": metric, "embed": embed}
    opened: BaseStore = _beside(str(url), STORES, "store", {**vectors, **options})
    return opened


def open_message_log(
    url: str, *, ttl_seconds: float | None = None, **options: Unpack[StoreOptions]
) -> BaseMessageLog:
    """Return the message log that ``url`` names; see ``open_checkpointer`` for URLs.

    A checkpointer's URL is valid: options of checkpoints in its query string are ignored.

    Args:
        url: ``sqlite:``, ``postgresql:``, ``oracle:``, ``file:``, ``oci:``, ``s3:``,
            ``opensearch:``, ``http:`` or ``memory:``.
        ttl_seconds: See ``BaseMessageLog``.
        options: Options of the message log, which override those of the URL.

    Raises:
        InvalidArgumentError: The scheme has no message log, or an option is not valid.
        TypeError: The message log takes no such keyword argument.
    """
    given = {"ttl_seconds": ttl_seconds} if ttl_seconds is not None else {}
    named = {"ttl_seconds"}
    opened: BaseMessageLog = _beside(
        str(url), MESSAGE_LOGS, "message log", {**given, **options}, named
    )
    return opened


def _beside(
    url: str,
    classes: Mapping[str, str],
    what: str,
    options: Mapping[str, Any],
    named: AbstractSet[str] = frozenset(),
) -> Any:
    """Return an object over the database of a URL; ``named``: more of its options in a URL."""
    module, name = _place_of(url)
    if module not in classes:
        there = ", ".join(f"{it}://" for it, (known, _) in SCHEMES.items() if known in classes)
        raise InvalidArgumentError(f"no {what} for {_scheme(url)}: URLs; known are: {there}")
    kind = getattr(import_module("locus_store.backends"), classes[module])
    found = _read(url, module, _imported(module, name), options)
    known = {*_parameters(kind)}
    if module in BACKENDS and _takes_others(kind):
        known |= _parameters(_backend(module)).keys() - _parameters(StorageBackendAdapter).keys()
    kept = {*known, *PLACES, *named, "max_state_bytes"}
    if refused := sorted(found.keys() - kept - _parameters(StorageBackendAdapter).keys()):
        raise InvalidArgumentError(
            f"{refused[0]}= in the URL is an option of the checkpointer, which a {what} does not "
            "have: leave it out"
        )
    given = {name: value for name, value in found.items() if name in kept}
    return kind(**{**given, **options})


def _backend(module: str) -> Callable[..., Any]:
    return _imported(module, BACKENDS[module])


def _imported(module: str, name: str) -> Callable[..., Any]:
    found: Callable[..., Any] = getattr(import_module(f"locus_store.backends.{module}"), name)
    return found


def _read(
    url: str, module: str, factory: Callable[..., Any], given: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the place that a URL names, and the options in its query string."""
    known = _options(module, factory)
    for name in HANDED_IN.get(module, ()):
        if given.get(name) is not None:
            return _read_beside(url, module, known, name, given[name])
    return _read_place(url, module, known)


def _read_place(url: str, module: str, known: Mapping[str, str]) -> dict[str, Any]:
    if module == "postgresql":
        dsn, ours = _parted(url, known)
        return {"dsn": dsn, **_from_query(known, ours)}
    if module == "redis":
        place, ours = _parted(url, known)
        return {"url": place, **_from_query(known, ours)}
    if module == "http":
        place, _, query = url.partition("?")
        return {"base_url": place, **_from_query(known, query)}
    if module == "oracle":
        places = import_module("locus_store.backends.oracle.addresses")
        parts = places.split(url)
        return {**places.parts_of(parts), **_from_query(known, parts.query)}
    parts = urlsplit(url)
    if parts.fragment:
        raise InvalidArgumentError("a database URL has no #fragment; write %23 for # in a path")
    found = _from_query(known, parts.query)
    if module in _PLACE_READERS:
        return found | _PLACE_READERS[module](parts)
    if parts.netloc or parts.path:
        raise InvalidArgumentError(f"{parts.scheme}:// takes only ?options after it")
    return found


def _read_beside(
    url: str, module: str, known: Mapping[str, str], name: str, handed_in: Any
) -> dict[str, Any]:
    """Return the options in a URL whose place an engine, a pool or a client has.

    Raises:
        InvalidArgumentError: The URL names another place.
    """
    place, _, query = url.partition("?")
    if module in {"postgresql", "redis"}:
        place, query = _parted(url, known)
    elif module == "oracle":
        query = import_module("locus_store.backends.oracle.addresses").split(url).query
    rest, index = place.partition("://")[2] if _scheme(url) else place, ""
    if module == "opensearch":
        rest, _, index = rest.partition("/")
    is_engine = name == "engine"
    if rest and not (
        is_engine and import_module("locus_store.sql.schema.place").names(place, handed_in)
    ):
        kind = _scheme(url) or module
        raise InvalidArgumentError(
            f"the URL names another place than {name}= does: write {kind}:// beside {name}=, or "
            f"leave {name}= out"
        )
    return _from_query(known, query) | ({"index_name": unquote(index)} if index else {})


def open_saver(url: str, **options: Unpack[CheckpointerOptions]) -> CheckpointSaver:
    """Return the ``CheckpointSaver`` that ``url`` names; see ``open_checkpointer``.

    Raises:
        InvalidArgumentError: The scheme or a value is not valid.
        TypeError: There is no such option; ``state_type`` is a checkpointer's.
    """
    if "state_type" in options:
        raise TypeError("state_type is an option of open_checkpointer: a saver keeps plain data")
    opened = open_checkpointer(url, **options)
    return CheckpointSaver(
        opened.backend,
        on_conflict=opened.on_conflict,
        keep_last=opened.keep_last,
        ttl_seconds=opened.ttl_seconds,
        refresh_on_read=opened.refresh_on_read,
    )


def options_of(url: str) -> frozenset[str]:
    """Return the names of the options that ``open_checkpointer`` accepts for ``url``.

    Raises:
        InvalidArgumentError: The scheme is not valid.
    """
    return frozenset(_options(*_factory(str(url))))


def _factory(url: str) -> tuple[str, Callable[..., Any]]:
    """Return the name of the module under ``backends``, and its factory."""
    module, name = _place_of(url)
    return module, _imported(module, name)


def _place_of(url: str) -> tuple[str, str]:
    """Return the names of the module under ``backends`` and of its factory; import nothing."""
    scheme = "postgresql" if _KEYWORDS.match(url) else _scheme(url)
    if not scheme:
        if is_path(url):
            raise not_a_url(url)
        raise InvalidArgumentError(f"this is not a URL; a URL begins with one of: {_schemes()}")
    if scheme not in SCHEMES:
        raise InvalidArgumentError(
            f"no backend for the URL scheme {scheme!r}{did_you_mean(scheme, SCHEMES)}; known"
            f" schemes: {_schemes()}"
        )
    return SCHEMES[scheme]


_KEYWORDS = re.compile(r"\s*\w+\s*=")
"""Matches the start of libpq's ``host=… dbname=…``."""


def _schemes() -> str:
    return ", ".join(f"{it}://" for it in SCHEMES)


def _scheme(url: str) -> str:
    """Return the scheme; no other part of the text may be repeated, as it may be a password."""
    found = re.match(r"([A-Za-z][A-Za-z0-9+._-]{0,30})://|(file):", url)
    return found[1] or found[2] if found else ""


def _called(factory: Callable[..., Any], options: dict[str, Any]) -> StorageBackendAdapter[Any]:
    checkpointer: StorageBackendAdapter[Any] = factory(**options)
    return checkpointer


def _parted(url: str, known: Mapping[str, str]) -> tuple[str, str]:
    """Split the factory's options off the URL; return the remaining URL, and the options."""
    place, _, query = url.partition("?")
    pairs = query.split("&") if query else []
    ours = [it for it in pairs if it.partition("=")[0] in known.keys() - DSN_PARTS]
    theirs = "&".join(it for it in pairs if it not in ours)
    return f"{place}?{theirs}" if theirs else place, "&".join(ours)


def _sqlite_path(parts: SplitResult) -> dict[str, str]:
    """Return the path: three slashes are relative, four absolute, as in SQLAlchemy."""
    if parts.netloc:
        raise InvalidArgumentError(
            "a sqlite:// URL has no host; write sqlite:///file.db or sqlite:////absolute.db"
        )
    return {"path": unquote(parts.path.removeprefix("/")) or ":memory:"}


def _directory(parts: SplitResult) -> dict[str, str]:
    """Return the directory: three slashes are absolute, none relative, as in RFC 8089."""
    if parts.netloc or not parts.path.strip("/"):
        raise InvalidArgumentError(
            "a file: URL names a directory of this host; write file:///absolute or file:relative"
        )
    return {"directory": unquote(parts.path)}


def _bucket(parts: SplitResult) -> dict[str, str]:
    """Return the bucket, and the prefix if the path has one."""
    namespace = parts.netloc
    bucket, _, prefix = unquote(parts.path).removeprefix("/").partition("/")
    if not namespace or not bucket:
        raise InvalidArgumentError("an oci:// URL names a bucket: oci://namespace/bucket/prefix")
    found = {"namespace": namespace, "bucket_name": bucket}
    return {**found, "prefix": prefix.rstrip("/") + "/"} if prefix else found


def _s3_bucket(parts: SplitResult) -> dict[str, str]:
    """Return the bucket, and the prefix if the path has one."""
    prefix = unquote(parts.path).strip("/")
    if not parts.netloc:
        raise InvalidArgumentError("an s3:// URL names a bucket: s3://bucket/prefix")
    found = {"bucket_name": unquote(parts.netloc)}
    return {**found, "prefix": f"{prefix}/"} if prefix else found


def _index(parts: SplitResult) -> dict[str, Any]:
    """Return the hosts, the credentials, and the index if the path has one."""
    credentials, _, hosts = parts.netloc.rpartition("@")
    if not hosts:
        raise InvalidArgumentError(
            "an opensearch:// URL names a host: opensearch://host:9200/index"
        )
    is_https = parts.scheme == "opensearch+https"
    found: dict[str, Any] = {"hosts": hosts.split(","), "use_ssl": is_https}
    if credentials:
        username, _, password = credentials.partition(":")
        found |= {"username": unquote(username), "password": unquote(password)}
    index = unquote(parts.path).strip("/")
    return {**found, "index_name": index} if index else found


_PLACE_READERS: dict[str, Callable[[SplitResult], dict[str, Any]]] = {
    "file": _directory,
    "oci": _bucket,
    "opensearch": _index,
    "s3": _s3_bucket,
    "sqlite": _sqlite_path,
}
"""Module to the reader of the part of a URL before its ``?``."""


def _from_query(known: Mapping[str, str], query: str) -> dict[str, Any]:
    try:
        pairs = parse_qsl(query, keep_blank_values=True, strict_parsing=bool(query))
    except ValueError as exc:
        raise InvalidArgumentError(f"?{query} in the URL is not name=value&name=value") from exc
    for name, _ in pairs:
        if name not in known:
            there = ", ".join(sorted(it for it in known if known[it] in TEXTS))
            raise InvalidArgumentError(
                f"no option {name!r} for this URL{did_you_mean(name, known)}; known options:"
                f" {there}"
            )
        if known[name] not in TEXTS:
            raise InvalidArgumentError(f"{name}= cannot be in a URL; pass it as an argument")
    return {name: _value(name, text, known[name]) for name, text in pairs}


def _options(module: str, factory: Callable[..., Any]) -> dict[str, str]:
    """Option names and their annotations: the factory's, and those that it hands to its class."""
    handed_on = _parameters(_backend(module)) if module in BACKENDS else {}
    return {**handed_on, **_parameters(factory)}


def _parameters(call: Callable[..., Any]) -> dict[str, str]:
    """Names and annotations; the place, which the URL itself names, is none."""
    found = inspect.signature(call).parameters.values()
    named = [it for it in found if it.kind is not it.VAR_KEYWORD and it.name not in PLACES]
    return {it.name: str(it.annotation) for it in named}


def _takes_others(call: Callable[..., Any]) -> bool:
    """Return whether a call takes options that its signature does not name."""
    return any(it.kind is it.VAR_KEYWORD for it in inspect.signature(call).parameters.values())


def _value(name: str, text: str, annotation: str) -> Any:
    """Convert a string of the query to the option's type."""
    kind = TEXTS[annotation]
    if kind is bool:
        return {"true": True, "1": True, "false": False, "0": False}.get(text.lower(), text)
    try:
        return kind(text)
    except ValueError as exc:
        raise InvalidArgumentError(f"{name}={text!r} in the URL is not a number") from exc
