"""Imports from LangGraph's own savers, with every checkpoint, channel value and pending write."""

from __future__ import annotations

import datetime as dt
import json
import math
import operator
import os
import sqlite3
import uuid
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Annotated, Any, TypedDict

import pytest
from lazily import TESTS_RUN, Later
from servers import run
from tiers import first_of

from locus_store import (
    ConflictError,
    IntegrityError,
    InvalidArgumentError,
    MemoryBackend,
    NotFoundError,
    SchemaError,
    SQLiteBackend,
)
from locus_store.transfer.verifying import verify
from locus_store.versions.archives import Problem

if TESTS_RUN:
    from langchain_core.messages import AIMessage, AnyMessage, HumanMessage
    from langgraph.checkpoint.postgres import PostgresSaver
    from langgraph.checkpoint.serde.encrypted import EncryptedSerializer
    from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
    from langgraph.checkpoint.sqlite import SqliteSaver
    from langgraph.graph import END, START, StateGraph
    from langgraph.graph.message import add_messages
    from langgraph.types import Command, Send, interrupt

    from locus_store.adapters.langgraph import LangGraphSaver
    from locus_store.adapters.langgraph.import_threads import (
        import_langgraph,
        make_aes_cipher,
        sort_by_parent,
    )
    from locus_store.adapters.langgraph.typed_values import convert_to_json
    from locus_store.values.msgpack import from_json, to_json

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class State(TypedDict, total=False):
    messages: Annotated[list[AnyMessage], add_messages]
    parts: Annotated[list[Any], operator.add]
    count: int
    ratio: float
    note: Any


class Inner(TypedDict, total=False):
    parts: Annotated[list[Any], operator.add]


VALUES: list[Any] = [
    1.0,
    -0.0,
    (1, (2, 3)),
    {1, 2},
    {1: "int key"},
    {"b": 1, "a": {"$": "b", "v": "not base64"}},
    b"\0\xff",
    dt.datetime(2026, 1, 2, tzinfo=dt.UTC),
    uuid.UUID(int=7),
    "日本語 \0",
    float("inf"),
    None,
    [[], {}],
]


def graph() -> StateGraph:
    """A chat with a fan-out, a subgraph, a task that asks a person, and values of many types."""

    def talk(state: State) -> State:
        said = AIMessage(f"answer {len(state['messages'])}", id=f"a{len(state['messages'])}")
        return {"messages": [said], "count": len(state["messages"]), "ratio": 1.0}

    def split(state: State) -> list[Send]:
        return [Send("part", {"note": it}) for it in VALUES]

    def part(state: State) -> State:
        return {"parts": [state["note"]]}

    def ask(state: State) -> State:
        return {"note": interrupt("go on?")}

    def fails(state: State) -> State:
        raise RuntimeError("as planned")

    inner = StateGraph(Inner)
    inner.add_node("step", lambda _: {"parts": ["inner"]})
    inner.add_edge(START, "step")
    outer = StateGraph(State)
    for name, node in (("talk", talk), ("part", part), ("ask", ask), ("fails", fails)):
        outer.add_node(name, node)
    outer.add_node("inner", inner.compile(checkpointer=True))
    outer.add_edge(START, "talk")
    outer.add_conditional_edges("talk", split, ["part"])
    outer.add_edge("part", "inner")
    outer.add_edge("inner", "ask")
    outer.add_edge("ask", "fails")
    outer.add_edge("fails", END)
    return outer


def talk_to(saver: Any) -> None:
    """Threads that stopped at different places, and one that was forked."""
    app = graph().compile(checkpointer=saver)
    for name in ("asked", "failed", "a:b/%_'日本語"):
        config = {"configurable": {"thread_id": name}, "metadata": {"user_id": "u1"}}
        app.invoke({"messages": [HumanMessage("hello", id="h")]}, config)
        if name == "failed":
            with pytest.raises(RuntimeError, match="as planned"):
                app.invoke(Command(resume="yes"), config)
    config = {"configurable": {"thread_id": "asked"}}
    old = list(app.get_state_history(config))[-2]
    app.update_state(old.config, {"count": 99})


@contextmanager
def opened_saver(url: str):
    if url.startswith("sqlite"):
        with SqliteSaver.from_conn_string(url.removeprefix("sqlite:///")) as saver:
            yield saver
    else:
        with PostgresSaver.from_conn_string(url) as saver:
            saver.setup()
            yield saver


@pytest.fixture(params=["sqlite", "postgresql"])
def source(request, tmp_path):
    """The URL of a database that LangGraph's saver wrote."""
    url = f"sqlite:///{tmp_path / 'graph.db'}"
    if request.param == "postgresql":
        url = request.getfixturevalue("database")
    with opened_saver(url) as saver:
        talk_to(saver)
    return url


def exactly(checkpoint: dict[str, Any]) -> dict[str, str]:
    """Fields and channels with their types; those of an object have no order."""
    values = checkpoint.pop("channel_values")
    parts = {**checkpoint, **{f"channel {name}": it for name, it in values.items()}}
    return {
        name: repr(sorted(it.items()) if isinstance(it, dict) and name in checkpoint else it)
        for name, it in parts.items()
    }


async def test_every_checkpoint_value_and_write_is_there(source: str, tmp_path: Path) -> None:
    async with SQLiteBackend(str(tmp_path / "ours.db")) as backend:
        counts = await import_langgraph(backend, source)
        assert (counts.written, counts.same) == (3, 0)
        reader = LangGraphSaver(backend, serde=JsonPlusSerializer())
        seen, writes = 0, 0
        with opened_saver(source) as saver:
            for theirs in saver.list(None):
                ours = await reader.aget_tuple(theirs.config)
                assert exactly(ours.checkpoint) == exactly(theirs.checkpoint)
                assert ours.config == theirs.config
                assert ours.metadata == theirs.metadata
                assert ours.parent_config == theirs.parent_config
                at = theirs.config["configurable"]
                found = await backend.version(
                    at["thread_id"], at["checkpoint_id"], namespace=at["checkpoint_ns"]
                )
                assert found.created_at.isoformat() == theirs.checkpoint["ts"]
                told = ours.pending_writes
                assert sorted(map(repr, told)) == sorted(map(repr, theirs.pending_writes))
                seen, writes = seen + 1, writes + len(told)
            for name in ("asked", "failed"):
                latest = saver.get_tuple({"configurable": {"thread_id": name}})
                head = await backend.version(name)
                assert head.checkpoint_id == latest.checkpoint["id"]
        assert seen > 15
        assert writes > 20
        assert [it async for it in verify(backend) if isinstance(it, Problem)] == []
        assert sorted(await backend.threads_of("u1")) == sorted(await backend.scan())
        again = await import_langgraph(backend, source)
        assert (again.written, again.same) == (0, 3)


async def test_what_was_said_can_be_searched(source: str) -> None:
    backend = MemoryBackend()
    await import_langgraph(backend, source, thread_ids=["failed"])
    assert await backend.search("hello answer") == ["failed"]


async def test_a_thread_that_is_not_there_is_told(source: str) -> None:
    with pytest.raises(NotFoundError, match="'unknown': there is no such thread"):
        await import_langgraph(MemoryBackend(), source, thread_ids=["unknown"])


async def test_a_thread_that_went_on_here_is_not_written_over(source: str) -> None:
    backend = MemoryBackend()
    await import_langgraph(backend, source, thread_ids=["asked"])
    await backend.save("asked", {"n": 1})
    with pytest.raises(ConflictError, match="'asked'"):
        await import_langgraph(backend, source)
    assert await backend.load("asked") == {"n": 1}


async def test_the_source_is_left_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "graph.db"
    with opened_saver(f"sqlite:///{path}") as saver:
        talk_to(saver)
    with sqlite3.connect(path) as database:
        database.execute("PRAGMA journal_mode = DELETE")
    database.close()
    before = path.read_bytes()
    await import_langgraph(MemoryBackend(), f"sqlite:///{path}")
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == ["graph.db"]


async def test_it_may_come_to_the_same_database(source: str, tmp_path: Path) -> None:
    from locus_store import open_checkpointer

    async with open_checkpointer(source) as checkpointer:
        counts = await import_langgraph(checkpointer.backend, source)
        assert counts.written == 3


@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
async def test_a_database_without_its_tables_is_told(kind: str, tmp_path: Path, request) -> None:
    url = f"sqlite:///{tmp_path / 'none.db'}"
    if kind == "sqlite":
        sqlite3.connect(tmp_path / "none.db").execute("CREATE TABLE t (a)").connection.close()
    else:
        url = request.getfixturevalue("database")
    with pytest.raises(SchemaError, match="checkpoint"):
        await import_langgraph(MemoryBackend(), url)
    with pytest.raises(InvalidArgumentError, match="'mysql'"):
        await import_langgraph(MemoryBackend(), "mysql://host/db")


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE checkpoints SET metadata = x'ff'",
        "UPDATE checkpoints SET checkpoint = x'c1'",
        "UPDATE checkpoints SET checkpoint = x'90'",
        "UPDATE checkpoints SET checkpoint = NULL",
        "UPDATE checkpoints SET parent_checkpoint_id = checkpoint_id",
        "UPDATE writes SET value = 7",
        "UPDATE writes SET idx = idx || 'x'",
    ],
)
async def test_a_damaged_row_is_told_and_its_thread_not_written(
    tmp_path: Path, statement: str
) -> None:
    path = tmp_path / "graph.db"
    with opened_saver(f"sqlite:///{path}") as saver:
        talk_to(saver)
    with sqlite3.connect(path) as database:
        database.execute(f"{statement} WHERE thread_id = 'failed'")
    database.close()
    backend = MemoryBackend()
    with pytest.raises((IntegrityError, InvalidArgumentError), match="'failed'"):
        await import_langgraph(backend, f"sqlite:///{path}")
    assert "failed" not in await backend.scan()
    assert "asked" in await backend.scan()


async def test_what_our_json_cannot_hold_comes_along(tmp_path: Path) -> None:
    deep: Any = 1
    for _ in range(180):
        deep = {1: deep}
    path = tmp_path / "graph.db"
    with opened_saver(f"sqlite:///{path}") as saver:
        talk_to(saver)
        latest = saver.get_tuple({"configurable": {"thread_id": "failed", "checkpoint_ns": ""}})
        checkpoint = {**latest.checkpoint, "id": str(uuid.UUID(int=2**127))}
        checkpoint["channel_values"] = {**checkpoint["channel_values"], "note": deep}
        saver.put(latest.config, checkpoint, {"score": float("nan"), "big": 2**70}, {})
    backend = MemoryBackend()
    await import_langgraph(backend, f"sqlite:///{path}")
    place = {"thread_id": "failed", "checkpoint_id": checkpoint["id"]}
    found = await LangGraphSaver(backend).aget_tuple({"configurable": place})
    assert found.checkpoint["channel_values"]["note"] == deep
    assert len(found.checkpoint["channel_values"]["messages"]) == 2
    assert math.isnan(found.metadata["score"])
    assert found.metadata["big"] == 2**70


async def test_cut_strings_in_metadata_are_imported_exactly(tmp_path: Path) -> None:
    path = tmp_path / "graph.db"
    with opened_saver(f"sqlite:///{path}") as saver:
        talk_to(saver)
    cut = {"a\ud83e": ["\udd8a"]}
    with closing(sqlite3.connect(path)) as database, database:
        database.execute("UPDATE checkpoints SET metadata = ?", (json.dumps(cut).encode(),))
    backend = MemoryBackend()
    assert (await import_langgraph(backend, f"sqlite:///{path}")).written == 3
    assert (await import_langgraph(backend, f"sqlite:///{path}")).same == 3
    found = await LangGraphSaver(backend).aget_tuple({"configurable": {"thread_id": "asked"}})
    assert found.metadata == cut


@pytest.mark.parametrize("name", ["sqlite", "postgresql"])
def test_a_graph_goes_on_with_an_imported_thread(
    name: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    theirs = f"sqlite:///{tmp_path / 'theirs.db'}"
    if name == "postgresql":
        theirs = request.getfixturevalue("database")
    with opened_saver(theirs) as saver:
        talk_to(saver)
        before = saver.get_tuple({"configurable": {"thread_id": "asked"}})
    backend = MemoryBackend()
    run(import_langgraph(backend, theirs))
    ours = LangGraphSaver(backend)
    config = {"configurable": {"thread_id": "asked"}}
    config = ours.put(before.config, {**before.checkpoint, "id": "next"}, {"source": "loop"}, {})
    assert ours.get_tuple(config).parent_config == before.config
    assert isinstance(ours.get_next_version("0007.5", None), str)


async def test_tables_of_a_release_without_paths_of_tasks_are_imported(database: str) -> None:
    with opened_saver(database) as saver:
        talk_to(saver)
        saver.conn.execute("ALTER TABLE checkpoint_writes DROP COLUMN task_path")
    assert (await import_langgraph(MemoryBackend(), database)).written == 3


async def test_tables_in_another_schema_are_found(database: str) -> None:
    import asyncpg

    async def made() -> None:
        connection = await asyncpg.connect(database)
        await connection.execute("CREATE SCHEMA graphs")
        await connection.close()

    run(made())
    url = f"{database}?options=-csearch_path%3Dgraphs"
    with opened_saver(url) as saver:
        talk_to(saver)
    counts = await import_langgraph(MemoryBackend(), url)
    assert counts.written == 3


def test_a_parent_comes_before_its_children_whatever_their_clocks_said() -> None:
    parents = {"3": None, "1": "3", "2": "1", "4": "gone", "0": None}
    assert list(sort_by_parent(parents)) == ["0", "3", "1", "2", "4"]
    for circle in ({"0": "0"}, {"0": "1", "1": "0"}):
        with pytest.raises(IntegrityError, match="cycle"):
            list(sort_by_parent(circle))


async def test_a_path_that_is_no_url_is_told_its_url() -> None:
    with pytest.raises(InvalidArgumentError, match=r"'graph.db' is not a URL.*sqlite:///graph.db"):
        await import_langgraph(MemoryBackend(), "graph.db")


async def test_the_password_of_a_source_that_is_no_url_is_not_shown() -> None:
    with pytest.raises(InvalidArgumentError, match="read from postgresql:// and") as refused:
        await import_langgraph(MemoryBackend(), "host=db password=secret")
    assert "secret" not in str(refused.value)


# --- encrypted databases

KEY = b"0123456789abcdef"


def encrypting(key: bytes = KEY) -> EncryptedSerializer:
    return EncryptedSerializer.from_pycryptodome_aes(key=key)


@pytest.fixture(params=first_of("sqlite", "postgresql"))
def encrypted(request, tmp_path):
    """The URL of a database that LangGraph's saver wrote with an ``EncryptedSerializer``."""
    url = f"sqlite:///{tmp_path / 'graph.db'}"
    if request.param == "postgresql":
        url = request.getfixturevalue("database")
    with opened_saver(url) as saver:
        saver.serde = encrypting()
        talk_to(saver)
    return url


async def same_as_there(saver: LangGraphSaver, url: str) -> None:
    """Compare every checkpoint with what LangGraph's saver reads."""
    with opened_saver(url) as theirs:
        theirs.serde = encrypting()
        for it in theirs.list(None):
            ours = await saver.aget_tuple(it.config)
            assert exactly(ours.checkpoint) == exactly(it.checkpoint)
            assert sorted(map(repr, ours.pending_writes)) == sorted(map(repr, it.pending_writes))


async def goes_on(saver: LangGraphSaver) -> None:
    """Answer what the graph of an imported thread asked."""
    app = graph().compile(checkpointer=saver)
    config = {"configurable": {"thread_id": "a:b/%_'日本語"}}
    with pytest.raises(RuntimeError, match="as planned"):
        await app.ainvoke(Command(resume="yes"), config)
    state = await app.aget_state(config)
    assert state.values["note"] == "yes"
    assert [it.content for it in state.values["messages"]] == ["hello", "answer 1"]


async def test_an_encrypted_database_is_decrypted_with_its_key(encrypted: str) -> None:
    backend = MemoryBackend()
    counts = await import_langgraph(backend, encrypted, cipher=encrypting().cipher)
    assert (counts.written, counts.same) == (3, 0)
    again = await import_langgraph(backend, encrypted, cipher=encrypting().cipher)
    assert (again.written, again.same) == (0, 3)
    for serde in (JsonPlusSerializer(), encrypting()):
        await same_as_there(LangGraphSaver(backend, serde=serde), encrypted)
    assert "failed" in await backend.search("hello answer")
    await goes_on(LangGraphSaver(backend))


async def test_what_is_encrypted_value_by_value_stays_so_without_the_key(encrypted: str) -> None:
    backend = MemoryBackend()
    if encrypted.startswith("sqlite"):
        with pytest.raises(InvalidArgumentError, match="LANGGRAPH_AES_KEY"):
            await import_langgraph(backend, encrypted)
        assert await backend.scan() == []
        return
    await import_langgraph(backend, encrypted)
    await same_as_there(LangGraphSaver(backend, serde=encrypting()), encrypted)
    assert await backend.search("hello") == []
    await goes_on(LangGraphSaver(backend, serde=encrypting()))


async def test_another_key_is_told_and_nothing_written(encrypted: str) -> None:
    backend = MemoryBackend()
    with pytest.raises(IntegrityError, match="another key"):
        await import_langgraph(backend, encrypted, cipher=encrypting(b"f" * 16).cipher)
    assert await backend.scan() == []


def test_the_key_of_an_import_is_langgraphs_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LANGGRAPH_AES_KEY", raising=False)
    with pytest.raises(InvalidArgumentError, match="LANGGRAPH_AES_KEY"):
        make_aes_cipher()
    monkeypatch.setenv("LANGGRAPH_AES_KEY", "secret")
    with pytest.raises(InvalidArgumentError, match="LANGGRAPH_AES_KEY") as told:
        make_aes_cipher()
    assert "secret" not in str(told.value)
    monkeypatch.setenv("LANGGRAPH_AES_KEY", KEY.decode())
    _, data = encrypting().dumps_typed("plain")
    assert make_aes_cipher().decrypt("aes", data) == JsonPlusSerializer().dumps_typed("plain")[1]


# --- checkpoints of formats below 4


def fan_out() -> StateGraph:
    """A graph that stops before the tasks that it sent."""

    def part(state: State) -> State:
        return {"parts": [state["note"]]}

    outer = StateGraph(State)
    outer.add_node("split", lambda _: {"count": 1})
    outer.add_node("part", part)
    outer.add_edge(START, "split")
    outer.add_conditional_edges("split", lambda _: [Send("part", {"note": it}) for it in (1, "b")])
    return outer


def as_format_3(saver: Any, config: Any) -> None:
    """Write a thread as LangGraph did before tasks had a channel."""
    for it in list(saver.list(config)):
        parts = dict(it.checkpoint)
        for name in ("channel_values", "channel_versions"):
            parts[name] = {key: it for key, it in parts[name].items() if key != "__pregel_tasks"}
        place = {"thread_id": "old", "checkpoint_ns": ""}
        saver.put(it.parent_config or {"configurable": place}, {**parts, "v": 3}, it.metadata, {})


@pytest.mark.parametrize("name", ["sqlite", "postgresql"])
@pytest.mark.parametrize("is_encrypted", [False, True])
async def test_tasks_to_start_of_an_old_format_are_started_here(
    name: str, tmp_path: Path, request: pytest.FixtureRequest, *, is_encrypted: bool
) -> None:
    url = f"sqlite:///{tmp_path / 'theirs.db'}"
    if name == "postgresql":
        url = request.getfixturevalue("database")
    config: Any = {"configurable": {"thread_id": "old"}}
    with opened_saver(url) as saver:
        if is_encrypted:
            saver.serde = encrypting()
        fan_out().compile(checkpointer=saver, interrupt_before=["part"]).invoke({}, config)
        as_format_3(saver, config)
    backend = MemoryBackend()
    if is_encrypted:
        with pytest.raises(InvalidArgumentError, match="LANGGRAPH_AES_KEY"):
            await import_langgraph(backend, url)
    await import_langgraph(backend, url, cipher=encrypting().cipher)
    ours = LangGraphSaver(backend)
    found = (await ours.aget_tuple(config)).checkpoint
    assert found["v"] == 3
    assert found["channel_values"]["__pregel_tasks"] == [
        Send("part", {"note": it}) for it in (1, "b")
    ]
    answer = await fan_out().compile(checkpointer=ours).ainvoke(None, config)
    assert answer["parts"] == [1, "b"]


# --- values


@pytest.mark.parametrize(
    "value", [*VALUES, VALUES, {"$": {"$": []}}, Later(lambda: HumanMessage("hi"))], ids=repr
)
def test_a_value_gives_back_the_bytes_that_it_came_from(value: Any) -> None:
    kind, data = JsonPlusSerializer().dumps_typed(value)
    assert from_json(to_json(kind, data)) == (kind, data)


@pytest.mark.parametrize(
    "data", [b"", b"\xc1", b"\x91", b"\xd9\x01a", b"\xca\0\0\0\0", b"\x91" * 300 + b"\x90"]
)
def test_bytes_that_are_not_the_serializers_are_kept_as_they_are(data: bytes) -> None:
    assert from_json(to_json("msgpack", data)) == ("msgpack", data)


def test_text_of_messages_is_text() -> None:
    kind, data = JsonPlusSerializer().dumps_typed([HumanMessage("find me")])
    assert '"find me"' in json.dumps(to_json(kind, data))


@pytest.mark.parametrize(
    "value", [{"$": "?"}, {"$": "b"}, {"$": "b", "v": "?"}, {"$": "m", "v": 1}, {"$": []}]
)
def test_what_is_no_value_is_told(value: Any) -> None:
    with pytest.raises(IntegrityError):
        from_json(value)


def test_plain_values_cannot_pass_for_tags() -> None:
    hostile = {"$": "x", "c": 5, "v": ["os", "system", "true"]}
    kind, data = from_json(convert_to_json(hostile))
    assert JsonPlusSerializer().loads_typed((kind, data)) == hostile
