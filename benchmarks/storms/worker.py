"""One process of a storm: works on shared threads and writes down what it did and saw."""

# ruff: noqa: SLF001  (the faults break the store from inside)

from __future__ import annotations

import argparse
import asyncio
import hashlib
import itertools
import json
import random
import time
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.storms.joined import join_often
from benchmarks.workloads import prose
from locus_store import ConflictError, ConnectionFailedError, NotFoundError, open_checkpointer
from locus_store.values.encoding import encode
from locus_store.versions import removing, saving

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

KEEP_LAST = 5
MOST_ERRORS = 25
READS = 8
FOLDED = 40
"""Versions of one thread that the reading process folds in one go, at most."""

KINDS: dict[str, dict[str, int]] = {
    "linear": {"append": 10, "run": 4, "again": 1, "stale": 3, "read": 3, "delete_old": 4},
    "tree": {"append": 5, "fork": 4, "rewind": 4, "branch": 4, "blind": 1, "stale": 2, "read": 3},
    "wood": {"append": 6, "fork": 3, "rewind": 3, "branch": 3, "delete": 5, "read": 3, "copy": 1},
    "ids": {"append": 3, "replace": 6, "put": 2, "delete": 2, "read": 4, "fork": 1},
    "pruned": {"append": 6, "run": 3, "fork": 1, "rewind": 1, "branch": 1, "delete": 1, "read": 3},
    "gone": {"append": 8, "replace": 2, "delete": 1, "drop": 1, "read": 2},
}
"""Kind of thread to what is done to it, how often. On a linear thread the head only moves on."""

THREADS = [f"{kind}-{number}" for kind in KINDS for number in range(2)]
FIXED_IDS = ("v1", "v2", "latest", "_checkpoints")


def kind_of(thread: str) -> str:
    """The kind that a thread's name begins with; copies are woods."""
    return thread.split("-", 1)[0]


def digest(state: Any) -> str:
    return hashlib.sha256(encode(state)).hexdigest()[:24]


class Journal:
    """Append-only: a line before each call and one after it, by the clock that processes share."""

    def __init__(self, path: Path, number: int) -> None:
        self._file = path.open("a", buffering=1, encoding="utf-8")
        self._number = number
        self._calls = itertools.count()

    def begin(self, *what: Any) -> str:
        call = f"{self._number}.{next(self._calls)}"
        self._write("begin", call, *what)
        return call

    def end(self, call: str, *outcome: Any) -> None:
        self._write("end", call, *outcome)

    def close(self) -> None:
        self._file.close()

    def _write(self, *line: Any) -> None:
        self._file.write(json.dumps([line[0], time.monotonic_ns(), *line[1:]]) + "\n")


class Worker:
    """Does one thing after another to threads chosen at random."""

    def __init__(
        self, saver: Any, pruner: Any, journal: Journal, rng: random.Random, *, killed: bool
    ) -> None:
        self._savers = {False: saver, True: pruner}
        self._unknown = (ConnectionFailedError,) if killed else ()
        self._journal = journal
        self._rng = rng
        self.saved = 0
        self.errors = 0
        self._held: dict[str, tuple[Any, str | None]] = {}
        self._copies: list[str] = []

    def _on(self, thread: str) -> Any:
        return self._savers[kind_of(thread) == "pruned"]

    async def step(self) -> None:
        """One operation on one thread."""
        thread = self._rng.choice(THREADS + self._copies[-2:])
        weights = KINDS[kind_of(thread)]
        operation = self._rng.choices(list(weights), list(weights.values()))[0]
        try:
            await getattr(self, operation)(thread)
        except self._unknown:
            return  # a list
        except Exception as exc:  # noqa: BLE001  (whatever it is, the verdict tells)
            self.errors += 1
            self._journal.end(self._journal.begin("unexpected", operation, thread), repr(exc)[:500])

    # --- states: each says what it is, and its log says all it came from

    def _grown(self, state: Any, thread: str, checkpoint_id: str) -> str:
        rng = self._rng
        nonce = f"n{rng.getrandbits(64):016x}"
        log = state.setdefault("log", [])
        log.append({"nonce": nonce, "text": prose(rng, rng.randrange(20, 200))})
        if rng.random() < 0.2:
            log[rng.randrange(len(log))]["seen"] = nonce
        state["count"] = len(log)
        state["window"] = [*state.get("window", []), nonce][-8:]
        notes = state.setdefault("notes", {})
        notes[f"note {rng.randrange(6)}"] = {"by": nonce, "of": [len(log)]}
        if rng.random() < 0.2:
            notes.pop(f"note {rng.randrange(6)}", None)
        document = state.get("document") or prose(rng, 1500)
        at = rng.randrange(len(document))
        state["document"] = document[:at] + prose(rng, 30) + document[at + 25 :]
        state["self"] = {"thread": thread, "id": checkpoint_id, "nonce": nonce}
        return nonce

    async def _save(
        self, thread: str, state: Any, made_from: str | None, mode: str, *, id_: str | None = None,
        grow: bool = True, **options: Any,
    ) -> str | None:  # fmt: skip
        """The checkpoint id where the save was acknowledged."""
        checkpoint_id = id_ or f"{mode}/{self._rng.getrandbits(64):x}"
        if grow:
            self._grown(state, thread, checkpoint_id)
        nonce = state["self"]["nonce"]
        call = self._journal.begin(
            "save", thread, checkpoint_id, digest(state), nonce, mode, made_from
        )
        try:
            saved_id = await self._on(thread).save(state, thread, checkpoint_id, **options)
        except ConflictError:
            self._journal.end(call, "conflict")
            return None
        except NotFoundError:
            self._journal.end(call, "no parent")
            return None
        except Exception as exc:  # noqa: BLE001  (whatever it is, the verdict tells)
            self._failed(call, exc)
            return None
        self._journal.end(call, "ok" if saved_id == checkpoint_id else f"saved as {saved_id}")
        self.saved += 1
        if self._rng.random() < 0.1:
            await self._read(thread, checkpoint_id)
        return checkpoint_id

    def _failed(self, call: str, exc: Exception) -> None:
        if isinstance(exc, self._unknown):
            return  # its line before the call is all that is known, as of a killed process
        self.errors += 1
        self._journal.end(call, f"error {exc!r}"[:500])

    async def _read(self, thread: str, checkpoint_id: str | None = None) -> Any:
        call = self._journal.begin("read", thread, checkpoint_id)
        try:
            state = await self._on(thread).load(thread, checkpoint_id)
        except Exception as exc:  # noqa: BLE001  (whatever it is, the verdict tells)
            self._failed(call, exc)
            return None
        if state is None:
            self._journal.end(call, "none")
            return None
        found = state.get("self", {})
        self._journal.end(call, "ok", found.get("id"), digest(state), len(state.get("log", [])))
        return state

    async def _ids(self, thread: str, limit: int = 1000) -> list[str]:
        found: list[str] = await self._on(thread).list_checkpoints(thread, limit)
        return found

    async def _head(self, thread: str) -> tuple[Any, str | None]:
        state = await self._read(thread)
        return ({}, None) if state is None else (state, state["self"]["id"])

    # --- operations

    async def append(self, thread: str) -> None:
        state, made_from = await self._head(thread)
        await self._save(thread, state, made_from, "append")

    async def run(self, thread: str) -> None:
        """A run loads once and saves after each of its steps."""
        state, made_from = await self._head(thread)
        for _ in range(3):
            made_from = await self._save(thread, state, made_from, "append")
            if made_from is None:
                return

    async def stale(self, thread: str) -> None:
        """Save what was loaded some time ago."""
        state, made_from = self._held.pop(thread, (None, None))
        if state is not None:
            await self._save(thread, state, made_from, "append")
        held = await self._head(thread)
        if held[1] is not None:  # a state that no load gave remembers no version
            self._held[thread] = held

    async def again(self, thread: str) -> None:
        """A retry: the same content under the same id."""
        state, made_from = await self._head(thread)
        if saved := await self._save(thread, state, made_from, "append"):
            await self._save(thread, state, None, "again", id_=saved, grow=False)

    async def blind(self, thread: str) -> None:
        """Save without a load: with ``overwrite``, since this task may have loaded before."""
        await self._save(thread, {}, None, "blind", on_conflict="overwrite")

    async def _any_version(self, thread: str) -> tuple[Any, str | None]:
        ids = await self._ids(thread, 60)
        chosen = self._rng.choice(ids) if ids else None
        state = await self._read(thread, chosen) if chosen else None
        return state, chosen

    async def fork(self, thread: str) -> None:
        state, chosen = await self._any_version(thread)
        if state is not None:
            await self._save(thread, state, chosen, "fork", parent_checkpoint_id=chosen)

    async def rewind(self, thread: str) -> None:
        state, chosen = await self._any_version(thread)
        if state is not None:
            await self._save(thread, state, chosen, "rewind")

    async def branch(self, thread: str) -> None:
        state, made_from = await self._head(thread)
        await asyncio.sleep(0)
        for _ in range(2):
            await self._save(thread, state, made_from, "branch", on_conflict="branch")

    async def replace(self, thread: str) -> None:
        state, made_from = await self._head(thread)
        await self._save(thread, state, made_from, "replace", id_=self._rng.choice(FIXED_IDS))

    async def put(self, thread: str) -> None:
        """Put whatever is under a fixed id again, changed, onto whatever the head is."""
        fixed = self._rng.choice(FIXED_IDS)
        state = await self._read(thread, fixed) or {}
        await self._save(thread, dict(state), None, "put", id_=fixed, on_conflict="overwrite")

    async def delete(self, thread: str) -> None:
        ids = await self._ids(thread, 60)
        if ids:
            await self._delete(thread, self._rng.choice(ids))

    async def delete_old(self, thread: str) -> None:
        """Never the head, nor what may still be it."""
        if ids := (await self._ids(thread))[8:]:
            await self._delete(thread, self._rng.choice(ids))

    async def drop(self, thread: str) -> None:
        await self._delete(thread, None)

    async def _delete(self, thread: str, checkpoint_id: str | None) -> None:
        call = self._journal.begin("delete", thread, checkpoint_id)
        try:
            found = await self._on(thread).delete(thread, checkpoint_id)
        except Exception as exc:  # noqa: BLE001  (whatever it is, the verdict tells)
            self._failed(call, exc)
            return
        self._journal.end(call, "ok", found)

    async def copy(self, thread: str) -> None:
        destination = f"wood-copy-{self._rng.getrandbits(40):x}"
        call = self._journal.begin("copy", thread, destination)
        try:
            copied = await self._on(thread).copy_thread(thread, destination)
        except Exception as exc:  # noqa: BLE001  (whatever it is, the verdict tells)
            self._failed(call, exc)
            return
        self._journal.end(call, "ok", copied)
        if copied:
            self._copies.append(destination)
            for checkpoint_id in (await self._ids(destination))[:READS]:
                await self._read(destination, checkpoint_id)

    async def read(self, thread: str) -> None:
        await self._fold(thread, READS)

    async def fold(self) -> None:
        """Read what there is of a thread."""
        await self._fold(self._rng.choice(THREADS), FOLDED)

    async def _fold(self, thread: str, most: int) -> None:
        ids = await self._ids(thread)
        chosen = {*ids[: most // 2], *self._rng.sample(ids, min(len(ids), most // 2))}
        for checkpoint_id in chosen:
            await self._read(thread, checkpoint_id)


# --- faults: what a broken store would do, so that the harness is seen to notice


def _no_conflicts() -> None:
    """A save takes the head for its parent, whatever it was made from."""

    def place(lines: Any, line: Any, request: Any) -> saving.Placement:
        del lines, request
        return saving.Placement(line.head if line else None, moves_head=True)

    saving._choose_placement = place


def _any_basis() -> None:
    """Frames are appended to the head, whatever version they are against."""
    holds = saving._is_head

    def lax(lines: Any, line: Any, mark: Any) -> bool:
        return holds(lines, line, mark) or (mark is not None and line is not None)

    continues = saving._continues

    def broken(*arguments: Any) -> bool:
        saving._is_head = lax
        try:
            return continues(*arguments)
        finally:
            saving._is_head = holds

    saving._continues = broken


def _frames_stay() -> None:
    """Deleting a record leaves the frames after it as they were."""
    removing._make_payloads = lambda *_: []


def _lost_acknowledgement() -> None:
    """One save in ten, of those in transactions, is acknowledged and rolled back."""
    from locus_store.sql.threads import repository

    save, calls = repository.Repository.save, itertools.count(1)

    def forgetful(self: Any, request: Any) -> Any:
        if next(calls) % 10:
            return save(self, request)
        inner = self.connection.begin_nested()
        written = save(self, request)
        inner.rollback()
        return written

    repository.Repository.save = forgetful


def _grouped_without_conflicts() -> None:
    """PostgreSQL's statement for a group is not told what a save expects."""
    from locus_store.backends.postgresql import save_groups

    row_of = save_groups.make_row

    def free(save: Any, *arguments: Any, **options: Any) -> Any:
        known = row_of(save, *arguments, **options)
        row = row_of(replace(save, basis=None, expected=None), *arguments, **options)
        return known and row and row._replace(line=known.line)

    save_groups.make_row = free


def _grouped_and_undone() -> None:
    """Every second group of PostgreSQL, as a slow machine has few, is acknowledged and undone."""
    from locus_store.backends.postgresql.save_groups import Saves

    run, calls = Saves._run, itertools.count(1)

    async def forgetful(self: Any, *args: Any) -> Any:
        if next(calls) % 2:
            return await run(self, *args)
        pool = self.pool
        driver = pool.lease_driver

        @asynccontextmanager
        async def undone() -> AsyncIterator[Any]:
            async with driver() as connection:
                transaction = connection.transaction()
                await transaction.start()
                yield connection
                await transaction.rollback()

        pool.lease_driver = undone
        try:
            return await run(self, *args)
        finally:
            pool.lease_driver = driver

    Saves._run = forgetful  # type: ignore[method-assign]


def _stale_shapes() -> None:
    """A version is known by the shape of its line's first version: frames are against that one."""
    from locus_store.versions.caches import CachedVersions

    put = CachedVersions.put
    first: dict[Any, Any] = {}

    def stale(self: Any, key: Any, *version: Any) -> None:
        mark, name, shape, snapshot = version
        put(self, key, mark, name, first.setdefault(key, shape), snapshot)

    CachedVersions.put = stale  # type: ignore[method-assign]


FAULTS: dict[str, Callable[[], None]] = {
    "no-conflicts": _no_conflicts,
    "any-basis": _any_basis,
    "frames-stay": _frames_stay,
    "lost-acknowledgement": _lost_acknowledgement,
    "stale-shapes": _stale_shapes,
    "grouped-without-conflicts": _grouped_without_conflicts,
    "grouped-and-undone": _grouped_and_undone,
}


# --- the process


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", required=True)
    parser.add_argument("--journal", type=Path, required=True)
    parser.add_argument("--stop", type=Path, required=True, help="the reader ends when it is there")
    parser.add_argument("--number", type=int, required=True)
    parser.add_argument("--saves", type=int, required=True, help="0: only read")
    parser.add_argument("--tasks", type=int, default=2)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--fault", choices=FAULTS)
    parser.add_argument("--segments", action="store_true")
    parser.add_argument("--killed", action="store_true", help="calls may end without an answer")
    return parser.parse_args()


async def work(options: argparse.Namespace) -> None:
    journal = Journal(options.journal, options.number)
    saver = open_checkpointer(options.url, state_type=dict)
    pruner = open_checkpointer(options.url, state_type=dict, keep_last=KEEP_LAST)
    seeds = [options.seed * 1000 + options.number * 10 + task for task in range(options.tasks)]
    workers = [
        Worker(saver, pruner, journal, random.Random(seed), killed=options.killed) for seed in seeds
    ]

    def is_over() -> bool:
        errors = sum(it.errors for it in workers)
        done = sum(it.saved for it in workers) >= options.saves if options.saves else False
        return done or errors >= MOST_ERRORS or options.stop.exists()

    async def until_over(step: Callable[[], Awaitable[None]]) -> None:
        while not is_over():
            await step()

    steps = [it.step if options.saves else it.fold for it in workers]
    await asyncio.gather(*(until_over(step) for step in steps))
    await saver.close()
    await pruner.close()


def main() -> None:
    options = parsed()
    if options.fault:
        FAULTS[options.fault]()
    if options.segments:
        join_often()
    asyncio.run(work(options))


if __name__ == "__main__":
    main()
