"""Sessions of Google ADK: its DatabaseSessionService beside LocusSessionService.

    python -m benchmarks.comparisons.adk_sessions [--rounds 5] [--calls 10] [--sessions 10000]
        [--write]

On PostgreSQL with fsync and on an SQLite file, in one process and in turn. An event has 300
characters of text and changes one key of the state; a session has three keys. Prints Markdown:
milliseconds per call, the least and the median of the rounds, and the least CPU time of the client.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from collections import defaultdict
from statistics import median
from typing import TYPE_CHECKING, Any

from google.adk.events import Event, EventActions
from google.adk.sessions.base_session_service import GetSessionConfig
from google.adk.sessions.database_session_service import DatabaseSessionService
from google.adk.sessions.schemas.v1 import StorageEvent, StorageSession
from google.genai import types
from sqlalchemy import insert

from benchmarks import machine, report
from benchmarks.places import server
from locus_store.adapters.adk import LocusSessionService
from locus_store.adapters.adk.records import STATE, SessionRecord, make_event_message

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

LOADED, USERS, BATCH = 1000, 20, 500
UNITS = "Milliseconds per call: least and median, and the least CPU time of the client."
HEAD = "| storage | call | service | least | median | CPU |\n|---|---|---|---:|---:|---:|"
CONTENT = types.Content(role="user", parts=[types.Part(text="word " * 60)])
NAMES = {"app_name": "app", "user_id": "u"}
NEWEST = GetSessionConfig(num_recent_events=20)
LISTED = {"lang": "en", "step": 1, "cart": ["12A", "12B"]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--calls", type=int, default=10, help="of each kind in a round")
    parser.add_argument("--sessions", type=int, default=10_000, help="listed, and long events")
    parser.add_argument("--only", choices=("PostgreSQL", "SQLite"))
    report.add_write(parser)
    options = parser.parse_args()
    lines: list[str] = []
    before = machine.load_average()
    if options.only != "SQLite":
        with server() as (running, database):
            url = running.url(database)
            theirs = url.replace("postgresql://", "postgresql+asyncpg://", 1)
            lines += asyncio.run(measured("PostgreSQL", url, theirs, options))
    if options.only != "PostgreSQL":
        with tempfile.TemporaryDirectory() as folder:
            theirs = f"sqlite+aiosqlite:///{folder}/theirs.db"
            ours = f"sqlite:///{folder}/ours.db"
            lines += asyncio.run(measured("SQLite", ours, theirs, options))
    load = f"Load average over five minutes: {before} before, {machine.load_average()} after."
    table = "\n".join([HEAD, *lines])
    page = ["# Sessions of Google ADK", machine.described(), f"{UNITS} {load}", table]
    report.publish("adk-sessions", "\n\n".join(page), write=options.write)


async def measured(name: str, url: str, theirs: str, options: Any) -> list[str]:
    """Return the lines of the table."""
    async with LocusSessionService.from_url(url) as ours, DatabaseSessionService(theirs) as others:
        services = {"LocusSessionService": ours, "DatabaseSessionService": others}
        await seeded_ours(ours, options.sessions)
        await seeded_theirs(others, options.sessions)
        times = await rounds_of(services, options)
    return [line(name, call, kind, each) for (call, kind), each in times.items()]


def line(name: str, call: str, kind: str, times: list[tuple[float, float]]) -> str:
    walls, cpus = zip(*times, strict=True)
    return (
        f"| {name} | {call} | {kind} | {min(walls):.2f} | {median(walls):.2f} | {min(cpus):.2f} |"
    )


def event(n: int = 0) -> Event:
    return Event(
        author="user",
        invocation_id="i",
        content=CONTENT,
        timestamp=1e9 + n,
        actions=EventActions(state_delta={"step": n}),
    )


def listed(count: int) -> list[tuple[str, str]]:
    return [(f"u{n % USERS}", f"s{n}") for n in range(count)]


async def seeded_ours(service: Any, count: int) -> None:
    for name, size in (("full", LOADED), ("long", count)):
        await service.create_session(**NAMES, session_id=name)
        messages = [make_event_message(event(n))[0] for n in range(size)]
        await service.log.append(f"app/u/{name}", messages)
    record = SessionRecord(LISTED, 1e9).to_message()
    names = listed(count)
    for user in range(USERS):
        await service.create_session(app_name="list", user_id=f"u{user}", state={"user:n": user})
    for start in range(0, count, BATCH):
        logs = [(f"list/{user}/{name}", STATE) for user, name in names[start : start + BATCH]]
        await service.log.append("seed", [], also={log: [record] for log in logs})


async def seeded_theirs(service: Any, count: int) -> None:
    for name, size in (("full", LOADED), ("long", count)):
        session = await service.create_session(**NAMES, session_id=name)
        for start in range(0, size, BATCH):
            events = [
                StorageEvent.from_event(session, event(n))
                for n in range(start, min(size, start + BATCH))
            ]
            columns = [it.key for it in StorageEvent.__table__.columns]
            await filled(
                service, StorageEvent, [{c: getattr(it, c) for c in columns} for it in events]
            )
    for user in range(USERS):
        await service.create_session(app_name="list", user_id=f"u{user}", state={"user:n": user})
    names = listed(count)
    for start in range(0, count, BATCH):
        rows = [
            {"app_name": "list", "user_id": user, "id": name, "state": LISTED}
            for user, name in names[start : start + BATCH]
        ]
        await filled(service, StorageSession, rows)


async def filled(service: Any, table: Any, rows: list[dict[str, Any]]) -> None:
    async with service.db_engine.begin() as connection:
        await connection.execute(insert(table.__table__), rows)


async def rounds_of(
    services: dict[str, Any], options: Any
) -> dict[tuple[str, str], list[tuple[float, float]]]:
    times: dict[tuple[str, str], list[tuple[float, float]]] = defaultdict(list)
    calls, few = options.calls, max(1, options.calls // 5)
    for number in range(options.rounds):
        new = {
            kind: await it.create_session(**NAMES, session_id=f"n{number}")
            for kind, it in services.items()
        }

        async def append(kind: str, count: int, new: Any = new) -> None:
            for n in range(count):
                await services[kind].append_event(new[kind], event(n))

        def loaded(kind: str, name: str, config: Any = None) -> Awaitable[Any]:
            return services[kind].get_session(**NAMES, session_id=name, config=config)

        works: dict[str, tuple[int, Callable[[str], Awaitable[Any]]]] = {
            "create": (calls, lambda kind: services[kind].create_session(**NAMES)),
            "append 1": (calls, lambda kind: append(kind, 1)),
            "append 200, one by one": (1, lambda kind: append(kind, 200)),
            f"load {LOADED} events": (few, lambda kind: loaded(kind, "full")),
            f"load {options.sessions} events": (1, lambda kind: loaded(kind, "long")),
            f"the newest 20 of {options.sessions}": (
                calls,
                lambda kind: loaded(kind, "long", NEWEST),
            ),
            f"list {options.sessions} sessions": (
                1,
                lambda kind: services[kind].list_sessions(app_name="list"),
            ),
            f"list {options.sessions // USERS} of a user": (
                few,
                lambda kind: services[kind].list_sessions(app_name="list", user_id="u7"),
            ),
        }
        for call, (count, work) in works.items():
            for kind in services:
                begun, cpu = time.perf_counter(), time.process_time()
                for _ in range(count):
                    await work(kind)
                walls = 1e3 * (time.perf_counter() - begun) / count
                times[call, kind].append((walls, 1e3 * (time.process_time() - cpu) / count))
    return times


if __name__ == "__main__":
    main()
