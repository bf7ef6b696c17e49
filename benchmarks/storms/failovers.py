"""Fail over under load: python -m benchmarks.storms.failovers --trials 50 --record FILE.

PostgreSQL under Patroni, with three members of etcd, HAProxy and PgBouncer. 16 writers share eight
threads: on each, one goes by PgBouncer and HAProxy, and the other by HAProxy, or by a URL that
names all servers. 16 readers load the heads, half of them from the standbys. None of them is
restarted: what is not answered is sent again. Each trial has one fault. Afterwards its history is
judged by the rules of ``verdict`` and, independently, by Porcupine, which looks for an order of all
calls that explains every answer. Without a synchronous standby, acknowledged saves that a fail-over
loses are counted.

The trials of a record count: a campaign that is interrupted, or runs beside other work with a
longer ``--pace``, is continued by the same command. The history of a trial that breaks a promise
is kept beside the record.
"""

from __future__ import annotations

import argparse
import asyncio
import atexit
import json
import os
import random
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from contextlib import ExitStack, closing, suppress
from dataclasses import asdict, dataclass, field
from functools import cache, partial
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import asyncpg

from benchmarks.machine import described, table
from benchmarks.places import patroni_cluster
from benchmarks.report import add_write, find_commit, publish
from benchmarks.storms.verdict import Call, Save, judge, read_journals
from benchmarks.storms.worker import Journal, Worker, digest
from locus_store import BackendError, ConnectionFailedError, open_checkpointer
from locus_store.sql import migrate

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

THREADS = 8
"""Of each trial, with two writers and two readers each."""

HOLD_SECONDS = 3.0
"""For which a fault lasts beyond the election of another primary."""

DEADLINE_SECONDS = 120.0
"""Within which every writer has saved after a fault."""

SYNCHRONOUS, ASYNCHRONOUS = MODES = ("synchronous", "asynchronous")
LOST, STALE = "lost", "stale load"
PORCUPINE = Path(__file__).parent / "porcupine"
EXPLANATION = """16 writers on 8 threads, and 16 readers. A *pause* is the longest time between two
acknowledged saves of a writer; each trial has 16. It includes the time for which a fault lasts.
*Lost* are acknowledged saves. A *stale load* misses one that was acknowledged before: a lost one,
unless HAProxy was misled. A *broken* trial has broken a promise, or ended early. Patroni has
`ttl: 20`, `loop_wait: 1` and `retry_timeout: 3`, and HAProxy replaces a server after two checks,
one a second. The faults are described in
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

    def __init__(self, saver: Any, journal: Journal, thread: str, pace_seconds: float) -> None:
        super().__init__(saver, saver, journal, random.Random(), killed=True)
        self.thread = thread
        self._pace_seconds = pace_seconds
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

    async def wait(self) -> None:
        """Wait between two calls."""
        await asyncio.sleep(self._pace_seconds * self._rng.uniform(0.5, 1.5))

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
                await self.wait()
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


def count_refused(calls: list[Call]) -> int:
    """Return the number of loads of standbys that gave a save which was refused in the end."""
    saves = [it for it in calls if isinstance(it, Save)]
    refused = {it.key for it in saves if it.outcome == "conflict"}
    refused -= {it.key for it in saves if it.is_acknowledged}
    return sum(it.what == "standby" and it.key in refused for it in calls)


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


@cache
def build_porcupine() -> Path:
    """Compile the judge for this process, and return its path."""
    directory = tempfile.mkdtemp(prefix="locus-porcupine-")
    atexit.register(shutil.rmtree, directory)
    subprocess.run(["go", "build", "-o", directory, "."], cwd=PORCUPINE, check=True)  # noqa: S607
    return Path(directory) / "porcupine"


def find_illegal(found: Iterable[dict[str, Any]]) -> list[str]:
    """Return the threads whose calls Porcupine cannot put in an order."""
    text = "\n".join(map(json.dumps, found))
    command = [str(build_porcupine())]
    done = subprocess.run(command, input=text, stdout=subprocess.PIPE, text=True, check=True)
    return [thread for thread, verdict in json.loads(done.stdout).items() if verdict != "Ok"]


# --- trials


@dataclass
class Trial:
    """One trial, a line of the record."""

    fault: str
    mode: str
    commit: str
    load_average: float
    acknowledged: int = 0
    found: dict[str, int] = field(default_factory=dict)
    """The violations that ``verdict`` found, by kind."""

    illegal: int = 0
    """Threads of ``THREADS`` that Porcupine refuses."""

    held: float = 0.0
    """Seconds for which the fault lasted."""

    pauses: list[float] = field(default_factory=list)
    """The longest time between two acknowledged saves of each writer."""

    wrong: list[str] = field(default_factory=list)
    """The promises that the trial broke, or why it ended early."""


class Record:
    """The trials until now, those of earlier runs among them."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._path: Path | None = options.record
        self._wanted = [(it, SYNCHRONOUS) for it in options.synchronous]
        self._wanted += [(it, ASYNCHRONOUS) for it in options.asynchronous]
        self._most = options.trials
        self._begun: Counter[tuple[str, str]] = Counter()
        if self._path is None:
            self.directory = Path(tempfile.mkdtemp(prefix="locus-failovers-"))
        else:
            self.directory = self._path.parent
            self.directory.mkdir(parents=True, exist_ok=True)
        lines = self._path.read_text().splitlines() if self._path and self._path.exists() else []
        self.trials = [Trial(**json.loads(it)) for it in lines]
        self._begun.update((it.fault, it.mode) for it in self.trials)

    def begin_next(self, mode: str) -> Trial | None:
        """Return a trial of which there are fewest, of this mode if possible; ``None``: done."""
        left = [it for it in self._wanted if self._begun[it] < self._most]
        if not left:
            return None
        chosen = min(left, key=lambda it: (self._begun[it], it[1] != mode))
        self._begun[chosen] += 1
        return Trial(*chosen, find_commit(), round(os.getloadavg()[0], 1))

    def add(self, trial: Trial) -> None:
        """Keep a trial that has ended."""
        self.trials.append(trial)
        if self._path:
            with self._path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(asdict(trial)) + "\n")
        print(
            f"{trial.fault}, {trial.mode}: {trial.acknowledged} acknowledged, {trial.found}, "
            f"Porcupine refuses {trial.illegal} threads, held {trial.held:.1f} s, pauses "
            f"{shown(trial.pauses)} s",
            *trial.wrong,
            sep="\n  ",
            flush=True,
        )


class Storm:
    """Clients of one cluster that stay through its trials."""

    def __init__(self, cluster: Any, record: Record, pace_seconds: float) -> None:
        self._cluster = cluster
        self._record = record
        self._pace_seconds = pace_seconds
        self._count = 0
        self.failures: Counter[str] = Counter()
        pooled = f"{cluster.pgbouncer.url()}?pgbouncer=true"
        urls = cluster.url, cluster.hosts_url, pooled, cluster.standby_url
        self._savers = [open_checkpointer(it, state_type=dict) for it in urls]

    async def run(self, trial: Trial) -> bool:
        """Run a trial, and return whether it has not ended early."""
        self._count += 1
        name = f"{trial.fault}-{trial.mode}-{random.getrandbits(32):08x}.journal"
        path = self._record.directory / name
        is_complete = False
        try:
            if (trial.mode == SYNCHRONOUS) != self._cluster.is_synchronous:
                is_synchronous = trial.mode == SYNCHRONOUS
                await asyncio.to_thread(self._cluster.set_synchronous, is_synchronous)
            with closing(Journal(path, 0)) as journal:
                await self._load(journal, trial)
            await self._judge(path, trial)
            is_complete = True
        except TimeoutError as exc:
            trial.wrong.append(f"ended early: {exc!r}")
            for log in self._cluster.directory.glob("*.log"):
                shutil.copy(log, f"{path}.{log.name}")
        self._record.add(trial)
        if not trial.wrong:
            path.unlink()
        return is_complete

    async def _judge(self, path: Path, trial: Trial) -> None:
        verdict = await judge(self._cluster.url, [path])
        calls = read_journals([path])
        is_misled = trial.fault in MISLED
        operations = list(list_operations(calls, is_misled=is_misled))
        illegal = await asyncio.to_thread(find_illegal, operations)
        verdict.violations += judge_standbys(calls)
        kinds = [find_kind(it) for it in verdict.violations]
        trial.acknowledged = verdict.counts["save ok"]
        trial.found = dict(Counter(it for it in kinds if it != "lost save"))
        if refused := count_refused(calls):
            trial.found["refused save on a standby"] = refused
        trial.illegal = len(illegal)
        allowed = {STALE} if is_misled else set()
        allowed |= set() if trial.mode == SYNCHRONOUS else {LOST, STALE, "lost save"}
        found = zip(kinds, verdict.violations, strict=True)
        trial.wrong = [it for kind, it in found if kind not in allowed]
        if trial.mode == SYNCHRONOUS or not verdict.violations:
            trial.wrong += [f"Porcupine refuses {it}" for it in illegal]

    async def _load(self, journal: Journal, trial: Trial) -> None:
        proxied, named, pooled, standby = self._savers
        names = [f"linear-{self._count}.{n}" for n in range(THREADS)]

        def make(saver: Any) -> list[Client]:
            return [Client(saver, journal, it, self._pace_seconds) for it in names]

        writers = make(proxied)[::2] + make(named)[1::2] + make(pooled)
        readers = make(pooled)[::2] + make(proxied)[1::2]
        others = make(standby)
        await asyncio.gather(*(it.begin() for it in writers[:THREADS]))
        is_over = asyncio.Event()

        async def repeat(client: Client, call: Callable[[], Any]) -> None:
            while not is_over.is_set():
                await call()
                await client.wait()

        calls = [(it, it.write) for it in writers] + [(it, it.read) for it in readers]
        calls += [(it, it.read_standby) for it in others]
        tasks = [asyncio.create_task(repeat(*it)) for it in calls]
        try:
            await self._everyone_saves(writers)
            begun = time.monotonic()
            await asyncio.to_thread(FAULTS[trial.fault], self._cluster)
            trial.held = time.monotonic() - begun
            await self._everyone_saves(writers)
            await asyncio.to_thread(self._cluster.wait_until_whole)
            await self._everyone_saves(writers)
        except BaseException:
            for it in tasks:
                it.cancel()
            await asyncio.wait(tasks)
            raise
        is_over.set()
        await asyncio.gather(*tasks)
        await asyncio.gather(*(it.read() for it in writers[:THREADS]))
        trial.pauses = [find_longest_pause(it.saved_at) for it in writers]
        for client, _ in calls:
            self.failures += client.failures

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
    if not seconds:
        return "-"
    cuts = statistics.quantiles(seconds, n=100, method="inclusive")
    return " / ".join(f"{it:.1f}" for it in (cuts[49], cuts[98], max(seconds)))


def page(record: Record) -> str:
    """The page of figures."""
    head = ["fault, standby", "trials", "broken", "acknowledged", "lost", "stale loads"]
    head += ["threads Porcupine refuses", "fault lasts, s", "pause median / p99 / longest, s"]
    groups: dict[str, list[Trial]] = {f"{it}, {mode}": [] for mode in MODES for it in FAULTS}
    for trial in record.trials:
        groups[f"{trial.fault}, {trial.mode}"].append(trial)
    rows = [
        [
            name,
            len(trials),
            sum(bool(it.wrong) for it in trials),
            f"{sum(it.acknowledged for it in trials):,}",
            sum(it.found.get(LOST, 0) for it in trials),
            sum(it.found.get(STALE, 0) for it in trials),
            sum(it.illegal for it in trials),
            f"{statistics.median(it.held for it in trials):.1f}",
            shown([pause for it in trials for pause in it.pauses]),
        ]
        for name, trials in groups.items()
        if trials
    ]
    loads = sorted(it.load_average for it in record.trials) or [0.0]
    return (
        f"# Fail-over of PostgreSQL under Patroni\n\n{EXPLANATION}\n\n{described()}, load average "
        f"{loads[0]} to {loads[-1]}.\n\n{table(head, rows)}"
    )


async def run(options: argparse.Namespace, record: Record) -> Counter[str]:
    """Run what is left to be run on one cluster after the other; return the clients' errors."""
    failures: Counter[str] = Counter()
    trial = record.begin_next(SYNCHRONOUS)
    while trial:
        with ExitStack() as stack:
            start = asyncio.to_thread(stack.enter_context, patroni_cluster())
            started = asyncio.create_task(start)
            try:
                cluster = await asyncio.shield(started)
            finally:  # an interrupted start would leave its programs
                await asyncio.wait([started])
            await asyncio.to_thread(migrate.upgrade, cluster.url)
            await wait_for_tables(cluster)
            storm = Storm(cluster, record, options.pace)
            is_whole = True
            try:
                while trial and is_whole:
                    is_whole = await storm.run(trial)
                    trial = record.begin_next(trial.mode)
            finally:
                failures += storm.failures
                await storm.close()
    return failures


async def wait_for_tables(cluster: Any) -> None:
    """Wait until each server has the tables: Patroni calls a standby running that is behind."""
    async with asyncio.timeout(DEADLINE_SECONDS):
        for node in cluster.nodes:
            connection = await asyncpg.connect(f"postgresql://postgres@127.0.0.1:{node.port}")
            find = partial(connection.fetchval, "SELECT to_regclass('locus_lines')")
            while not await find():  # noqa: ASYNC110  (of another process)
                await asyncio.sleep(0.1)
            await connection.close()


async def run_all(options: argparse.Namespace, record: Record) -> Counter[str]:
    """Run the trials on several clusters at once."""
    runs = (run(options, record) for _ in range(options.clusters))
    return sum(await asyncio.gather(*runs), Counter())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=2, help="of each fault")
    for mode in MODES:
        what = f"with {mode} standbys"
        parser.add_argument(f"--{mode}", nargs="*", choices=FAULTS, default=[*FAULTS], help=what)
    parser.add_argument("--record", type=Path, help="continue the trials of this file")
    parser.add_argument("--clusters", type=int, default=1, help="at once")
    parser.add_argument("--pace", type=float, default=0.2, help="seconds between two calls")
    add_write(parser)
    options = parser.parse_args()
    record = Record(options)
    failures: Counter[str] = Counter()
    with suppress(KeyboardInterrupt):  # the figures until then are published
        failures = asyncio.run(run_all(options, record))
    commits = ", ".join(sorted({it.commit for it in record.trials}))
    publish("failover", page(record), write=options.write, commit=commits)
    for text, count in failures.most_common(12):
        print(f"{count:,} x {text}")
    wrong = [f"{it.fault}, {it.mode}: {what}" for it in record.trials for what in it.wrong]
    print(*wrong, f"wrong: {len(wrong)}", sep="\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
