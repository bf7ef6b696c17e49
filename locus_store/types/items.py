"""Items, changes and searches of a store, and the checks of namespaces and keys."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Any, ClassVar, Final, NamedTuple, TypeAlias, cast

from locus_store.errors import ConflictError, IntegrityError, InvalidArgumentError
from locus_store.types.arguments import check_limit, check_text
from locus_store.values.encoding import Json, TooLargeError, decode, encode
from locus_store.values.filters import Filter
from locus_store.values.frames import collect_text
from locus_store.values.surrogates import restore
from locus_store.values.text import split_words
from locus_store.values.times import EPOCH

Namespace: TypeAlias = tuple[str, ...]
Name: TypeAlias = tuple[Namespace, str]
"""An item's namespace and key."""


MAX_NAMESPACE_CHARACTERS = 300
"""The longest namespace: all segments together, plus one for each."""

NAMESPACES: Final = 1024
"""Namespaces that are remembered with their encoded form; items of one are many."""

_FIRST_PAGE, _PAGE, _PAGE_BYTES = 10, 100, 1 << 20
_MOST_NAMESPACES: Final = 2**31 - 1

MOST_VERSION: Final = 10**13
"""The highest version of a copy: every storage counts on from there."""

LAST_TIME: Final = datetime(9999, 1, 1, tzinfo=UTC)
"""No time of a copy is later: every storage keeps it, in any zone."""

SEGMENT_END = "\0"
"""Ends each segment of a namespace that is stored as one text; no segment has it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreCapabilities:
    """The operations that a store supports; the others raise ``UnsupportedError``."""

    search: bool = True
    """Search by the words of values; without an embedding it reads every item of the prefix."""

    semantic_search: bool = False
    """Search by embeddings. If the server decides this, it is known once the store is open."""

    embedding_dimension: int | None = None
    ttl: bool = True
    list_namespaces: bool = True
    batch_operations: bool = True
    transactions: bool = True
    """A batch is written whole or not at all."""

    tenants: bool = False
    """Several tenants share the storage: ``for_tenant``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stamp:
    """The version and the times of an item."""

    version: int
    created_at: datetime
    updated_at: datetime
    expires_at: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreItem:
    """An item as it is stored. All times are the server's."""

    namespace: Namespace
    key: str
    value: Any
    metadata: dict[str, Any]
    created_at: datetime
    updated_at: datetime
    version: int = 1
    """Counts the puts since the key was first put, or put again after it was deleted."""

    expires_at: datetime | None = None
    ttl_seconds: float | None = None
    """The time to live of the put; ``BaseStore.touch`` restarts it."""

    score: float | None = None
    """The score in a search by embedding; higher is nearer."""

    @property
    def stamp(self) -> Stamp:
        """The version and the times."""
        return Stamp(**{it.name: getattr(self, it.name) for it in fields(Stamp)})


def as_given(item: StoreItem) -> StoreItem:
    """Return a stored item with the strings that were put."""
    value, metadata = restore(item.value), restore(item.metadata)
    is_same = value is item.value and metadata is item.metadata
    return item if is_same else replace(item, value=value, metadata=metadata)


@dataclass(frozen=True, slots=True, kw_only=True)
class SemanticSearchResult:
    """A hit of ``search_by_embedding``."""

    item: StoreItem
    score: float
    """Higher is nearer: the cosine (-1 to 1), the inner product, or the negative distance."""


class PutItem(NamedTuple):
    """An item for ``put_batch``, which also takes a plain tuple of the first three or more."""

    namespace: Namespace
    key: str
    value: Any
    metadata: Mapping[str, Any] | None = None
    ttl_seconds: float | None = None
    expected_version: int | None = None
    embedding: Sequence[float] | None = None


NO_METADATA: Final[dict[str, Any]] = {}
"""Shared by all puts without metadata, and not changed."""


@dataclass(slots=True, kw_only=True)
class Put:
    """A checked item on its way to a backend; not changed any more."""

    namespace: Namespace
    key: str
    json: bytes
    """The value as compact JSON with sorted keys."""

    metadata: dict[str, Any]
    ttl_seconds: float | None = None
    expected_version: int | None = None
    """The version that must be there, 0: none; ``None``: whatever is there is replaced."""

    vectors: tuple[bytes, ...] = ()
    """Float32, little-endian; in the place of those that the item had."""

    stamp: Stamp | None = None
    """Of an item that is copied or sealed again: kept as it is. ``None``: the next version, now."""

    is_resealed: bool = field(default=False, repr=False, compare=False)
    """The stored item is sealed with another key, which no quota refuses."""

    json_bytes: int = field(init=False, repr=False, compare=False)
    """Bytes of a list of the value and the metadata as compact JSON."""

    name: Name = field(init=False, repr=False, compare=False)
    """The namespace and the key."""

    def __post_init__(self) -> None:
        self.json_bytes = len(self.json) + len(encode(self.metadata)) + len(b"[,]")
        self.name = (self.namespace, self.key)

    @property
    def value(self) -> Json:
        """The value; each access returns a new object."""
        return decode(self.json)

    @property
    def size(self) -> int:
        """Approximate bytes that the item adds to a statement."""
        return self.json_bytes + sum([len(it) for it in self.vectors])

    def make_stamp(
        self, at: datetime, version: int = 0, created_at: datetime | None = None
    ) -> Stamp:
        """Return the version and the times of the item that this makes.

        Args:
            at: The time of the put; no item is updated later.
            version: The version of the live item that is replaced; 0: there is none.
            created_at: When that was created.
        """
        if self.stamp is not None:
            return replace(self.stamp, updated_at=min(at, self.stamp.updated_at))
        ttl = self.ttl_seconds
        return Stamp(
            version=version + 1,
            created_at=created_at or at,
            updated_at=at,
            expires_at=None if ttl is None else at + timedelta(seconds=ttl),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Remove:
    """An item to remove, with its embeddings."""

    namespace: Namespace
    key: str

    vectors: ClassVar[tuple[bytes, ...]] = ()
    size: ClassVar[int] = 0

    @property
    def name(self) -> Name:
        return self.namespace, self.key


Change: TypeAlias = Put | Remove


def get_names(changes: Sequence[Change]) -> list[Name]:
    """Return the names of the items that are changed."""
    return [it.name for it in changes]


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """The criteria of a search."""

    prefix: Namespace
    filter: Filter
    """The filter on the value."""

    metadata_filter: Filter
    limit: int
    offset: int = 0
    words: tuple[str, ...] = ()
    """All of which the value's text has."""

    recursive: bool = True
    """Also what is below the prefix; else it is the very namespace."""

    def takes(self, value: Any, metadata: Mapping[str, Any]) -> bool:
        """Return whether an item below the prefix matches: the reference for every backend."""
        return (
            self.filter.takes(value)
            and self.metadata_filter.takes(metadata)
            and (not self.words or set(self.words) <= set(split_words(collect_text(value))))
        )

    def must_inspect(self) -> bool:
        """Return whether each item has to be inspected in Python."""
        return bool(self.filter.clauses or self.metadata_filter.clauses or self.words)


@dataclass(frozen=True, slots=True, kw_only=True)
class NamespaceMatch:
    """The criteria of ``list_namespaces``; ``*`` matches any one segment."""

    prefix: Namespace = ()
    suffix: Namespace = ()
    max_depth: int | None = None

    def cut(self, namespace: Namespace) -> Namespace | None:
        """Return the namespace, cut to the depth; ``None`` if it does not match."""
        if len(namespace) < max(len(self.prefix), len(self.suffix)):
            return None
        pairs = [*zip(self.prefix, namespace, strict=False)]
        pairs += zip(reversed(self.suffix), reversed(namespace), strict=False)
        if not all(wanted in {"*", found} for wanted, found in pairs):
            return None
        return namespace[: self.max_depth]

    @property
    def fixed(self) -> Namespace:
        """The prefix up to its first ``*``."""
        return self.prefix[: self.prefix.index("*")] if "*" in self.prefix else self.prefix


async def iterate_items(
    namespaces: Callable[[NamespaceMatch, int, int], Awaitable[list[Namespace]]],
    page: Callable[[Namespace, int, str | None], Awaitable[list[StoreItem]]],
    above: Namespace = (),
) -> AsyncIterator[StoreItem]:
    """Yield the live items of a namespace and below it, as these two methods of a store give them.

    The namespaces are those of one moment; each page of items is read by itself, and is short if
    the items before it are long.
    """
    for name in await namespaces(NamespaceMatch(prefix=above), _MOST_NAMESPACES, 0):
        if name[: len(above)] != above:  # a segment `*` of a match stands for any
            continue
        count, after = _FIRST_PAGE, None
        while len(found := await page(name, count, after)) == count:
            for item in found:
                yield item
            size, after = sum(len(encode(it.value)) for it in found), found[-1].key
            count = max(1, min(_PAGE, count * _PAGE_BYTES // size))
        for item in found:
            yield item


@lru_cache(NAMESPACES)
def encode_namespace(namespace: Namespace) -> str:
    """Return a namespace as a string, which begins with the strings of its parents."""
    return SEGMENT_END.join((*namespace, ""))


@lru_cache(NAMESPACES)
def decode_namespace(text: str) -> Namespace:
    """Inverse of ``encode_namespace``."""
    return tuple(text.split(SEGMENT_END)[:-1])


def check_name(namespace: object, key: object) -> None:
    """Refuse an invalid name of an item.

    Raises:
        InvalidArgumentError: See ``check_namespace``; the key is a text of 1 to 255 characters.
    """
    check_namespace(namespace)
    check_text("key", key)


def check_stamp(stamp: Stamp | None, ttl_seconds: float | None) -> Stamp | None:
    """Return a stamp that an item with this time to live may have.

    Raises:
        InvalidArgumentError: A version or a time is not one of an item, or an item that does not
            expire has an end.
    """
    if stamp is None:
        return None
    check_limit(stamp.version, "version", minimum=1, maximum=MOST_VERSION)
    times = [stamp.created_at, stamp.updated_at, stamp.expires_at or EPOCH]
    if not all(isinstance(it, datetime) and it.utcoffset() == timedelta() for it in times):
        raise InvalidArgumentError("a time of an item is not in UTC")
    if not all(EPOCH <= it <= LAST_TIME for it in times):
        raise InvalidArgumentError(f"a time of an item is before {EPOCH} or after {LAST_TIME}")
    if (stamp.expires_at is None) != (ttl_seconds is None):
        raise InvalidArgumentError("an item has a time to live and the end of it, or neither")
    return stamp


def check_namespace(namespace: object) -> None:
    """Refuse an invalid namespace.

    Raises:
        InvalidArgumentError: Not a tuple of non-empty strings, or too long.
    """
    if not isinstance(namespace, tuple):
        raise InvalidArgumentError(
            f"a namespace is a tuple of strings, such as ('memory', 'u42'), not {namespace!r}"
        )
    try:
        _check_segments(namespace)
    except TypeError:  # a segment has no hash, so it is not a string
        _check_segments.__wrapped__(namespace)


@lru_cache(NAMESPACES)
def _check_segments(namespace: tuple[object, ...]) -> None:
    for segment in namespace:
        check_text("a segment of a namespace", segment)
    length = sum(map(len, cast("Namespace", namespace))) + len(namespace)
    if length > MAX_NAMESPACE_CHARACTERS:
        raise InvalidArgumentError(
            f"a namespace has at most {MAX_NAMESPACE_CHARACTERS} characters, one more counted for "
            f"each segment; this one has {length}"
        )


def require_version(change: Put, version: int) -> None:
    """Refuse a put that expects another version.

    Args:
        change: The put.
        version: The stored version; 0: none.

    Raises:
        ConflictError: Names the stored version.
    """
    if change.expected_version is not None and change.expected_version != version:
        raise make_version_conflict(change, version)


def make_version_conflict(change: Put, version: int) -> ConflictError:
    """Return the error for a put that expects a version other than the stored one."""
    there = f"version {version} is stored" if version else "there is no such item"
    return ConflictError(
        f"item {change.key!r} of namespace {change.namespace!r}: version "
        f"{change.expected_version} was expected, but {there}; read it and repeat the change"
    )


DAMAGE: Final = (ValueError, TypeError, LookupError, AttributeError, OverflowError)
"""The errors of reading an item that is not as it was written."""


@contextmanager
def translate_damage(what: str, remedy: str) -> Iterator[None]:
    """Raise an ``IntegrityError`` if what was read of an item is not as it was written."""
    try:
        yield
    except TooLargeError as exc:
        raise exc.with_place(what) from exc
    except (*DAMAGE, IntegrityError) as exc:
        raise make_damage_error(what, remedy) from exc


def make_damage_error(what: str, remedy: str) -> IntegrityError:
    """Return the error of an item, or another part of a store, that is not as it was written."""
    return IntegrityError(f"{what} is not as it was written; {remedy}, or put or delete the item")
