from __future__ import annotations

import uuid
from typing import Any

import pytest
from test_graph import backend, grow  # noqa: F401  (a fixture)

from locus_store import ConflictError, MemoryBackend, NotFoundError
from locus_store.timeline.blame import blame
from locus_store.timeline.copies import generate_graph_id
from locus_store.timeline.rewind import rewind
from locus_store.types import PendingWrite
from locus_store.values.frames import build_digest_tree, diff_value

pytestmark = pytest.mark.anyio


async def test_the_old_state_is_the_new_head_and_nothing_is_removed(backend: Any) -> None:  # noqa: F811
    await grow(backend)
    await backend.put_writes("t", "c", [PendingWrite("task", 0, "x", "json", b"1")])
    name = await rewind(backend, "t", "c", expected_head="f")
    head = await backend.read_state("t", with_writes=True)
    assert (head.version.checkpoint_id, head.version.parent_id) == (name, "c")
    assert head.state == {"n": "c" * 100}
    assert [it.payload for it in head.writes] == [b"1"]
    assert [it.checkpoint_id for it in await backend.history("t")] == [name, *"fedcba"]
    found = await blame(backend, "t")
    assert found is not None
    made = found.find(("n",))
    assert made is not None
    assert made.made.version.checkpoint_id == "c"


async def test_a_pending_write_against_the_old_version_is_stored_whole() -> None:
    memory = MemoryBackend()
    state: dict[str, Any] = {"channel_values": {"x": ["word"] * 1000}}
    await memory.write_state("t", state, checkpoint_id="a")
    known = memory.known_version("t", "a")
    assert known is not None
    value = [*state["channel_values"]["x"], "more"]
    payload = diff_value(value, build_digest_tree(state), ("channel_values", "x"), 10**6)
    assert payload is not None
    write = PendingWrite("task", 0, "x", "locus-json", payload, basis=known[0].sequence)
    assert await memory.put_writes("t", "a", [write], known=known[0])
    await memory.write_state("t", {}, checkpoint_id="b")
    await rewind(memory, "t", "a")
    found = await memory.read_state("t", with_writes=True)
    assert found is not None
    assert found.writes is not None
    assert [it.basis for it in found.writes] == [None]


async def test_a_head_that_moved_is_a_conflict(backend: Any) -> None:  # noqa: F811
    await grow(backend)
    with pytest.raises(ConflictError, match="is 'f', not 'e'"):
        await rewind(backend, "t", "a", expected_head="e")
    with pytest.raises(NotFoundError, match="no checkpoint 'z'"):
        await rewind(backend, "t", "z")
    assert len(await backend.history("t")) == 6


def test_ids_of_graphs_are_uuids_of_version_6_in_the_order_of_time() -> None:
    ids = [generate_graph_id() for _ in range(1000)]
    assert ids == sorted(ids)
    assert {uuid.UUID(it).version for it in ids} == {6}
    assert {uuid.UUID(it).variant for it in ids} == {uuid.RFC_4122}
    assert len(set(ids)) == 1000


# --- real graphs and agents continue


def _graph(saver: Any, log: list[str]) -> Any:
    pytest.importorskip("langgraph")
    from langgraph.graph import START, MessagesState, StateGraph
    from langgraph.types import interrupt

    def look(state: MessagesState) -> Any:
        log.append("look")
        return {"messages": [("ai", f"seen {len(state['messages'])}")]}

    def beside(state: MessagesState) -> Any:
        log.append("beside")
        return {"messages": [("ai", "beside")]}

    def ask(state: MessagesState) -> Any:
        answer = interrupt("which city?")
        log.append(f"city {answer}")
        return {"messages": [("ai", f"city {answer}")]}

    builder = StateGraph(MessagesState)
    builder.add_node("look", look)
    builder.add_node("ask", ask)
    builder.add_node("beside", beside)
    builder.add_edge(START, "look")
    builder.add_edge("look", "ask")
    builder.add_edge("look", "beside")
    return builder.compile(checkpointer=saver)


async def test_an_interrupted_graph_and_a_finished_one_continue_from_a_rewind() -> None:
    pytest.importorskip("langgraph")
    from langgraph.types import Command

    from locus_store.adapters.langgraph import LangGraphSaver

    config: Any = {"configurable": {"thread_id": "t"}}
    log: list[str] = []
    memory = MemoryBackend()
    graph = _graph(LangGraphSaver(memory), log)
    await graph.ainvoke({"messages": [("human", "hi")]}, config)
    interrupted = (await graph.aget_state(config)).config["configurable"]["checkpoint_id"]
    await graph.ainvoke(Command(resume="Bern"), config)
    log.clear()

    await rewind(memory, "t", interrupted)
    again = _graph(LangGraphSaver(memory), log)
    assert (await again.aget_state(config)).next == ("ask",)
    done = await again.ainvoke(Command(resume="Basel"), config)
    assert log == ["city Basel"]
    assert "city Basel" in [it.content for it in done["messages"]]
    assert "city Bern" not in [it.content for it in done["messages"]]

    finished = (await again.aget_state(config)).config["configurable"]["checkpoint_id"]
    await again.ainvoke({"messages": [("human", "more")]}, config)
    await rewind(memory, "t", finished)
    state = await again.aget_state(config)
    assert state.values == done
    assert state.next == ()


async def test_an_agent_of_the_locus_sdk_continues_from_a_rewind() -> None:
    locus = pytest.importorskip("locus")
    from locus.testing import FunctionModel, ScriptedModel

    from locus_store import StorageBackendAdapter

    def heard(messages: list[Any], tools: Any) -> str:
        return " ".join(it.content for it in messages if it.role.value == "user")

    memory = MemoryBackend()

    def agent(model: Any) -> Any:
        return locus.Agent(
            agent_id="concierge", model=model, checkpointer=StorageBackendAdapter(memory)
        )

    await agent(ScriptedModel(["Noted."])).arun("Basel.", thread_id="t")
    before = await memory.version("t")
    assert before is not None
    await agent(ScriptedModel(["Bern it is."])).arun("No, Bern.", thread_id="t")
    await rewind(memory, "t", before.checkpoint_id)
    result = await agent(FunctionModel(heard)).arun("Where?", thread_id="t")
    assert result.text == "Basel. Where?"
