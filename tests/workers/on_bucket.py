"""A process whose children save into a bucket until they are killed: a line of input for each."""

from __future__ import annotations

import asyncio
import os
import sys

from locus_store import open_checkpointer
from locus_store.backends.documents import segmented

segmented.TAIL_BYTES = 1500  # type: ignore[misc]  # so that segments are written and merged


async def save(url: str) -> None:
    """Save for ever, and delete now and then; print what was acknowledged."""
    backend = open_checkpointer(url, state_type=dict).backend
    found = await backend.load("t")
    for n in range(found["n"] + 1 if found else 0, 10**9):
        await backend.write_state("t", {"n": n, "text": f"{n} " * 200}, checkpoint_id=f"v{n}")
        print("saved", n, flush=True)
        if n % 5 == 4:
            await backend.remove("t", [f"v{n - 3}"])
            print("removed", n - 3, flush=True)


def main() -> None:
    import oci  # noqa: F401  (the children share it)

    for _ in sys.stdin:
        pid = os.fork()
        if pid == 0:
            print("pid", os.getpid(), flush=True)
            asyncio.run(save(sys.argv[1]))
        os.waitpid(pid, 0)
        print("ended", flush=True)


if __name__ == "__main__":
    main()
