"""CPU of the inspector's pages: python -m benchmarks.micro.inspector [--versions N].

Each page is asked for in this process, over ASGI, on SQLite; cold is the first time.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import resource
import statistics
import tempfile
import time
from typing import TYPE_CHECKING, Any

import httpx

from benchmarks.micro.timeline import states
from benchmarks.workloads import prose
from locus_store import open_checkpointer
from locus_store.inspector import app

if TYPE_CHECKING:
    from locus_store.backend import StorageBackend

ROUNDS = 5


async def _write(backend: StorageBackend, versions: int, megabytes: int) -> None:
    for number, state in enumerate(states(versions)):
        await backend.write_state("long", state, checkpoint_id=f"v{number}")
    rng = random.Random(7)
    size = megabytes * 1_000_000 // 20_000
    messages = [{"role": "user", "content": prose(rng, size)} for _ in range(20_000)]
    await backend.write_state("large", {"messages": messages})
    await backend.write_state("one", {"text": "x" * megabytes * 1_000_000})


async def _measure(url: str, versions: int) -> None:
    backend = open_checkpointer(url).backend
    async with backend:
        transport = httpx.ASGITransport(app(backend))
        browser = httpx.AsyncClient(transport=transport, base_url="http://localhost", timeout=600)
        pages = [
            "threads",
            "timeline?thread=long",
            f"timeline?thread=long&before=v{versions // 2}",
            f"version?thread=long&version=v{versions // 2}",
            "version?thread=long&path=city",
            "bisect?thread=long&test=equals&path=city&value=Basel",
            "diff?thread=long",
            "version?thread=large",
            "version?thread=one",
        ]
        for page in pages:
            await _report(browser, page)
    print(f"peak {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1000:,.0f} MB")


async def _report(browser: httpx.AsyncClient, page: str) -> None:
    times: list[float] = []
    for _ in range(ROUNDS + 1):
        begun = time.process_time()
        answer: Any = await browser.get(f"/{page}")
        times.append((time.process_time() - begun) * 1000)
        answer.raise_for_status()
    warm = times[1:]
    print(
        f"{page:60} cold {times[0]:9,.1f} ms, warm least {min(warm):8,.1f} median "
        f"{statistics.median(warm):8,.1f} ms, {len(answer.content):9,} bytes, "
        f"{answer.text.count('<') // 2:6,} elements"
    )


def main() -> None:
    """Write the threads, and report the pages."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--versions", type=int, default=10_000)
    parser.add_argument("--megabytes", type=int, default=100)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        url = f"sqlite:///{folder}/pages.db"

        async def written() -> None:
            async with open_checkpointer(url).backend as backend:
                await _write(backend, options.versions, options.megabytes)

        asyncio.run(written())
        asyncio.run(_measure(url, options.versions))


if __name__ == "__main__":
    main()
