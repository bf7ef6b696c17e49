"""Fail over under load: python -m benchmarks.storms.failovers --trials 50.

PostgreSQL under Patroni, with three members of etcd, HAProxy and PgBouncer. 16 writers share eight
threads: on each, one goes by PgBouncer and HAProxy, and the other by HAProxy, or by a URL that
names all servers. 16 readers load the heads, half of them from the standbys. None of them is
restarted: what is not answered is sent again. Each trial has one fault. Afterwards its history is
judged by the rules of ``verdict`` and, independently, by Porcupine, which looks for an order of all
calls that explains every answer. Without a synchronous standby, acknowledged saves that a fail-over
loses are counted.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from contextlib import closing
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.machine import described, load_average, table
from benchmarks.places import patroni_cluster
from benchmarks.report import add_write, publish
from benchmarks.storms.verdict import Call, Save, judge, read_journals
from benchmarks.storms.worker import Journal, Worker, digest
from locus_store import BackendError, ConnectionFailedError, open_checkpointer
from locus_store.sql import migrate

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

THREADS = 8
"""Of each trial, with two writers and two readers each."""

PACE_SECONDS = 0.2
"""Between two calls of a writer or reader."""

HOLD_SECONDS = 3.0
"""For which a fault lasts beyond the election of another primary."""

DEADLINE_SECONDS = 120.0
"""Within which every writer has saved after a fault."""

LOST, STALE = "lost", "stale load"
PORCUPINE = Path(__file__).parent / "porcupine"
EXPLANATION = """16 writers on 8 threads, and 16 readers. A *pause* is the longest time between two
acknowledged saves of a writer; each trial has 16. It includes the time for which a fault lasts.
*Lost* are acknowledged saves. A *stale load* misses one that was acknowledged before: a lost one,
unless HAProxy was misled. Patroni has `ttl: 20`, `loop_wait: 1` and `retry_timeout: 3`, and HAProxy
replaces a server after two checks, one a second. The faults are described in
[failovers.py](../storms/failovers.py)."""


# --- faults


def kill(cluster: Any) -> None:
    """SIGKILL to Patroni and PostgreSQL of the primary; a service manager starts them again."""
    node = cluster.wait_for_primary()
    node.kill()
    cluster.wait_for_primary(beside=node)
    node.start()


def freeze(cluster: Any) -> None:
    """SIGSTOP to Patroni and PostgreSQL of the primary, which wake up beside another primary."""
    node = cluster.wait_for_primary()
    node.signal(signal.SIGSTOP)
    cluster.wait_for_primary(beside=node)
    time.sleep(HOLD_SECONDS)
    node.signal(signal.SIGCONT)


def switch_over(cluster: Any) -> None:
    """Ask Patroni for another primary."""
    cluster.switch_over()


def cut(cluster: Any) -> None:
    """Cut the primary off from etcd; its clients and standbys still reach it."""
    node = cluster.wait_for_primary()
    with cluster.cut_from_etcd(node):
        cluster.wait_for_primary(beside=node)
        time.sleep(HOLD_SECONDS)


def lose_etcd(cluster: Any) -> None:
    """SIGKILL to two of three members of etcd; they are started when no primary is left."""
    for member in cluster.etcd[:2]:
        member.kill()
    while cluster.find_primary():
        time.sleep(0.1)
    for member in cluster.etcd[:2]:
        member.start()


def mislead_to_standby(cluster: Any) -> None:
    """Switch over while HAProxy leads to the old primary, which is a standby then."""
    with cluster.misled_haproxy():
        cluster.switch_over()
        time.sleep(HOLD_SECONDS)


def mislead_to_primary(cluster: Any) -> None:
    """SIGSTOP to the primary's Patroni while HAProxy leads to its server, which nothing demotes."""
    node = cluster.wait_for_primary()
    with cluster.misled_haproxy():
        node.process.send_signal(signal.SIGSTOP)
        cluster.wait_for_primary(beside=node)
        time.sleep(HOLD_SECONDS)
    node.process.send_signal(signal.SIGCONT)


FAULTS: dict[str, Callable[[Any], None]] = {
    "kill": kill,
    "freeze": freeze,
    "switchover": switch_over,
    "etcd-cut": cut,
    "etcd-loss": lose_etcd,
    "haproxy-standby": mislead_to_standby,
    "haproxy-primary": mislead_to_primary,
}
MISLED = {"haproxy-standby", "haproxy-primary"}
"""Loads lead to a server that is not the primary any more, so they may return an older head."""


# --- clients


class Client(Worker):
    """A writer or reader of one thread, which continues after errors."""

    def __init__(self, saver: Any, journal: Journal, thread: str, rng: random.Random) -> None:
        super().__init__(saver, saver, journal, rng, killed=True)
        self.thread = thread
        self.saved_at: list[float] = []
        self.saved_again = asyncio.Event()
        self.failures: Counter[str] = Counter()
        self._is_unanswered = False

    def _failed(self, call: str, exc: Exception) -> None:
        if not isinstance(exc, (BackendError, ConnectionFailedError)):
            self._journal.end(call, f"error {exc!r}"[:500])
            return
        self._is_unanswered = True
        self.failures[str(exc)] += 1

    async def begin(self) -> None:
        """Save the first version."""
        await self._save_until_answered({}, None)

    async def write(self) -> None:
        """Save one version onto the head."""
        if state := await self.read():
            await self._save_until_answered(state, state["self"]["id"])

    async def _save_until_answered(self, state: Any, made_from: str | None) -> None:
        id_, grows = f"{self._rng.getrandbits(64):x}", True
        while grows or self._is_unanswered:
            self._is_unanswered = False
            saved = await self._save(self.thread, state, made_from, "append", id_=id_, grow=grows)
            grows = False
            if self._is_unanswered:
                await asyncio.sleep(PACE_SECONDS)
        if saved:
            self.saved_at.append(time.monotonic())
            self.saved_again.set()

    async def read(self) -> Any:
        """Load the head; ``None`` if that failed."""
        return await self._read(self.thread)

    async def read_standby(self) -> None:
        """Load the head of a standby, which may be an older one."""
        try:
            state = await self._on(self.thread).load(self.thread)
        except (BackendError, ConnectionFailedError) as exc:
            self.failures[str(exc)] += 1
            return
        if state:
            call = self._journal.begin("standby", self.thread, state["self"]["id"])
            self._journal.end(call, "ok", digest(state))


# --- the other judges


def judge_standbys(calls: list[Call]) -> list[str]:
    """Return the loads of standbys that gave what no client submitted.

    A standby may show a save that was refused in the end: it was sent to the old primary, which
    had passed it on to this standby only, and again to the new one.
    """
    loads = [it for it in calls if it.what == "standby"]
    known = {(*it.key, it.digest) for it in calls if isinstance(it, Save)}
    wrong = [it.key for it in loads if (*it.key, *it.results) not in known]
    return [f"wrong load of a standby: {it}" for it in wrong]


def list_operations(calls: Iterable[Call], *, is_misled: bool) -> Iterator[dict[str, Any]]:
    """Yield the operations of Porcupine; all attempts of a save are one of them.

    Args:
        calls: Of one trial.
        is_misled: Leave out what a server said that was not the primary any more.
    """
    saves: dict[tuple[str, str], list[Save]] = defaultdict(list)
    for call in calls:
        if isinstance(call, Save):
            saves[call.key].append(call)
        elif call.arguments[1] is None and not is_misled and call.outcome in {"ok", "none"}:
            found = {"Outcome": "read", "ID": call.results[0] if call.results else ""}
            yield {"Thread": call.thread, "Begun": call.begun, "Ended": call.ended, **found}
    for (thread, checkpoint_id), attempts in saves.items():
        answered = next((it for it in attempts if it.is_acknowledged), attempts[-1])
        if is_misled and answered.outcome == "conflict":
            continue
        yield {
            "Thread": thread,
            "ID": checkpoint_id,
            "Parent": answered.made_from or "",
            "Outcome": answered.outcome,
            "Begun": attempts[0].begun,
            "Ended": answered.ended,
        }


def find_illegal(found: Iterable[dict[str, Any]]) -> list[str]:
    """Return the threads whose calls Porcupine cannot put in an order."""
    done = subprocess.run(
        ["go", "run", "."],  # noqa: S607
        cwd=PORCUPINE,
        input="\n".join(map(json.dumps, found)),
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return [thread for thread, verdict in json.loads(done.stdout).items() if verdict != "Ok"]


# --- trials


@dataclass
class Outcome:
    """The trials of one fault."""

    trials: int = 0
    acknowledged: int = 0
    found: Counter[str] = field(default_factory=Counter)
    """The violations that ``verdict`` found, by kind."""

    illegal: int = 0
    """Threads, of ``THREADS`` in each trial."""

    held: list[float] = field(default_factory=list)
    pauses: list[float] = field(default_factory=list)
    """The longest time between two acknowledged saves of each writer."""


class Storm:
    """Clients that stay through all trials."""

    def __init__(self, cluster: Any, seed: int) -> None:
        self._cluster = cluster
        self._rng = random.Random(seed)
        self._count = 0
        self.outcomes: dict[tuple[str, bool], Outcome] = defaultdict(Outcome)
        self.failures: Counter[str] = Counter()
        self.wrong: list[str] = []
        pooled = f"{cluster.pgbouncer.url()}?pgbouncer=true"
        urls = cluster.url, cluster.hosts_url, pooled, cluster.standby_url
        self._savers = [open_checkpointer(it, state_type=dict) for it in urls]

    async def run(self, fault: str, *, is_synchronous: bool) -> None:
        """One trial."""
        cluster, outcome = self._cluster, self.outcomes[fault, is_synchronous]
        if cluster.is_synchronous != is_synchronous:
            await asyncio.to_thread(cluster.set_synchronous, is_synchronous)
        self._count += 1
        with tempfile.TemporaryDirectory(prefix="locus-failovers-") as directory:
            path = Path(directory) / "0.journal"
            with closing(Journal(path, 0)) as journal:
                writers, held = await self._load(journal, FAULTS[fault])
            verdict = await judge(cluster.url, [path])
            calls = read_journals([path])
        illegal = find_illegal(list_operations(calls, is_misled=fault in MISLED))
        verdict.violations += judge_standbys(calls)
        kinds = [find_kind(it) for it in verdict.violations]
        found = Counter(kinds)
        del found["lost save"]
        outcome.trials += 1
        outcome.acknowledged += verdict.counts["save ok"]
        outcome.found += found
        outcome.illegal += len(illegal)
        outcome.held.append(held)
        outcome.pauses += [find_longest_pause(it.saved_at) for it in writers]
        mode = "synchronous" if is_synchronous else "asynchronous"
        allowed = {STALE} if fault in MISLED else set()
        allowed |= set() if is_synchronous else {LOST, STALE, "lost save"}
        found_wrong = zip(kinds, verdict.violations, strict=True)
        wrong = [it for kind, it in found_wrong if kind not in allowed]
        if is_synchronous or not verdict.violations:
            wrong += [f"Porcupine refuses {it}" for it in illegal]
        self.wrong += [f"{fault}, {mode}: {it}" for it in wrong]
        print(
            f"{fault}, {mode}: {verdict.counts['save ok']} acknowledged, {dict(+found)}, Porcupine "
            f"refuses {len(illegal)} threads, held {held:.1f} s, pauses "
            f"{shown(outcome.pauses[-len(writers) :])} s",
            flush=True,
        )

    async def _load(
        self, journal: Journal, fault: Callable[[Any], None]
    ) -> tuple[list[Client], float]:
        proxied, named, pooled, standby = self._savers
        names = [f"linear-{self._count}.{n}" for n in range(THREADS)]

        def make(saver: Any) -> list[Client]:
            seeds = [self._rng.getrandbits(64) for _ in names]
            return [
                Client(saver, journal, name, random.Random(seed))
                for name, seed in zip(names, seeds, strict=True)
            ]

        writers = make(proxied)[::2] + make(named)[1::2] + make(pooled)
        readers = make(pooled)[::2] + make(proxied)[1::2]
        others = make(standby)
        await asyncio.gather(*(it.begin() for it in writers[:THREADS]))
        is_over = asyncio.Event()

        async def repeat(call: Callable[[], Any]) -> None:
            while not is_over.is_set():
                await call()
                await asyncio.sleep(PACE_SECONDS)

        calls = [it.write for it in writers] + [it.read for it in readers]
        calls += [it.read_standby for it in others]
        tasks = [asyncio.create_task(repeat(it)) for it in calls]
        await self._everyone_saves(writers)
        begun = time.monotonic()
        await asyncio.to_thread(fault, self._cluster)
        held = time.monotonic() - begun
        await self._everyone_saves(writers)
        await asyncio.to_thread(self._cluster.wait_until_whole)
        await self._everyone_saves(writers)
        is_over.set()
        await asyncio.gather(*tasks)
        await asyncio.gather(*(it.read() for it in writers[:THREADS]))
        for it in [*writers, *readers, *others]:
            self.failures += it.failures
        return writers, held

    async def _everyone_saves(self, writers: list[Client]) -> None:
        for it in writers:
            it.saved_again.clear()
        async with asyncio.timeout(DEADLINE_SECONDS):
            for it in writers:
                await it.saved_again.wait()

    async def close(self) -> None:
        for it in self._savers:
            await it.close()


def find_kind(violation: str) -> str:
    """Return what a violation of ``verdict`` is called here."""
    kind = violation.split(":", maxsplit=1)[0]
    if kind == "stale head" or violation.endswith(" is not there"):
        return STALE
    # A lost save is missing by its id, too; those lines begin with a key.
    return LOST if violation.startswith("lost save: n") else kind


def find_longest_pause(times: list[float]) -> float:
    """Return the seconds between one save and the next, at most."""
    return max(after - before for before, after in pairwise(times))


def shown(seconds: list[float]) -> str:
    """Return the median, the 99th percentile and the longest time."""
    cuts = statistics.quantiles(seconds, n=100, method="inclusive")
    return " / ".join(f"{it:.1f}" for it in (cuts[49], cuts[98], max(seconds)))


def page(storm: Storm) -> str:
    """The page of figures."""
    head = ["fault, standby", "trials", "acknowledged", "lost", "stale loads"]
    head += ["threads Porcupine refuses", "fault lasts, s", "pause median / p99 / longest, s"]
    rows = [
        [
            f"{fault}, {'synchronous' if is_synchronous else 'asynchronous'}",
            it.trials,
            f"{it.acknowledged:,}",
            it.found[LOST],
            it.found[STALE],
            it.illegal,
            f"{statistics.median(it.held):.1f}",
            shown(it.pauses),
        ]
        for (fault, is_synchronous), it in storm.outcomes.items()
    ]
    return (
        f"# Fail-over of PostgreSQL under Patroni\n\n{EXPLANATION}\n\n{described()}, load average "
        f"{load_average()}.\n\n{table(head, rows)}"
    )


async def run(options: argparse.Namespace, cluster: Any) -> Storm:
    await asyncio.to_thread(migrate.upgrade, cluster.url)
    storm = Storm(cluster, options.seed)
    try:
        for _ in range(options.trials):
            for fault in options.synchronous:
                await storm.run(fault, is_synchronous=True)
            for fault in options.asynchronous:
                await storm.run(fault, is_synchronous=False)
    except (TimeoutError, asyncio.CancelledError) as exc:  # the figures until then are published
        storm.wrong.append(f"it ended early: {exc!r}")
    finally:
        await storm.close()
    return storm


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=2, help="of each fault")
    for mode in ("synchronous", "asynchronous"):
        what = f"with {mode} standbys"
        parser.add_argument(f"--{mode}", nargs="*", choices=FAULTS, default=[*FAULTS], help=what)
    parser.add_argument("--seed", type=int, default=1)
    add_write(parser)
    options = parser.parse_args()
    with patroni_cluster() as cluster:
        storm = asyncio.run(run(options, cluster))
    publish("failover", page(storm), write=options.write)
    for text, count in storm.failures.most_common(12):
        print(f"{count:,} x {text}")
    print(*storm.wrong, f"wrong: {len(storm.wrong)}", sep="\n")
    return 1 if storm.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
