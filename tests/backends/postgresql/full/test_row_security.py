"""Row security: what each policy holds, what a role with SQL can do, and the library upon both."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from lazily import TESTS_RUN

from locus_store import (
    BackendError,
    ConflictError,
    InvalidArgumentError,
    NewMessage,
    NotFoundError,
    PostgreSQLMessageLog,
    PostgreSQLStore,
    Quota,
    QuotaError,
    SchemaError,
    UnsupportedError,
    postgresql_checkpointer,
)
from locus_store.backends.postgresql import policies, row_security
from locus_store.backends.postgresql.partitions import partition
from locus_store.sql import migrate
from locus_store.sql.schema import user_ids, vectors
from locus_store.sql.schema.tables import METADATA
from locus_store.types import PendingWrite

if TESTS_RUN:
    import asyncpg

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

pytestmark = pytest.mark.anyio

TENANTS = {"acme": 1, "globex": 2}
ORPHAN = 3
"""The number of rows without a parent, which only an administrator sees."""

OWNED = ("lines", "threads", "store", "turns", "quotas", "audit", "seals")
KEYS = {
    **dict.fromkeys(("checkpoints", "segments", "writes", "search", "lines"), "line"),
    **dict.fromkeys(("logs", "messages", "threads"), "thread"),
    **dict.fromkeys(("embeddings", "store"), "item"),
    "turns": "turn",
    "quotas": "revision",
    "audit": "entry",
    "seals": "seal",
}
"""The column of each table whose value is the number of the tenant."""

PARENTS = """
INSERT INTO locus_threads (thread, tenant, thread_id, created_at, active_at)
  VALUES ({n}, '{tenant}', 't', now(), now());
INSERT INTO locus_lines (line, tenant, thread_id, namespace, head, open_chain, last_sequence,
  updated_at) VALUES ({n}, '{tenant}', 't', '', 1, 1, 1, now());
INSERT INTO locus_turns VALUES ('{tenant}', 't', {n}, now(), 1, '[]');
INSERT INTO locus_quotas VALUES ('{tenant}', '{{}}', '{{}}', {n});
INSERT INTO locus_store (item, tenant, namespace, key, created_at, updated_at)
  OVERRIDING SYSTEM VALUE
  VALUES ({n}, '{tenant}', 'x', 'k', now(), now());
INSERT INTO locus_audit (entry, tenant, recorded_at, who, method, result)
  VALUES ({n}, '{tenant}', now(), 'w', 'commit', 'done');
INSERT INTO locus_seals VALUES ('{tenant}', {n}, now(), 1, 1, 1, '', '');
SELECT setval(pg_get_serial_sequence('locus_threads', 'thread'), 100),
  setval(pg_get_serial_sequence('locus_lines', 'line'), 100),
  setval(pg_get_serial_sequence('locus_store', 'item'), 100);
"""
CHILDREN = """
INSERT INTO locus_checkpoints (line, sequence, chain, checkpoint_id, digest, created_at)
  VALUES ({n}, 1, 1, 'c', '', now());
INSERT INTO locus_segments (line, last, first, chain, payload) VALUES ({n}, 1, 1, 1, '');
INSERT INTO locus_writes (line, checkpoint_id, task_id, idx, channel, created_at)
  VALUES ({n}, 'c', 'k', 0, 'h', now());
INSERT INTO locus_logs (thread, namespace, revision, message_count, last_sequence, changed_at)
  VALUES ({n}, '', 1, 1, 1, now());
INSERT INTO locus_messages (thread, namespace, sequence, message_id, role, digest, created_at)
  VALUES ({n}, '', 1, 'm', 'user', '', now());
INSERT INTO locus_embeddings VALUES ({n}, 0, '[1,2,3]');
INSERT INTO locus_search VALUES ({n}, 1, 0, 'word');
"""
FILL = PARENTS + CHILDREN
ROLES = ("locus_app", "locus_owner", "locus_acme")


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class Place:
    """A database, and connections to it.

    Args:
        server: Its server.
        name: Its name.
    """

    def __init__(self, server: Any, name: str) -> None:
        self.server, self.name = server, name
        self.admin = server.url(name)
        self._opened: list[Any] = []

    def url(self, role: str) -> str:
        return str(self.server.url(self.name, user=role))

    async def connect(self, role: str | None = None) -> Any:
        made = await asyncpg.connect(self.admin if role is None else self.url(role))
        self._opened.append(made)
        return made

    async def close(self) -> None:
        for it in self._opened:
            await it.close(timeout=5)

    async def grant(self) -> None:
        """Give the application its rights, and the tables to an owner of their own."""
        connection = await self.connect()
        for role in ROLES:
            if not await connection.fetchval("SELECT 1 FROM pg_roles WHERE rolname = $1", role):
                await connection.execute(f"CREATE ROLE {role} LOGIN")
        names = await connection.fetch(
            "SELECT relname FROM pg_class WHERE relname LIKE 'locus\\_%' AND relkind IN ('r', 'v')"
        )
        for (name,) in names:
            await connection.execute(f"ALTER TABLE {name} OWNER TO locus_owner")
        await connection.execute(
            "GRANT CREATE ON SCHEMA public TO locus_owner;"
            "GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO locus_app"
        )

    async def read(self, connection: Any, table: str, **settings: str) -> set[int]:
        """Return the numbers of the tenants whose rows a connection sees in a table."""
        async with connection.transaction():
            for name, value in settings.items():
                await connection.fetch("SELECT set_config($1, $2, true)", f"locus.{name}", value)
            rows = await connection.fetch(f"SELECT {KEYS[table]} FROM locus_{table}")
        return {row[0] for row in rows}


@pytest.fixture
async def place(postgresql) -> AsyncIterator[Place]:
    """An empty database whose tables have an owner of their own."""
    made = Place(postgresql, postgresql.new_database(template=postgresql.migrated_template()))
    await made.grant()
    yield made
    await made.close()
    postgresql.drop_database(made.name)


@pytest.fixture
async def secured(place: Place) -> Place:
    """Rows of two tenants in every table, and a role for one of them."""
    await asyncio.to_thread(vectors.create_vector_index, place.admin, dimension=3)
    async with postgresql_checkpointer(place.admin) as checkpointer:
        await checkpointer.backend.create_search_index()
    await place.grant()
    connection = await place.connect()
    for tenant, n in TENANTS.items():
        await connection.execute(FILL.format(tenant=tenant, n=n))
    await connection.execute(CHILDREN.format(n=ORPHAN))
    await asyncio.to_thread(row_security.enable, place.admin)
    await asyncio.to_thread(row_security.add_role, place.admin, "acme", "locus_acme")
    return place


# --- the policies


NEW = set(range(100, 10_000))
"""Numbers of what the library wrote."""


async def find_leaks(place: Place) -> list[str]:
    """Return each table where a role sees other rows than it should."""
    app, owner, wall = opened = [await place.connect(it) for it in ROLES]
    wanted = {
        "the application": (app, {"tenant": "acme"}, {1}),
        "the other tenant": (app, {"tenant": "globex"}, {2}),
        "a foreign administrator": (app, {"tenant": "acme", "all_tenants": "on"}, {1}),
        "the owner": (owner, {"tenant": "acme"}, {1}),
        "the administrator": (owner, {"tenant": "/all", "all_tenants": "on"}, {1, 2}),
        "the role": (wall, {}, {1}),
        "a role in disguise": (wall, {"tenant": "globex", "all_tenants": "on"}, set()),
    }
    leaks = []
    for who, (connection, settings, numbers) in wanted.items():
        for table in KEYS:
            orphans = set() if len(numbers) < 2 or table in OWNED else {ORPHAN}
            if await place.read(connection, table, **settings) - NEW != numbers | orphans:
                leaks.append(f"{who}: {table}")
    for it in opened:
        await it.close()
    return leaks


async def test_each_role_sees_its_tenant_in_every_table(secured: Place) -> None:
    assert await find_leaks(secured) == []
    found = await asyncio.to_thread(row_security.read, secured.admin)
    assert (found.is_enabled, found.problems, found.roles) == (True, (), {"locus_acme": "acme"})


async def test_every_policy_is_needed_as_it_is(secured: Place) -> None:
    connection = await secured.connect()
    policies = await connection.fetch(
        "SELECT tablename, policyname FROM pg_policies WHERE tablename <> 'locus_roles'"
    )
    assert len(policies) == 2 * len(KEYS) + len(OWNED)
    unnoticed = []
    for table, policy in policies:
        for change in ("DROP POLICY {1} ON {0}", "ALTER POLICY {1} ON {0} USING (true)"):
            async with connection.transaction():
                await connection.execute(change.format(table, policy))
            if not await find_leaks(secured):
                unnoticed.append(change.format(table, policy))
            found = await asyncio.to_thread(row_security.read, secured.admin)
            if change.startswith("DROP"):
                problem = f"{table} lacks the policy {policy.removeprefix('locus_')}"
            else:
                problem = f"{table} has a policy {policy!r} that enable did not create"
            assert [it.startswith(problem) for it in found.problems] == [True]
            await asyncio.to_thread(_restore, secured.admin, table)
    assert unnoticed == []
    assert await find_leaks(secured) == []


async def test_a_policy_of_another_origin_and_one_for_other_roles_are_found(secured: Place) -> None:
    connection = await secured.connect()
    for change, name in (
        ("CREATE POLICY mine ON locus_store USING (true)", "mine"),
        ("ALTER POLICY locus_administrator ON locus_store TO PUBLIC", "locus_administrator"),
    ):
        transaction = connection.transaction()
        await transaction.start()
        await connection.execute(change)
        await transaction.commit()
        found = await asyncio.to_thread(row_security.read, secured.admin)
        assert [f"locus_store has a policy {name!r}" in it for it in found.problems] == [True]
        await connection.execute("DROP POLICY IF EXISTS mine ON locus_store")
    assert await asyncio.to_thread(row_security.enable, secured.admin)
    assert (await asyncio.to_thread(row_security.read, secured.admin)).problems == ()


def _restore(url: str, table: str) -> None:
    """Replace the policies of a table, as ``enable`` does where one is missing."""
    from locus_store.sql.schema.migrations import run_on

    name = table.removeprefix("locus_")

    def secure(connection: Any, ours: Any) -> None:
        row_security.secure(connection, ours, name)
        connection.commit()

    run_on(url, secure, prefix="locus_", schema=None)


@pytest.mark.parametrize("action", ["NO FORCE", "DISABLE"])
async def test_a_table_without_its_row_security_is_found_and_restored(
    secured: Place, action: str
) -> None:
    connection = await secured.connect()
    await connection.execute(f"ALTER TABLE locus_writes {action} ROW LEVEL SECURITY")
    assert any(it.endswith(": writes") for it in await find_leaks(secured))
    found = await asyncio.to_thread(row_security.read, secured.admin)
    assert found.problems == ("locus_writes lacks row security",)
    assert await asyncio.to_thread(row_security.enable, secured.admin)
    assert await find_leaks(secured) == []


def test_every_table_with_rows_of_tenants_has_policies() -> None:
    names = {it.removeprefix("locus_") for it in METADATA.tables}
    assert names | {"search", "embeddings"} == {*policies.TABLES, "settings"}
    assert KEYS.keys() == {*policies.TABLES}


async def test_a_statement_without_a_tenant_fails(secured: Place) -> None:
    app = await secured.connect("locus_app")
    for table in KEYS:
        with pytest.raises(asyncpg.UndefinedObjectError, match="tenant_is_unset"):
            await app.fetch(f"SELECT * FROM locus_{table}")
    assert await secured.read(app, "threads", tenant="acme") == {1}
    with pytest.raises(asyncpg.UndefinedObjectError, match="tenant_is_unset"):
        await app.fetch("SELECT * FROM locus_threads")  # a transaction's setting ends with it


# --- a role of one tenant, with SQL

THREAD = "INSERT INTO locus_threads (tenant, thread_id, created_at, active_at)"
VERSION = "INSERT INTO locus_checkpoints (line, sequence, chain, checkpoint_id, digest, created_at)"
REFUSED = (
    f"{THREAD} VALUES ('globex', 'mine', now(), now())",
    "UPDATE locus_threads SET tenant = 'globex'",
    f"{THREAD.replace('tenant', 'thread, tenant')} VALUES (3, 'acme', 'mine', now(), now())",
    "UPDATE locus_lines SET line = 2",
    f"{VERSION} VALUES (2, 2, 2, 'mine', '', now())",
    # It says as much of a row of another tenant that exists as of one that does not.
    f"{VERSION} VALUES (2, 1, 1, 'c', '', now())",
    f"{THREAD} VALUES ('globex', 't', now(), now()) ON CONFLICT (tenant, thread_id) DO NOTHING",
    f"{VERSION} VALUES ({ORPHAN}, 1, 1, 'c', '', now())",
    "UPDATE locus_messages SET thread = 2",
    "UPDATE locus_writes SET line = 2",
    "UPDATE locus_store SET item = 2",
    "INSERT INTO locus_embeddings VALUES (2, 1, '[1,2,3]')",
    "TRUNCATE locus_threads",
    "DELETE FROM locus_audit",
    "UPDATE locus_seals SET root = ''",
    "COPY locus_threads FROM STDIN",
    "INSERT INTO locus_settings VALUES ('x', 'y')",
    "UPDATE locus_roles SET tenant = 'globex'",
    "UPDATE locus_quotas SET limits = '{}'",
    "DELETE FROM locus_quotas",
    "INSERT INTO locus_quotas VALUES ('acme', '{}', '{}', 1)",
    "INSERT INTO locus_roles VALUES ('locus_app', 'globex')",
    "ALTER TABLE locus_threads DISABLE ROW LEVEL SECURITY",
    "DROP POLICY locus_role ON locus_threads",
    "CREATE TRIGGER t BEFORE INSERT ON locus_threads EXECUTE FUNCTION pg_catalog.now()",
    "CREATE TEMP TABLE mine (thread bigint REFERENCES locus_threads)",
    "SET ROLE locus_app",
    "SET ROLE locus_owner",
    "SET SESSION AUTHORIZATION locus_app",
    "SET row_security = off; SELECT * FROM locus_threads",
)
"""Each is an error; after none of them the role sees or changes a row of the other tenant."""

LEAKY = """
CREATE FUNCTION pg_temp.leak(text) RETURNS boolean LANGUAGE plpgsql COST 0.0001 AS
  $$BEGIN RAISE NOTICE 'leaked %', $1; RETURN true; END$$
"""


async def test_a_role_cannot_leave_its_tenant_with_sql(secured: Place) -> None:
    role, admin = await secured.connect("locus_acme"), await secured.connect()
    before = [await admin.fetch(f"SELECT * FROM locus_{it}") for it in KEYS]
    for setting in ("acme", "globex"):
        for statement in REFUSED:
            refused = None
            try:
                await role.execute(f"SET locus.tenant = '{setting}'; {statement}")
            except asyncpg.PostgresError as error:
                refused = error
            # In disguise the role has no row that it could change.
            assert refused or (setting == "globex" and statement.startswith("UPDATE")), statement
            assert "globex" not in str(refused)
            await role.execute("RESET ALL; RESET ROLE")
    assert [await admin.fetch(f"SELECT * FROM locus_{it}") for it in KEYS] == before


async def test_no_function_view_copy_or_plan_shows_rows_of_others(secured: Place) -> None:
    role = await secured.connect("locus_acme")
    told: list[str] = []
    role.add_log_listener(lambda _, message: told.append(message.message))
    await role.execute(LEAKY)
    await role.execute("CREATE TEMP VIEW mine AS SELECT * FROM locus_threads")
    for tenant in ("acme", "globex"):
        await role.execute(f"SET locus.tenant = '{tenant}'; SET locus.all_tenants = 'on'")
        await role.fetch("SELECT * FROM locus_threads WHERE pg_temp.leak(tenant)")
        seen = [await role.fetch("SELECT tenant FROM locus_heads"), await role.fetch("TABLE mine")]
        copied: list[bytes] = []
        await role.copy_from_query("SELECT tenant FROM locus_threads", output=_keep(copied))
        await role.copy_from_table("locus_lines", output=_keep(copied))
        deleted = await role.execute("DELETE FROM locus_lines WHERE line = 2")
        assert "globex" not in repr([seen, copied, told])
        assert (len(told) == 1, deleted) == (True, "DELETE 0")
        plan = await role.fetch("EXPLAIN (ANALYZE) SELECT * FROM locus_threads")
        assert "globex" not in repr(plan).replace("Filter", "")
    await (await secured.connect()).execute("ANALYZE")
    assert await role.fetch("SELECT tablename FROM pg_stats WHERE tablename = 'locus_lines'") == []
    assert await role.fetch("SELECT role, tenant FROM locus_roles") == [("locus_acme", "acme")]


def _keep(parts: list[bytes]) -> Any:
    async def keep(part: bytes) -> None:
        parts.append(part)

    return keep


async def test_a_shadowed_operator_does_not_open_the_wall(secured: Place) -> None:
    role, admin = await secured.connect("locus_acme"), await secured.connect()
    await admin.execute("CREATE SCHEMA mine AUTHORIZATION locus_acme")
    for kind in ("bigint", "text", "character varying", "regrole"):
        await role.execute(
            f"CREATE FUNCTION mine.yes({kind}, {kind}) RETURNS boolean LANGUAGE sql IMMUTABLE "
            f"AS 'SELECT true'; CREATE OPERATOR mine.= "
            f"(LEFTARG = {kind}, RIGHTARG = {kind}, FUNCTION = mine.yes)"
        )
    await role.execute("SET search_path = mine, public, pg_catalog; SET locus.tenant = 'acme'")
    for table, key in KEYS.items():
        assert {it[0] for it in await role.fetch(f"SELECT {key} FROM locus_{table}")} == {1}
    with pytest.raises(asyncpg.InsufficientPrivilegeError):
        await role.execute("UPDATE locus_checkpoints SET line = 2")


async def test_rights_of_the_group_end_with_the_row_security_of_the_database(
    secured: Place,
) -> None:
    """The group is one of the whole server: roles of other databases are its members."""
    await asyncio.to_thread(row_security.remove_role, secured.admin, "locus_acme")
    await asyncio.to_thread(row_security.disable, secured.admin)
    admin, query = (
        await secured.connect(),
        "SELECT has_table_privilege('locus_tenants', $1, 'SELECT')",
    )
    assert [it for it in KEYS if await admin.fetchval(query, f"locus_{it}")] == []


async def test_an_owner_that_may_not_create_the_roles_is_told_so(place: Place) -> None:
    await asyncio.to_thread(row_security.enable, place.admin)
    with pytest.raises(BackendError, match="permission denied to"):
        await asyncio.to_thread(
            row_security.add_role, place.url("locus_owner"), "acme", "locus_acme"
        )


async def test_roles_that_could_leave_are_refused(secured: Place) -> None:
    admin = await secured.connect()
    await admin.execute(
        "CREATE ROLE locus_maker CREATEROLE; CREATE ROLE locus_member IN ROLE locus_app;"
        "CREATE ROLE locus_alone NOINHERIT; CREATE ROLE locus_second;"
        "CREATE ROLE locus_copier REPLICATION; CREATE ROLE locus_writer IN ROLE pg_write_all_data;"
        "CREATE ROLE locus_clerk IN ROLE locus_maker; CREATE ROLE locus_column;"
        "GRANT SELECT (tenant, thread_id) ON locus_threads TO locus_column;"
        "CREATE ROLE locus_reader IN ROLE locus_column; CREATE ROLE locus_far IN ROLE locus_reader"
    )
    try:
        for role, why in (
            ("locus_maker", "more than plain rights"),
            ("locus_member", "a member of 'locus_app'"),
            ("locus_copier", "more than plain rights"),
            ("locus_writer", "a member of 'pg_write_all_data'"),
            ("locus_clerk", "a member of 'locus_maker'"),
            ("locus_far", "a member of 'locus_column'"),
            ("locus_owner", "more than plain rights"),
            ("locus_alone", "INHERIT"),
            ("locus_acme", "bound to tenant 'acme'"),
        ):
            with pytest.raises(InvalidArgumentError, match=why):
                await asyncio.to_thread(row_security.add_role, secured.admin, "globex", role)
        await admin.execute("GRANT CREATE ON SCHEMA public TO locus_second")
        with pytest.raises(InvalidArgumentError, match="may create objects in the schema"):
            await asyncio.to_thread(row_security.add_role, secured.admin, "globex", "locus_second")
        await admin.execute("GRANT locus_column TO locus_acme")
        problem = "the role 'locus_acme' can leave its tenant: it is a member of 'locus_column'"
        found = await asyncio.to_thread(row_security.read, secured.admin)
        assert found.problems == (problem,)
        with pytest.raises(NotFoundError, match="CREATE ROLE"):
            await asyncio.to_thread(row_security.add_role, secured.admin, "globex", "locus_none")
        with pytest.raises(InvalidArgumentError, match="remove-role"):
            await asyncio.to_thread(row_security.disable, secured.admin)
        assert await asyncio.to_thread(row_security.remove_role, secured.admin, "locus_acme")
        assert not await asyncio.to_thread(row_security.remove_role, secured.admin, "locus_acme")
        role = await secured.connect("locus_acme")
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            await role.fetch("SELECT * FROM locus_threads")
        assert await asyncio.to_thread(row_security.disable, secured.admin)
        assert await secured.read(await secured.connect("locus_app"), "threads") == {1, 2}
    finally:
        made = "maker member alone second copier writer clerk column reader far"
        names = ", ".join(f"locus_{it}" for it in made.split())
        await admin.execute(f"DROP OWNED BY {names}; DROP ROLE {names}")


# --- the library


async def use(url: str, tenant: str, **options: Any) -> None:
    """Do one thing of each kind, as a tenant."""
    async with postgresql_checkpointer(url, state_type=dict, **options) as root:
        of_tenant = root.for_tenant(tenant)
        for number in range(8):  # the sixth has a plan for all values
            state = await of_tenant.load("talk") or {"said": []}
            state["said"].append(f"{tenant} {number}")
            await of_tenant.save(state, "talk", checkpoint_id=f"v{number}")
            await of_tenant.save({"n": number}, f"new {number}", metadata={"n": number})
        write = PendingWrite(task_id="k", idx=0, channel="h", type="json", payload=b"1")
        await of_tenant.backend.put_writes("talk", "v7", [write])
        await of_tenant.backend.put_writes("only writes", "v", [write])
        assert await of_tenant.load("talk", "v0") == {"said": [f"{tenant} 0"]}
        assert await of_tenant.list_checkpoints("talk", limit=2) == ["v7", "v6"]
        assert len(await of_tenant.list_threads()) == 9
        assert [it["thread_id"] for it in await of_tenant.query_by_metadata("n", 3)] == ["new 3"]
        assert [it["thread_id"] for it in await of_tenant.search(f"{tenant} 5")] == ["talk"]
        assert await of_tenant.copy_thread("talk", "copy")
        assert await of_tenant.delete("copy")
        assert await of_tenant.delete("talk", "v3")
        assert await of_tenant.vacuum(older_than_days=30) == 0
        store = PostgreSQLStore(backend=of_tenant.backend)
        await store.put(("x",), "k", tenant)
        await store.put(("x",), "k", tenant)
        assert await store.get(("x",), "k") == tenant
        assert await store.delete(("x",), "k")
        log = PostgreSQLMessageLog(backend=of_tenant.backend)
        for _ in range(2):
            await log.append("talked", [NewMessage(tenant, role="user")])
        assert [it.content for it in await log.load("talked")] == [tenant, tenant]
        assert await of_tenant.vacuum(older_than_days=0) == 15
        assert await of_tenant.list_threads() == []


PLANS = (
    {},
    {"plan_cache_mode": "force_generic_plan"},
    {"plan_cache_mode": "force_custom_plan", "enable_seqscan": "off", "enable_sort": "off"},
    {"enable_nestloop": "off", "enable_indexscan": "off", "enable_material": "off"},
    {"enable_hashjoin": "off", "enable_hashagg": "off", "enable_bitmapscan": "off"},
    {"debug_parallel_query": "on", "parallel_setup_cost": "0", "parallel_tuple_cost": "0"},
    {"jit": "on", "jit_above_cost": "0"},
)
"""Whatever the planner chooses, a statement sets its tenant before it reads."""


@pytest.mark.parametrize("plan", PLANS, ids=lambda plan: next(iter(plan), "default"))
@pytest.mark.parametrize("role", ["locus_app", "locus_owner"])
async def test_the_library_works_with_every_kind_of_plan(
    place: Place, plan: dict[str, str], role: str
) -> None:
    await asyncio.to_thread(row_security.enable, place.admin)
    admin = await place.connect()
    for name, value in plan.items():
        await admin.execute(f"ALTER ROLE {role} IN DATABASE {place.name} SET {name} = {value}")
    await asyncio.gather(*(use(place.url(role), tenant, pool_size=2) for tenant in TENANTS))


async def test_the_library_works_for_a_role_of_one_tenant(place: Place) -> None:
    await asyncio.to_thread(row_security.enable, place.admin)
    await asyncio.to_thread(row_security.add_role, place.admin, "acme", "locus_acme")
    await use(place.url("locus_acme"), "acme")
    async with postgresql_checkpointer(place.url("locus_acme"), state_type=dict) as other:
        assert await other.for_tenant("globex").load("talk") is None
        with pytest.raises(BackendError, match=r"its own tenant \(new row violates row-level"):
            await other.for_tenant("globex").save({"n": 1}, "t")
        facts = {it.name: it for it in await other.for_tenant("acme").backend.facts()}
        assert facts["rights"].verdict == "ok"  # though it may not write every column


async def test_a_role_of_one_tenant_puts_and_deletes_items_with_embeddings(place: Place) -> None:
    await asyncio.to_thread(vectors.create_vector_index, place.admin, dimension=3)
    await place.grant()
    await asyncio.to_thread(row_security.enable, place.admin)
    await asyncio.to_thread(row_security.add_role, place.admin, "acme", "locus_acme")
    url, options = place.url("locus_acme"), {"tenant": "acme", "auto_migrate": False}
    async with PostgreSQLStore(url, **options) as store:
        await store.put(("x",), "plain", 0)
        for number in range(2):
            await store.put(("x",), "plain", number)
    async with PostgreSQLStore(url, dimension=3, **options) as store:
        for number in range(3):
            await store.put_with_embedding(("x",), "k", number, [1.0, float(number), 0.0])
        found = await store.search_by_embedding(("x",), [1.0, 2.0, 0.0])
        assert [(it.item.key, it.item.value) for it in found] == [("k", 2)]
        assert await store.delete(("x",), "k")
    connection = await place.connect()
    assert await connection.fetchval("SELECT count(*) FROM locus_embeddings") == 0


async def test_a_role_keeps_to_its_quota_and_cannot_raise_it(place: Place) -> None:
    await asyncio.to_thread(row_security.enable, place.admin)
    await asyncio.to_thread(row_security.add_role, place.admin, "acme", "locus_acme")
    options: Any = {"tenant": "acme", "state_type": dict}
    async with postgresql_checkpointer(place.url("locus_owner"), **options) as owners:
        await owners.set_quota(Quota(threads=2))
        for role in ("locus_acme", "locus_app"):
            async with postgresql_checkpointer(place.url(role), **options) as checkpointer:
                await checkpointer.save({}, role)
                for quota in (Quota(threads=9), Quota()) if role == "locus_acme" else ():
                    with pytest.raises(BackendError, match="42501"):
                        await checkpointer.set_quota(quota)
        async with postgresql_checkpointer(place.url("locus_acme"), **options) as checkpointer:
            with pytest.raises(QuotaError, match="2 of 2 threads"):
                await checkpointer.save({}, "third")
        assert (await owners.get_quota()).quota == Quota(threads=2)


async def test_calls_are_recorded_and_sealed(place: Place) -> None:
    await asyncio.to_thread(row_security.enable, place.admin)
    url = place.url("locus_app")
    await use(url, "globex", audit="worker")
    async with postgresql_checkpointer(url, state_type=dict, audit="worker") as root:
        acme = root.for_tenant("acme")
        await acme.save({"n": 1}, "t", checkpoint_id="v1")
        mine, other = await acme.load("t"), await acme.load("t")
        mine["n"], other["n"] = 2, 3
        await acme.save(mine, "t", checkpoint_id="v2")
        with pytest.raises(ConflictError):
            await acme.save(other, "t", checkpoint_id="v3")
        found = await acme.backend.list_entries(after=0, upto=10**6, limit=10)
        assert [it.result for it in found] == ["done", "done", "ConflictError"]
        await acme.backend.seal_entries()
        assert (await acme.backend.list_seals(after=0, limit=10))[-1].highest == found[-1].entry
        assert await acme.backend.list_audited() == ["acme"]


async def test_tenants_share_connections_of_pgbouncer(place: Place, pgbouncer: Any) -> None:
    await asyncio.to_thread(row_security.enable, place.admin)
    url = pgbouncer.url(place.name, user="locus_app")
    await asyncio.gather(*(use(url, tenant, pgbouncer=True) for tenant in TENANTS))


async def test_an_object_that_was_open_fails_once_and_continues(place: Place) -> None:
    async with postgresql_checkpointer(place.url("locus_app"), state_type=dict) as root:
        acme = root.for_tenant("acme")
        await acme.save({"n": 1}, "t")
        store = PostgreSQLStore(backend=acme.backend)
        await store.put(("x",), "k", 1)
        await asyncio.to_thread(row_security.enable, place.admin)
        with pytest.raises(SchemaError, match="call again"):
            await acme.load("t")
        assert await acme.load("t") == {"n": 1}
        assert await store.get(("x",), "k") == 1
        await acme.save({"n": 2}, "t")
        await asyncio.to_thread(row_security.disable, place.admin)
        assert await acme.load("t") == {"n": 2}


@pytest.mark.parametrize("parts", [1, 8])
async def test_calls_wait_for_row_security_and_meet_no_deadlock(place: Place, parts: int) -> None:
    await asyncio.to_thread(partition, place.admin, parts)
    failures: list[Exception] = []
    async with postgresql_checkpointer(place.url("locus_app"), state_type=dict) as checkpointer:

        async def write(thread_id: str, is_over: asyncio.Event) -> None:
            while not is_over.is_set():
                try:
                    state = await checkpointer.load(thread_id) or {"n": 0}
                    await checkpointer.save({**state, "n": state["n"] + 1}, thread_id)
                except Exception as exc:  # noqa: BLE001  (asserted below)
                    failures.append(exc)

        is_over = asyncio.Event()
        writers = [asyncio.create_task(write(f"t{it}", is_over)) for it in range(8)]
        for _ in range(2):
            await asyncio.to_thread(row_security.enable, place.admin)
            await asyncio.to_thread(row_security.disable, place.admin)
        is_over.set()
        await asyncio.gather(*writers)
    assert {type(it) for it in failures} <= {SchemaError}
    assert all("the next call names its tenant" in str(it) for it in failures)


async def test_a_transaction_of_the_caller_gets_the_tenant(place: Place) -> None:
    from sqlalchemy.ext.asyncio import create_async_engine

    await asyncio.to_thread(row_security.enable, place.admin)
    url = place.url("locus_app").replace("postgresql://", "postgresql+asyncpg://")
    engine = create_async_engine(url)
    async with postgresql_checkpointer(engine=engine, state_type=dict) as root:
        async with engine.begin() as connection:
            for tenant in TENANTS:
                await root.for_tenant(tenant).save({"of": tenant}, "t", connection=connection)
        assert [await root.for_tenant(it).load("t") for it in TENANTS] == [
            {"of": it} for it in TENANTS
        ]
    await engine.dispose()


# --- the schema


async def test_partitions_keep_row_security(secured: Place) -> None:
    owner = secured.url("locus_owner")
    for count in (4, 1):
        assert await asyncio.to_thread(partition, owner, count) is not None
        assert await find_leaks(secured) == []
        assert (await asyncio.to_thread(row_security.read, secured.admin)).problems == ()
        await use(secured.url("locus_app"), f"count {count}", pool_size=2)
    admin = await secured.connect()
    await asyncio.to_thread(partition, secured.admin, 2)
    await admin.execute("GRANT SELECT ON ALL TABLES IN SCHEMA public TO locus_app")
    app = await secured.connect("locus_app")
    await app.execute("SET locus.tenant = 'acme'")
    for part in range(2):
        assert await app.fetch(f"SELECT * FROM locus_checkpoints_p2_{part}") == []
    assert not await asyncio.to_thread(row_security.enable, secured.admin)


async def test_tables_that_are_created_later_have_row_security(place: Place) -> None:
    await asyncio.to_thread(row_security.enable, place.admin)
    await asyncio.to_thread(row_security.add_role, place.admin, "acme", "locus_acme")
    await asyncio.to_thread(vectors.create_vector_index, place.admin, dimension=3)
    async with postgresql_checkpointer(place.url("locus_owner")) as checkpointer:
        assert await checkpointer.backend.create_search_index()
    assert await asyncio.to_thread(user_ids.set_user_id_type, place.url("locus_owner"), "int")
    admin = await place.connect()
    await place.grant()
    for tenant, n in TENANTS.items():
        await admin.execute(FILL.format(tenant=tenant, n=n))
    await admin.execute(CHILDREN.format(n=ORPHAN))
    await admin.execute("GRANT SELECT ON locus_heads TO locus_acme")
    assert await find_leaks(place) == []
    role = await place.connect("locus_acme")
    await role.execute("SET locus.tenant = 'globex'")
    assert await role.fetch("SELECT * FROM locus_heads") == []


async def test_an_index_that_is_created_later_has_the_words_of_all_tenants(place: Place) -> None:
    await asyncio.to_thread(row_security.enable, place.admin)
    await save_of_each(place)
    async with postgresql_checkpointer(place.url("locus_owner")) as owners:
        assert await owners.backend.create_search_index()
    await place.grant()
    async with postgresql_checkpointer(place.url("locus_app"), state_type=dict) as root:
        for tenant in TENANTS:
            found = await root.for_tenant(tenant).search("hello")
            assert [it["thread_id"] for it in found] == [tenant]


async def test_tables_that_were_given_to_another_owner_hide_nothing_silently(
    place: Place, release: Any
) -> None:
    await asyncio.to_thread(row_security.enable, place.url("locus_owner"))
    await save_of_each(place)
    admin = await place.connect()
    new = "locus_acme"
    await admin.execute(
        f"GRANT CREATE ON SCHEMA public TO {new}; REASSIGN OWNED BY locus_owner TO {new}"
    )
    url = place.url(new)
    with release().installed(), pytest.raises(SchemaError, match="row-security enable"):
        await asyncio.to_thread(migrate.upgrade, url)
    with pytest.raises(SchemaError, match="row-security enable"):
        await asyncio.to_thread(partition, url, 4)
    async with postgresql_checkpointer(url) as owners:
        backend = owners.backend
        for call in (backend.tenants, backend.may_see_all_tenants, backend.create_search_index):
            with pytest.raises(SchemaError, match="row-security enable"):
                await call()
        problems = (await asyncio.to_thread(row_security.read, url)).problems
        assert "locus_threads has a policy 'locus_administrator'" in str(problems)
        assert await asyncio.to_thread(row_security.enable, url)
        assert (await asyncio.to_thread(row_security.read, url)).problems == ()
        assert await backend.may_see_all_tenants()
        assert {it.name for it in await backend.tenants()} == {*TENANTS}
    await asyncio.to_thread(partition, url, 4)
    assert await admin.fetchval("SELECT count(*) FROM locus_checkpoints") == 2


async def save_of_each(place: Place) -> None:
    """Save a version of each tenant."""
    async with postgresql_checkpointer(place.url("locus_app"), state_type=dict) as root:
        for tenant in TENANTS:
            await root.for_tenant(tenant).save({"said": ["hello"]}, tenant)


async def test_migrations_look_past_row_security(secured: Place) -> None:
    import sqlalchemy as sa
    from alembic.autogenerate import compare_metadata
    from alembic.migration import MigrationContext

    from locus_store.sql.schema.migrations import run_on

    def compare(connection: Any, _: Any) -> list[Any]:
        options = {"include_object": migrate.include_object, "include_name": migrate.include_name}
        return list(
            compare_metadata(MigrationContext.configure(connection, opts=options), sa.MetaData())
        )

    assert (
        await asyncio.to_thread(run_on, secured.admin, compare, prefix="locus_", schema=None) == []
    )
    assert (await asyncio.to_thread(migrate.check, secured.admin)).state == "ok"
    assert await asyncio.to_thread(migrate.upgrade, secured.url("locus_owner")) == "0001"
    with pytest.raises(SchemaError, match="row-security disable"):
        await asyncio.to_thread(migrate.drop, secured.admin)
    await asyncio.to_thread(row_security.remove_role, secured.admin, "locus_acme")
    await asyncio.to_thread(row_security.disable, secured.admin)
    await asyncio.to_thread(migrate.drop, secured.admin)


async def test_the_tenants_are_listed_for_the_owner_only(place: Place) -> None:
    await asyncio.to_thread(row_security.enable, place.admin)
    for role, names in (("locus_owner", ["acme", "globex"]), ("locus_app", ["globex"])):
        async with postgresql_checkpointer(place.url(role), state_type=dict) as root:
            for tenant in TENANTS:
                await root.for_tenant(tenant).save({"n": 1}, "t")
            assert [it.name for it in await root.for_tenant("globex").tenants()] == names
            assert await root.backend.may_see_all_tenants() == (role == "locus_owner")
            assert await root.backend.damage() == []


async def test_the_sql_for_a_dba_does_the_same(place: Place) -> None:
    owner, admin = await place.connect("locus_owner"), await place.connect()
    query = "SELECT tablename, policyname, permissive, roles, qual FROM pg_policies ORDER BY 1, 2"
    await asyncio.to_thread(row_security.enable, place.admin)
    online = [await admin.fetch(query)]
    await asyncio.to_thread(row_security.add_role, place.admin, "ac$do$'me", "locus_acme")
    online.append(await admin.fetch(query))
    await asyncio.to_thread(row_security.remove_role, place.admin, "locus_acme")
    await asyncio.to_thread(row_security.disable, place.admin)
    await owner.execute(row_security.render_sql("enable"))
    assert await admin.fetch(query) == online[0]
    text = row_security.render_sql("add-role", "ac$do$'me", "locus_acme")
    await admin.execute(text.replace("CURRENT_ROLE", "locus_owner"))
    assert await admin.fetch(query) == online[1]
    found = await asyncio.to_thread(row_security.read, place.admin)
    assert (found.problems, found.roles) == ((), {"locus_acme": "ac$do$'me"})
    await admin.execute(row_security.render_sql("remove-role", "locus_acme"))
    await owner.execute(row_security.render_sql("disable"))
    assert await admin.fetch(query) == []


def test_other_databases_are_refused() -> None:
    with pytest.raises(UnsupportedError, match="feature of PostgreSQL"):
        row_security.enable("sqlite:///no.db")


async def test_a_role_for_reports_reads_the_view_with_rights_on_three_tables(
    secured: Place,
) -> None:
    """As docs/row-security.md says."""
    page = (Path(__file__).parents[4] / "docs" / "row-security.md").read_text("utf-8")
    [grant] = [it for it in page.splitlines() if it.endswith(" TO locus_reports;")]
    admin = await secured.connect()
    await admin.execute(
        "CREATE ROLE locus_reports LOGIN; GRANT SELECT ON locus_heads TO locus_reports"
    )
    role, query = await secured.connect("locus_reports"), "SELECT DISTINCT tenant FROM locus_heads"
    try:
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            await role.fetch(query)
        await admin.execute(grant.replace("locus.", ""))
        with pytest.raises(asyncpg.UndefinedObjectError, match="tenant_is_unset"):
            await role.fetch(query)
        async with role.transaction():
            await role.execute("SELECT set_config('locus.tenant', 'acme', true)")
            assert await role.fetch(query) == [("acme",)]
        await admin.execute("ALTER ROLE locus_reports BYPASSRLS")
        assert sorted(await role.fetch(query)) == [("acme",), ("globex",)]
    finally:
        await role.close()
        await admin.execute("DROP OWNED BY locus_reports; DROP ROLE locus_reports")
