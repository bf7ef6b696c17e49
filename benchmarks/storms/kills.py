"""Kill a writing process at random moments: python -m benchmarks.storms.kills --trials 100.

The writer tells of each save, after it was acknowledged, on a pipe; what is in the pipe survives
`kill -9`. Then another process's eyes: every acknowledged save loads and verifies, every other
version there is one that was submitted, and the next writer goes on where this one ended.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import random
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.places import add_place, place
from benchmarks.storms.joined import join_often
from benchmarks.workloads import prose
from locus_store import ConflictError, open_checkpointer
from locus_store.values.encoding import encode

if TYPE_CHECKING:
    from collections.abc import Sequence

THREADS = 4
KEPT = 40
"""Entries of a state's log."""

MOST_LINES = 150
"""Lines of the writer after which the kill comes at the latest."""


def digest(state: Any) -> str:
    return hashlib.sha256(encode(state)).hexdigest()[:24]


# --- the writer, which is killed


async def write(url: str, seed: int, keep_last: int | None) -> None:
    """Save for ever, on several threads at once, also deleting and forking."""
    saver = open_checkpointer(url, state_type=dict, keep_last=keep_last)
    await asyncio.gather(*(write_thread(saver, number, seed) for number in range(THREADS)))


async def write_thread(saver: Any, number: int, seed: int) -> None:
    rng, thread = random.Random(seed * 100 + number), f"thread-{number}"
    state = await saver.load(thread) or {"log": [], "note": ""}
    for count in range(10**9):
        state["log"].append({"text": prose(rng, rng.choice([30, 400, 4000])), "count": count})
        del state["log"][:-KEPT]
        state["note"] = f"{seed}.{count}"
        checkpoint_id = f"{seed}.{count}"
        tell("try", thread, checkpoint_id, digest(state))
        await saver.save(state, thread, checkpoint_id)
        tell("ok", thread, checkpoint_id, digest(state))
        if rng.random() < 0.2:
            old = (await saver.list_checkpoints(thread, 30))[3:]
            if old:
                await delete(saver, thread, rng.choice(old))


async def delete(saver: Any, thread: str, checkpoint_id: str) -> None:
    tell("delete", thread, checkpoint_id, "-")
    await saver.delete(thread, checkpoint_id)
    tell("deleted", thread, checkpoint_id, "-")


def tell(*line: str) -> None:
    sys.stdout.write("\t".join(line) + "\n")
    sys.stdout.flush()


# --- the parent, which kills and looks


class Ledger:
    """The acknowledged saves; with ``keep_last`` only the newest versions must exist."""

    def __init__(self, keep_last: int | None) -> None:
        self.keep_last = keep_last
        self.tried: dict[tuple[str, str], str] = {}
        self.acknowledged: dict[tuple[str, str], str] = {}
        self.deletes: dict[tuple[str, str], str] = {}
        self.counts: Counter[str] = Counter()

    def note(self, line: str) -> None:
        what, thread, checkpoint_id, found = line.rstrip("\n").split("\t")
        self.counts[what] += 1
        key = thread, checkpoint_id
        if what == "try":
            self.tried[key] = found
        elif what == "ok":
            self.acknowledged[key] = found
        else:
            self.deletes[key] = what

    def needed(self, thread: str) -> list[tuple[str, str]]:
        """The versions of a thread that have to be there: acknowledged, new and not deleted."""
        tried = [it for it in self.tried if it[0] == thread]
        newest = tried if self.keep_last is None else tried[-self.keep_last :]
        return [it for it in newest if it in self.acknowledged and it not in self.deletes]


def killed(
    url: str, seed: int, rng: random.Random, ledger: Ledger, options: Sequence[str] = ()
) -> None:
    """Run a writer and kill it: after so many lines, and a random moment more."""
    command = [sys.executable, "-m", __spec__.name, "--url", url, "--write", str(seed)]
    command += [] if ledger.keep_last is None else ["--keep-last", str(ledger.keep_last)]
    command += options
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as writer:
        assert writer.stdout is not None  # noqa: S101  (a pipe was asked for)
        for _ in range(rng.randrange(1, MOST_LINES)):
            ledger.note(writer.stdout.readline() or stopped(writer))
        try:
            writer.wait(rng.random() * 0.02)
        except subprocess.TimeoutExpired:
            writer.send_signal(signal.SIGKILL)
        for line in writer.stdout:
            if line.endswith("\n"):
                ledger.note(line)
    if writer.returncode != -signal.SIGKILL:
        raise SystemExit(f"the writer ended by itself with {writer.returncode}")


def stopped(writer: subprocess.Popen[str]) -> str:
    raise SystemExit(f"the writer ended by itself with {writer.wait()}")


async def look(url: str, ledger: Ledger, *, since: set[tuple[str, str]]) -> Counter[str]:
    """Load what there must be and what there is; ``since`` are the versions looked at before."""
    found: Counter[str] = Counter()
    saver = open_checkpointer(url, state_type=dict)
    for number in range(THREADS):
        thread = f"thread-{number}"
        there = dict.fromkeys(await saver.list_checkpoints(thread, 10**6))
        for checkpoint_id in there:
            key = thread, checkpoint_id
            if key in since:
                continue
            found["loaded"] += 1
            try:
                state = await saver.load(*key)
            except Exception as exc:  # noqa: BLE001  (whatever it is, the version is torn)
                print(f"torn: {key}: {exc!r}")
                found["torn"] += 1
                continue
            if digest(state) != ledger.tried.get(key):
                print(f"torn: {key} is not what was submitted")
                found["torn"] += 1
            if key not in ledger.acknowledged:
                found["unacknowledged, whole"] += 1
        for key in ledger.needed(thread):
            if key[1] not in there:
                print(f"missing: {key}")
                found["missing"] += 1
        # What went on after a kill was saved without the option.
        if ledger.keep_last is not None and len(there) > ledger.keep_last + 1:
            print(f"too many: {thread} has {len(there)} versions")
            found["too many"] += 1
        found["deleted, but there"] += sum(
            ledger.deletes.get((thread, it)) == "deleted" for it in there
        )
    await saver.close()
    return found


async def goes_on(url: str, ledger: Ledger, seed: int) -> bool:
    """The next process loads the head and saves onto it, without conflict."""
    saver = open_checkpointer(url, state_type=dict)
    thread, checkpoint_id = "thread-0", f"after {seed}"
    state = await saver.load(thread) or {"log": []}
    state["log"].append({"text": "the next process"})
    ledger.tried[thread, checkpoint_id] = digest(state)
    try:
        await saver.save(state, thread, checkpoint_id)
    except ConflictError:
        return False
    finally:
        await saver.close()
    ledger.acknowledged[thread, checkpoint_id] = digest(state)
    return True


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    add_place(parser)
    parser.add_argument("--trials", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--keep-last", type=int, help="what the writers keep of each thread")
    parser.add_argument(
        "--segments", action="store_true", help="records are joined after every second save"
    )
    parser.add_argument("--write", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.segments:
        join_often()
    if options.write is not None:
        asyncio.run(write(options.url, options.write, options.keep_last))
        return 0
    with (
        tempfile.TemporaryDirectory(prefix="locus-store-kills-") as directory,
        place(options, Path(directory)) as url,
    ):
        return trials(options, url)


def trials(options: argparse.Namespace, url: str) -> int:
    rng, total = random.Random(options.seed), Counter[str]()
    ledger = Ledger(options.keep_last)
    seen: set[tuple[str, str]] = set()
    for trial in range(options.trials):
        more = ["--segments"] if options.segments else []
        killed(url, options.seed * 10**6 + trial, rng, ledger, more)
        total += asyncio.run(look(url, ledger, since=seen))
        seen |= ledger.tried.keys()
        total["did not go on"] += not asyncio.run(goes_on(url, ledger, trial))
    again = asyncio.run(look(url, ledger, since=set()))
    counts = ledger.counts
    print(
        f"{options.trials} kills: {counts['ok']:,} saves acknowledged, {counts['deleted']:,} "
        f"deletes; versions loaded: {total['loaded']:,} between, {again['loaded']:,} at the end"
    )
    print(
        f"saves under way that were there, whole: {total['unacknowledged, whole']:,} of "
        f"{counts['try'] - counts['ok']:,}"
    )
    bad = {
        name: total[name] + again[name]
        for name in ("missing", "torn", "deleted, but there", "did not go on", "too many")
    }
    print(", ".join(f"{name}: {number}" for name, number in bad.items()))
    return 1 if any(bad.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
