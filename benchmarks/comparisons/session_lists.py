"""Lists of a session in small and large tables, which SQL fills from rows that a session wrote."""

from __future__ import annotations

import time
from statistics import median
from typing import TYPE_CHECKING, Any, Final

from benchmarks import machine
from benchmarks.comparisons.session_sides import OURS, maker, name_of, opened

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from benchmarks.comparisons.session_sides import Servers

FEW, MANY = 1_000, 1_000_000
ROUNDS, CALLS = 7, 20

THREADS: Final = """
WITH made AS (
  INSERT INTO locus_threads (tenant, thread_id, user_id, name, metadata, created_at, active_at)
  SELECT t.tenant, 'thread ' || n, CASE WHEN n % 100 = 0 THEN 'few' ELSE t.user_id END, t.name,
    t.metadata, t.created_at, t.active_at - make_interval(mins => n / 10 + 1)
  FROM locus_threads t, generate_series({first}, {last}) n WHERE t.thread_id = 'thread'
  RETURNING thread, active_at)
INSERT INTO locus_logs (thread, namespace, revision, message_count, last_sequence, changed_at)
SELECT made.thread, l.namespace, l.revision, 0, 0, made.active_at + interval '7 seconds'
FROM made, locus_logs l JOIN locus_threads t USING (thread) WHERE t.thread_id = 'thread'
"""
"""Ten threads a minute; one of a hundred is the user's who has few."""

# A message without a digest is one of an older release.
MESSAGES: Final = """
INSERT INTO locus_messages (thread, namespace, sequence, message_id, role, metadata, created_at,
  text, payload)
SELECT m.thread, m.namespace, n + 1, m.message_id || n, m.role, m.metadata, m.created_at, m.text,
  m.payload
FROM locus_messages m JOIN locus_threads t USING (thread), generate_series({first}, {last}) n
WHERE t.thread_id = 'thread' AND m.sequence = 1
"""

CALLED: Final[dict[str, Callable[[Any], Awaitable[Any]]]] = {
    "`alist_threads(limit=3)`, a user with 99 % of the threads": (
        lambda it: it.alist_threads({"user_id": "many"}, limit=3)
    ),
    "`alist_threads(limit=3)`, a user with 1 % of the threads": (
        lambda it: it.alist_threads({"user_id": "few"}, limit=3)
    ),
    "`alist_messages(limit=50)`": (
        lambda it: it.alist_messages({"thread_id": "thread", "user_id": "many"}, limit=50)
    ),
    "`alist_messages(limit=50, search=…)`, all match": (
        lambda it: it.alist_messages(
            {"thread_id": "thread", "user_id": "many"}, search="BENCH", limit=50
        )
    ),
}


async def lists(servers: Servers) -> str:
    """Return the table of the lists: milliseconds of both sizes, in turn."""
    sessions = [await _filled(servers, size) for size in (FEW, MANY)]
    times: dict[str, list[list[float]]] = {name: [[], []] for name in CALLED}
    for number in range(ROUNDS + 1):
        for name, call in CALLED.items():
            for session, taken in zip(sessions, times[name], strict=True):
                milliseconds = await _timed(call, session)
                taken.extend([milliseconds] if number else [])
    for session in sessions:
        await session.arelease()
    head = ("ms", f"{FEW:,} rows", f"{MANY:,} rows", "ratio")
    return machine.table(head, [_row(name, *both) for name, both in times.items()])


async def _filled(servers: Servers, size: int) -> Any:
    """Return a session on a database with a table of so many threads and a log of as many."""
    url = servers.database()
    session = opened(OURS, url, None, cache_verify_seconds=1000)
    message = maker(OURS).message("a benchmark's message of the usual length", message_id="m")
    config = {"thread_id": "thread", "user_id": "many", "thread_name": "a thread"}
    await session.aput_messages(config, [message])
    fill = (it.format(first=1, last=size - 1) for it in (THREADS, MESSAGES))
    for script in (*fill, "VACUUM ANALYZE"):
        servers.postgresql.execute(script, name_of(url))
    return session


async def _timed(call: Callable[[Any], Awaitable[Any]], session: Any) -> float:
    begun = time.perf_counter()
    for _ in range(CALLS):
        if not await call(session):
            raise SystemExit("a list is empty")
    return 1e3 * (time.perf_counter() - begun) / CALLS


def _row(name: str, few: list[float], many: list[float]) -> list[str]:
    return [
        name,
        f"{min(few):.2f} / {median(few):.2f}",
        f"{min(many):.2f} / {median(many):.2f}",
        f"{min(many) / min(few):.2f} / {median(many) / median(few):.2f}",
    ]
