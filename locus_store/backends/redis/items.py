"""A store's items in Redis: their names, their stored form, and ranges of names.

All keys of a store have one hash tag, so that a batch over any namespaces is one script, all or
nothing: on a cluster a store lives on one node.

============================ ======================================================================
``<prefix>{store}:items``    hash: by name version, microseconds of the first and the last put,
                             seconds to live or ``-``, and a frame with value and metadata
``<prefix>{store}:names``    sorted set: all names, by code points
``<prefix>{store}:recent``   sorted set: all names by the microsecond of the last put, which no two
                             share
``<prefix>{store}:expiry``   sorted set: names by the microsecond at which their time is over
``<prefix>{store}:vectors``  hash: by name embeddings, float32, one behind the other
``<prefix>{store}:settings`` hash: ``layout``, and ``dimension`` once there are embeddings
``<prefix>{store}:absent``   never there: see ``keys``
``<prefix>{store}:tenants``  set: tenants with items, but for ``default``
============================ ======================================================================

The keys of other tenants than ``default`` begin with ``<prefix>{store}@acme:``, but for those of
the last three rows. A name is the encoded namespace, NUL and the key. A namespace's own items begin
with it and NUL (segments are not empty), and what is below it begins with it: each is a range of
``names``, in the order of namespace and key.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from struct import Struct
from typing import Any, Final

from locus_store.backends.redis.keys import RedisKeys
from locus_store.types.items import (
    SEGMENT_END,
    Change,
    Namespace,
    Put,
    Stamp,
    StoreItem,
    decode_namespace,
    encode_namespace,
    translate_damage,
)
from locus_store.values import encoding
from locus_store.values.times import from_microseconds, to_microseconds

LAYOUT: Final = "1"
"""The version of the layout of keys and values."""

KINDS: Final = ("items", "names", "recent", "expiry", "vectors")

FOR_GOOD: Final = b"-"

_LENGTHS: Final = Struct(">III")


def make_keys(prefix: str, tenant: str) -> tuple[list[str], list[str]]:
    """Return a store's keys in the order of its scripts, and those that writing ones take also.

    Raises:
        InvalidArgumentError: ``prefix`` is not valid.
    """
    keys = RedisKeys(prefix, tenant)
    own = [f"{keys.get_start('store')}:{kind}" for kind in KINDS]
    return [*own, f"{prefix}{{store}}:settings"], keys.list_others("store")


def make_name(namespace: Namespace, key: str) -> bytes:
    """Return an item's name."""
    return f"{encode_namespace(namespace)}{SEGMENT_END}{key}".encode()


def split_name(name: bytes) -> tuple[Namespace, str]:
    """Split a name into the namespace and the key."""
    text = name.decode()
    if text.startswith(SEGMENT_END):
        return (), text[1:]
    namespace, _, key = text.partition(SEGMENT_END * 2)
    return decode_namespace(namespace + SEGMENT_END), key


def make_start(namespace: Namespace, *, recursive: bool) -> bytes:
    """Return the prefix of the names of a namespace, or also of all namespaces below it."""
    return (encode_namespace(namespace) + ("" if recursive else SEGMENT_END)).encode()


def make_bounds(start: bytes, after: bytes = b"") -> tuple[bytes, bytes]:
    """Return the bounds for ``ZRANGEBYLEX`` of names with this prefix; ``after`` is exclusive."""
    low = b"(" + after if after else b"[" + start if start else b"-"
    return low, b"(" + start + b"\xff" if start else b"+"


def make_arguments(change: Change, call: int) -> tuple[Any, ...]:
    """Return a change as arguments of the script ``apply``, with the number of its call."""
    name = make_name(change.namespace, change.key)
    if not isinstance(change, Put):
        return "remove", name, "", "", "", "", "", call
    expected, ttl = change.expected_version, change.ttl_seconds
    return (
        "put",
        name,
        "" if expected is None else expected,
        "" if ttl is None else repr(float(ttl)),
        encoding.pack_frame(b"[%b,%b]" % (change.json, encoding.encode(change.metadata))),
        b"".join(change.vectors),
        _join_stamp(change.stamp),
        call,
    )


def _join_stamp(stamp: Stamp | None) -> str:
    """Return a stamp as text: its version, and its times in microseconds."""
    if stamp is None:
        return ""
    times = stamp.created_at, stamp.updated_at, stamp.expires_at
    return " ".join(map(str, (stamp.version, *(to_microseconds(it) for it in times if it))))


def split_rows(content: bytes) -> Iterator[tuple[bytes, bytes, bytes]]:
    """Yield the triples of strings that scripts join."""
    at = 0
    while at < len(content):
        one, two, three = _LENGTHS.unpack_from(content, at)
        first = at + _LENGTHS.size
        second, third, at = first + one, first + one + two, first + one + two + three
        yield content[first:second], content[second:third], content[third:at]


def make_item(name: bytes, expires: bytes, content: bytes, max_bytes: int) -> StoreItem:
    """Return the item of a script's result.

    Raises:
        IntegrityError: It is not as it was written, or takes more than ``max_bytes``.
    """
    with translate_damage(f"item {name!r} in Redis", "restore the server from a backup"):
        namespace, key = split_name(name)
        version, created, updated, ttl, frame = content.split(b" ", 4)
        [body] = encoding.unpack_frames(frame, max_bytes)
        value, metadata = encoding.decode(body)  # type: ignore[misc,str-unpack]  # two of them
        return StoreItem(
            namespace=namespace,
            key=key,
            value=value,
            metadata=metadata,  # type: ignore[arg-type]  # an object
            created_at=_parse_time(created),
            updated_at=_parse_time(updated),
            version=int(version),
            expires_at=_parse_time(expires) if expires else None,
            ttl_seconds=None if ttl == FOR_GOOD else float(ttl),
        )


def _parse_time(microseconds: bytes) -> datetime:
    return from_microseconds(int(float(microseconds)))


def split_embeddings(data: bytes, size: int) -> list[bytes]:
    """Return an item's embeddings, each of ``size`` bytes."""
    return [data[at : at + size] for at in range(0, len(data), size)]
