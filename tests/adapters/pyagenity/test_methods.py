"""Every method of the checkpointers, with the installed library's own models."""

from __future__ import annotations

import asyncio
import inspect
from datetime import UTC, datetime
from importlib.util import find_spec
from typing import Any

import pytest
from lazily import TESTS_RUN

from locus_store import ConflictError, InvalidArgumentError, MemoryBackend, NotOwnerError, session

if find_spec("agentflow") is None and find_spec("pyagenity") is None:
    pytest.skip("neither PyAgenity nor AgentFlow: see make pyagenity", allow_module_level=True)

if TESTS_RUN:
    import graphs
    from graphs import ALICE, BOB, IS_AGENTFLOW, AgentState, Message, ThreadInfo, TravelState, said

    from locus_store.adapters.pyagenity import (
        InMemoryCheckpointer,
        PgCheckpointer,
        SessionCheckpointer,
        SqliteCheckpointer,
    )

pytestmark = pytest.mark.anyio
CALL = {"id": "c", "type": "function", "function": {"name": "look", "arguments": "{}"}}


@pytest.fixture(params=["memory", "sqlite", "postgresql"])
def checkpointer(request) -> Any:
    if request.param == "memory":
        return InMemoryCheckpointer()
    if request.param == "sqlite":
        return SqliteCheckpointer(request.getfixturevalue("database_file"))
    url = request.getfixturevalue("migrated_database")
    return PgCheckpointer(url, redis_url=request.getfixturevalue("redis_url"))


def whole() -> Any:
    """A message with a block of each kind."""
    media = {"kind": "url", "url": "https://example.com/é.png", "width": 3}
    blocks = [
        {"type": "text", "text": "A café", "annotations": [{"url": "u", "index": 1}]},
        {"type": "image", "media": media, "alt_text": "x", "bbox": [0.0, 0.5, 1.0, 1.0]},
        {"type": "tool_call", "id": "c", "name": "look", "args": {"n": 2**60, "f": 1.0}},
        {"type": "tool_result", "call_id": "c", "output": {"a": [1, None]}, "status": "completed"},
        {"type": "reasoning", "summary": "s", "details": ["d"]},
        {"type": "annotation", "kind": "note", "refs": [], "spans": [[0, 4]]},
        {"type": "error", "message": "m", "code": "7", "data": {"k": True}},
    ]
    usages = {"completion_tokens": 1, "prompt_tokens": 2, "total_tokens": 3}
    return Message.model_validate({
        "message_id": "whole", "role": "assistant", "content": blocks, "tools_calls": [CALL],
        "reasoning": "because", "metadata": {"int": 2**62, "list": [None]}, "usages": usages,
        "raw": {"model": "x", "n": 1.5},
    })  # fmt: skip


async def run_all(call: Any) -> None:
    """Call the 15 methods, by ``call(name, *args)``."""
    message, state = whole(), TravelState(budget=900)
    state.context = [said("hello"), message]
    assert await call("get_state", ALICE) is None
    assert await call("put_state", ALICE, state) is state
    for name in ("get_state", "get_state_cache"):
        found = await call(name, ALICE)
        assert (type(found), found) == (TravelState, state)
        assert type(found.context[1].content[2]) is type(message.content[2])
    state.budget = 800
    await call("put_state_cache", ALICE, state)
    assert (await call("get_state_cache", ALICE)).budget == 800
    assert (await call("get_state", ALICE)).budget == 900
    await call("put_messages", ALICE, state.context, {"node": "n"})
    found = await call("list_messages", ALICE, "CAFE", 0, 5)
    expected = message.model_copy(update={"metadata": {**message.metadata, "node": "n"}})
    assert found == [expected]
    assert await call("get_message", ALICE, "whole") == expected
    assert await call("list_messages", ALICE, None, None, 0) == []
    await call("delete_message", ALICE, "whole")
    assert [it.text() for it in await call("list_messages", ALICE)] == ["hello"]
    at = datetime(2026, 1, 1, tzinfo=UTC)
    info = ThreadInfo(thread_id="t", thread_name="Trip", metadata={"k": [1]}, updated_at=at)
    await call("put_thread", ALICE, info)
    found = await call("get_thread", ALICE)
    assert found == info.model_copy(update={"user_id": "alice"})
    assert await call("list_threads", {"user_id": "alice"}, "tri") == [found]
    for name in ("get_state", "get_state_cache", "get_thread"):
        assert await call(name, BOB) is None
    assert await call("list_threads", {"user_id": "bob"}) == []
    with pytest.raises(NotOwnerError):
        await call("put_state", BOB, AgentState())
    await call("clear_state", ALICE)
    assert await call("get_state", ALICE) is None
    assert len(await call("list_messages", ALICE)) == 1
    await call("clean_thread", ALICE)
    assert await call("get_thread", ALICE) is None
    assert await call("list_messages", ALICE) == []


async def test_asynchronous(checkpointer) -> None:
    await checkpointer.asetup()
    await run_all(lambda name, *args: getattr(checkpointer, f"a{name}")(*args))
    await checkpointer.arelease()


async def test_blocking_in_a_worker_thread_of_a_running_loop(checkpointer) -> None:
    await run_all(lambda name, *args: asyncio.to_thread(getattr(checkpointer, name), *args))
    await asyncio.to_thread(checkpointer.release)


def test_blocking(checkpointer) -> None:
    checkpointer.setup()

    async def now(name: str, *args: Any) -> Any:
        return getattr(checkpointer, name)(*args)

    coroutine = run_all(now)  # it never waits, so no event loop runs
    with pytest.raises(StopIteration):
        coroutine.send(None)
    checkpointer.release()


async def test_the_kinds_of_timestamps(checkpointer) -> None:
    message = said("now")
    await checkpointer.aput_messages(ALICE, [message])
    await checkpointer.aput_state(ALICE, AgentState(context=[message]))
    [logged] = await checkpointer.alist_messages(ALICE)
    assert type(logged.timestamp) is (datetime if graphs.VERSION == "0.3.3" else float)
    assert logged.timestamp == message.timestamp
    assert (await checkpointer.aget_state(ALICE)).context == [message]
    await checkpointer.arelease()


async def test_a_state_remembers_its_version_and_a_config_does_not(checkpointer) -> None:
    config = dict(ALICE)
    await checkpointer.aput_state(config, AgentState())
    mine, other = await checkpointer.aget_state(config), await checkpointer.aget_state(config)
    copied = mine.model_copy(deep=True)
    await checkpointer.aput_state(config, other)
    for lost in (mine, copied):
        with pytest.raises(ConflictError) as caught:
            await checkpointer.aput_state(config, lost)
        assert ("StaleStateError" in {it.__name__ for it in type(caught.value).__mro__}) is (
            IS_AGENTFLOW
        )
        assert caught.value.head_id
    await checkpointer.aput_state(config, other)
    assert config == ALICE
    assert "checkpoint_version" not in mine.model_dump_json()
    await checkpointer.aput_state({**ALICE, "thread_id": "branch"}, mine)
    await checkpointer.arelease()


async def test_a_local_time_becomes_one_with_a_zone(checkpointer) -> None:
    local = datetime(2026, 7, 1, 12)  # noqa: DTZ001  (as the library gives it)
    await checkpointer.aput_thread(ALICE, ThreadInfo(thread_id="t", updated_at=local))
    assert (await checkpointer.aget_thread(ALICE)).updated_at == local.astimezone(UTC)
    await checkpointer.arelease()


async def test_a_class_is_chosen(checkpointer) -> None:
    await checkpointer.aput_state(ALICE, TravelState(budget=1))
    config = {**ALICE, "state_class": AgentState}
    assert type(await checkpointer.aget_state(config)) is AgentState
    checkpointer.bind_state_type(AgentState)
    assert type(await checkpointer.aget_state(ALICE)) is AgentState
    if IS_AGENTFLOW:  # the library refuses to serve two graphs' classes
        with pytest.raises(ValueError, match="already bound"):
            checkpointer.bind_state_type(TravelState)
    await checkpointer.arelease()


async def test_release_finishes_writes_that_have_begun(checkpointer, request) -> None:
    messages = [said(str(n)) for n in range(100)]
    tasks = [asyncio.create_task(checkpointer.aput_messages(ALICE, [it])) for it in messages]
    await checkpointer.arelease()
    assert all(it.done() for it in tasks)
    if not isinstance(checkpointer, InMemoryCheckpointer):
        found = await checkpointer.alist_messages(ALICE)
        assert sorted(it.text() for it in found) == sorted(it.text() for it in messages)
    await checkpointer.arelease()


async def test_messages_of_other_classes_are_refused(checkpointer) -> None:
    with pytest.raises(InvalidArgumentError, match=graphs.NAME):
        await checkpointer.aput_messages(ALICE, [session.Message.text_message("hello")])
    await checkpointer.arelease()


def test_they_are_the_librarys_own() -> None:
    made = SessionCheckpointer[TravelState](MemoryBackend())
    for it in (made, InMemoryCheckpointer[TravelState](), InMemoryCheckpointer()):
        assert isinstance(it, graphs.BASE)
        assert isinstance(it, session.BaseCheckpointer)
    with pytest.raises(TypeError):
        PgCheckpointer("postgresql://db.example.com/x", unknown=1)


def test_no_method_of_the_librarys_base_is_left_to_it() -> None:
    theirs = {"state_type", "_abc_impl"}
    inherited = {
        name
        for name, it in vars(graphs.BASE).items()
        if inspect.isfunction(it) and not name.startswith("_") and name not in theirs
    }
    assert {it for it in inherited if getattr(SqliteCheckpointer, it) is vars(graphs.BASE)[it]} == (
        set()
    )
