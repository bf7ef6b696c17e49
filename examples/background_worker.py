"""A worker that finishes long jobs, even if it is killed between two steps.

    python examples/background_worker.py submit report-7 20
    python examples/background_worker.py work

Each job is a thread, and each step a version. A worker that starts again continues after the last
step that was saved. Two workers may run: a step is saved on the version it was made from, so the
slower one gets a ``ConflictError``, leaves the job and takes the next. ``LOCUS_STORE_URL`` names
the database.
"""

from __future__ import annotations

import argparse
import asyncio
import os

from locus_store import BaseCheckpointer, ConflictError, open_checkpointer

URL = os.environ.get("LOCUS_STORE_URL", "sqlite:///jobs.db")
OPEN = {"status": "open"}
DONE = {"status": "done"}


async def submit(jobs: BaseCheckpointer[dict], job: str, steps: int) -> None:
    """Create a job. Because the version is named, a repeated call changes nothing."""
    await jobs.save({"steps": steps, "results": []}, job, "submitted", metadata=OPEN)


async def step(number: int) -> int:
    """Do one step of a job."""
    await asyncio.sleep(0.01)
    return number * number


async def finish(jobs: BaseCheckpointer[dict], job: str) -> None:
    """Run the steps that are left, and save after each."""
    state = await jobs.load(job)
    while len(state["results"]) < state["steps"]:
        state["results"].append(await step(len(state["results"])))
        is_done = len(state["results"]) == state["steps"]
        await jobs.save(state, job, metadata=DONE if is_done else OPEN)
    print(f"{job}: {sum(state['results'])}", flush=True)


async def work(jobs: BaseCheckpointer[dict]) -> None:
    """Finish every open job."""
    for job in await jobs.list_with_metadata():
        if job["metadata"] == OPEN:
            try:
                await finish(jobs, job["thread_id"])
            except ConflictError:
                print(f"{job['thread_id']}: another worker has it", flush=True)


async def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description="A worker that continues its jobs.")
    commands = parser.add_subparsers(dest="command", required=True)
    new = commands.add_parser("submit", help="create a job")
    new.add_argument("job")
    new.add_argument("steps", type=int)
    commands.add_parser("work", help="finish every open job, and exit")
    options = parser.parse_args()
    async with open_checkpointer(URL, state_type=dict) as jobs:
        if options.command == "submit":
            await submit(jobs, options.job, options.steps)
        else:
            await work(jobs)


if __name__ == "__main__":
    asyncio.run(main())
