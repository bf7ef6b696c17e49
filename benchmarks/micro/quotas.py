"""The price of a quota: saves of a tenant that has one, beside those of one that has none.

    python -m benchmarks.micro.quotas

Both tenants are in one database, and take turns, call by call.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
from itertools import count
from statistics import median, quantiles
from time import perf_counter
from typing import Any

from benchmarks import machine, places
from locus_store import Quota, open_checkpointer

WRITERS = 16
QUOTA = Quota(threads=10**6, bytes=10**10, saves_per_minute=10**6)


async def measure(url: str, rounds: int) -> None:
    async with open_checkpointer(url, state_type=dict) as checkpointer:
        tenants = {name: checkpointer.for_tenant(name) for name in ("free", "limited")}
        await tenants["limited"].set_quota(QUOTA)
        found: dict[tuple[str, str], list[float]] = {}
        numbers = count()

        async def time(call: str, name: str, *saves: Any) -> None:
            begun = perf_counter()
            await asyncio.gather(*saves)
            found.setdefault((call, name), []).append((perf_counter() - begun) * 1e6 / len(saves))

        for at in range(rounds + 40):
            if at == 40:
                found.clear()
            for name, tenant in [*tenants.items()][:: 1 if at % 2 else -1]:
                state = {"said": [f"{next(numbers)} " * 100]}
                many = (tenant.save(dict(state), f"many {it}") for it in range(WRITERS))
                await time("a save", name, tenant.save(dict(state), "one"))
                await time("a first save", name, tenant.save(dict(state), f"new {next(numbers)}"))
                await time(f"a save, {WRITERS} at once", name, *many)
        for call in dict.fromkeys(call for call, _ in found):
            free, limited = (found[call, name] for name in ("free", "limited"))
            tenths = [quantiles(it, n=10)[0] for it in (free, limited)]
            ratios = tenths[1] / tenths[0], median(limited) / median(free)
            print(f"{url[:10]} {call}: {tenths[0]:,.0f} µs ({median(free):,.0f}), ", end="")
            print(f"with a quota x {ratios[0]:.2f} ({ratios[1]:.2f}); N = {len(free)}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=300)
    rounds = parser.parse_args().rounds
    sys.path.insert(0, str(places.TESTS))
    import servers

    print(machine.described(), "load average", machine.load_average())
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(measure(f"sqlite:///{folder}/quotas.db", rounds))
    server = servers.PostgreSQL("18", fsync=True)
    try:
        asyncio.run(measure(server.url(), rounds))
    finally:
        server.stop()


if __name__ == "__main__":
    main()
