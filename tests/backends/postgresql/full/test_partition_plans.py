"""Plans in a database with partitions: rows of a line are looked up in one, by an index."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import asyncpg
import pytest
from servers import run
from test_plans import Explaining, new, onto

from locus_store.backends.postgresql import PostgreSQLBackend
from locus_store.backends.postgresql.partitions import partition
from locus_store.types import PendingWrite

if TYPE_CHECKING:
    from collections.abc import Iterator

    from test_plans import Plan

PARTS = 16


@pytest.fixture(scope="module", params=["postgresql", "postgresql_16"])
def plans(request) -> Iterator[dict[str, list[Plan]]]:
    server = request.getfixturevalue(request.param)
    name = server.new_database(template=server.migrated_template())
    yield run(perform(server.url(name)))
    server.drop_database(name)


async def perform(url: str) -> dict[str, list[Plan]]:
    async with PostgreSQLBackend(url) as young:
        await young.commit(new("young"))
    await asyncio.to_thread(partition, url, PARTS)
    pool = await asyncpg.create_pool(url, min_size=1, max_size=1, connection_class=Explaining)
    backend = PostgreSQLBackend(pool=pool)
    found: dict[str, list[Plan]] = {}
    for number in range(40):
        await backend.commit(new(f"t{number}"))
        for version in range(3):
            head = await backend.fetch(f"t{number}")
            await backend.commit(onto(head, id=f"v{version}"))
    head = await backend.fetch("t7")
    write = PendingWrite(task_id="task", idx=0, channel="c", type="json", payload=b"x")
    place = "t7", head.version.checkpoint_id, [write]
    calls: dict[str, Any] = {
        "load": lambda: backend.fetch("t8", with_writes=True),
        "load again": lambda: backend.fetch_head("t7", known=head.head),
        "load by id": lambda: backend.fetch("t8", checkpoint_id="v1"),
        "version": lambda: backend.version("t8"),
        "version by id": lambda: backend.version("t8", "v1"),
        "history": lambda: backend.history("t8"),
        "history after": lambda: backend.history("t8", before="v2"),
        "put_writes": lambda: backend.put_writes(*place, known=head.version.mark),
        "put_writes of any": lambda: backend.put_writes("t7", "next", [write]),
        "delete a version": lambda: backend.remove("t9", ["v1"]),
        "delete": lambda: backend.remove("t10"),
        "vacuum": lambda: backend._write(lambda it: it.vacuum_thread("t11", 0.0)),
        "expire": lambda: backend._write(lambda it: it.expire()),
        "prune": lambda: backend.prune("t13"),
        "append, keep_last": lambda: backend.commit(onto(kept, id="v3", keep_last=2)),
        "append, touched": lambda: backend.commit(onto(quiet, id="v3")),
        "append": lambda: backend.commit(onto(head, id="v3")),
        "append, ttl": lambda: backend.commit(onto(lasting, id="v3", ttl_seconds=3600.0)),
        "append, ttl again": lambda: backend.commit(onto(renewed, id="v4", ttl_seconds=3600.0)),
        "first": lambda: backend.commit(new("first")),
        "first, ttl": lambda: backend.commit(new("second", ttl_seconds=3600.0)),
        "appends": lambda: asyncio.gather(*(backend.commit(onto(it, id="v4")) for it in heads)),
    }
    heads = [await backend.fetch(f"t{number}") for number in range(20, 40)]
    await pool.execute("UPDATE locus_threads SET expires_at = now() WHERE thread_id = 't12'")
    kept = await backend.fetch("t13")
    await backend.commit(onto(kept, id="kept", keep_last=2))
    kept, quiet = await backend.fetch("t14"), await backend.fetch("t15")
    lasting = await backend.fetch("t16")
    await backend.commit(onto(await backend.fetch("t17"), id="v3", ttl_seconds=3600.0))
    renewed = await backend.fetch("t17")
    hour_ago = "UPDATE locus_threads SET active_at = active_at - interval '1 hour'"
    await pool.execute(f"{hour_ago} WHERE thread_id = 't15'")
    await explain(calls, found)
    assert await backend.create_search_index()
    await backend.commit(new("old"))  # finds the index
    indexed = [await backend.fetch(f"t{number}") for number in range(20, 40)]
    calls = {
        "append, indexed": lambda: backend.commit(onto(indexed[0], id="v5")),
        "appends, indexed": lambda: asyncio.gather(
            *(backend.commit(onto(it, id="v5")) for it in indexed[1:])
        ),
        "first, indexed": lambda: backend.commit(new("third")),
        "delete a version, indexed": lambda: backend.remove("t20", ["v4"]),
        "delete, indexed": lambda: backend.remove("t20"),
    }
    await explain(calls, found)
    await backend.close()
    await pool.close()
    return found


async def explain(calls: dict[str, Any], found: dict[str, list[Plan]]) -> None:
    for name, call in calls.items():
        Explaining.plans = found[name] = []
        await call()
        Explaining.plans = None


def list_scans(plan: Plan) -> list[Any]:
    """Return the scans of partitions that may run, and those that did."""
    scans = [it for it in plan.nodes if "_p16_" in it.get("Relation Name", "")]
    return [
        {it["Relation Name"].rpartition("_")[2] for it in some if it["Node Type"] != "ModifyTable"}
        for some in (scans, [it for it in scans if it["Actual Loops"]])
    ]


LOADS = ("load", "load again", "load by id", "version", "version by id", "history", "history after")
OTHERS = ("append, ttl", "append, ttl again", "first", "first, ttl")
INDEXED = ("append, indexed", "appends, indexed", "first, indexed")
APPENDS = ("append", "append, keep_last", "append, touched", "appends", *OTHERS, *INDEXED)
CHANGES = ("put_writes", "put_writes of any", *APPENDS)
DELETIONS = ("delete a version", "delete", "vacuum", "expire", "prune")
OF_INDEX = ("delete a version, indexed", "delete, indexed")


@pytest.mark.parametrize("operation", [*LOADS, *CHANGES, *DELETIONS, *OF_INDEX])
def test_a_statement_of_one_line_reads_one_partition(plans, operation):
    assert {it.is_generic for it in plans[operation]} == {True, False}
    for plan in plans[operation]:
        planned, run_ = list_scans(plan)
        assert len(planned) <= 1, plan
        assert run_ <= planned
        for node in plan.nodes:
            assert "_p16_" not in node.get("Relation Name", "") or node["Node Type"] != "Seq Scan"


def test_a_server_prefers_the_general_plan_of_a_save(postgresql):
    """Planning for the values of each save would cost more than the save."""
    name = postgresql.new_database(template=postgresql.migrated_template())
    url = postgresql.url(name)
    partition(url, 64)
    kinds = run(count_plans(url))
    postgresql.drop_database(name)
    assert kinds["generic_plans"] > kinds["custom_plans"], kinds


async def count_plans(url: str) -> Any:
    pool = await asyncpg.create_pool(url, min_size=1, max_size=1)
    backend = PostgreSQLBackend(pool=pool)
    for number in range(20):
        head = await backend.fetch("t")
        await backend.commit(onto(head, id=f"v{number}") if head else new("t"))
    query = """SELECT generic_plans, custom_plans FROM pg_prepared_statements
      WHERE statement LIKE '%WITH moved AS%RETURNING line, sequence%'"""
    found = await pool.fetchrow(query)
    await backend.close()
    await pool.close()
    return found
