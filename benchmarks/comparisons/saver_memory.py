"""Memory of one process that saves and reads many threads: ours beside LangGraph's SqliteSaver.

    python -m benchmarks.comparisons.saver_memory [--threads 400] [--messages 60] [--traced]

Each saver runs in a process of its own. The growth is that of the resident memory from the first
thread to the last; with ``--traced``, that of Python's own allocations as well.
"""

from __future__ import annotations

import argparse
import gc
import os
import subprocess
import sys
import tempfile
import tracemalloc
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from langchain_core.messages import AIMessage, HumanMessage

if TYPE_CHECKING:
    from collections.abc import Iterator

MB = 1_000_000


def resident_bytes() -> int:
    """Of this process, on Linux."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


@contextmanager
def opened(kind: str, path: str, cache_bytes: int | None) -> Iterator[Any]:
    """A saver of a kind on a new database."""
    if kind == "SqliteSaver":
        from langgraph.checkpoint.sqlite import SqliteSaver

        with SqliteSaver.from_conn_string(path) as saver:
            yield saver
    else:
        from locus_store.adapters.langgraph import LangGraphSaver

        options = {"cache_bytes": cache_bytes} if cache_bytes is not None else {}
        with LangGraphSaver.from_url(f"sqlite:///{path}", **options) as saver:
            yield saver


def messages_of(count: int, size: int) -> list[Any]:
    """A conversation of texts that are all different."""
    kinds = (HumanMessage, AIMessage)
    texts = [os.urandom(size // 2 + 1).hex()[:size] for _ in range(count)]
    return [kinds[at % 2](text, id=text[:12] + str(at)) for at, text in enumerate(texts)]


def walk(saver: Any, thread_id: str, count: int, size: int) -> None:
    """Save a thread in three checkpoints, and read its newest one after each."""
    config: Any = {"configurable": {"thread_id": thread_id, "checkpoint_ns": ""}}
    messages = messages_of(count, size)
    for step in range(3):
        version = f"{step + 1:032}"
        checkpoint = {
            "v": 4,
            "id": f"{step}",
            "ts": "2026-01-01T00:00:00+00:00",
            "channel_values": {"messages": messages[: count * (step + 1) // 3]},
            "channel_versions": {"messages": version},
            "versions_seen": {},
            "updated_channels": None,
        }
        saver.put(config, checkpoint, {"source": "loop", "step": step}, {"messages": version})
        newest = {"configurable": {"thread_id": thread_id, "checkpoint_ns": ""}}
        config = saver.get_tuple(newest).config


def measured(options: argparse.Namespace) -> str:
    """Return what one saver took, as one line."""
    kind, count, size, traced = options.kind, options.messages, options.bytes, options.traced
    with (
        tempfile.TemporaryDirectory() as folder,
        opened(kind, f"{folder}/graph.db", options.cache_bytes) as saver,
    ):
        for warm in range(3):
            walk(saver, f"warm-{warm}", count, size)
        gc.collect()
        before, peak = resident_bytes(), 0
        if traced:
            tracemalloc.start()
        for number in range(options.threads):
            walk(saver, f"t{number}", count, size)
            peak = max(peak, resident_bytes())
        gc.collect()
        line = f"{kind:15} {before / MB:6.0f} MB before, {peak / MB:6.0f} MB at most, growth "
        line += f"{(peak - before) / MB:6.1f} MB"
        if traced:
            line += f", traced {tracemalloc.get_traced_memory()[0] / MB:6.1f} MB"
        return line


def main() -> None:
    """Run both, each in a new process."""
    parser = argparse.ArgumentParser(description=__doc__)
    for name, default in (("threads", 400), ("messages", 60), ("bytes", 200)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--cache-bytes", type=int)
    parser.add_argument("--traced", action="store_true")
    parser.add_argument("--kind", choices=["LangGraphSaver", "SqliteSaver"])
    options = parser.parse_args()
    if options.kind:
        print(measured(options), flush=True)
        return
    for kind in ("LangGraphSaver", "SqliteSaver"):
        subprocess.run(
            [sys.executable, "-m", __spec__.name, *sys.argv[1:], "--kind", kind], check=True
        )


if __name__ == "__main__":
    main()
