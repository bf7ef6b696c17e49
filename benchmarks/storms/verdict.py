"""The verdict on a storm from its journals: reads, versions at the end, lost saves.

A call is known by when it began and ended, so of two calls that overlap either may have been first.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from benchmarks.storms.worker import KEEP_LAST, digest, kind_of
from locus_store import open_checkpointer

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from locus_store.types import Version

Key = tuple[str, str]
"""Thread and checkpoint id."""

MOST_SHOWN = 12
MOST_SEARCHES = 5
NEVER = 1 << 62


@dataclass(slots=True)
class Call:
    """One line before a call and, unless its process was killed, one after it."""

    what: str
    begun: int
    arguments: list[Any]
    ended: int = NEVER
    outcome: str = "unknown"
    results: list[Any] = field(default_factory=list)

    @property
    def thread(self) -> str:
        return str(self.arguments[0])

    @property
    def checkpoint_id(self) -> str:
        return str(self.arguments[1])

    @property
    def key(self) -> Key:
        return self.thread, self.checkpoint_id

    @property
    def is_acknowledged(self) -> bool:
        return self.outcome == "ok"

    @property
    def may_have_happened(self) -> bool:
        return self.outcome in {"ok", "unknown"} or self.outcome.startswith("error")


class Save(Call):
    """A save: what was submitted, and onto what."""

    __slots__ = ()

    @property
    def digest(self) -> str:
        return str(self.arguments[2])

    @property
    def nonce(self) -> str:
        return str(self.arguments[3])

    @property
    def mode(self) -> str:
        return str(self.arguments[4])

    @property
    def made_from(self) -> str | None:
        found: str | None = self.arguments[5]
        return found


def read_journals(paths: Iterable[Path]) -> list[Call]:
    """Every call of every process; a line cut off by a kill is none."""
    calls: dict[str, Call] = {}
    for path in paths:
        for line in path.read_text(encoding="utf-8").splitlines():
            try:
                kind, at, call, *rest = json.loads(line)
            except ValueError:
                continue
            if kind == "begin":
                made = Save if rest[0] == "save" else Call
                calls[call] = made(rest[0], at, rest[1:])
            elif kind == "end":
                calls[call].ended, calls[call].outcome, *_ = at, *rest
                calls[call].results = rest[1:]
            else:
                calls[path.name] = Call("crash", at, [call])
    return list(calls.values())


class Storm:
    """The journals, by what the rules ask of them."""

    def __init__(self, calls: list[Call]) -> None:
        self.calls = calls
        self.saves = [it for it in calls if isinstance(it, Save)]
        self.by_key: dict[Key, list[Save]] = defaultdict(list)
        self.by_thread: dict[str, list[Save]] = defaultdict(list)
        for save in self.saves:
            self.by_key[save.key].append(save)
            self.by_thread[save.thread].append(save)
        self.copies = {it.checkpoint_id: it for it in calls if it.what == "copy"}
        self._deleted: dict[tuple[str, str | None], list[Call]] = defaultdict(list)
        for call in calls:
            if call.what == "delete":
                self._deleted[call.thread, call.arguments[1]].append(call)

    def deletes(self, key: Key) -> list[Call]:
        """Calls that may have removed a version: of itself or of its thread."""
        return self._deleted.get(key, []) + self._deleted.get((key[0], None), [])

    def allowed(self, key: Key, begun: int, ended: int) -> set[str]:
        """Digests that a read of ``key`` between these times may give."""
        submitted = self.by_key.get(key, [])
        saves = [it for it in submitted if it.may_have_happened or self._may_be_gone_again(it)]
        found = {
            it.digest for it in saves if it.begun < ended and not is_replaced(it, saves, begun)
        }
        copy = self.copies.get(key[0])
        if copy and not any(it.is_acknowledged and it.ended < begun for it in saves):
            found |= self.allowed((copy.thread, key[1]), copy.begun, min(copy.ended, ended))
        return found

    def may_be_absent(self, key: Key) -> bool:
        """Return whether a version that was seen may be gone: deleted or pruned by anybody."""
        copy = self.copies.get(key[0])
        return (
            kind_of(key[0]) == "pruned"
            or bool(self.deletes(key))
            or (copy is not None and self.may_be_absent((copy.thread, key[1])))
        )

    def was_there(self, key: Key, at: int) -> bool:
        """Return whether a version had been acknowledged by then, and was never removed."""
        if self.may_be_absent(key):
            return False
        saved = any(it.is_acknowledged and it.ended < at for it in self.by_key.get(key, []))
        copy = self.copies.get(key[0])
        return saved or (copy is not None and copy.ended < at and self._must_be_copied(key))

    def must_exist(self, key: Key) -> bool:
        """Return whether a version must exist at the end."""
        deletes = self.deletes(key)
        kept = [
            it
            for it in self.by_key.get(key, [])
            if it.is_acknowledged and not any(gone.ended > it.begun for gone in deletes)
        ]
        if kind_of(key[0]) == "pruned":
            kept = [it for it in kept if self._successors(it) < KEEP_LAST]
        return bool(kept) or self._must_be_copied(key)

    def _successors(self, save: Save) -> int:
        later = [it for it in self.by_thread[save.thread] if it.ended > save.begun]
        return sum(it.may_have_happened and it is not save for it in later)

    def _may_be_gone_again(self, save: Save) -> bool:
        """Return whether a save that was refused may have been done, removed, and sent again."""

        def count_overlapping(calls: Iterable[Call]) -> int:
            return sum(it.begun < save.ended and it.ended > save.begun for it in calls)

        if save.outcome != "conflict":
            return False
        others = (it for it in self.by_thread[save.thread] if it.may_have_happened)
        is_pruned = kind_of(save.thread) == "pruned" and count_overlapping(others) >= KEEP_LAST
        return is_pruned or count_overlapping(self.deletes(save.key)) > 0

    def _must_be_copied(self, key: Key) -> bool:
        copy = self.copies.get(key[0])
        if copy is None or copy.results != [True] or self.deletes(key):
            return False
        source = (copy.thread, key[1])
        gone = [it for it in self.deletes(source) if it.begun < copy.ended]
        before = [it for it in self.by_key.get(source, []) if it.ended < copy.begun]
        saved = any(
            it.is_acknowledged and not any(delete.ended > it.begun for delete in gone)
            for it in before
        )
        return saved or (source[0] in self.copies and self._must_be_copied(source))

    def must_be_gone(self, key: Key) -> bool:
        """Return whether a version was deleted and not saved again."""
        saves = [it for it in self.by_key.get(key, []) if it.may_have_happened]
        return any(
            it.is_acknowledged and it.results == [True] and all(s.ended < it.begun for s in saves)
            for it in self.deletes(key)
        )

    @cached_property
    def keys(self) -> set[Key]:
        """Every version that was ever submitted or may have been copied."""
        found = set(self.by_key)
        for destination, copy in sorted(self.copies.items(), key=lambda item: item[1].begun):
            found |= {(destination, key[1]) for key in found if key[0] == copy.thread}
        return found


def is_replaced(save: Save, saves: list[Save], before: int) -> bool:
    """Return whether other content was acknowledged under its id before that time."""
    return any(
        it.is_acknowledged and it.digest != save.digest and save.ended < it.begun
        and it.ended < before
        for it in saves
    )  # fmt: skip


@dataclass
class Verdict:
    """Counts of the work, and the violations."""

    counts: Counter[str]
    violations: list[str] = field(default_factory=list)
    facts: list[str] = field(default_factory=list)

    def wrong(self, promise: str, what: str) -> None:
        self.violations.append(f"{promise}: {what}")

    def report(self, seconds: float) -> str:
        counts, saved = self.counts, self.counts["save ok"]
        others = sum(n for name, n in counts.items() if "error" in name or "unexpected" in name)
        modes = sorted(it for it in counts if it.startswith("ok: "))
        reads, gone = counts["read ok"] + counts["read none"], counts["read none"]
        lines = [
            f"saves: {saved:,} acknowledged ({saved / seconds:,.0f}/s)",
            f"refused: {counts['save conflict']:,} with ConflictError",
            f"forks of a version that was deleted: {counts['save no parent']:,} (NotFoundError)",
            f"other exceptions: {others:,}",
            "by kind: " + ", ".join(f"{it.removeprefix('ok: ')} {counts[it]:,}" for it in modes),
            f"deletes: {counts['delete ok']:,}, copies: {counts['copy ok']:,}",
            f"reads: {reads:,}, of them {gone:,} of a version deleted meanwhile",
            *self.facts,
            f"violations: {len(self.violations):,}",
            *self._shown(),
        ]
        return "\n".join(lines)

    def _shown(self) -> list[str]:
        kinds = Counter(it.split(":")[0] for it in self.violations)
        first = [f"  {it}" for it in self.violations[:MOST_SHOWN]]
        return [f"  {n:,} x {kind}" for kind, n in kinds.most_common()] + first


async def judge(url: str, journals: list[Path]) -> Verdict:
    """Hold the journals, and what is stored now, against the promises."""
    storm = Storm(read_journals(journals))
    verdict = Verdict(counted(storm))
    judge_calls(storm, verdict)
    judge_reads(storm, verdict)
    saver = open_checkpointer(url, state_type=dict)
    try:
        await judge_end(storm, verdict, saver)
        for thread in sorted(it for it in threads_of(storm) if kind_of(it) == "linear"):
            await judge_linear(storm, verdict, saver, thread)
        await judge_search(storm, verdict, saver)
    finally:
        await saver.close()
    return verdict


def counted(storm: Storm) -> Counter[str]:
    found = Counter(f"{it.what} {it.outcome.split('(')[0]}" for it in storm.calls)
    found.update(f"ok: {it.mode}" for it in storm.saves if it.is_acknowledged)
    return found


def judge_calls(storm: Storm, verdict: Verdict) -> None:
    """No call ends in anything but its promised outcomes."""
    for call in storm.calls:
        if call.what in {"crash", "unexpected"}:
            verdict.wrong("unexpected", f"{call.arguments} {call.outcome}")
        elif call.outcome not in {"ok", "conflict", "none", "no parent", "unknown"}:
            verdict.wrong("other exception", f"{call.what} {call.arguments[:2]}: {call.outcome}")
        elif call.outcome == "no parent" and isinstance(call, Save):
            if call.mode != "fork" or not storm.may_be_absent((call.thread, str(call.made_from))):
                verdict.wrong("parent not found", f"{call.key} onto {call.made_from}")
        elif isinstance(call, Save) and call.outcome == "conflict" and never_conflicts(call):
            verdict.wrong("conflict without a reason", f"{call.mode} {call.key}")


def never_conflicts(save: Save) -> bool:
    return save.mode in {"fork", "branch", "blind", "put"}


def judge_reads(storm: Storm, verdict: Verdict) -> None:
    """A read gives a state that was submitted under that id, not refused, not replaced before."""
    for call in storm.calls:
        if call.what != "read":
            continue
        asked = call.arguments[1]
        if call.outcome == "none":
            if asked is not None and storm.was_there((call.thread, asked), call.begun):
                verdict.wrong("wrong read", f"{call.thread} {asked} is not there")
        elif call.outcome == "ok":
            found_id, found, length = call.results
            key = (call.thread, asked or found_id)
            if found_id != key[1] or found not in storm.allowed(key, call.begun, call.ended):
                verdict.wrong("wrong read", f"{key} gives {found_id} {found}")
            if asked is None and kind_of(call.thread) == "linear":
                judge_head_read(storm, verdict, call, length)


def judge_head_read(storm: Storm, verdict: Verdict, call: Call, length: int) -> None:
    saves = [it for it in storm.by_thread[call.thread] if it.is_acknowledged]
    before = {it.nonce for it in saves if it.ended < call.begun}
    if length < len(before):
        verdict.wrong("stale head", f"{call.thread}: {length} entries, {len(before)} acknowledged")


async def judge_end(storm: Storm, verdict: Verdict, saver: Any) -> None:
    """Every acknowledged version that nobody removed loads, and nothing else does."""
    loaded = must = 0
    listed = {it: await judged_list(storm, verdict, saver, it) for it in threads_of(storm)}
    for key in sorted(storm.keys):
        state = await load(saver, verdict, key)
        loaded += state is not None
        must += storm.must_exist(key)
        if (state is not None) != (key[1] in listed[key[0]]):
            verdict.wrong("list and load differ", str(key))
        if state is None:
            if storm.must_exist(key):
                verdict.wrong("lost save", str(key))
        elif digest(state) not in storm.allowed(key, NEVER, NEVER):
            verdict.wrong("wrong read", f"{key} at the end")
        elif storm.must_be_gone(key):
            verdict.wrong("deleted, but there", str(key))
    parents = judge_parents(storm, verdict, listed)
    verdict.facts.append(f"at the end {loaded:,} versions load, {must:,} of them have to")
    verdict.facts.append(f"parents followed: {parents:,}")


def threads_of(storm: Storm) -> set[str]:
    return {key[0] for key in storm.keys}


async def judged_list(
    storm: Storm, verdict: Verdict, saver: Any, thread: str
) -> dict[str, Version]:
    """The versions that a thread lists, each of which was submitted, and each once."""
    versions = await history(saver, thread)
    listed = {it.checkpoint_id: it for it in versions}
    if len(versions) > len(listed):
        verdict.wrong("listed twice", thread)
    if kind_of(thread) == "pruned" and len(versions) > KEEP_LAST + 1:
        verdict.wrong("not pruned", f"{thread} lists {len(versions)}")
    for extra in listed.keys() - {it[1] for it in storm.keys if it[0] == thread}:
        verdict.wrong("unknown version", f"{thread} {extra}")
    return listed


async def load(saver: Any, verdict: Verdict, key: Key) -> Any:
    try:
        return await saver.load(*key)
    except Exception as exc:  # noqa: BLE001  (whatever it is, it is a wrong answer)
        verdict.wrong("wrong read", f"{key} at the end: {exc!r}"[:300])
        return None


async def history(saver: Any, thread: str) -> list[Version]:
    found: list[Version] = []
    while page := await saver.backend.history(
        thread, limit=100, before=found[-1].checkpoint_id if found else None
    ):
        found += page
    return found


def judge_parents(storm: Storm, verdict: Verdict, listed: dict[str, dict[str, Version]]) -> int:
    """A version's parent is the one that its state was made from, where that is still the same."""
    followed = 0
    for save in storm.saves:
        version = listed[save.thread].get(save.checkpoint_id)
        made_from = (save.thread, str(save.made_from))
        if version is None or save.made_from is None or not save.is_acknowledged:
            continue
        if save.mode not in {"append", "fork", "rewind"} or storm.may_be_absent(made_from):
            continue
        if len(storm.by_key[made_from]) > 1 or len(storm.by_key[save.key]) > 1:
            continue  # an id that was used again
        followed += 1
        if version.parent_id != save.made_from:
            verdict.wrong("wrong parent", f"{save.key}: {version.parent_id}, not {save.made_from}")
    return followed


async def judge_linear(storm: Storm, verdict: Verdict, saver: Any, thread: str) -> None:
    """The head holds the work of every acknowledged save, in its order, once."""
    state = await load(saver, verdict, (thread, None))  # type: ignore[arg-type]
    found = [it["nonce"] for it in state["log"]] if state else []
    acknowledged = {it.nonce for it in storm.by_thread[thread] if it.is_acknowledged}
    possible = {it.nonce for it in storm.by_thread[thread] if it.may_have_happened}
    for nonce in acknowledged - set(found):
        verdict.wrong("lost save", f"{nonce} is not in the head of {thread}")
    if len(found) != len(set(found)) or not set(found) <= possible:
        verdict.wrong("wrong head", thread)
    held = len(acknowledged & set(found))
    verdict.facts.append(f"{thread}: {held:,} of {len(acknowledged):,} acknowledged in its head")


async def judge_search(storm: Storm, verdict: Verdict, saver: Any) -> None:
    """A word that only one thread has ever had finds that thread."""
    if not saver.capabilities.search:
        return
    saves = [it for it in storm.by_thread["linear-0"] if it.is_acknowledged]
    for save in saves[:: max(1, len(saves) // MOST_SEARCHES)]:
        try:
            found = [hit["thread_id"] for hit in await saver.search(save.nonce)]
        except Exception as exc:  # noqa: BLE001  (whatever it is, it is a wrong answer)
            found = [repr(exc)[:300]]
        if found != ["linear-0"]:
            verdict.wrong("not found", f"{save.nonce} of linear-0: {found}")
