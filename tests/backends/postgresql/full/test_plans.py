"""Plans of the library's statements in PostgreSQL on 1,000,000 checkpoints: each uses an index.

Every statement is taken from the connection it is sent on, and explained there before it runs:
with the values known and unknown to the planner (PostgreSQL prepares statements and may forget the
values), and whatever statistics there are: none, those of the data, old ones of a twentieth of it,
none of a small database. What is bounded is the plan and the pages it reads; never the time.
"""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass
from functools import cache, partial
from typing import TYPE_CHECKING, Any

import asyncpg
import pytest
from servers import run

from locus_store import ConflictError
from locus_store.backends.postgresql import PostgreSQLBackend
from locus_store.types import Expected, PendingWrite, Save
from locus_store.values import frames
from locus_store.values.encoding import encode_canonical, pack_frame
from locus_store.versions.erasing import Sweep

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence

    from locus_store.types import Stored

THREADS = 20_000
FIRST = 1_100
"""Threads of a database that is young."""

PAGE = 50
DAY = 86_400.0
LARGE = {f"locus_{name}" for name in ("threads", "lines", "checkpoints", "writes", "messages")}

STATE = {"n": 1, "text": "x" * 100}
BASIS = frames.compare_states(STATE, None)
STEP = pack_frame(encode_canonical([["=", ["text"], "x" * 100]]))

# Three quarters of the threads are the default tenant's; one in 20 has a time to live, which is
# over for one in 400; one in 10 has a second namespace; one in 1,000 has 1,000 versions.
FILL = f"""
INSERT INTO locus_threads (tenant, thread_id, created_at, active_at, expires_at)
SELECT CASE WHEN i % 4 = 0 THEN 'other' ELSE 'default' END, 'thread-' || i,
  now() - interval '40 days',
  date_trunc('minute', now() - make_interval(mins => (i::bigint * 7919 % 43200)::int)),
  CASE WHEN i % 400 = 1 THEN now() - interval '1 day'
    WHEN i % 20 = 1 THEN now() + interval '20 days' END
FROM generate_series($first, $last) i;

INSERT INTO locus_lines (tenant, thread_id, namespace, head, open_chain, open_bytes,
  last_sequence, writer, run, updated_at)
SELECT t.tenant, t.thread_id, k.namespace, n, n - (n - 1) % 32, 700 * ((n - 1) % 32 + 1), n,
  'writer-' || t.thread, 'run-' || t.thread, now()
FROM locus_threads t, (VALUES (''), ('sub')) k(namespace),
  LATERAL (SELECT CASE WHEN t.thread % 1000 = 7 THEN 1000 ELSE 44 + t.thread % 3 END AS n) n
WHERE t.thread >= $first AND (k.namespace = '' OR t.thread % 10 = 0)
ORDER BY t.thread, k.namespace;

INSERT INTO locus_checkpoints (line, sequence, chain, parent, checkpoint_id, digest, metadata,
  labels, created_at, payload)
SELECT l.line, s, s - (s - 1) % 32, nullif(s - 1, 0), substr(md5(l.line || '/' || s), 1, 24),
  '\\x{BASIS.tree.digest.hex()}'::bytea,
  CASE WHEN s % 3 = 0 THEN jsonb_build_object(
    'step', s, 'source', 'loop', 'user', 'user-' || l.line % 5000) END,
  jsonb_build_object('agent_id', 'agent-' || l.line % 50,
    'tags', jsonb_build_array('tag-' || l.line % 7, 'all')),
  now() - make_interval(mins => (l.line * 7919 % 43200)::int, secs => (l.last_sequence - s) * 10),
  CASE WHEN s % 32 = 1 THEN '\\x{BASIS.to_payload().hex()}'::bytea ELSE '\\x{STEP.hex()}'::bytea END
FROM locus_lines l JOIN locus_threads t USING (tenant, thread_id),
  generate_series(1, l.last_sequence) s
WHERE t.thread >= $first;

INSERT INTO locus_writes (line, checkpoint_id, task_id, idx, channel, created_at)
SELECT l.line, 'next-' || c.checkpoint_id, 'task', 0, 'messages', now()
FROM locus_threads t JOIN locus_lines l USING (tenant, thread_id)
JOIN locus_checkpoints c ON c.line = l.line AND c.sequence = l.head
WHERE t.thread >= $first;

INSERT INTO locus_messages (thread, namespace, sequence, message_id, role, created_at, digest)
SELECT t.thread, '', s, 'message-' || s, 'user', now(), '\\x00'
FROM locus_threads t, generate_series(1, 10) s WHERE t.thread >= $first;

INSERT INTO locus_logs (thread, namespace, revision, message_count, last_sequence, changed_at)
SELECT thread, '', 1, 10, 10, active_at FROM locus_threads WHERE thread >= $first;
"""

# --- plans


@dataclass(frozen=True, repr=False)
class Plan:
    """The plan of one of the library's statements."""

    query: str
    values: Sequence[Any]
    is_generic: bool
    root: Mapping[str, Any]

    def __repr__(self) -> str:
        shown = ("Node Type", "Index Name", "Scan Direction", "Plan Rows", "Actual Rows")
        nodes = (" ".join(str(it[name]) for name in shown if name in it) for it in self.nodes)
        return "\n".join([" ".join(self.query.split())[:100], *nodes])

    @property
    def nodes(self) -> Iterator[Mapping[str, Any]]:
        waiting = [self.root]
        while waiting:
            node = waiting.pop()
            yield node
            waiting += node.get("Plans", ())

    @property
    def buffers(self) -> int:
        """Pages of 8 KB that were looked at, some of them several times."""
        return self.root["Shared Hit Blocks"] + self.root["Shared Read Blocks"]

    @property
    def indexes(self) -> set[str]:
        return {it["Index Name"] for it in self.nodes if "Index Name" in it}

    @property
    def sorted_rows(self) -> float:
        """Rows that the largest sort was given."""
        sorts = [it for it in self.nodes if "Sort" in it["Node Type"]]
        return max((it["Plans"][0]["Actual Rows"] for it in sorts), default=0)

    def scans(self, kind: str) -> set[str]:
        """Large tables read by a scan of the kind."""
        return {
            it["Relation Name"]
            for it in self.nodes
            if it["Node Type"] == kind and it.get("Relation Name") in LARGE
        }

    def __str__(self) -> str:
        values = "unknown" if self.is_generic else "known"
        shown = json.dumps(self.root, indent=1)
        return f"{self.query.strip()}\nvalues {values}: {self.values!r:.500}\n{shown}"


class Explaining(asyncpg.Connection):
    """Explains a statement, and undoes what that did, before it runs."""

    plans: list[Plan] | None = None

    async def fetch(self, query, *values, **options):
        await self.explain(query, values)
        return await super().fetch(query, *values, **options)

    async def fetchmany(self, query, args, **options):
        for values in args:
            await self.explain(query, values)
        return await super().fetchmany(query, args, **options)

    async def prepare(self, query, **options):
        return Prepared(await super().prepare(query, **options), partial(self.explain, query))

    async def explain(self, query: str, values: Sequence[Any]) -> None:
        if Explaining.plans is None or query.startswith(("BEGIN", "COMMIT", "LOCK")):
            return
        await self.execute(f"PREPARE explained AS {query}")
        kinds = await super().fetchval(
            "SELECT parameter_types::text[] FROM pg_prepared_statements WHERE name = 'explained'"
        )
        given = ", ".join(map(literal, values, kinds))
        told = "EXPLAIN (FORMAT JSON, ANALYZE, BUFFERS, TIMING OFF) EXECUTE explained"
        for is_generic in (True, False):
            mode = "generic" if is_generic else "custom"
            undone = self.transaction()
            await undone.start()
            await self.execute(f"SET LOCAL plan_cache_mode = force_{mode}_plan")
            explained = await super().fetchval(f"{told} ({given})" if values else told)
            await undone.rollback()
            Explaining.plans.append(
                Plan(query, values, is_generic, json.loads(explained)[0]["Plan"])
            )
        await self.execute("DEALLOCATE explained")


class Prepared:
    """A prepared statement as SQLAlchemy uses one."""

    def __init__(self, statement: Any, explain: Callable[[Sequence[Any]], Awaitable[None]]) -> None:
        self._statement = statement
        self._explain = explain

    def __getattr__(self, name: str) -> Any:
        return getattr(self._statement, name)

    async def fetch(self, *values: Any, **options: Any) -> Any:
        await self._explain(values)
        return await self._statement.fetch(*values, **options)


def literal(value: Any, kind: str) -> str:
    """A value in SQL."""
    if value is None:
        return "NULL"
    if isinstance(value, bool | int | float):
        return repr(value)
    if isinstance(value, list | tuple):
        return f"ARRAY[{', '.join(literal(it, '') for it in value)}]::{kind}"
    if isinstance(value, bytes):
        return f"'\\x{value.hex()}'::bytea"
    return "'" + str(value).replace("'", "''") + "'"


# --- a database of 1,000,000 checkpoints, and what the library does to it


def fill(first: int, last: int) -> str:
    return FILL.replace("$first", str(first)).replace("$last", str(last))


@pytest.fixture(scope="session")
def young(postgresql) -> Iterator[str]:
    """Name of a small database, which only we analyse."""
    name = postgresql.new_database(template=postgresql.migrated_template())
    for table in LARGE:
        postgresql.execute(f"ALTER TABLE {table} SET (autovacuum_enabled = off)", database=name)
    postgresql.execute(fill(1, FIRST), database=name)
    yield name
    postgresql.drop_database(name)


@pytest.fixture(scope="session")
def plans_in(postgresql, young) -> Callable[[str], dict[str, list[Plan]]]:
    """Gives the plans of each operation's statements in a database of the state."""

    def in_database(name: str, state: str) -> dict[str, list[Plan]]:
        if state == "analysed while young":
            postgresql.execute("ANALYZE", database=name)
        if state != "young":
            postgresql.execute(fill(FIRST + 1, THREADS), database=name)
            rows = postgresql.value("SELECT count(*) FROM locus_checkpoints", database=name)
            assert rows >= 1_000_000
        if state == "analysed":
            postgresql.execute("ANALYZE", database=name)
        return run(perform(postgresql.url(name)))

    @cache
    def plans(state: str) -> dict[str, list[Plan]]:
        name = postgresql.new_database(template=young)
        try:
            return in_database(name, state)
        finally:
            Explaining.plans = None
            postgresql.drop_database(name)

    return plans


IS_PARTIAL = "SELECT indexdef LIKE '%WHERE%' FROM pg_indexes WHERE indexname = $1"


@pytest.fixture
def performed(request, postgresql, young, plans_in) -> dict[str, list[Plan]]:
    index = "locus_threads_active"
    if request.param == "young" and not postgresql.value(IS_PARTIAL, index, database=young):
        pytest.skip(f"without statistics, {index} looks as good as locus_threads_id")
    return plans_in(request.param)


GROWN = ("never analysed", "analysed while young", "analysed")


in_each_state = pytest.mark.parametrize("performed", ["young", *GROWN], indirect=True)
with_statistics = pytest.mark.parametrize("performed", GROWN[1:], indirect=True)
when_grown = pytest.mark.parametrize("performed", GROWN, indirect=True)


async def perform(url: str) -> dict[str, list[Plan]]:
    pool = await asyncpg.create_pool(url, min_size=1, max_size=2, connection_class=Explaining)
    told: dict[str, list[Plan]] = {}
    backend = PostgreSQLBackend(pool=pool)
    try:
        for name, operation in (await operations(backend)).items():
            Explaining.plans = told[name] = []
            await operation()
            Explaining.plans = None
    finally:
        await backend.close()
        await pool.close()
    return told


async def operations(backend: PostgreSQLBackend) -> dict[str, Callable[[], Awaitable[Any]]]:
    numbers = [it for it in range(2, 400) if it % 4 and it % 20 != 1 and it not in {7, 11}]
    heads = [await backend.fetch(f"thread-{it}") for it in numbers]
    unused = iter(heads)
    await backend.commit(new("thread-11", id="this minute's"))
    ids = [it.checkpoint_id for it in await backend.history("thread-9", limit=100)]
    page = await backend.list_threads(PAGE)
    far = (await backend.list_threads(THREADS))[-20 * PAGE :][0]

    def save(**options: Any) -> Callable[[], Awaitable[Any]]:
        return partial(backend.commit, onto(next(unused), **options))

    async def append_again() -> None:
        await backend.commit(onto(await backend.fetch("thread-11")))

    def group() -> Awaitable[Any]:
        kinds = ({}, {"keep_last": 40}, {"ttl_seconds": DAY})
        saves = [onto(head, **kinds[at % 3]) for at, head in zip(range(128), unused, strict=False)]
        return asyncio.gather(*map(backend.commit, saves))

    def new_group() -> Awaitable[Any]:
        return asyncio.gather(*(backend.commit(new(f"new-{it}")) for it in range(128)))

    async def lose() -> None:
        stale = Expected(made_from=heads[0].version.mark, head=heads[0].head)
        with pytest.raises(ConflictError):
            await backend.commit(new("thread-2", id="lost", expected=stale))

    def write(stored: Stored, *, is_change: bool = True) -> Awaitable[Any]:
        version = stored.version
        basis = version.mark.sequence if is_change else None
        kept = PendingWrite(
            task_id="task", idx=0, channel="c", type="json", payload=b"x", task_path="", basis=basis
        )
        known = version.mark if is_change else None
        return backend.put_writes(version.thread_id, version.checkpoint_id, [kept], known=known)

    def writes() -> Awaitable[Any]:
        return asyncio.gather(
            *(write(it, is_change=at % 2 == 0) for at, it in enumerate(heads[-100:]))
        )

    async def expire() -> None:
        await backend._write(lambda it: it.expire())

    return {
        "append": save(),
        "append again": append_again,
        "append, keep_last": save(keep_last=40),
        "append, ttl": save(ttl_seconds=DAY),
        "group": group,
        "new thread": partial(backend.commit, new("brand new")),
        "new group": new_group,
        "new namespace": partial(
            backend.commit, new("thread-18", namespace="new", thread_must_exist=True)
        ),
        "append by name": partial(backend.commit, new("thread-399")),
        "fork": partial(backend.commit, new("thread-9", id="fork", parent_id=ids[5])),
        "replace": partial(backend.commit, new("thread-10", id=ids_of(heads, "thread-10"))),
        "conflict": lose,
        "fetch": partial(backend.fetch, "thread-1007"),
        "fetch by id": partial(backend.fetch, "thread-9", checkpoint_id=ids[7]),
        "version": partial(backend.version, "thread-9"),
        "version by id": partial(backend.version, "thread-9", ids[7]),
        "history": partial(backend.history, "thread-1007", limit=PAGE),
        "history after": partial(backend.history, "thread-9", before=ids[20]),
        "list_threads": partial(backend.list_threads, PAGE),
        "list_threads, page 2": partial(backend.list_threads, PAGE, after=page[-1]),
        "list_threads, far page": partial(backend.list_threads, PAGE, after=far),
        "list_threads, pattern": partial(backend.list_threads, PAGE, "thread-1*"),
        "heads": partial(backend.heads, PAGE),
        "query": partial(backend.query, "user", "user-77"),
        "query, label": partial(backend.query, "agent_id", "agent-7", limit=PAGE),
        "query, nothing": partial(backend.query, "user", "nobody"),
        "delete a version": partial(backend.remove, "thread-13", [ids_of(heads, "thread-13")]),
        "delete": partial(backend.remove, "thread-14"),
        "copy": partial(backend.copy_thread, "thread-15", "copied"),
        "vacuum a thread": partial(backend._vacuum_thread, "thread-17", DAY, Sweep()),
        "expire": expire,
        "put_writes": lambda: write(heads[-101]),
        "put_writes, group": writes,
        "put_writes, must exist": partial(write_first, backend, "thread-18"),
    }


async def write_first(backend: PostgreSQLBackend, thread_id: str) -> None:
    written = [PendingWrite(task_id="task", idx=0, channel="c", type="json", payload=b"x")]
    for namespace in ("", "next"):  # the second one is created
        options = {"namespace": namespace, "must_exist": "thread"}
        assert await backend.put_writes(thread_id, "next", written, **options)


def new(thread_id: str, *, id: str = "new-id", **options: Any) -> Save:  # noqa: A002
    change = frames.compare_states({**STATE, "n": 2}, BASIS.tree)
    kept = {"metadata": {"step": 1}, "labels": {"agent_id": "a"}}
    return Save(thread_id=thread_id, checkpoint_id=id, change=change, **kept, **options)


def onto(stored: Stored, **options: Any) -> Save:
    expected = Expected(made_from=stored.head, head=stored.head)
    return new(stored.version.thread_id, basis=stored.head, expected=expected, **options)


def ids_of(heads: Sequence[Stored], thread_id: str) -> str:
    return next(it.version.checkpoint_id for it in heads if it.version.thread_id == thread_id)


# --- what must hold

ACTIVE_NOW = 300
"""Threads that the operations saved within a minute, at most: a page looks at whole minutes."""

MAX_BUFFERS = {
    "append": 60,
    "append again": 60,
    "append, keep_last": 60,
    "append, ttl": 60,
    "group": 128 * 60,
    "new thread": 60,
    "new group": 128 * 60,
    "put_writes": 80,
    "put_writes, group": 128 * 60,
    "put_writes, must exist": 80,
    "fetch": 80,
    "fetch by id": 80,
    "version": 40,
    "version by id": 40,
    "history": 6 * PAGE,
    "history after": 6 * PAGE,
    "list_threads": 9 * (PAGE + ACTIVE_NOW),
    "list_threads, page 2": 18 * PAGE,
    "list_threads, far page": 56 * PAGE,  # a young database is small enough to read more of it
    "list_threads, pattern": 12 * (PAGE + ACTIVE_NOW),
    "heads": 12 * PAGE + 9 * (PAGE + ACTIVE_NOW),
    "query": 4_000,
    "query, label": 8_000,
    "query, nothing": 4_000,
    "expire": 8_000,  # one statement deletes all that 70 threads own
}
"""Of each statement of the operation."""

ELSE_BUFFERS = 1_000

BY_PREFIX_BUFFERS = 4 * 8_400
"""Of all threads of the pattern's prefix. Without statistics the planner expects few of a prefix
that it knows, looks at each by the index of the ids, and sorts them: right for a rare prefix."""


def is_by_prefix(plan: Plan, operation: str) -> bool:
    return operation == "list_threads, pattern" and "locus_threads_id" in plan.indexes


def is_without_estimate(plan: Plan) -> bool:
    """Without statistics the planner may take a tenant to have four threads, and sort all 15,000.

    A run of the whole suite had such a plan; runs of this file alone had none.
    """
    scans = [it for it in plan.nodes if it["Node Type"] == "Bitmap Index Scan"]
    return any(it["Index Name"] == "locus_threads_active" and it["Plan Rows"] < FEW for it in scans)


FEW = 10
SAVES = (
    "append",
    "append again",
    "append, keep_last",
    "append, ttl",
    "group",
    "new thread",
    "new group",
)
SEARCHES = ("query", "query, label", "query, nothing")

PRICES_LISTS_WELL = 17_00_00
"""The version since which a list of keys is not one search of the index for each of them."""

every = pytest.mark.parametrize(
    "operation",
    [
        *MAX_BUFFERS,
        "new namespace",
        "append by name",
        "fork",
        "replace",
        "conflict",
        "delete a version",
        "delete",
        "copy",
        "vacuum a thread",
    ],
)


@when_grown
@every
def test_no_large_table_is_read_from_end_to_end(postgresql, performed, operation):
    version = int(postgresql.value("SHOW server_version_num"))
    for plan in performed[operation]:
        found = plan.scans("Seq Scan")
        if operation == "expire":  # a batch of threads at once, for whose messages it may pay
            found -= {"locus_messages"}
        if operation == "group" and version < PRICES_LISTS_WELL:  # 128 of 22,000 rows
            found -= {"locus_lines"}
        assert not found, plan


@in_each_state
@every
def test_what_a_statement_reads_is_bounded(performed, operation):
    for plan in performed[operation]:
        most = MAX_BUFFERS.get(operation, ELSE_BUFFERS)
        if is_by_prefix(plan, operation):
            most = BY_PREFIX_BUFFERS
        assert plan.buffers <= most or is_without_estimate(plan), plan


@when_grown
@every
def test_nothing_is_sorted_but_what_was_sent_or_asked_for(performed, operation):
    if operation in SEARCHES:  # they show the newest of what an index found
        return
    limit = 200 if operation == "expire" else 128
    if operation.startswith(("list_threads", "heads")):
        limit = ACTIVE_NOW
    for plan in performed[operation]:
        is_known = is_by_prefix(plan, operation) or is_without_estimate(plan)
        assert plan.sorted_rows <= limit or is_known, plan


@with_statistics
def test_a_common_prefix_is_listed_in_the_order_of_the_index(performed):
    for plan in performed["list_threads, pattern"]:
        assert not is_by_prefix(plan, "list_threads, pattern"), plan


@in_each_state
def test_every_operation_was_looked_at(performed):
    assert all(performed.values()), {name for name, plans in performed.items() if not plans}


@when_grown
@pytest.mark.parametrize("operation", SAVES)
def test_a_save_finds_its_rows_by_their_keys(performed, operation):
    keys = {
        f"locus_{of}_{key}" for of in ("threads", "lines", "checkpoints") for key in ("pk", "id")
    } | {"locus_segments_pk", "locus_settings_pk", "locus_turns_pk"}
    for plan in performed[operation]:
        assert plan.query.strip().startswith("WITH"), "nothing is left to a transaction"
        assert plan.indexes <= keys, plan


@in_each_state
def test_a_thread_that_must_exist_is_looked_up_in_the_same_statement(performed):
    for name, calls in {"new namespace": 1, "put_writes, must exist": 2}.items():
        generic = [it for it in performed[name] if it.is_generic]
        assert [it.query.strip()[:4] for it in generic] == ["WITH"] * calls


@in_each_state
def test_a_group_of_saves_is_one_statement_of_each_sender(performed):
    rows = [next(it for it in plan.values if isinstance(it, tuple)) for plan in performed["group"]]
    assert [*map(len, rows)] == [64, 64] * 2


@when_grown
def test_threads_are_listed_in_the_order_of_their_index(performed):
    pages = ("list_threads", "list_threads, page 2", "list_threads, far page")
    for plan in (it for name in pages for it in performed[name] if "minutes" in it.query):
        scans = [it for it in plan.nodes if it.get("Index Name") == "locus_threads_active"]
        newest = next(it for it in scans if it.get("Scan Direction") == "Backward")
        assert newest["Actual Rows"] + newest.get("Rows Removed by Filter", 0) <= PAGE + 10, plan
        rows = [it for it in plan.nodes if it.get("Relation Name") == "locus_threads"]
        assert all(it["Actual Rows"] <= PAGE + ACTIVE_NOW for it in rows), plan


@when_grown
def test_heads_are_a_page_of_threads_and_a_row_each(performed):
    for plan in performed["heads"]:
        indexes = {"locus_threads_active", "locus_lines_id", "locus_checkpoints_pk"}
        assert plan.indexes - {"locus_logs_pk"} == indexes, plan


@when_grown
@pytest.mark.parametrize("operation", SEARCHES)
def test_metadata_is_found_by_its_index(performed, operation):
    for plan in performed[operation]:
        assert {"locus_checkpoints_metadata", "locus_checkpoints_labels"} <= plan.indexes, plan


@when_grown
def test_versions_are_listed_in_the_order_of_their_index(performed):
    for name in ("history", "history after"):
        for plan in performed[name]:
            scans = [it for it in plan.nodes if it.get("Index Name") == "locus_checkpoints_pk"]
            assert any(it["Scan Direction"] == "Backward" for it in scans), plan
            assert not plan.scans("Bitmap Heap Scan"), plan


@in_each_state
def test_every_page_costs_what_the_first_one_does(performed):
    first, far = (
        max(it.buffers for it in performed[name] if "LIMIT" in it.query)
        for name in ("list_threads", "list_threads, far page")
    )
    assert far <= 3 * max(first, 6 * PAGE)
