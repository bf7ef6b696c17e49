"""Pages of the inspector: python -m benchmarks.micro.inspector [--versions N] [--postgresql].

CPU of the server for each page, without a browser; then elements and CPU of the page's main thread
in Chromium, if it and Playwright are installed. A process of its own fills the storage, and with
``--large`` one answers each page of a large state, so that its memory is that of the page.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import resource
import shutil
import statistics
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from importlib.util import find_spec
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from benchmarks import machine, places, report
from benchmarks.micro.timeline import states
from benchmarks.workloads import prose
from locus_store import open_checkpointer
from locus_store.inspector import app

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")

MOST = 400_000_000
"""The largest state."""

LARGE = {"messages": 20_000, "message_characters": 5_000, "text": 100_000_000}
PAGES = {
    "timeline, first page": "timeline?thread=long",
    "state of the head": "version?thread=long",
    "blame of a value": "version?thread=long&path=city",
    "bisect": "bisect?thread=long&test=equals&path=city&value=Basel",
    "changes of the head": "diff?thread=long",
    "newer versions (live)": "live?thread=long&after=1000000&format=json",
    "threads, first page of 1,000": "threads",
}
LARGE_PAGES = {
    "100 MB in 20,000 messages": "version?thread=large",
    "the same, messages from 10,000": "version?thread=large&path=messages&start=10000",
    "one text of 100 MB": "version?thread=text&path=text",
}


def alone(work: Callable[..., T], *arguments: object) -> T:
    """Return the result of work in a process of its own."""
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        return pool.submit(work, *arguments).result()


def fill(url: str, versions: int, is_large: bool) -> None:
    """Store the threads."""
    asyncio.run(_fill(url, versions, is_large=is_large))


async def _fill(url: str, versions: int, *, is_large: bool) -> None:
    async with open_checkpointer(url, state_type=dict, max_state_bytes=MOST) as checkpointer:
        backend: Any = checkpointer.backend
        for state in states(versions):
            await backend.save("long", state)
        for number in range(1000):
            await backend.save(f"thread {number}", {"n": number})
        if is_large:
            rng = random.Random(7)
            text = prose(rng, LARGE["message_characters"])
            messages = [
                {"id": f"m{number}", "role": "user", "content": f"{number} {text}"}
                for number in range(LARGE["messages"])
            ]
            await backend.save("large", {"messages": messages})
            await backend.save("text", {"text": "x" * LARGE["text"]})


async def get(application: Any, address: str) -> tuple[int, bytes]:
    """Return the status and the body of a page."""
    path, _, query = address.partition("?")
    scope = {
        "type": "http",
        "method": "GET",
        "path": f"/{path}",
        "raw_path": f"/{path}".encode(),
        "query_string": query.encode(),
        "headers": [(b"host", b"localhost")],
        "client": ("127.0.0.1", 1),
        "server": ("localhost", 80),
        "scheme": "http",
        "root_path": "",
    }
    sent: list[Any] = []
    begun = asyncio.Event()

    async def receive() -> Any:
        if not begun.is_set():
            begun.set()
            return {"type": "http.request", "body": b"", "more_body": False}
        return await asyncio.Event().wait()

    async def send(message: Any) -> None:
        sent.append(message)

    await application(scope, receive, send)
    return sent[0]["status"], b"".join(it.get("body", b"") for it in sent[1:])


def megabytes() -> float:
    """Return the most memory that this process has had."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


async def measure(url: str, rounds: int, pages: dict[str, str]) -> list[tuple[object, ...]]:
    """Return a row for each page: its first answer, then the others."""
    rows: list[tuple[object, ...]] = []
    async with open_checkpointer(url, state_type=dict, max_state_bytes=MOST) as checkpointer:
        application = app(checkpointer.backend)
        await checkpointer.exists("long")
        for name, address in pages.items():
            before, took, body = megabytes(), [], b""
            for _ in range(rounds + 1):
                begin = time.process_time()
                status, body = await get(application, address)
                took.append((time.process_time() - begin) * 1e3)
                if status != 200:
                    raise SystemExit(f"{address}: {status} {body[:400]!r}")
            least, median = min(took[1:]), statistics.median(took[1:])
            grown = f"{megabytes() - before:.0f}"
            size = f"{len(body) / 1e3:.0f}"
            rows.append((name, f"{took[0]:.0f}", f"{least:.1f}", f"{median:.1f}", size, grown))
    return rows


def measure_large(url: str, rounds: int, name: str) -> tuple[object, ...]:
    """Return the row of a page of a large state, in a process of its own, with its memory."""
    (row,) = asyncio.run(measure(url, rounds, {name: LARGE_PAGES[name]}))
    most = megabytes()
    state = asyncio.run(_loaded(url, LARGE_PAGES[name]))
    size = in_memory(state) / 2**20
    return (*row[:-1], f"{most:.0f}", f"{size:.0f}", f"{most / size:.1f} x")


async def _loaded(url: str, address: str) -> Any:
    thread = address.partition("thread=")[2].partition("&")[0]
    async with open_checkpointer(url, state_type=dict, max_state_bytes=MOST) as checkpointer:
        return await checkpointer.backend.load(thread)


def in_memory(value: Any) -> int:
    """Return the bytes that a JSON value takes as Python objects."""
    inner: Any = ()
    if isinstance(value, dict | list):
        inner = value.values() if isinstance(value, dict) else value
    return sys.getsizeof(value) + sum(map(in_memory, inner))


async def browse(url: str) -> str:
    """Return the elements and the CPU of the main thread of the timeline in Chromium."""
    path = shutil.which("chromium")
    if path is None or find_spec("playwright") is None:
        return "Chromium or Playwright is not installed."
    from playwright.async_api import async_playwright

    async with (
        open_checkpointer(url, state_type=dict) as checkpointer,
        async_playwright() as playwright,
    ):
        _, body = await get(app(checkpointer.backend), "timeline?thread=long")
        browser = await playwright.chromium.launch(executable_path=path, chromium_sandbox=False)
        seconds, elements = [], 0
        for _ in range(3):
            page = await browser.new_page()
            session = await page.context.new_cdp_session(page)
            await session.send("Performance.enable")
            await page.set_content(body.decode())
            elements = await page.evaluate("() => document.querySelectorAll('*').length")
            found = (await session.send("Performance.getMetrics"))["metrics"]
            seconds.append({it["name"]: it["value"] for it in found}["TaskDuration"])
            await page.close()
        await browser.close()
    return (
        f"The timeline's first page in Chromium, without its style: {elements:,} elements, least "
        f"{min(seconds):.2f} s of the main thread (N = 3)."
    )


PAGE = """# Pages of the inspector

Machine: {machine}; load average {load}. {place}, a thread of {versions:,} versions. CPU of the
server in ms: the first answer, then {rounds} more. kB sent, and MB that the process grew by.

{table}
{large}
{browser}
"""

LARGE_PAGE = """
Each page of a large state in a process of its own. MB: the most memory of the whole process, and
of the state as Python objects.

{table}
"""


def main() -> None:
    parser = argparse.ArgumentParser(description="CPU of the inspector's pages, in ms.")
    parser.add_argument("--versions", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--large", action="store_true", help="also states of 100 MB")
    places.add_place(parser)
    report.add_write(parser)
    options = parser.parse_args()
    with (
        tempfile.TemporaryDirectory(prefix="locus-store-inspector-") as directory,
        places.place(options, Path(directory)) as url,
    ):
        alone(fill, url, options.versions, options.large)
        rows = asyncio.run(measure(url, options.rounds, PAGES))
        large = [
            alone(measure_large, url, options.rounds, it) for it in LARGE_PAGES if options.large
        ]
        browser = asyncio.run(browse(url))
    columns = ("page", "first", "least", "median", "kB", "MB")
    large_columns = (*columns, "MB of the state", "of the state")
    page = PAGE.format(
        machine=machine.described(),
        load=machine.load_average(),
        place="PostgreSQL" if options.postgresql else "SQLite",
        versions=options.versions,
        rounds=options.rounds,
        table=machine.table(columns, rows),
        large=LARGE_PAGE.format(table=machine.table(large_columns, large)) if large else "",
        browser=browser,
    )
    name = f"inspector-{'postgresql' if options.postgresql else 'sqlite'}"
    report.publish(name, page, write=options.write)


if __name__ == "__main__":
    main()
