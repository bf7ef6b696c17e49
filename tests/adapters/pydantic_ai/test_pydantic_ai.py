"""Pydantic AI's conversation store beside the library's own one, and with its agents."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from lazily import TESTS_RUN
from log_urls import EACH, url_of
from storages.memory import BareBackend

from locus_store import (
    ConflictError,
    IntegrityError,
    InvalidArgumentError,
    SerializationError,
    UnsupportedError,
    open_message_log as opened,
)
from locus_store.backends import SQLiteBackend
from locus_store.testing.kit import HOSTILE_IDS

if TESTS_RUN:
    from pydantic_ai import Agent, BinaryContent, DeferredToolRequests
    from pydantic_ai.conversation import Conversation
    from pydantic_ai.conversation_store import (
        ConversationConflict,
        ConversationEntry,
        ConversationRecord,
        InMemoryConversationStore,
    )
    from pydantic_ai.exceptions import UserError
    from pydantic_ai.messages import (
        FilePart,
        ModelRequest,
        ModelResponse,
        TextPart,
        ThinkingPart,
        ToolCallPart,
        ToolReturnPart,
        UserPromptPart,
    )
    from pydantic_ai.models.function import FunctionModel
    from pydantic_ai.models.test import TestModel

    from locus_store.adapters.pydantic_ai import ConversationConflictError, LocusConversationStore

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

pytestmark = pytest.mark.anyio


@pytest.fixture(params=EACH)
async def store(request: Any, tmp_path: Path) -> AsyncIterator[LocusConversationStore]:
    url = url_of(request.param, request, tmp_path)
    async with LocusConversationStore.from_url(url) as made:
        yield made


@pytest.fixture(params=(*EACH, "theirs"))
async def either(request: Any, tmp_path: Path) -> AsyncIterator[Any]:
    """Our store, and the library's own one in memory."""
    if request.param == "theirs":
        yield InMemoryConversationStore()
        return
    async with LocusConversationStore.from_url(url_of(request.param, request, tmp_path)) as made:
        yield made


def asked(text: str) -> ModelRequest:
    return ModelRequest(parts=[UserPromptPart(text)])


def said(text: str) -> ModelResponse:
    return ModelResponse(parts=[TextPart(text)])


def talk(name: str, *texts: str) -> Conversation:
    return Conversation(
        conversation_id=name,
        messages=[(said if n % 2 else asked)(it) for n, it in enumerate(texts)],
    )


def texts(conversation: Any) -> list[str]:
    return [it.parts[0].content for it in conversation.messages]


async def saved(store: Any, name: str, *said_texts: str, **options: Any) -> list[str]:
    """Save a new conversation; return the ids of its entries."""
    return [it.id for it in await store.save(talk(name, *said_texts), **options)]


class TestStores:
    """Promises of a store: ours and the library's keep them."""

    async def test_a_conversation_comes_back(self, either: Any) -> None:
        assert await either.load("c") is None
        assert await either.load_entries("c") is None
        made = talk("c", "a", "b")
        made.usage.requests, made.usage.details = 3, {"cached": 2}
        entries = await either.save(made)
        found = await either.load("c")
        assert (found, found.revision) == (made, made.revision)
        assert await either.load_entries("c") == entries
        assert [it.parent_id for it in entries] == [None, entries[0].id]
        assert [await either.read_entry(it.id) for it in entries] == entries

    async def test_every_part_comes_back(self, either: Any) -> None:
        paper = BinaryContent(b"%PDF\x00\xff", media_type="application/pdf")
        call = ToolCallPart("f", {"n": [1, 2.5, None], "ß%_'": "\x00"}, tool_call_id="t")
        messages = [
            ModelRequest(parts=[UserPromptPart(["look", paper])], instructions="be short"),
            ModelResponse(parts=[ThinkingPart("hm", signature="s"), call], model_name="m"),
            ModelRequest(parts=[ToolReturnPart("f", {"a": [True]}, "t", metadata={"k": 1})]),
            ModelRequest(parts=[ToolReturnPart("f", "again", "t", outcome="retried")]),
        ]
        await either.save(Conversation(conversation_id="c", messages=messages))
        assert (await either.load("c")).messages == messages

    async def test_a_turn_adds_its_messages_alone(self, either: Any) -> None:
        first = await saved(either, "c", "a", "b")
        found = await either.load("c")
        found.messages += [asked("c"), said("d")]
        second = await either.save(found)
        assert len(second) == 2
        assert await either.save(found) == []
        entries = await either.load_entries("c")
        assert [it.id for it in entries] == [*first, *(it.id for it in second)]

    async def test_the_newest_messages_are_loaded_alone(self, either: Any) -> None:
        await saved(either, "c", *"abcdef")
        found = await either.load("c", limit=2)
        assert texts(found) == ["e", "f"]
        found.messages.append(asked("g"))
        await either.save(found)
        assert texts(await either.load("c")) == [*"abcdefg"]
        assert [len((await either.load("c", limit=n)).messages) for n in (0, 7, 99)] == [0, 7, 7]
        with pytest.raises(UserError):
            await either.load("c", limit=-1)

    async def test_of_two_saves_of_one_load_one_is_refused(self, either: Any) -> None:
        await saved(either, "c", "a", "b")
        one, other = await either.load("c"), await either.load("c")
        one.messages.append(asked("one"))
        other.messages.append(asked("other"))
        await either.save(one)
        with pytest.raises(ConversationConflict) as caught:
            await either.save(other)
        assert caught.value.conversation_id == "c"
        assert texts(await either.load("c")) == ["a", "b", "one"]
        with pytest.raises(ConversationConflict):
            await either.save(talk("c", "new"))

    async def test_of_racing_first_saves_one_is_stored(self, either: Any) -> None:
        made = [talk("c", f"{n}-a", f"{n}-b") for n in range(8)]
        done = await asyncio.gather(*map(either.save, made), return_exceptions=True)
        won = [n for n, it in enumerate(done) if isinstance(it, list)]
        assert len(won) == 1
        assert all(isinstance(it, (list, ConversationConflict)) for it in done)
        assert texts(await either.load("c")) == [f"{won[0]}-a", f"{won[0]}-b"]

    async def test_a_rewritten_history_is_a_branch(self, either: Any) -> None:
        ids = await saved(either, "c", *"abcd")
        found = await either.load("c")
        found.messages = [found.messages[0], said("summary")]
        (new,) = await either.save(found)
        assert new.parent_id == ids[0]
        assert texts(await either.load("c")) == ["a", "summary"]
        assert texts(await either.load("c", limit=1)) == ["summary"]
        (record,) = await either.list_conversations()
        assert record.branches == [ids[3]]
        old = await either.branch("c", from_entry=ids[3], expected_revision=record.revision)
        assert texts(old) == [*"abcd"]
        assert [texts(await either.load("c", limit=n)) for n in (1, 3)] == [["d"], [*"bcd"]]
        assert (await either.read_record("c")).branches == [new.id]

    async def test_a_branch_continues_from_an_earlier_message(self, either: Any) -> None:
        await saved(either, "c", *"abcd")
        revision = (await either.load("c")).revision
        found = await either.branch("c", at=1, expected_revision=revision)
        found.messages += [said("B")]
        await either.save(found)
        assert texts(await either.load("c")) == ["a", "B"]
        with pytest.raises(ConversationConflict):
            await either.branch("c", at=1, expected_revision=revision)
        empty = await either.branch("c", at=0, expected_revision=found.revision)
        assert texts(empty) == texts(await either.load("c")) == []
        for wrong in ({"at": 9}, {"from_entry": "none"}, {}):
            with pytest.raises(UserError):
                await either.branch("c", expected_revision=empty.revision, **wrong)

    async def test_a_fork_has_the_entries_of_its_source(self, either: Any) -> None:
        ids = await saved(either, "c", *"abcd", scope="u")
        fork = await either.fork("c", at=2, new_conversation_id="f")
        assert [it.id for it in await either.load_entries("f")] == ids[:2]
        fork.messages += [asked("x")]
        await either.save(fork)
        record = await either.read_record("f")
        assert (record.forked_from, record.forked_at, record.scope) == ("c", ids[1], "u")
        assert texts(await either.load("c")) == [*"abcd"]
        again = await either.fork("f", new_conversation_id="g")
        assert texts(again) == texts(await either.load("g")) == ["a", "b", "x"]
        with pytest.raises(ConversationConflict):
            await either.fork("c", new_conversation_id="f")
        with pytest.raises(UserError):
            await either.fork("none")

    async def test_a_deleted_source_leaves_its_forks(self, either: Any) -> None:
        ids = await saved(either, "c", *"abcd")
        await either.fork("c", at=2, new_conversation_id="f")
        await either.delete("c")
        assert await either.load("c") is None
        assert texts(await either.load("f")) == ["a", "b"]
        assert (await either.read_entry(ids[1])).parent_id == ids[0]
        with pytest.raises(LookupError):
            await either.read_entry(ids[2])
        await either.delete("f")
        await either.delete("f")
        for entry_id in ids:
            with pytest.raises(LookupError):
                await either.read_entry(entry_id)

    async def test_a_fork_that_races_a_deletion_is_whole_or_refused(self, either: Any) -> None:
        for n in range(4):
            await saved(either, f"c{n}", *"abcd")
            forked, _ = await asyncio.gather(
                either.fork(f"c{n}", new_conversation_id=f"f{n}"),
                either.delete(f"c{n}"),
                return_exceptions=True,
            )
            found = await either.load(f"f{n}")
            if isinstance(forked, UserError):  # a ConversationConflict is one
                assert found is None
            else:
                assert texts(forked) == texts(found) == [*"abcd"]

    async def test_a_conversation_that_was_created_again_refuses_an_old_copy(
        self, either: Any
    ) -> None:
        await saved(either, "c", "a")
        old = await either.load("c")
        await either.delete("c")
        with pytest.raises(ConversationConflict):
            await either.save(old)
        await saved(either, "c", "new")
        with pytest.raises(ConversationConflict):
            await either.save(old)
        with pytest.raises(ConversationConflict):
            await either.delete_record("c", expected_revision=old.revision)
        assert texts(await either.load("c")) == ["new"]

    async def test_a_scope_keeps_conversations_apart(self, either: Any) -> None:
        await saved(either, "a", "x", scope="one")
        await saved(either, "b", "x", scope="two")
        await saved(either, "c", "x", scope="one")
        found = await either.load("a")
        found.messages.append(said("y"))
        await either.save(found)
        names = [it.conversation_id for it in await either.list_conversations()]
        assert names == ["a", "c", "b"]
        mine = [it.conversation_id for it in await either.list_conversations(scope="one", limit=1)]
        assert mine == ["a"]
        assert await either.load("b", scope="one") is None
        await either.delete("b", scope="one")
        assert await either.load("b", scope="two") is not None
        with pytest.raises(ConversationConflict):
            await either.save(await either.load("b"), scope="one")
        with pytest.raises(UserError):
            await either.list_conversations(limit=-1)

    async def test_values_are_copies(self, either: Any) -> None:
        made = talk("c", "a")
        await either.save(made)
        made.messages[0].parts[0].content = "changed"
        found = await either.load("c")
        assert texts(found) == ["a"]
        found.usage.details["n"] = 1
        assert (await either.load("c")).usage.details == {}

    async def test_a_record_with_an_unknown_head_is_refused(self, either: Any) -> None:
        record = ConversationRecord(conversation_id="c", head_id="none")
        with pytest.raises(ConversationConflict):
            await either.write_record(record, expected_revision=None)
        assert await either.read_record("c") is None
        with pytest.raises(ConversationConflict):
            await either.delete_record("c", expected_revision="x")
        with pytest.raises(LookupError):
            await either.read_history("none")

    async def test_a_conflict_leaves_no_entry(self, either: Any) -> None:
        await saved(either, "c", "a")
        record = await either.read_record("c")
        entry = ConversationEntry(parent_id=record.head_id, message=asked("x"))
        changed = replace(record, head_id=entry.id, revision="new")
        with pytest.raises(ConversationConflict):
            await either.write_record(changed, new_entries=[entry], expected_revision="other")
        with pytest.raises(LookupError):
            await either.read_entry(entry.id)

    async def test_ids_are_kept_apart(self, either: Any) -> None:
        names = sorted({it for it in HOSTILE_IDS if len(it) < 200})[:12]
        for it in names:
            await saved(either, it, it)
        assert [texts(await either.load(it)) for it in names] == [[it] for it in names]
        assert sorted(it.conversation_id for it in await either.list_conversations()) == names


# --- with agents


def says(*answers: Any) -> FunctionModel:
    """A model that gives the parts of a list, one after the other."""
    left = list(answers)
    return FunctionModel(lambda _messages, _info: ModelResponse(parts=[left.pop(0)]))


async def turn(store: Any, agent: Any, text: str | None, **options: Any) -> Any:
    conversation = await store.load("c") or Conversation(conversation_id="c")
    result = await agent.run(text, conversation=conversation, **options)
    await store.save(result)
    return result


async def test_a_second_turn_has_the_first_one(either: Any) -> None:
    await turn(either, Agent(says(TextPart("For which day?"))), "Two tickets to Porto.")
    result = await turn(either, Agent(says(TextPart("Booked."))), "Friday.")
    assert result.output == "Booked."
    found = await either.load("c")
    assert texts(found) == ["Two tickets to Porto.", "For which day?", "Friday.", "Booked."]
    assert found.usage.requests == 2


async def test_a_tool_call_is_kept_with_its_result(either: Any) -> None:
    agent = Agent(TestModel())
    agent.tool_plain(lambda: "12A", name="seats")
    await turn(either, agent, "Which seat?")
    found = await either.load("c")
    parts = [type(it.parts[0]).__name__ for it in found.messages]
    assert parts == ["UserPromptPart", "ToolCallPart", "ToolReturnPart", "TextPart"]
    assert found.messages[2].parts[0].content == "12A"


async def test_an_interrupted_run_continues(either: Any) -> None:
    agent = Agent(
        says(ToolCallPart("pay", {"euros": 3}, "t"), TextPart("Done.")),
        output_type=[str, DeferredToolRequests],
    )
    paid = []

    @agent.tool_plain(requires_approval=True)
    def pay(euros: int) -> str:
        paid.append(euros)
        return "paid"

    await turn(either, agent, "Pay.")
    requests = (await either.load("c")).deferred_tool_requests
    assert [it.tool_name for it in requests.approvals] == ["pay"]
    results = requests.build_results(approvals={"t": True})
    result = await turn(either, agent, None, deferred_tool_results=results)
    assert (result.output, paid) == ("Done.", [3])
    assert (await either.load("c")).deferred_tool_requests is None


@pytest.mark.full
async def test_another_process_continues_a_conversation(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'a.db'}"
    async with LocusConversationStore.from_url(url) as store:
        await turn(store, Agent(says(TextPart("For which day?"))), "Two tickets to Porto.")
    script = f"""
import asyncio
from pydantic_ai import Agent
from pydantic_ai.models.test import TestModel
from locus_store.adapters.pydantic_ai import LocusConversationStore

async def main():
    async with LocusConversationStore.from_url({url!r}) as store:
        result = await Agent(TestModel()).run("Friday.", conversation=await store.load("c"))
        await store.save(result)

asyncio.run(main())
"""
    await asyncio.to_thread(subprocess.run, [sys.executable, "-c", script], check=True)
    async with LocusConversationStore.from_url(url) as store:
        assert texts(await store.load("c"))[:3] == [
            "Two tickets to Porto.", "For which day?", "Friday."
        ]  # fmt: skip


# --- ours alone


async def test_conflicts_are_of_both_kinds(store: LocusConversationStore) -> None:
    await saved(store, "c", "a")
    record = await store.read_record("c")
    with pytest.raises(ConversationConflictError) as caught:
        await store.write_record(record, expected_revision="other")
    assert isinstance(caught.value, ConversationConflict)
    assert isinstance(caught.value, ConflictError)


async def test_an_entry_is_found_without_its_record(store: LocusConversationStore) -> None:
    for name in "abc":
        ids = await saved(store, name, f"{name}1", f"{name}2")
    fresh = LocusConversationStore(store.log)
    assert (await fresh.read_entry(ids[0])).message.parts[0].content == "c1"
    assert [it.id for it in await fresh.read_history(ids[1])] == ids


async def test_a_history_is_one_read(store: LocusConversationStore) -> None:
    await saved(store, "c", *"abcdef")
    reads = []
    look = store.log.look
    store.log.look = lambda wanted: reads.append(wanted) or look(wanted)
    for limit in (None, 2):
        await store.load("c", limit=limit)
        assert [it.namespace for it in reads] == ["", "messages"]
        reads.clear()


async def test_a_cancelled_save_ends_first(store: LocusConversationStore) -> None:
    await saved(store, "c", "a")
    record = await store.read_record("c")
    entry = ConversationEntry(parent_id=record.head_id, message=said("b"))
    changed = replace(record, head_id=entry.id, revision="new")
    write = store.write_record(changed, new_entries=[entry], expected_revision=record.revision)
    task = asyncio.create_task(write)
    started = asyncio.Event()
    change = store.log.change

    async def noted(wanted: Any) -> Any:
        started.set()
        return await change(wanted)

    store.log.change = noted
    await started.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert texts(await store.load("c")) == ["a", "b"]


async def test_a_message_that_is_not_json_is_refused(store: LocusConversationStore) -> None:
    odd = [ModelRequest(parts=[ToolReturnPart("f", object(), "t")])]
    with pytest.raises(SerializationError):
        await store.save(Conversation(conversation_id="c", messages=odd))
    assert await store.load("c") is None
    assert await store.log.logs("c") == []


@pytest.mark.parametrize("content", ["no dict", {"kind": "request"}, {"kind": "os:system"}])
async def test_a_hostile_row_is_an_error(store: LocusConversationStore, content: Any) -> None:
    (entry_id,) = await saved(store, "c", "a")
    stored = await store.log.get("c", entry_id, namespace="messages")
    forged = (content, stored.role, entry_id, stored.metadata)
    await store.log.append("c", [forged], namespace="messages")
    with pytest.raises(IntegrityError):
        await store.load("c")
    await store.log.append("c", [(content, "pydantic-ai-record", "pydantic-ai-record")])
    with pytest.raises(IntegrityError):
        await store.list_conversations()


async def test_a_ring_of_entries_is_an_error(store: LocusConversationStore) -> None:
    ids = await saved(store, "c", "a", "b")
    stored = await store.log.get("c", ids[0], namespace="messages")
    ring = (stored.content, stored.role, ids[0], {"parent_id": ids[1]})
    await store.log.append("c", [ring], namespace="messages")
    with pytest.raises(LookupError):
        await store.load("c")


async def test_another_adapters_thread_is_not_a_conversation(store: LocusConversationStore) -> None:
    await store.log.append("c", [("of another adapter", "user")])
    assert await store.load("c") is None
    assert await store.list_conversations() == []
    with pytest.raises(ConversationConflict):
        await saved(store, "c", "a")
    assert len(await store.log.load("c")) == 1


async def test_a_store_over_what_is_open_leaves_it_open(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'a.db'}"
    async with opened(url) as log:
        async with LocusConversationStore(log) as store:
            await saved(store, "c", "a")
        other = store.for_tenant("acme")
        assert await other.load("c") is None
        await saved(other, "c", "of acme")
        assert texts(await store.load("c")) == ["a"]
    async with SQLiteBackend(tmp_path / "a.db") as backend:
        assert texts(await LocusConversationStore(backend).load("c")) == ["a"]
    with pytest.raises(UnsupportedError):
        LocusConversationStore(BareBackend())


async def test_a_search_finds_what_a_person_reads(store: LocusConversationStore) -> None:
    png = BinaryContent(data=b"picture", media_type="image/png")
    returned = ToolReturnPart("find_flights", {"carrier": "TAP", "map": png}, tool_call_id="call-1")
    messages = [
        ModelRequest(parts=[UserPromptPart(["Look at this", png])], instructions="Be good"),
        ModelResponse(
            parts=[
                ThinkingPart("Porto is far", signature="c2lnbmVk"),
                ToolCallPart("find_flights", '{"town": "Lisbon"}', tool_call_id="call-1"),
            ],
            model_name="a-model",
        ),
        ModelRequest(parts=[returned]),
        ModelResponse(parts=[TextPart("Done"), FilePart(png)]),
    ]
    await store.save(Conversation(conversation_id="c", messages=messages))
    expected = {"look": 1, "Porto": 1, "find_flights": 2, "lisbon": 1, "TAP": 1, "done": 1}
    for text, count in expected.items():
        assert len(await store.log.page("c", namespace="messages", search=text)) == count, text
    hidden = ["user", "request", "cGljdHVyZQ", "image/png", "c2ln", "call-1", "a-model", "Be good"]
    for text in (*hidden, "town", "carrier", "thinking"):
        assert await store.log.page("c", namespace="messages", search=text) == [], text


async def test_conversations_belong_to_their_scope(store: LocusConversationStore) -> None:
    for name, scope in (("a", "u"), ("b", "v"), ("c", "u"), ("d", None)):
        await saved(store, name, "x", scope=scope)
    backend = store.log.backend
    assert sorted(await backend.threads_of("u")) == ["a", "c"]
    assert [it.conversation_id for it in await store.list_conversations(scope="u")] == ["c", "a"]
    assert len(await store.list_conversations()) == 4
    assert (await backend.forget_user("u"))["threads"] == 2
    assert await store.list_conversations(scope="u") == []


async def test_the_list_of_a_scope_reads_its_threads_only(
    store: LocusConversationStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    for n in range(6):
        await saved(store, f"c{n}", "x", scope="u" if n % 3 == 0 else "v")
    read: list[Any] = []
    find_heads = store.log.find_heads

    async def counting(wanted: Any) -> Any:
        found = await find_heads(wanted)
        read.extend(found)
        return found

    monkeypatch.setattr(store.log, "find_heads", counting)
    assert len(await store.list_conversations(scope="u")) == len(read) == 2


async def test_a_scope_that_can_be_no_user_is_refused(store: LocusConversationStore) -> None:
    with pytest.raises(InvalidArgumentError, match="scope"):
        await saved(store, "a", "x", scope="x" * 256)
    assert await store.list_conversations() == []
