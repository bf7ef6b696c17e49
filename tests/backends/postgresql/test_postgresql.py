"""PostgreSQL only: JSONB, tsvector, LIKE, schemas, the view of heads, many clients."""

from __future__ import annotations

import asyncio
import functools
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, strategies as st
from properties import given, settings
from servers import wait_until
from sqlalchemy.ext.asyncio import create_async_engine
from tiers import ALL, first_of

from locus_store import (
    BackendError,
    ConflictError,
    ConnectionFailedError,
    InvalidArgumentError,
    SerializationError,
    postgresql_checkpointer,
)
from locus_store.backends.memory import MemoryBackend
from locus_store.backends.postgresql import PostgreSQLBackend
from locus_store.runtime.retries import RACES
from locus_store.sql.threads.reads import QUERY_BATCH
from locus_store.testing import exact
from locus_store.types import Expected

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

pytestmark = pytest.mark.anyio

EXAMPLES = settings(
    max_examples=60 if ALL else 10, deadline=None, suppress_health_check=list(HealthCheck)
)
CLIENTS = 16


@pytest.fixture
async def backend(migrated_database):
    async with PostgreSQLBackend(migrated_database, pool_size=4) as made:
        yield made


class Pair:
    """Backends that are asked the same, by synchronous tests."""

    def __init__(self, runner: asyncio.Runner, **backends: Any) -> None:
        self._runner = runner
        self._backends = backends
        self._examples = 0

    def run(self, body: Callable[[Any, str], Awaitable[Any]]) -> list[Any]:
        """Return the results of clients; threads whose ids begin with the string are deleted."""
        self._examples += 1
        return [self._runner.run(self._one(it, body)) for it in self._backends.values()]

    async def _one(self, backend: Any, body: Callable[[Any, str], Awaitable[Any]]) -> Any:
        prefix = f"{self._examples}:"
        try:
            return await body(backend, prefix)
        finally:
            for thread_id in await backend.list_threads(1_000):
                await backend.delete(thread_id)

    async def close(self) -> None:
        for backend in self._backends.values():
            await backend.close()


@pytest.fixture(scope="module")
def new_url(postgresql) -> Iterator[Callable[[], str]]:
    names: list[str] = []

    def make() -> str:
        names.append(postgresql.new_database(template=postgresql.migrated_template()))
        return postgresql.url(names[-1])

    yield make
    for name in names:
        postgresql.drop_database(name)


@pytest.fixture(scope="module")
def with_memory(new_url) -> Iterator[Pair]:
    """PostgreSQL, and the reference."""
    with asyncio.Runner() as runner:
        pair = Pair(runner, memory=MemoryBackend(), server=PostgreSQLBackend(new_url()))
        yield pair
        runner.run(pair.close())


@pytest.fixture(scope="module")
def with_index(new_url) -> Iterator[Pair]:
    """PostgreSQL with the full-text index, and without."""
    with asyncio.Runner() as runner:
        indexed = PostgreSQLBackend(new_url())
        runner.run(indexed.create_search_index())
        pair = Pair(runner, scan=PostgreSQLBackend(new_url()), indexed=indexed)
        yield pair
        runner.run(pair.close())


# --- metadata

PLAIN_KEYS = (
    "a",
    "b",
    "a.b",
    "a.b.c",
    ".",
    "..",
    "a.",
    ".a",
    "é",
    "e\u0301",
    "日本",
    "🎉",
    "0",
    "-1",
)
ODD_KEYS = (
    " ",
    "'",
    '"',
    "\\",
    "$",
    "%",
    "?",
    "@>",
    "{}",
    "\0",
    "\1",
    "\x010",
    "\uffff",
    "x" * 300,
)
KEYS = st.sampled_from([*PLAIN_KEYS, *ODD_KEYS])
WHOLE = (0, 1, -1, 2**53, 2**53 + 1, 10**16, 10**18, 2**60, 2**63 - 1, -(2**63))
FLOATS = (0.1, -0.0, 1.5e-7, 5e-324, 1e15, 1e16, 1e18, 1e22, 1e300, -1e300)
NUMBERS = st.sampled_from([*WHOLE, *map(float, WHOLE), *FLOATS])
TEXTS = st.sampled_from(["", "0", "a", "A", "\0", "\1", "\x010", "\x012", "é", "e\u0301", "🎉"])
SCALARS = st.none() | st.booleans() | NUMBERS | TEXTS | st.integers(-(2**63), 2**63 - 1)
VALUES = st.recursive(
    SCALARS | st.text(max_size=3) | st.floats(allow_nan=False, allow_infinity=False),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3),
    max_leaves=6,
)
NEVER_STORED = st.sampled_from(
    [10**20, 10**16 + 1, 2**64, -(2**64), 10**400, (), (0,), ("a", 1), b"a", {1, 2}, float("nan")]
)
METADATA = st.dictionaries(KEYS, VALUES, max_size=4)


def parts(value: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, Any]]:
    """Each key path and what is there, element by element too."""
    if path and ".".join(path):
        yield ".".join(path), value
        if isinstance(value, list):
            yield from ((".".join(path), it) for it in [*value, value[::-1], value[:1]])
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from parts(inner, (*path, key))


@EXAMPLES
@given(st.lists(METADATA, min_size=1, max_size=5), KEYS, SCALARS | VALUES | NEVER_STORED)
@pytest.mark.full
def test_metadata_queries_agree_with_the_reference(with_memory, stored, key, value):
    asked = [(key, value)]
    for metadata in stored:
        asked += parts(metadata)
        asked += [(key, value) for key, _ in parts(metadata)][:5]

    async def answers(backend: Any, prefix: str) -> list[list[str]]:
        for at, metadata in enumerate(stored):
            await backend.save(f"{prefix}{at}", {"n": at}, metadata=metadata)
        return [await ask(backend, *question) for question in asked[:40]]

    async def ask(backend: Any, name: str, wanted: Any) -> list[str]:
        try:
            return [it.thread_id for it in await backend.query(name, wanted, 100)]
        except SerializationError as exc:  # no metadata has such a value
            return [str(exc)]

    expected, found = with_memory.run(answers)
    for question, right, given_ in zip(asked, expected, found, strict=False):
        assert given_ == right, question


@EXAMPLES
@given(METADATA)
def test_metadata_comes_back_to_the_last_type(with_memory, metadata):
    async def again(backend: Any, prefix: str) -> Any:
        await backend.save(f"{prefix}t", {"n": 1}, metadata=metadata)
        found = await backend.version(f"{prefix}t")
        return exact(found.metadata)

    expected, found = with_memory.run(again)
    assert found == expected


async def test_a_metadata_query_looks_behind_the_versions_of_others(migrated_database):
    async with AsyncExitStack() as stack:
        ours, theirs = [
            await stack.enter_async_context(PostgreSQLBackend(migrated_database, tenant=name))
            for name in ("ours", "theirs")
        ]
        for at in range(3):
            await ours.save(f"old-{at}", {"n": at}, metadata={"k": "v"})
        count = QUERY_BATCH * 2 + 1
        await asyncio.gather(
            *(theirs.save(f"t-{at}", {"n": at}, metadata={"k": "v"}) for at in range(count))
        )
        found = await ours.query("k", "v", 2)
        assert [it.thread_id for it in found] == ["old-2", "old-1"]
        assert len(await ours.query("k", "v", 100)) == 3
        assert len({it.checkpoint_id for it in await theirs.query("k", "v", count + 1)}) == count


async def test_a_metadata_query_gives_each_version_once_through_many_batches(backend):
    count = QUERY_BATCH + 7
    await asyncio.gather(
        *(backend.save(f"t-{at}", {"n": at}, metadata={"on": at % 2 == 0}) for at in range(count))
    )
    everything = await backend.query("on", True, 10_000) + await backend.query("on", False, 10_000)
    assert len(everything) == len({it.thread_id for it in everything}) == count
    times = [it.updated_at for it in await backend.query("on", True, count)]
    assert times == sorted(times, reverse=True)


# --- text

PLAIN_WORDS = ("alpha", "Alpha", "ALPHA", "beta", "a", "1", "42", "x_y", "x-y", "don't", "a:b")
FOLDED_WORDS = (
    "straße",
    "STRASSE",
    "İstanbul",
    "ﬁn",
    "fin",
    "é",
    "e\u0301",
    "ΑΣ",
    "ας",
    "½",
    "日本語",
    "本",
)
NO_WORDS = ("\\", "'", "&", "|", "!", "<->", "*", "()", "\0", "a\0b", "\u200b", "🎉")
LONG_WORDS = ("w" * 255, "w" * 256, "w" * 3_000)
WORDS = st.sampled_from([*PLAIN_WORDS, *FOLDED_WORDS, *NO_WORDS, *LONG_WORDS])
PROSE = st.lists(WORDS | st.text(max_size=6), max_size=8).map(" ".join)


@EXAMPLES
@given(st.lists(st.lists(PROSE, min_size=1, max_size=3), min_size=1, max_size=4), PROSE)
@pytest.mark.full
def test_search_by_the_index_is_search_by_the_scan(with_index, threads, query):
    queries = [query, *(text for texts in threads for text in texts)]
    queries += [word for it in queries for word in it.split()]

    async def answers(backend: Any, prefix: str) -> list[Any]:
        for at, texts in enumerate(threads):
            for version in range(len(texts)):
                await backend.save(f"{prefix}{at}", {"said": texts[: version + 1]})
        return [await hits(backend, it) for it in dict.fromkeys(queries)]

    scanned, indexed = with_index.run(answers)
    assert indexed == scanned


async def hits(backend: Any, query: str) -> Any:
    try:
        found = await backend.find(query, 100)
    except InvalidArgumentError:
        return "no word"
    return sorted((it.thread_id, round(it.score, 9), it.snippet) for it in found)


async def test_a_text_of_more_words_than_one_index_row_holds_is_found(backend):
    await backend.create_search_index()
    text = " ".join(f"word{it}" for it in range(90_000))
    await backend.save("t", {"text": text})
    for query in ("word0", "word89999", "word0 word89999"):
        assert await backend.search(query) == ["t"]
    assert await backend.search("word0 word90000") == []


# --- names

ODD = [
    *map(chr, (*range(1, 48), *range(58, 65), *range(91, 97), *range(123, 161))),
    *"\u00ad\u0301\u0600\u200b\u200d\u200e\u2028\u2029\u202e\u3000\ud7ff\ue000\ufeff\ufffd\ufffe",
    *"\uffff\U0001f389\U000e0001\U0010fffe\U0010ffff",
]


@pytest.mark.full
async def test_every_odd_character_may_stand_in_an_id(backend):
    async def check(at: str) -> None:
        await backend.save(at, {"of": at}, checkpoint_id=at, metadata={"of": at})
        assert await backend.load(at, at) == await backend.load(at) == {"of": at}
        assert [it.checkpoint_id for it in await backend.history(at)] == [at]
        assert [it.thread_id for it in await backend.query("of", at)] == [at]

    ids = [*ODD, *(f"a{it}" for it in ODD)]
    await asyncio.gather(*map(check, ids))
    assert sorted(await backend.list_threads(10_000)) == sorted(ids)
    await asyncio.gather(*map(backend.delete, ids))
    assert await backend.list_threads() == []


async def test_every_odd_character_may_stand_in_a_namespace(backend):
    for at in ODD:
        await backend.write_state("t", {"of": at}, namespace=at, checkpoint_id=at)
    for at in ODD:
        assert (await backend.read_state("t", namespace=at)).state == {"of": at}


PIECES = (
    "a",
    "b",
    "B",
    "/",
    "//",
    "%",
    "_",
    "\\",
    "*",
    "?",
    "[",
    "]",
    "[!a]",
    "[a-b]",
    "'",
    ":",
    "é",
)
IDS = st.lists(st.sampled_from(PIECES), min_size=1, max_size=4).map("".join)


@EXAMPLES
@given(st.lists(IDS, min_size=1, max_size=8, unique=True), st.lists(IDS, min_size=1, max_size=6))
@pytest.mark.full
def test_patterns_agree_with_the_reference(with_memory, ids, patterns):
    async def answers(backend: Any, _: str) -> list[list[str]]:
        for at in ids:
            await backend.save(at, {"n": 1})
        asked = ["*", "?*", "/*", "*/", *patterns, *(f"{it}*" for it in patterns)]
        asked += [f"*{it}" for it in patterns]
        return [sorted(await backend.list_threads(100, it)) for it in asked]

    expected, found = with_memory.run(answers)
    assert found == expected


async def test_pages_of_threads_give_each_one_once(backend):
    ids = [f"{'/' * (at % 3)}t-{at}" for at in range(120)]
    await asyncio.gather(*(backend.save(it, {"n": 1}) for it in ids))
    found: list[str] = []
    while page := await backend.list_threads(50, after=found[-1] if found else None):
        found += page
    assert found == await backend.list_threads(1_000)
    assert sorted(found) == sorted(ids)


# --- the view


async def test_the_view_shows_heads_as_people_wrote_them(backend, migrated_database, postgresql):
    ask = functools.partial(postgresql.fetch, database=migrated_database.rpartition("/")[2])
    columns = await asyncio.to_thread(
        ask,
        "SELECT column_name::text, data_type::text FROM information_schema.columns "
        "WHERE table_name = 'locus_heads' ORDER BY ordinal_position",
    )
    moment, text = "timestamp with time zone", "text"
    assert columns == [
        ("tenant", text),
        ("thread_id", text),
        ("checkpoint_id", text),
        ("agent_id", text),
        ("user_id", text),
        ("created_at", moment),
        ("updated_at", moment),
        ("metadata", "jsonb"),
        ("text", text),
    ]
    for at in ("/slash", "plain", "//"):
        for name in (f"/{at}", f"{at}!"):
            options = {"metadata": {"k": at}, "labels": {"agent_id": "bot"}}
            await backend.write_state(at, {"n": 1}, checkpoint_id=name, **options)
    await backend.write_state("no root", {"n": 1}, namespace="sub")
    await backend.write_state("over", {"n": 1}, ttl_seconds=0.001)
    rows = await asyncio.to_thread(
        ask,
        "SELECT tenant, thread_id, checkpoint_id, agent_id, user_id, metadata ->> 'k', text, "
        "updated_at >= created_at FROM locus_heads WHERE thread_id <> 'over' ORDER BY 2",
    )
    assert rows == [
        ("default", at, f"{at}!", "bot", None, at, None, True) for at in ("//", "/slash", "plain")
    ]


async def test_the_view_has_the_text_once_there_is_an_index(backend, migrated_database, postgresql):
    await backend.save("t", {"said": "hello"})
    await backend.create_search_index()
    database = migrated_database.rpartition("/")[2]
    row = await asyncio.to_thread(
        postgresql.fetch, "SELECT text FROM locus_heads", database=database
    )
    assert "hello" in row[0][0]


# --- several in one database


async def test_tenants_in_one_schema_never_meet(migrated_database):
    async with AsyncExitStack() as stack:
        names = ("a", "/a", "A")
        tenants = [
            await stack.enter_async_context(PostgreSQLBackend(migrated_database, tenant=name))
            for name in names
        ]
        for name, backend in zip(names, tenants, strict=True):
            for at in ("t", f"only {name}"):
                metadata = {"k": "v"}
                await backend.save(at, {"said": f"hello {name}"}, metadata=metadata)
        for name, backend in zip(names, tenants, strict=True):
            mine = {"t", f"only {name}"}
            assert await backend.load("t") == {"said": f"hello {name}"}
            assert set(await backend.list_threads()) == mine
            assert {it.thread_id for it in await backend.heads()} == mine
            assert {it.thread_id for it in await backend.query("k", "v")} == mine
            assert set(await backend.search("hello")) == mine
        assert await tenants[0].vacuum(older_than_days=0) == 2
        assert await tenants[0].list_threads() == []
        assert await tenants[1].delete("t") is True
        assert await tenants[2].load("t") == {"said": "hello A"}


async def test_a_mark_of_another_tenants_line_moves_nothing(migrated_database):
    async with AsyncExitStack() as stack:
        mine, theirs = [
            await stack.enter_async_context(PostgreSQLBackend(migrated_database, tenant=name))
            for name in ("mine", "theirs")
        ]
        await theirs.save("t", {"n": 1}, checkpoint_id="v1")
        found = await theirs.read_state("t")
        expected = Expected(made_from=found.version.mark, head=found.head)
        with pytest.raises(ConflictError):
            await mine.write_state("t", {"n": 2}, expected=expected)
        assert await mine.load("t") is None
        assert [it.checkpoint_id for it in await theirs.history("t")] == ["v1"]


async def test_prefixes_and_schemas_keep_stores_apart(database):
    places: list[dict[str, str]] = [
        {},
        {"prefix": "other_"},
        {"table_name": "third_checkpoints"},
        {"schema": "locus_threads"},
        {"schema": 'Odd "name" %s', "prefix": "other_"},
    ]
    async with AsyncExitStack() as stack:
        stores = [
            await stack.enter_async_context(PostgreSQLBackend(database, **place))
            for place in places
        ]
        for at, store in enumerate(stores):
            if at % 2:
                await store.create_search_index()
            said = {"said": f"hello {at}"}
            await store.save("t", said, checkpoint_id="v1", metadata={"k": "v"})
            await store.save("t", {**said, "more": "again"}, checkpoint_id="v2")
        for at, store in enumerate(stores):
            assert await store.load("t", "v1") == {"said": f"hello {at}"}
            assert await store.list_threads() == ["t"]
            assert await store.search(f"hello {at}") == ["t"]
            assert await store.search(f"hello {at + 1}") == []
            assert [it.checkpoint_id for it in await store.query("k", "v")] == ["v1"]
            assert [it.checkpoint_id for it in await store.heads()] == ["v2"]
        assert await stores[0].delete("t") is True
        assert [await it.exists("t") for it in stores] == [False, True, True, True, True]


# --- what a save changes besides its own row

CHANGES = """
SELECT l.n_tup_upd, l.n_tup_hot_upd, t.n_tup_upd FROM pg_stat_user_tables l, pg_stat_user_tables t
WHERE l.relname = 'locus_lines' AND t.relname = 'locus_threads'
"""


@pytest.mark.parametrize("ttl_seconds", first_of(3_600.0, None))
def test_saves_leave_the_indexes_of_threads_and_lines_alone(
    postgresql, migrated_database, ttl_seconds
):
    database = migrated_database.rpartition("/")[2]
    options = "SELECT reloptions::text FROM pg_class WHERE relname = 'locus_lines'"
    if "fillfactor" not in (postgresql.value(options, database=database) or ""):
        pytest.skip("pages of locus_lines have no room for a row's next version")
    threads, rounds = 1_000, 4

    async def save() -> None:
        async with PostgreSQLBackend(migrated_database, pool_size=4) as backend:
            for at in range(1 + rounds):
                ids = (f"t{it}" for it in range(threads))
                state = {"text": "x" * 200, "n": at}
                saves = (backend.write_state(it, state, ttl_seconds=ttl_seconds) for it in ids)
                await asyncio.gather(*saves)

    asyncio.run(save())

    def counted() -> Any:  # each connection tells when it ends
        lines, hot, of_threads = postgresql.fetch(CHANGES, database=database)[0]
        return (hot, of_threads) if lines >= threads * rounds else None

    hot, of_threads = wait_until(counted, "the statistics of the saves")
    assert hot >= 0.99 * threads * rounds
    assert of_threads <= threads  # once, if a minute ends meanwhile


# --- many clients


@pytest.fixture
async def clients(migrated_database):
    """Each with a connection of its own."""
    async with AsyncExitStack() as stack:
        made = [PostgreSQLBackend(migrated_database, pool_size=1) for _ in range(CLIENTS)]
        for it in made:
            await stack.enter_async_context(it)
            await it.exists("nothing")
        yield made


async def test_of_many_that_found_no_thread_one_makes_it_and_the_others_are_told(clients):
    nothing = Expected(made_from=None, head=None)
    for trial in range(10):
        outcomes = await asyncio.gather(
            *(
                it.write_state(f"t{trial}", {"of": at}, checkpoint_id=f"v{at}", expected=nothing)
                for at, it in enumerate(clients)
            ),
            return_exceptions=True,
        )
        (winner,) = [it for it in outcomes if not isinstance(it, BaseException)]
        assert all(isinstance(it, ConflictError) for it in outcomes if it is not winner)
        ids = [it.checkpoint_id for it in await clients[0].history(f"t{trial}")]
        assert ids == [winner.checkpoint_id]


async def test_of_many_that_append_to_a_new_thread_each_is_kept_in_a_row(clients):
    for trial in range(10):
        await asyncio.gather(
            *(
                it.save(f"t{trial}", {"of": at}, checkpoint_id=f"v{at}")
                for at, it in enumerate(clients)
            )
        )
        found = await clients[0].history(f"t{trial}", limit=100)
        assert sorted(it.checkpoint_id for it in found) == sorted(f"v{at}" for at in range(CLIENTS))
        assert [it.mark.sequence for it in found] == list(range(CLIENTS, 0, -1))
        assert [it.parent_id for it in found] == [*(it.checkpoint_id for it in found[1:]), None]
        for version in found:
            at = int(version.checkpoint_id[1:])
            assert await clients[at].load(f"t{trial}", version.checkpoint_id) == {"of": at}


async def test_of_many_that_make_the_same_version_all_are_given_it(clients):
    for trial in range(10):
        marks = await asyncio.gather(
            *(it.write_state(f"t{trial}", {"n": 1}, checkpoint_id="same") for it in clients)
        )
        assert len({it.mark for it in marks}) == 1
        assert len(await clients[0].history(f"t{trial}")) == 1


async def test_agents_that_start_one_thread_at_once_lose_nothing_silently(migrated_database):
    async with AsyncExitStack() as stack:
        agents = [
            await stack.enter_async_context(
                postgresql_checkpointer(migrated_database, pool_size=1, state_type=dict)
            )
            for _ in range(CLIENTS)
        ]
        assert [await it.load("t") for it in agents] == [None] * CLIENTS
        outcomes = await asyncio.gather(
            *(it.save({"of": at}, "t", f"v{at}") for at, it in enumerate(agents)),
            return_exceptions=True,
        )
        kept = {it for it in outcomes if isinstance(it, str)}
        assert kept
        assert all(isinstance(it, str | ConflictError) for it in outcomes)
        assert set(await agents[0].list_checkpoints("t", limit=100)) == kept


async def test_an_engine_that_reaches_no_server_says_so() -> None:
    engine = create_async_engine("postgresql+asyncpg://app:secret@127.0.0.1:1/agents")
    async with postgresql_checkpointer(engine=engine) as checkpointer:
        with pytest.raises(ConnectionFailedError) as told:
            await checkpointer.load("t")
        assert "secret" not in str(told.value)
        assert "refused" in str(told.value)
    await engine.dispose()


async def test_a_row_that_an_index_always_refuses_is_not_attempted_for_seconds(
    database: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with PostgreSQLBackend(database) as backend:
        await backend.put_thread("a", name="x")
        engine = create_async_engine(database.replace("postgresql:", "postgresql+asyncpg:", 1))
        async with engine.begin() as connection:
            await connection.exec_driver_sql("CREATE UNIQUE INDEX ON locus_threads (name)")
        await engine.dispose()
        with pytest.raises(BackendError, match="23505"):
            await backend.put_thread("b", name="x")
    assert sum("race: doing it again" in it.message for it in caplog.records) < RACES
