"""A thread as packs: each write adds one behind the others.

A pack begins with the lengths of its facts and payloads and a checksum of both, begun with that of
the pack before. The facts, which are JSON, are what the write added: versions, pending writes and
messages, whose payloads follow as they are, and lines and times as they are since then.
"""

from __future__ import annotations

import struct
from base64 import b64decode, b64encode
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from secrets import token_hex
from typing import Any, Final
from zlib import crc32

import orjson

from locus_store.backends.documents import bundles
from locus_store.backends.documents.bundles import Bundle
from locus_store.backends.documents.protocol import Body, DocumentForm, Draft, Parsed
from locus_store.errors import IntegrityError, SchemaError
from locus_store.types.logs import Outbox
from locus_store.versions.histories import History, Row
from locus_store.versions.threads import Thread, ThreadTransaction, settle

FORMAT: Final = 1
"""Version of the form; a newer one is refused."""

START: Final = struct.Struct("<III")
"""The lengths of facts and payloads, and the checksum."""

REMEMBERED: Final = 32
"""Packs that a rewritten document remembers, so that a lost reply is recognised."""


@dataclass(frozen=True, slots=True)
class PackEnd:
    """The end of a document, at which it is continued."""

    size: int = 0
    checksums: tuple[int, ...] = ()
    """Of the last packs, also of those that were replaced; the newest is the last."""


class PackedForm(DocumentForm):
    """Threads as packs."""

    def parse(self, content: bytes, thread_id: str) -> tuple[Thread, PackEnd]:
        return self._read(None, PackEnd(), content, thread_id)

    def parse_continued(self, base: Parsed, content: bytes) -> tuple[Thread, PackEnd]:
        thread = base.thread.copy()
        thread.messages, thread.logs = [*thread.messages], {**thread.logs}
        return self._read(thread, base.end, content, thread.thread_id)

    def _read(
        self, thread: Thread | None, end: PackEnd, content: bytes, thread_id: str
    ) -> tuple[Thread, PackEnd]:
        where = self.documents.locate(thread_id)
        try:
            thread, checksums = _apply(thread, end.checksums, content)
            _require_id(thread, thread_id)
        except SchemaError as exc:
            raise SchemaError(f"{where} {exc}") from exc
        except (LookupError, TypeError, ValueError, struct.error, IntegrityError) as exc:
            said = exc if isinstance(exc, IntegrityError) else f"it holds no packs ({exc!r:.100})"
            raise IntegrityError(f"{where} is damaged: {said}. {self.documents.remedy}") from exc
        return thread, PackEnd(end.size + len(content), checksums)

    def draft(self, transaction: ThreadTransaction, old: Parsed | None) -> Draft | None:
        thread = transaction.thread
        assert thread is not None  # noqa: S101  (the caller deletes it else)
        settle(transaction)
        end: PackEnd = old.end if old else PackEnd()
        if old is not None and transaction.adds_only:
            facts, bundle = _describe_addition(transaction, old.thread)
            size, before = end.size, end.checksums[-1]
            if not facts and not bundle:
                return None
        else:
            facts, bundle = _describe_everything(thread, end)
            size = before = 0
        pack, checksum = _pack(facts, bundle, before)
        active_at = thread.active_at if thread.exists else None
        # A server that removes what has expired must not remove an outbox that is not applied.
        expires_at = None if thread.outbox else thread.expires_at
        if expires_at and thread.tickets:  # nor a turn
            expires_at = max(expires_at, *(it.until for it in thread.tickets))
        body = Body(size, pack, active_at=active_at, expires_at=expires_at)
        checksums = (*end.checksums, checksum)[-REMEMBERED:]
        return Draft(body, thread, PackEnd(size + len(pack), checksums))

    def holds(self, content: bytes, draft: Draft) -> bool:
        body, thread = draft.body, draft.thread
        assert body is not None and thread is not None  # noqa: S101, PT018  (it is no deletion)
        if content.startswith(body.rest, body.kept_bytes):
            return True
        return draft.end.checksums[-1] in self.parse(content, thread.thread_id)[1].checksums


def _require_id(thread: Thread, thread_id: str) -> None:
    if thread.thread_id != thread_id:
        raise IntegrityError(f"it is of the thread {thread.thread_id!r}, not {thread_id!r}")


def _describe_everything(thread: Thread, old: PackEnd) -> tuple[dict[str, Any], Bundle]:
    """Return all of a thread as one pack, which is unlike that of any other write."""
    replaced = struct.pack(f"<{len(old.checksums)}I", *old.checksums)
    facts = {
        "form": FORMAT,
        "token": token_hex(8),
        **({"replaced": b64encode(replaced).decode()} if replaced else {}),
        "thread": [getattr(thread, name) for name in bundles.THREAD],
        "created_at": thread.created_at,
        "times": [thread.active_at, thread.expires_at],
        "lines": [bundles.describe_line(it) for it in thread.histories.values()],
        "logs": [bundles.describe_log(it) for it in thread.logs.values()],
        **_describe_deliveries(thread),
        **({"turns": thread.dump_turns()} if thread.tickets else {}),
    }
    histories = thread.histories.items()
    groups = ((name, of_one.values()) for name, it in histories for of_one in it.writes.values())
    writes = [(name, it) for name, some in groups for it in some]
    return facts, Bundle({name: it.rows for name, it in histories}, writes, thread.messages)


def _describe_addition(
    transaction: ThreadTransaction, old: Thread
) -> tuple[dict[str, Any], Bundle]:
    thread, bundle, facts = transaction.thread, Bundle(), dict[str, Any]()
    assert thread is not None  # noqa: S101  (it adds only)
    for history, item in transaction.added:
        if isinstance(item, Row):
            bundle.put(history.namespace, item)
        elif item is not None:
            bundle.writes.append((history.namespace, item))
    bundle.messages = thread.messages[len(old.messages) :]
    lines = [
        history
        for name, history in thread.histories.items()
        if name not in old.histories or old.histories[name].line != history.line
    ]
    logs = [it for name, it in thread.logs.items() if old.logs.get(name) != it]
    if lines:
        facts["lines"] = [bundles.describe_line(it) for it in lines]
    if logs:
        facts["logs"] = [bundles.describe_log(it) for it in logs]
    if (thread.outbox, thread.delivered) != (old.outbox, old.delivered):
        facts |= _describe_deliveries(thread)
    if thread.tickets != old.tickets:
        facts["turns"] = thread.dump_turns()
    implied = transaction.now if bundle.rows else old.active_at
    if (thread.active_at, thread.expires_at) != (implied, old.expires_at):
        facts["times"] = [thread.active_at, thread.expires_at]
    return facts, bundle


def _describe_deliveries(thread: Thread) -> dict[str, Any]:
    return {"outbox": thread.outbox and thread.outbox.to_json(), "delivered": thread.delivered}


def _pack(facts: dict[str, Any], bundle: Bundle, checksum: int) -> tuple[bytes, int]:
    fields, payloads = bundles.describe_bundle(bundle)
    head = orjson.dumps({**facts, **fields})
    joined = b"".join(payloads)
    checksum = crc32(joined, crc32(head, checksum))
    return b"".join((START.pack(len(head), len(joined), checksum), head, joined)), checksum


def _apply(
    thread: Thread | None, before: tuple[int, ...], content: bytes
) -> tuple[Thread, tuple[int, ...]]:
    """Return the thread with packs applied to it, and the checksums of the last ones.

    A pack that is not as it was written is refused, and a form of a newer version of this library.
    """
    view, at = memoryview(content), 0
    checksum = before[-1] if before else 0
    heads, starts, checksums = [], [], []
    while at < len(content):
        head_bytes, payload_bytes, expected = START.unpack_from(content, at)
        begin = at + START.size
        middle = begin + head_bytes
        at = middle + payload_bytes
        checksum = crc32(view[begin:at], checksum)
        if checksum != expected or at > len(content):
            raise IntegrityError("a part of it is not as it was written")
        heads.append(view[begin:middle])
        starts.append(middle)
        checksums.append(checksum)
    each: list[dict[str, Any]] = orjson.loads(b"[%b]" % b",".join(heads))
    thread = thread or _make_thread(each[0])
    for facts, start in zip(each, starts, strict=True):
        _add(thread, facts, bundles.split_payloads(facts, content, start))
    _set_last(thread, each)
    replaced = struct.iter_unpack("<I", b64decode(each[0].get("replaced", "")))
    before = before or tuple(it for (it,) in replaced)
    return thread, (*before, *checksums)[-REMEMBERED:]


def _make_thread(facts: dict[str, Any]) -> Thread:
    if facts["form"] != FORMAT:
        raise SchemaError("was written by a newer locus-store; upgrade this one")
    created_at = datetime.fromisoformat(facts["created_at"])
    fields = dict(zip(bundles.THREAD, facts["thread"], strict=True))
    return Thread(**fields, created_at=created_at, active_at=created_at)


def _add(thread: Thread, facts: dict[str, Any], payloads: Iterator[bytes]) -> None:
    """Add what a pack holds to a thread."""
    for row in facts.get("lines", ()):
        if row[0] not in thread.histories:
            namespace, line = bundles.parse_line(row)
            thread.histories[namespace] = History(namespace, line, is_settled=True)
    for row in facts.get("rows", ()):
        bundles.put_row(thread.histories[row[0]], row, next(payloads))
    for row in facts.get("writes", ()):
        thread.histories[row[0]].put_write(bundles.write_of(row, next(payloads)))
    for row in facts.get("messages", ()):
        thread.messages.append(bundles.make_message(row, next(payloads)))
    for log in map(bundles.parse_log, facts.get("logs", ())):
        thread.logs[log.namespace] = log
    if "outbox" in facts:
        thread.outbox, thread.delivered = Outbox.from_json(facts["outbox"]), facts["delivered"]
    if "turns" in facts:
        thread.load_turns(facts["turns"])


def _set_last(thread: Thread, each: list[dict[str, Any]]) -> None:
    """Set the lines and times of a thread to the last ones of its packs."""
    lines = {row[0]: row for facts in each for row in facts.get("lines", ())}
    for namespace, line in map(bundles.parse_line, lines.values()):
        thread.histories[namespace].line = line
    active_at = expires_at = None
    for facts in each:
        if "times" in facts:
            active_at, expires_at = facts["times"]
            thread.expires_at = bundles.parse_time(expires_at)
        elif "rows" in facts:
            *_, active_at = facts["rows"][-1]  # when it was created
    if active_at is not None:
        thread.active_at = datetime.fromisoformat(active_at)
