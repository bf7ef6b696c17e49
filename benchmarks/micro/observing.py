"""Cost of logging and telemetry: microseconds for each operation, in memory and in SQLite.

``python -m benchmarks.micro.observing`` runs each mode in processes of its own, in turn.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

MODES = {
    "bare": "without any of it",
    "off": "nothing asked for: no API imported, level WARNING",
    "api": "OpenTelemetry's API without an SDK",
    "sdk": "its SDK, spans and metrics",
    "debug": "level DEBUG, to a file that is thrown away",
}
PLACES = ("memory", "sqlite")
OPERATIONS = {"memory": 5_000, "sqlite": 1_000}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--one", nargs=2, metavar=("MODE", "PLACE"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(*one(*options.one))
        return
    found: dict[tuple[str, str], list[tuple[float, ...]]] = {}
    for _ in range(options.rounds):
        for place in PLACES:
            for mode in MODES:
                found.setdefault((place, mode), []).append(in_a_process(mode, place))
    for place in PLACES:
        print(f"{place}: microseconds, the quietest of {options.rounds} rounds (save, load)")
        for mode, meaning in MODES.items():
            each = [min(it) for it in zip(*found[place, mode], strict=True)]
            print(f"  {mode:6}{each[0]:8.1f}{each[1]:8.1f}   {meaning}")


def in_a_process(mode: str, place: str) -> tuple[float, ...]:
    command = [sys.executable, "-m", __spec__.name, "--one", mode, place]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return tuple(map(float, done.stdout.split()))


def one(mode: str, place: str) -> tuple[float, float]:
    with tempfile.TemporaryDirectory(dir="/dev/shm") as directory:
        prepare(mode)
        url = "memory://" if place == "memory" else f"sqlite:///{directory}/observed.db"
        return asyncio.run(measure(url, OPERATIONS[place]))


def prepare(mode: str) -> None:
    if mode == "bare":
        unwrap()
    elif mode == "api":
        import opentelemetry.metrics
        import opentelemetry.trace  # noqa: F401
    elif mode == "sdk":
        with_sdk()
    elif mode == "debug":
        logging.basicConfig(filename="/dev/null", level=logging.WARNING)
        logging.getLogger("locus_store").setLevel(logging.DEBUG)


def unwrap() -> None:
    from locus_store import StorageBackend, StorageBackendAdapter

    for kind in (StorageBackend, StorageBackendAdapter):
        for name, it in list(vars(kind).items()):
            if asyncio.iscoroutinefunction(it) and hasattr(it, "__wrapped__"):
                setattr(kind, name, it.__wrapped__)


def with_sdk() -> None:
    from opentelemetry import metrics, trace
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import InMemoryMetricReader
    from opentelemetry.sdk.trace import SpanProcessor, TracerProvider

    provider = TracerProvider()
    provider.add_span_processor(SpanProcessor())  # which does nothing with them
    trace.set_tracer_provider(provider)
    metrics.set_meter_provider(MeterProvider([InMemoryMetricReader()]))


async def measure(url: str, operations: int) -> tuple[float, float]:
    from locus_store import open_checkpointer

    async with open_checkpointer(url, state_type=dict, keep_last=10) as checkpointer:
        await checkpointer.save({"n": 0}, "t")
        state: Any = await checkpointer.load("t")
        saved = loaded = 0.0
        for number in range(operations):
            state["n"] = number
            begun = time.perf_counter()
            await checkpointer.save(state, "t")
            between = time.perf_counter()
            state = await checkpointer.load("t")
            loaded += time.perf_counter() - between
            saved += between - begun
    return saved / operations * 1e6, loaded / operations * 1e6


if __name__ == "__main__":
    assert Path("/dev/shm").is_dir()  # noqa: S101, S108
    main()
