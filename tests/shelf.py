"""An object store in a dictionary with etags, and a probe of the segments in any object store."""

from __future__ import annotations

import threading
from collections import Counter
from datetime import UTC, datetime, timedelta
from itertools import count
from typing import TYPE_CHECKING, Any

from locus_store.backends.documents import bundles
from locus_store.backends.documents.backend import DocumentBackend
from locus_store.backends.documents.objects import (
    HEADS,
    SEGMENTS,
    ListedObject,
    ObjectDocuments,
    Objects,
    decode_name,
    digest,
)
from locus_store.backends.documents.protocol import Found, StaleTagError
from locus_store.backends.documents.segmented import SegmentedForm
from locus_store.values.encoding import MAX_STATE_BYTES, unpack_frames
from locus_store.values.sealing import RecordOpener

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator

    from locus_store.backends.documents.protocol import Tag
    from locus_store.versions.histories import Row


class Shelf(Objects):
    """Objects in a dictionary; counts the calls."""

    blocks = False

    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()
        self.bytes_put = 0
        self.offset = timedelta(0)
        """Of the clock."""
        self.stored: dict[str, tuple[int, datetime, bytes]] = {}
        self._tags = count(1)
        self._lock = threading.Lock()

    def get(self, name: str, *, known: Tag | None = None) -> Found | None:
        with self._lock:
            self.calls["get"] += 1
            if name not in self.stored:
                return None
            tag, _, content = self.stored[name]
            return Found(tag, None if tag == known else content)

    def put(self, name: str, content: bytes, *, tag: Tag | None) -> Tag:
        with self._lock:
            self.calls["put"] += 1
            self._require(name, tag)
            return self._stored(name, content)

    def store(self, name: str, content: bytes) -> None:
        with self._lock:
            self.calls["store"] += 1
            self._stored(name, content)

    def _stored(self, name: str, content: bytes) -> int:
        tag = next(self._tags)
        self.bytes_put += len(content)
        self.stored[name] = tag, self.read_clock(), content
        return tag

    def delete(self, name: str, *, tag: Tag) -> None:
        with self._lock:
            self.calls["delete"] += 1
            self._require(name, tag)
            self.stored.pop(name, None)

    def discard(self, names: Collection[str]) -> None:
        with self._lock:
            self.calls["discard"] += bool(names)
            for name in names:
                self.stored.pop(name, None)

    def list(self, prefix: str, after: str = "") -> Iterator[ListedObject]:
        with self._lock:
            self.calls["list"] += 1
            names = sorted(self.stored, key=str.encode)
            below = [it for it in names if it.startswith(prefix) and it > after]
            return iter([ListedObject(it, self._listed_at(it)) for it in below])

    def _listed_at(self, name: str) -> datetime:
        at = self.stored[name][1]
        return at.replace(microsecond=0) if self.time_step else at

    def read_clock(self) -> datetime:
        return datetime.now(UTC) + self.offset

    def age(self, seconds: float) -> None:
        """Make every object older."""
        for name, (tag, at, content) in self.stored.items():
            self.stored[name] = tag, at - timedelta(seconds=seconds), content

    def _require(self, name: str, tag: Tag | None) -> None:
        if tag != (self.stored[name][0] if name in self.stored else None):
            raise StaleTagError


def shelf_backend(
    objects: Objects, *, prefix: str = "p/", max_state_bytes: int = MAX_STATE_BYTES
) -> DocumentBackend:
    documents = ObjectDocuments(objects, prefix)
    form = SegmentedForm(documents)
    return DocumentBackend(documents, form=form, max_state_bytes=max_state_bytes)


BUNDLED = {"rows", "writes", "messages", "lengths"}


class ObjectsProbe:
    """Below an object store, by its heads and segments."""

    def __init__(self, objects: Objects, prefix: str = "p/") -> None:
        self._objects = objects
        self._prefix = prefix

    def contents(self) -> dict[str, bundles.ObjectContent]:
        """The heads, and the segments in the order of their threads, by their names."""
        heads = [it.name for it in self._objects.list(self._prefix + HEADS)]
        threads = [digest(decode_name(it.removeprefix(self._prefix + HEADS)) or "") for it in heads]
        segments = [it.name for it in self._objects.list(self._prefix + SEGMENTS)]
        segments.sort(key=lambda it: threads.index(it.split("/")[-2]))
        names = [*heads, *segments]
        found = {it: self._objects.get(it) for it in names}
        return {name: bundles.unpack(it.content or b"") for name, it in found.items() if it}

    def _change(
        self, change: Callable[[bundles.Bundle], bundles.Bundle], seconds: float = 0
    ) -> None:
        """Change all that is stored; segments get new names, since they never change."""
        for name, content in self.contents().items():
            told, payloads = content.describe(), get_payloads(content)
            bundle = change(bundles.parse_bundle(told, payloads))
            facts = {name: it for name, it in told.items() if name not in BUNDLED}
            prints = content.payloads[: len(content.payloads) - len(payloads)]
            facts = _older(facts, seconds)
            packed = bundles.pack(bundles.make_content(facts, bundle, content.note, prints))
            if HEADS in name:
                found = self._objects.get(name)
                assert found is not None
                self._objects.put(name, packed, tag=found.tag)
            else:
                self._objects.store(renamed(name), packed)
                self._objects.discard([name])

    def change_rows(self, change: Callable[[Row], None], seconds: float = 0) -> None:
        def changed(bundle: bundles.Bundle) -> bundles.Bundle:
            for _, row in bundle.iterate_rows():
                change(row)
            return bundle

        self._change(changed, seconds)

    def age(self, seconds: float) -> None:
        def older(row: Row) -> None:
            row.created_at -= timedelta(seconds=seconds)

        self.change_rows(older, seconds)

    def damage(self, change: Callable[[bytes], bytes]) -> None:
        def damaged(row: Row) -> None:
            row.payload = change(row.payload)

        self.change_rows(damaged)

    def holds(self, text: str) -> bool:
        wanted, contents = text.encode(), self.contents()
        assert contents
        if any(wanted in it.facts for it in contents.values()):
            return True
        found = [bundles.parse_bundle(it.describe(), get_payloads(it)) for it in contents.values()]
        rows = [row.payload for it in found for _, row in it.iterate_rows()]
        opened = [RecordOpener(continues=True).open_joined(it) for it in rows]  # if it is sealed
        bodies = [b"".join(unpack_frames(it, MAX_STATE_BYTES)) for it in opened]
        bodies += [it.write.payload for one in found for _, it in one.writes]
        return any(wanted in it for it in bodies)

    def rows(self) -> int:
        contents = self.contents()
        heads = [it.describe() for name, it in contents.items() if HEADS in name]
        versions = sum(len(it.describe().get("rows", ())) for it in contents.values())
        return len(heads) + sum(len(it["lines"]) for it in heads) + versions


def get_payloads(content: bundles.ObjectContent) -> bytes:
    return content.payloads[sum(it[3] for it in content.describe().get("segments", ())) :]


def _older(facts: dict[str, Any], seconds: float) -> dict[str, Any]:
    """The facts of a head whose segments are older than it says."""

    def older(text: str) -> datetime:
        return datetime.fromisoformat(text) - timedelta(seconds=seconds)

    if "segments" not in facts:
        return facts
    table = [[renamed(it[0]), *it[1:4], *map(older, it[4:])] for it in facts["segments"]]
    return facts | {"segments": table}


def renamed(name: str) -> str:
    """The next name of a segment whose content is changed."""
    plain, _, number = name.partition("-")
    return f"{plain}-{int(number or 0) + 1}"
