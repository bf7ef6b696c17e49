"""Three nodes of OpenSearch, killed under load: python -m benchmarks.storms.nodes.

Two processes save on their threads while the node of the primary shard is killed, and then the
cluster manager. Each acknowledged save must be there at the end, and each writer must save again
within ``--seconds`` by itself. Then a full disk, an index without its shard, and a host that
accepts connections and answers nothing: typed errors, nothing lost, and saves again when the fault
has ended.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import socket
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.places import TESTS
from locus_store import BackendError, ConnectionFailedError, LocusStoreError
from locus_store.backends.opensearch import OpenSearchBackend

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

NODES = 3
WRITERS = 2
INDEX = "nodes"
SETTINGS = {
    "number_of_shards": 1,
    "number_of_replicas": NODES - 1,
    "write.wait_for_active_shards": 2,
    "unassigned.node_left.delayed_timeout": "0",
    "translog.flush_threshold_size": "16mb",
}
"""Those of "Loss of a node" in docs/opensearch.md, and copies on all nodes."""

GREEN_SECONDS = 300
BLOCK = "index.blocks.read_only_allow_delete"
WATERMARKS = ("low", "high", "flood_stage")
SILENT = 12
"""Saves beside a silent host."""

TOO_MUCH = "999999gb"
"""Free space that no disk has."""


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=20, help="of each kind of node")
    parser.add_argument("--seconds", type=float, default=10.0, help="until a writer saves again")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--write", help=argparse.SUPPRESS)
    parser.add_argument("--hosts", help=argparse.SUPPRESS)
    return parser.parse_args()


def main() -> int:
    options = parsed()
    if options.write is not None:
        asyncio.run(write(options.hosts.split(","), options.write))
        return 0
    with tempfile.TemporaryDirectory(prefix="locus-store-nodes-") as directory:
        cluster = Cluster(Path(directory))
        try:
            return run(cluster, options)
        finally:
            cluster.stop()


def run(cluster: Cluster, options: argparse.Namespace) -> int:
    cluster.ask("PUT", "/_index_template/nodes", template())
    writers = [Writer(cluster.hosts, f"w{n}") for n in range(WRITERS)]
    rng, late = random.Random(options.seed), 0
    for it in writers:
        it.next_save()
    victims = {"primary": cluster.primary, "manager": cluster.manager}
    waits: dict[str, list[float]] = {kind: [] for kind in victims}
    for _ in range(options.kills):
        for kind, victim in victims.items():
            cluster.wait_for_green()
            time.sleep(rng.random() * 0.3)
            saved, written = killed(cluster, victim(), writers)
            waits[kind].append(saved)
            load = f"load average {os.getloadavg()[0]:.0f}"
            print(f"{kind}: saved again after {saved:.1f} s, written {written:.1f} s, {load}")
            sys.stdout.flush()
    for kind, some in waits.items():
        late += sum(it > options.seconds for it in some)
        print(f"{kind}: {len(some)} kills, first save again: {told(some)}", flush=True)
    for it in writers:
        it.stop()
    cluster.wait_for_green()
    lost, acknowledged = asyncio.run(missing(cluster.hosts, writers))
    failed = sum(it.failed for it in writers)
    print(f"acknowledged: {acknowledged}, lost: {lost}, late: {late}, failed: {failed}", flush=True)
    wrong = asyncio.run(faults(cluster))
    print(f"faults: wrong: {wrong}", flush=True)
    return int(bool(lost or late or failed or wrong))


def template() -> Any:
    return {"index_patterns": [f"{INDEX}-*"], "template": {"settings": {"index": SETTINGS}}}


def told(waits: Sequence[float]) -> str:
    ordered = sorted(waits) or [0.0]
    middle = ordered[len(ordered) // 2]
    return f"least {ordered[0]:.1f} s, median {middle:.1f} s, most {ordered[-1]:.1f} s"


def killed(cluster: Cluster, number: int, writers: Sequence[Writer]) -> tuple[float, float]:
    """Kill a node and start it again.

    Returns:
        The seconds until all writers had saved again, and those until the server had answered a
        write without this library.
    """
    cluster.nodes[number].kill()
    begun = time.monotonic()
    with ThreadPoolExecutor(1) as thread:
        written = thread.submit(until_written, cluster)
        for it in writers:
            it.next_save()
        waited = time.monotonic() - begun
    cluster.start(number)
    return waited, written.result() - begun


def until_written(cluster: Cluster) -> float:
    """Return the time at which the server has answered a bare write."""
    while True:
        try:
            cluster.ask("PUT", f"/{INDEX}/_doc/bare", {"name": "bare"})
        except OSError:
            time.sleep(0.1)
        else:
            return time.monotonic()


# --- the cluster


class Cluster:
    """Nodes that keep their folders and ports."""

    def __init__(self, directory: Path) -> None:
        sys.path.insert(0, str(TESTS))
        import opensearch_servers
        import servers

        self._made = opensearch_servers
        ports = [servers.free_port() for _ in range(2 * NODES)]
        self._http, self._transport = ports[:NODES], ports[NODES:]
        self._homes = [directory / f"n{n}" for n in range(NODES)]
        self.hosts = [f"http://127.0.0.1:{it}" for it in self._http]
        self.nodes: dict[int, Any] = {}
        for n in range(NODES):
            self.start(n)
        self.wait_for_green()

    def start(self, number: int) -> None:
        settings = {
            "discovery.type": "zen",
            "discovery.seed_hosts": ",".join(f"127.0.0.1:{it}" for it in self._transport),
            "cluster.initial_cluster_manager_nodes": "n0,n1,n2",
            "cluster.routing.allocation.disk.threshold_enabled": "true",
            "cluster.info.update.interval": "10s",
            "transport.port": self._transport[number],
            **{f"cluster.routing.allocation.disk.watermark.{it}": "1mb" for it in WATERMARKS},
        }
        home, port = self._homes[number], self._http[number]
        self.nodes[number] = self._made.Node(home, settings, port=port)

    def ask(self, method: str, path: str, body: Any = None) -> Any:
        """The answer of the first node that gives one."""
        failed: Exception | None = None
        for it in self.hosts:
            try:
                return self._made.Server(it).ask(method, path, body)
            except OSError as exc:
                failed = exc
        raise failed or AssertionError("no hosts")

    def wait_for_green(self) -> None:
        path = f"/_cluster/health?wait_for_nodes={NODES}&wait_for_status=green&timeout=5s"
        limit = time.monotonic() + GREEN_SECONDS
        while time.monotonic() < limit:
            try:
                if not self.ask("GET", path)["timed_out"]:
                    return
            except OSError:
                time.sleep(0.5)
        raise SystemExit("the cluster is not green again")

    def primary(self) -> int:
        shards = self.ask("GET", f"/_cat/shards/{INDEX}?format=json")
        [name] = [it["node"] for it in shards if it["prirep"] == "p"]
        return int(name[1:])

    def manager(self) -> int:
        [found] = self.ask("GET", "/_cat/cluster_manager?format=json")
        return int(found["node"][1:])

    def stop(self) -> None:
        for it in self.nodes.values():
            it.kill()


# --- writers


class Writer:
    """A process that saves, and what it acknowledged."""

    def __init__(self, hosts: Sequence[str], thread: str) -> None:
        command = [sys.executable, "-m", "benchmarks.storms.nodes"]
        command += ["--write", thread, "--hosts", ",".join(hosts)]
        self.thread = thread
        self.saved: list[int] = []
        self.failed = 0
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        self._news = threading.Condition()
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None  # noqa: S101  (a pipe was asked for)
        for line in self._process.stdout:
            with self._news:
                n = json.loads(line)
                self.failed += n is None
                self.saved += [] if n is None else [n]
                self._news.notify_all()

    def next_save(self) -> None:
        """Wait for a save that begins after now."""
        with self._news:
            before = len(self.saved)
            if not self._news.wait_for(lambda: len(self.saved) > before + 1, GREEN_SECONDS):
                raise SystemExit(f"writer {self.thread} does not save any more")

    def stop(self) -> None:
        self._process.kill()
        self._process.wait()
        self._reader.join()


async def write(hosts: Sequence[str], thread: str) -> None:
    """Save for ever; print what was acknowledged, and ``null`` for a call that failed."""
    backend = OpenSearchBackend(list(hosts), index_name=INDEX)
    n = 0
    while True:
        state = {"n": n, "text": f"{n} " * 20}
        failure = await outcome(backend.write_state(thread, state, checkpoint_id=f"v{n}"))
        print(json.dumps(None if failure else n), flush=True)
        n += failure is None


async def missing(hosts: Sequence[str], writers: Sequence[Writer]) -> tuple[int, int]:
    """Return how many acknowledged saves are missing, and how many there were."""
    backend = OpenSearchBackend(list(hosts), index_name=INDEX)
    lost = acknowledged = 0
    for it in writers:
        found = await backend.history(it.thread, limit=10**6)
        there = {line.checkpoint_id for line in found}
        lost += sum(f"v{n}" not in there for n in it.saved)
        acknowledged += len(it.saved)
    await backend.close()
    return lost, acknowledged


# --- other faults


async def faults(cluster: Cluster) -> int:
    """Return how many faults were not answered as they should be."""
    return await full_disk(cluster) + await no_shard(cluster) + await silent_node(cluster)


async def full_disk(cluster: Cluster) -> int:
    """Fill the disk by a watermark that no disk reaches; the server sets and removes its block."""
    backend = OpenSearchBackend(cluster.hosts, index_name=INDEX, retry_seconds=2)
    await backend.write_state("disk", {"n": 0}, checkpoint_id="v0")
    set_watermarks(cluster, TOO_MUCH)
    refused = await until(lambda: backend.write_state("disk", {"n": 1}), "a block refuses writes")
    kept = await backend.fetch("disk")
    set_watermarks(cluster, None)
    again = await until(lambda: backend.write_state("disk", {"n": 2}))
    await backend.close()
    return report("full disk", refused=refused, kept=kept is not None, again=again)


def set_watermarks(cluster: Cluster, value: str | None) -> None:
    names = (f"cluster.routing.allocation.disk.watermark.{it}" for it in WATERMARKS)
    cluster.ask("PUT", "/_cluster/settings", {"transient": dict.fromkeys(names, value)})


async def no_shard(cluster: Cluster) -> int:
    """Kill the only node that has a copy of the index, and start it again."""
    for name, value in (("write.wait_for_active_shards", 1), ("number_of_replicas", 0)):
        cluster.ask("PUT", f"/{INDEX}/_settings", {f"index.{name}": value})
    backend = OpenSearchBackend(cluster.hosts, index_name=INDEX, retry_seconds=2, timeout_seconds=3)
    await backend.write_state("red", {"n": 0}, checkpoint_id="v0")
    number = cluster.primary()
    cluster.nodes[number].kill()
    failures = [await outcome(backend.fetch("red")), await outcome(backend.write_state("red", {}))]
    are_typed = all(isinstance(it, BackendError | ConnectionFailedError) for it in failures)
    cluster.start(number)
    cluster.wait_for_green()
    again = await until(lambda: backend.write_state("red", {"n": 1}))
    kept = {it.checkpoint_id for it in await backend.history("red", limit=10)}
    await backend.close()
    return report("no shard", are_typed=are_typed, again=again, kept="v0" in kept)


async def silent_node(cluster: Cluster) -> int:
    """Put a host that accepts connections and answers nothing before the others."""
    silent = socket.create_server(("127.0.0.1", 0))  # the kernel accepts, and nobody reads
    port = silent.getsockname()[1]
    hosts = [f"http://127.0.0.1:{port}", *cluster.hosts]
    backend = OpenSearchBackend(hosts, index_name=INDEX, timeout_seconds=1)
    failures = [
        await outcome(backend.write_state("silent", {"n": n}, checkpoint_id=f"v{n}"))
        for n in range(SILENT)
    ]
    count = len(await backend.history("silent", limit=20))
    await backend.close()
    alone = OpenSearchBackend(hosts[0], index_name=INDEX, timeout_seconds=0.5, retry_seconds=1)
    is_typed = isinstance(await outcome(alone.fetch("silent")), ConnectionFailedError)
    await alone.close()
    silent.close()
    return report("silent host", saved=not any(failures), kept=count == SILENT, typed=is_typed)


async def outcome(call: Any) -> LocusStoreError | None:
    try:
        await call
    except LocusStoreError as exc:
        return exc
    return None


async def until(call: Callable[[], Any], told: str = "") -> bool:
    """Call again until it fails with these words, or succeeds if there are none."""
    limit = time.monotonic() + GREEN_SECONDS
    found: LocusStoreError | None = None
    while time.monotonic() < limit:
        found = await outcome(call())
        if told in str(found) if told else found is None:
            return True
        await asyncio.sleep(0.5)
    print(found, flush=True)
    return False


def report(name: str, **found: bool) -> int:
    wrong = [it for it, is_right in found.items() if not is_right]
    print(f"{name}: {f'WRONG: {wrong}' if wrong else 'as it should be'}", flush=True)
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
