"""Opens storages by URL; the scheme selects the backend."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, Generic, Literal, NamedTuple, TypeAlias, Unpack, cast
from urllib.parse import unquote
from weakref import WeakSet

from locus_store.backend import FullBackend, StorageBackend
from locus_store.checkpointer import B_co, S, StorageBackendAdapter
from locus_store.errors import InvalidArgumentError, UnsupportedError
from locus_store.messages import BaseMessageLog
from locus_store.saver import CheckpointSaver
from locus_store.types.arguments import KEYWORDS, check_url, did_you_mean
from locus_store.types.options import (
    URL_EXTRAS,
    CheckpointOptions,
    read_options,
    read_query,
    split_options,
    split_url,
)
from locus_store.types.tenants import Closing
from locus_store.versions.sharding import SHARDED, HasShards, check_urls, split_urls

if TYPE_CHECKING:
    from locus_store.backends.options import CheckpointerOptions, StoreOptions
    from locus_store.store import BaseStore, Embed
    from locus_store.values.vectors import Metric

Part: TypeAlias = Literal["store", "messages"]

SCHEMES = {
    "file": "file",
    **dict.fromkeys(("http", "https"), "http"),
    "memory": "memory",
    "oci": "oci",
    **dict.fromkeys(("opensearch", "opensearch+https"), "opensearch"),
    **dict.fromkeys(("oracle", "oracle+oracledb", "oracle+oracledb_async"), "oracle"),
    **dict.fromkeys(("postgresql", "postgresql+asyncpg", "postgresql+psycopg"), "postgresql"),
    **dict.fromkeys(("postgresql+psycopg2", "postgres"), "postgresql"),
    **{
        f"{server}{tls}{form}": "redis"
        for server in ("redis", "valkey")
        for form in ("", "+cluster", "+sentinel")
        for tls in ("", "s")
    },
    "s3": "s3",
    "unix": "redis",
    **dict.fromkeys(("sqlite", "sqlite+aiosqlite", "sqlite+pysqlite"), "sqlite"),
}
"""Scheme to the folder under ``backends``; its ``options`` reads the URL."""

_KNOWN_SCHEMES: Final = f"known schemes: {'://, '.join(SCHEMES)}://"


class Technology(NamedTuple):
    """The names of the classes of a technology."""

    backend: str
    store: str
    messages: str


TECHNOLOGIES = {
    "file": Technology("FileBackend", "FileStore", "FileMessageLog"),
    "http": Technology("HTTPBackend", "HTTPStore", "HTTPMessageLog"),
    "memory": Technology("MemoryBackend", "InMemoryStore", "InMemoryMessageLog"),
    "oci": Technology("BucketBackend", "OCIBucketStore", "OCIBucketMessageLog"),
    "opensearch": Technology("OpenSearchBackend", "OpenSearchStore", "OpenSearchMessageLog"),
    "oracle": Technology("OracleBackend", "OracleStore", "OracleMessageLog"),
    "postgresql": Technology("PostgreSQLBackend", "PostgreSQLStore", "PostgreSQLMessageLog"),
    "redis": Technology("RedisBackend", "RedisStore", "RedisMessageLog"),
    "s3": Technology("S3Backend", "S3Store", "S3MessageLog"),
    "sqlite": Technology("SQLiteBackend", "SQLiteStore", "SQLiteMessageLog"),
}
"""Folder to its classes: the backend in its module ``backend``, the others in ``backends``."""

HANDED_IN = {
    "opensearch": ("client",),
    "oracle": ("engine", "pool"),
    "postgresql": ("engine", "pool"),
    "redis": ("client",),
    "sqlite": ("engine",),
}
"""Folder to the options whose objects have a place of their own, beside which a URL has none."""


class Storage(Closing, Generic[B_co]):
    """A storage: a backend, and each contract over its connections.

    Use it with ``async with``, or call ``close``: that closes the connections, as ``close`` of a
    checkpointer or saver does. The objects may be used again after it.

    Args:
        backend: Any backend, for example ``checkpointer.backend``.
        options: Of ``checkpointer`` and ``saver``, unless a call gives others.
    """

    def __init__(self, backend: B_co, **options: Unpack[CheckpointOptions]) -> None:
        self.backend = backend
        self._options = options
        self._made: WeakSet[BaseStore | BaseMessageLog] = WeakSet()

    def __repr__(self) -> str:
        return f"Storage({self.backend!r})"

    @property
    def has_store(self) -> bool:
        """True if ``store`` returns one."""
        return self._find_class("store") is not None

    @property
    def has_messages(self) -> bool:
        """True if ``messages`` returns a message log."""
        return self._is_on_documents or self._find_class("messages") is not None

    def checkpointer(
        self, *, state_type: type[S] | None = None, **options: Unpack[CheckpointOptions]
    ) -> StorageBackendAdapter[S, B_co]:
        """Return a checkpointer over this storage."""
        chosen: CheckpointOptions = {**self._options, **options}
        return StorageBackendAdapter(self.backend, state_type=state_type, **chosen)

    def saver(self, **options: Unpack[CheckpointOptions]) -> CheckpointSaver:
        """Return a saver over this storage."""
        chosen: CheckpointOptions = {**self._options, **options}
        return CheckpointSaver(self.backend, **chosen)

    def store(
        self, *, dimension: int | None = None, metric: Metric = "cosine", embed: Embed | None = None
    ) -> BaseStore:
        """Return the store of this storage; see ``BaseStore`` for the options.

        Raises:
            UnsupportedError: The storage has no store.
        """
        kind = self._find_class("store")
        options: dict[str, Any] = {"dimension": dimension, "metric": metric, "embed": embed}
        if kind is None:
            raise UnsupportedError(f"there is no store beside {type(self.backend).__name__}")
        if kind.__name__ == TECHNOLOGIES["memory"].store:
            find = import_module("locus_store.backends.memory.backend").find_store
            return cast("BaseStore", find(self.backend, partial(self._make, kind, options)))
        made: Any = self._make(kind, {"backend": self._first, **options})
        if self._first is not self.backend:  # a batch of items is one transaction
            made.shards = self.backend
        self._made.add(made)
        return cast("BaseStore", made)

    def messages(self, *, ttl_seconds: float | None = None) -> BaseMessageLog:
        """Return the message log of this storage; see ``BaseMessageLog``.

        Raises:
            UnsupportedError: The storage keeps no message logs.
        """
        options: dict[str, Any] = {"backend": self.backend, "ttl_seconds": ttl_seconds}
        if self._is_on_documents:
            kind = import_module("locus_store.backends.documents.message_log").DocumentMessageLog
            options["owns"] = False
        elif isinstance(self.backend, HasShards):
            logs = [Storage(it).messages(ttl_seconds=ttl_seconds) for it in self.backend.shards]
            kind = import_module("locus_store.backends.sharded").ShardedMessageLog
            options = {"backend": self.backend, "logs": logs}
        elif (kind := self._find_class("messages")) is None:
            name = type(self.backend).__name__
            raise UnsupportedError(f"{name} keeps no message logs: open_message_log(url) opens one")
        made: BaseMessageLog = self._make(kind, options)
        self._made.add(made)
        return made

    def _make(self, kind: Any, options: Mapping[str, Any]) -> Any:
        return _make(kind, {**options, "encryption": getattr(self.backend, "encryption", None)})

    @property
    def _is_on_documents(self) -> bool:
        """True for a ``DocumentBackend``, whose module the other technologies do not import."""
        modules = (it.__module__ for it in type(self.backend).__mro__)
        return "locus_store.backends.documents.backend" in modules

    @property
    def _first(self) -> StorageBackend:
        """The backend, or that of the first database of a set, which has the store."""
        return self.backend.shards[0] if isinstance(self.backend, HasShards) else self.backend

    def _find_class(self, part: Part) -> Any:
        """Return the class of the backend's technology, or of one that it extends."""
        for kind in type(self._first).__mro__:
            folder = kind.__module__.removeprefix("locus_store.backends.").partition(".")[0]
            if folder in TECHNOLOGIES:
                return _import_class(folder, part)
        return None

    async def open(self) -> None:
        """Connect, and create or check the schema; the first call of an object does it, too."""
        await self.backend.open()

    async def close(self) -> None:
        """Wait for the calls of stores and message logs, and close the connections."""
        for made in list(self._made):
            await made.close()
        await self.backend.close()


def open_storage(url: str, **options: Unpack[CheckpointerOptions]) -> Storage[FullBackend]:
    """Return the storage that ``url`` names.

    ``sqlite:///relative.db``, ``sqlite:////absolute.db``, ``sqlite://`` (in memory), also with a
    driver (``sqlite+aiosqlite``); ``postgresql://`` or ``postgres://``, as your provider issues it;
    ``oracle://user:password@alias`` or ``oracle://user:password@host:1521/service``;
    ``redis://``, ``rediss://`` (TLS), ``unix:///socket``, ``valkey://``, ``redis+cluster://``,
    ``redis+sentinel://host1,host2/service``;
    ``oci://namespace/bucket/prefix``; ``s3://bucket/prefix``;
    ``opensearch://host:9200/index`` (several hosts with commas) or ``opensearch+https://``;
    ``file:///absolute/directory`` or ``file:relative``; ``memory://``; ``http://`` or ``https://``
    of a service; ``sharded:`` and the URLs of ``open_sharded`` with spaces between them. The query
    string may have options; keyword arguments override them.

    Beside ``engine=``, ``pool=``, or the ``client=`` of Redis and OpenSearch, the URL selects the
    kind of database only, as in ``postgresql://``. It may name the database of the engine.

    Args:
        url: As above.
        options: Of the backend, of checkpointers and of savers.

    Raises:
        InvalidArgumentError: The scheme, an option in the URL or its value is not valid, or the
            URL names another place than the given engine, pool or client.
        TypeError: There is no such option.
    """
    if str(url).startswith(SHARDED):
        return open_sharded(split_urls(str(url)), **options)
    folder = _choose_folder(str(url))
    of_checkpoints, others = split_options(CheckpointOptions, _read(str(url), folder, options))
    module = import_module(f"locus_store.backends.{folder}.backend")
    kind = getattr(module, TECHNOLOGIES[folder].backend)
    return Storage(_make(kind, others), **of_checkpoints)


def _make(kind: Any, options: Mapping[str, Any]) -> Any:
    """Return an object of a class, which encrypts if ``encryption`` is among its options."""
    if options.get("encryption") is not None:
        return import_module("locus_store.encryption").create(kind, **options)
    return kind(**{name: it for name, it in options.items() if name != "encryption"})


def open_sharded(
    urls: Sequence[str], **options: Unpack[CheckpointerOptions]
) -> Storage[FullBackend]:
    """Return the storage over the databases of a set of shards; see ``ShardedBackend``.

    Args:
        urls: Of databases of SQLite, PostgreSQL or Oracle, in the order of the set.
        options: As of ``open_storage``, for all of them.

    Raises:
        InvalidArgumentError: A URL is not valid, is there twice, or has an option of checkpoints.
        TypeError: There is no such option.
    """
    check_urls(urls)
    of_checkpoints, others = split_options(CheckpointOptions, options)
    for name in {it for names in HANDED_IN.values() for it in names} & others.keys():
        raise InvalidArgumentError(f"{name}= leads to one database; give the URL of each shard")
    named = [_read(it, _choose_folder(it), options).get("encryption") for it in urls]
    if any(it != named[0] for it in named):
        raise InvalidArgumentError(
            "encryption= is of the set, and the URLs of its shards differ in it: pass it as an"
            " argument, or write the same into each URL"
        )
    each = [open_storage(url, **{**others, "encryption": None}) for url in urls]
    for at, storage in enumerate(each, 1):
        for name in storage._options:  # noqa: SLF001  (of this class)
            raise InvalidArgumentError(
                f"the URL of shard {at} has {name}=, which is of the set: pass it as an argument"
            )
    kind = import_module("locus_store.backends.sharded").ShardedBackend
    own = {"shards": [it.backend for it in each], "encryption": named[0]}
    return Storage(_make(kind, own), **of_checkpoints)


def open_checkpointer(
    url: str, *, state_type: type[S] | None = None, **options: Unpack[CheckpointerOptions]
) -> StorageBackendAdapter[S, FullBackend]:
    """Return the checkpointer that ``url`` names; see ``open_storage``.

    Args:
        url: See ``open_storage``, as ``options`` and the errors.
        state_type: See ``StorageBackendAdapter``.
        options: Of the backend and of ``StorageBackendAdapter``.
    """
    return open_storage(url, **options).checkpointer(state_type=state_type)


def open_saver(url: str, **options: Unpack[CheckpointerOptions]) -> CheckpointSaver:
    """Return the ``CheckpointSaver`` that ``url`` names; see ``open_storage``.

    Raises:
        InvalidArgumentError: The scheme or a value is not valid.
        TypeError: There is no such option; ``state_type`` is a checkpointer's.
    """
    if "state_type" in options:
        raise TypeError("state_type is an option of open_checkpointer: a saver keeps plain data")
    return open_storage(url, **options).saver()


def open_store(
    url: str,
    *,
    dimension: int | None = None,
    metric: Metric = "cosine",
    embed: Embed | None = None,
    **options: Unpack[StoreOptions],
) -> BaseStore:
    """Return the store that ``url`` names; see ``open_storage`` for URLs.

    A checkpointer's URL is valid: options of checkpoints in its query string (``on_conflict``,
    ``keep_last``, ``ttl_seconds``, ``refresh_on_read``) are ignored.

    Args:
        url: Of any storage.
        dimension: Dimensions of the embeddings; ``None``: no embeddings.
        metric: How they are compared: ``cosine``, ``l2`` or ``ip``.
        embed: Computes the embeddings of strings; see ``BaseStore``.
        options: Options of the store, which override those of the URL.

    Raises:
        InvalidArgumentError: The scheme or an option is not valid.
        TypeError: The store takes no such keyword argument.
    """
    vectors = {"dimension": dimension, "metric": metric, "embed": embed}
    return cast("BaseStore", _open_alone(str(url), "store", {**vectors, **options}))


def open_message_log(
    url: str, *, ttl_seconds: float | None = None, **options: Unpack[StoreOptions]
) -> BaseMessageLog:
    """Return the message log that ``url`` names; see ``open_storage`` for URLs.

    A checkpointer's URL is valid: options of checkpoints in its query string are ignored.

    Args:
        url: ``sqlite:``, ``postgresql:``, ``oracle:``, ``file:``, ``oci:``, ``s3:``,
            ``opensearch:``, ``http:`` or ``memory:``.
        ttl_seconds: See ``BaseMessageLog``.
        options: Options of the message log, which override those of the URL.

    Raises:
        InvalidArgumentError: The scheme or an option is not valid.
        TypeError: The message log takes no such keyword argument.
    """
    given = {} if ttl_seconds is None else {"ttl_seconds": ttl_seconds}
    return cast("BaseMessageLog", _open_alone(str(url), "messages", {**given, **options}))


def _open_alone(url: str, part: Part, options: Mapping[str, Any]) -> Any:
    """Return an object with its own connections; options of checkpoints in a URL are left out."""
    if url.startswith(SHARDED):
        return _open_alone_sharded(url, part, options)
    folder = _choose_folder(url)
    of_checkpoints, given = split_options(CheckpointOptions, _read(url, folder, options))
    if part == "messages":
        given["ttl_seconds"] = of_checkpoints.get("ttl_seconds")
    return _make(_import_class(folder, part), given)


def _open_alone_sharded(url: str, part: Part, options: Mapping[str, Any]) -> Any:
    """Return the store or the message log of a set, which is closed with it."""
    names = {"dimension", "metric", "embed"} if part == "store" else {"ttl_seconds"}
    storage = open_storage(url, **{it: options[it] for it in options.keys() - names})
    own = {it: options[it] for it in options.keys() & names}
    made: Any = storage.store(**own) if part == "store" else storage.messages(**own)
    made.owns = True
    return made


def _import_class(folder: str, part: Part) -> Any:
    return getattr(import_module("locus_store.backends"), getattr(TECHNOLOGIES[folder], part))


def list_options(url: str) -> frozenset[str]:
    """Return the names of the options that ``open_storage`` accepts for ``url``.

    Raises:
        InvalidArgumentError: The scheme is not valid.
    """
    if str(url).startswith(SHARDED):
        return frozenset.intersection(*map(list_options, split_urls(str(url))))
    known = _import_options(_choose_folder(str(url))).URL_OPTIONS
    return frozenset().union(*map(read_options, (known, *URL_EXTRAS)))


def _import_options(folder: str) -> Any:
    return import_module(f"locus_store.backends.{folder}.options")


def _read(url: str, folder: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the place that a URL names, and the options in its query string and beside it."""
    technology = _import_options(folder)
    for name in HANDED_IN.get(folder, ()):
        if options.get(name) is not None:
            place, query = _split_url_beside(url, folder, name, options[name])
            break
    else:
        place, query = technology.parse_place(url)
    return {**place, **read_query((technology.URL_OPTIONS, *URL_EXTRAS), query), **options}


def _split_url_beside(
    url: str, folder: str, name: str, handed_in: object
) -> tuple[dict[str, str], str]:
    """Return the options of a URL whose place an engine, a pool or a client has, and no other."""
    text, query = split_url(url, _import_options(folder).URL_OPTIONS)
    rest, index = text.partition("://")[2] if _parse_scheme(url) else text, ""
    if folder == "opensearch":
        rest, _, index = rest.partition("/")
    if rest and not (
        name == "engine"
        and import_module("locus_store.sql.schema.definition").is_same_database(text, handed_in)
    ):
        raise InvalidArgumentError(
            f"the URL names another place than {name}= does: write "
            f"{_parse_scheme(url) or folder}:// beside {name}=, or leave {name}= out"
        )
    return ({"index_name": unquote(index)} if index else {}), query


def _choose_folder(url: str) -> str:
    """Return the folder under ``backends``; import nothing."""
    check_url(url)
    scheme = "postgresql" if KEYWORDS.match(url) else _parse_scheme(url)
    if not scheme:
        if (start := url.partition(":")[0]) in SCHEMES:
            raise InvalidArgumentError(f"a URL has two slashes after its scheme: {start}://")
        shown = "this" if set(url) & set("@:?=;") else repr(url)
        raise InvalidArgumentError(f"{shown} is not a URL; {_KNOWN_SCHEMES}")
    if scheme not in SCHEMES:
        known = f"{did_you_mean(scheme.lower(), SCHEMES)}; {_KNOWN_SCHEMES}"
        raise InvalidArgumentError(f"no backend for the URL scheme {scheme!r}{known}")
    return SCHEMES[scheme]


def _parse_scheme(url: str) -> str:
    """Return the scheme; no other part of the text may be repeated, as it may be a password."""
    found = re.match(r"([A-Za-z][A-Za-z0-9+._-]{0,30})://|(file):", url)
    return found[1] or found[2] if found else ""
