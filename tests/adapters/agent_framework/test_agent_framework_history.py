"""Agent Framework's history provider beside the framework's own one, and with its agents."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
from lazily import TESTS_RUN
from log_urls import EACH, url_of
from storages.memory import BareBackend

from locus_store import (
    IntegrityError,
    InvalidArgumentError,
    SerializationError,
    UnsupportedError,
    open_message_log,
)
from locus_store.testing.kit import HOSTILE_IDS

if TESTS_RUN:
    from agent_framework import (
        Agent,
        AgentSession,
        Content,
        FileHistoryProvider,
        HistoryProvider,
        InMemoryCheckpointStorage,
        Message,
        WorkflowBuilder,
        tool,
    )
    from scripted_agent import Scripted, texts, turn

    from locus_store.adapters.agent_framework import LocusCheckpointStorage, LocusHistoryProvider

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.filterwarnings("ignore:.*experimental.*"),  # theirs of files
]


@pytest.fixture(params=EACH)
async def provider(request: Any, tmp_path: Path) -> AsyncIterator[LocusHistoryProvider]:
    async with LocusHistoryProvider.from_url(url_of(request.param, request, tmp_path)) as made:
        yield made


@pytest.fixture(params=(*EACH, "theirs"))
async def either(request: Any, tmp_path: Path) -> AsyncIterator[Any]:
    """Our provider, and the framework's own one of files."""
    if request.param == "theirs":
        yield FileHistoryProvider(tmp_path)
        return
    async with LocusHistoryProvider.from_url(url_of(request.param, request, tmp_path)) as made:
        yield made


def user(text: str, **options: Any) -> Message:
    return Message(role="user", contents=[text], **options)


def says(text: str) -> Message:
    return Message(role="assistant", contents=[text])


class TestProviders:
    """Promises of a provider: ours and the framework's keep them."""

    async def test_messages_come_back_in_order(self, either: Any) -> None:
        assert isinstance(either, HistoryProvider)
        assert await either.get_messages("s") == []
        call = Content.from_function_call("c", "f", arguments={"n": [1.5, None, "ß%_'"]})
        saved = [
            user("a", message_id="m1", additional_properties={"k": [1]}),
            Message(role="assistant", contents=[call], author_name="x"),
            Message(role="tool", contents=[Content.from_function_result("c", result="r")]),
        ]
        await either.save_messages("s", saved[:1])
        await either.save_messages("s", saved[1:])
        await either.save_messages("s", [])
        found = await either.get_messages("s")
        assert [it.to_dict() for it in found] == [it.to_dict() for it in saved]

    async def test_messages_that_repeat_the_stored_ones_are_not_stored_again(
        self, either: Any
    ) -> None:
        turn = [user("a"), says("b")]
        await either.save_messages("s", turn)
        await either.save_messages("s", [*turn, user("c"), says("d")])
        assert texts(await either.get_messages("s")) == [*"abcd"]
        await either.save_messages("s", [says("d"), user("e")])
        assert texts(await either.get_messages("s")) == [*"abcde"]
        await either.save_messages("s", [user("e"), says("f")])
        assert texts(await either.get_messages("s")) == [*"abcdeef"]

    async def test_sessions_are_kept_apart(self, either: Any) -> None:
        names = sorted({it for it in HOSTILE_IDS if len(it) < 100})[:10]
        for it in names:
            await either.save_messages(it, [user(it)])
        assert [texts(await either.get_messages(it)) for it in names] == [[it] for it in names]
        await either.save_messages(None, [user("of no session")])
        assert texts(await either.get_messages(None)) == ["of no session"]

    async def test_excluded_messages_are_left_out_on_request(self, either: Any) -> None:
        left_out = user("old", additional_properties={"_excluded": True})
        await either.save_messages("s", [left_out, user("new")])
        assert texts(await either.get_messages("s")) == ["old", "new"]
        either.skip_excluded = True
        assert texts(await either.get_messages("s")) == ["new"]

    async def test_racing_saves_lose_nothing(self, either: Any) -> None:
        async def write(n: int) -> None:
            for turn in range(3):
                await either.save_messages("s", [user(f"{n}-{turn}-a"), says(f"{n}-{turn}-b")])

        await asyncio.gather(*map(write, range(4)))
        found = texts(await either.get_messages("s"))
        pairs = [found[it : it + 2] for it in range(0, len(found), 2)]
        assert sorted(pairs) == sorted(
            [f"{n}-{turn}-a", f"{n}-{turn}-b"] for n in range(4) for turn in range(3)
        )


# --- with agents


async def test_a_second_turn_has_the_first_one(either: Any) -> None:
    await turn(either, Scripted("For which day?"), "Two tickets to Porto.")
    client = Scripted("Booked.")
    assert await turn(either, client, "Friday.") == "Booked."
    assert texts(client.asked[0]) == ["Two tickets to Porto.", "For which day?", "Friday."]


async def test_a_tool_call_is_kept_with_its_result(either: Any) -> None:
    @tool(approval_mode="never_require")
    def seats() -> str:
        """Return the free seats."""
        return "12A"

    call = Content.from_function_call("c", "seats", arguments="{}")
    await turn(either, Scripted(call, "Seat 12A."), "Which seat?", tools=[seats])
    found = await either.get_messages("s")
    assert [it.contents[0].type for it in found] == [
        "text", "function_call", "function_result", "text"
    ]  # fmt: skip
    assert found[2].contents[0].result == "12A"


async def test_an_interrupted_run_continues(either: Any) -> None:
    paid = []

    @tool(approval_mode="always_require")
    def pay(euros: int) -> str:
        """Pay."""
        paid.append(euros)
        return "paid"

    call = Content.from_function_call("c", "pay", arguments='{"euros": 3}')
    client = Scripted(call, "Done.")
    agent = Agent(client=client, name="a", tools=[pay], context_providers=[either])
    session = AgentSession(session_id="s")
    paused = await agent.run("Pay.", session=session)
    (request,) = paused.user_input_requests
    answer = Message(role="user", contents=[request.to_function_approval_response(approved=True)])
    again = Agent(client=client, name="a", tools=[pay], context_providers=[either])
    result = await again.run(answer, session=AgentSession.from_dict(session.to_dict()))
    assert (result.text, paid) == ("Done.", [3])


@pytest.mark.full
async def test_another_process_continues_a_session(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'a.db'}"
    async with LocusHistoryProvider.from_url(url) as provider:
        await turn(provider, Scripted("For which day?"), "Two tickets to Porto.")
    script = f"""
import asyncio
import json
from locus_store.adapters.agent_framework import LocusHistoryProvider
from scripted_agent import Scripted, texts, turn

async def main():
    async with LocusHistoryProvider.from_url({url!r}) as provider:
        client = Scripted("Booked.")
        await turn(provider, client, "Friday.")
        print(texts(client.asked[0]))

asyncio.run(main())
"""
    paths = {"PYTHONPATH": ":".join(it for it in sys.path if it)}
    done = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-c", script],
        check=True,
        capture_output=True,
        text=True,
        env=paths,
    )
    assert "['Two tickets to Porto.', 'For which day?', 'Friday.']" in done.stdout


@pytest.mark.parametrize("kind", ["ours", "theirs"])
async def test_an_agent_in_a_workflow_continues_from_its_checkpoint(
    kind: str, tmp_path: Path
) -> None:
    url = f"sqlite:///{tmp_path / 'a.db'}"
    theirs = InMemoryCheckpointStorage()
    async with LocusCheckpointStorage.from_url(url) as ours:
        storage = ours if kind == "ours" else theirs

        def made(client: Scripted) -> Any:
            agent = Agent(client=client, name="clerk", id="clerk")
            builder = WorkflowBuilder(start_executor=agent, name="talk", checkpoint_storage=storage)
            return builder.build()

        await made(Scripted("For which day?")).run("Two tickets to Porto.")
        latest = await storage.get_latest(workflow_name="talk")
        client = Scripted("Booked.")
        again = made(client)
        await again.run(checkpoint_id=latest.checkpoint_id)
        await again.run("Friday.")
        assert texts(client.asked[0]) == ["Two tickets to Porto.", "For which day?", "Friday."]


# --- ours alone


async def test_messages_are_a_log(provider: LocusHistoryProvider) -> None:
    await provider.save_messages("s", [user("Two tickets to Porto."), says("For which day?")])
    assert [it.role for it in await provider.log.load("s")] == ["user", "assistant"]
    assert [it.role for it in await provider.log.page("s", search="which DAY")] == ["assistant"]


async def test_providers_of_one_agent_have_logs_of_their_own(
    provider: LocusHistoryProvider,
) -> None:
    audit = LocusHistoryProvider(provider.log, source_id="audit", load_messages=False)
    agent = Agent(client=Scripted("Yes."), name="a", context_providers=[provider, audit])
    await agent.run("Hi.", session=AgentSession(session_id="s"))
    for it in (provider, audit):
        assert texts(await it.get_messages("s")) == ["Hi.", "Yes."]
    assert [it.namespace for it in await provider.log.logs("s")] == ["", "audit"]


async def test_a_cancelled_save_ends_first(provider: LocusHistoryProvider) -> None:
    started = asyncio.Event()
    change = provider.log.change

    async def noted(wanted: Any) -> Any:
        started.set()
        return await change(wanted)

    provider.log.change = noted
    task = asyncio.create_task(provider.save_messages("s", [user("a"), says("b")]))
    await started.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert texts(await provider.get_messages("s")) == ["a", "b"]


async def test_a_message_that_is_not_json_is_refused(provider: LocusHistoryProvider) -> None:
    odd = user("a", additional_properties={"x": json.loads("[" * 210 + "]" * 210)})
    with pytest.raises(SerializationError):
        await provider.save_messages("s", [user("first"), odd])
    assert await provider.get_messages("s") == []


@pytest.mark.parametrize("content", ["text", 5, {"contents": [{"type": None}]}])
async def test_a_hostile_row_is_an_error(provider: LocusHistoryProvider, content: Any) -> None:
    await provider.log.append("s", [(content, "user")])
    with pytest.raises(IntegrityError):
        await provider.get_messages("s")


async def test_a_provider_over_what_is_open_leaves_it_open(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'a.db'}"
    async with open_message_log(url) as log:
        async with LocusHistoryProvider(log) as provider:
            await provider.save_messages("s", [user("a")])
        assert await provider.for_tenant("acme").get_messages("s") == []
        assert texts(await provider.get_messages("s")) == ["a"]
    options = {"source_id": "x", "skip_excluded": True, "store_inputs": False}
    async with LocusHistoryProvider.from_url(url, tenant="acme", **options) as other:
        assert (other.source_id, other.skip_excluded, other.store_inputs) == ("x", True, False)
        assert await other.get_messages("s") == []
    with pytest.raises(UnsupportedError):
        LocusHistoryProvider(BareBackend())


async def test_a_search_finds_what_a_person_reads(provider: LocusHistoryProvider) -> None:
    image = Content.from_data(b"picture", "image/png")
    call = Content.from_function_call("call-1", "find_flights", arguments='{"town": "Lisbon"}')
    result = Content.from_function_result("call-1", result={"carrier": ["TAP", 271]})
    messages = [
        user("Hello"),
        Message("user", ["Look at this", image]),
        Message(
            "assistant",
            [Content.from_text_reasoning(text="Porto", protected_data="ZW5jcnlwdGVk"), call],
            message_id="msg-1",
        ),
        Message("tool", [result]),
    ]
    await provider.save_messages("s", messages)
    for text in ("hello", "look", "porto", "find_flights", "LISBON", "TAP", "271"):
        assert len(await provider.log.page("s", search=text)) == 1, text
    hidden = ["user", "assistant", "tool", "cGljdHVyZQ", "image/png", "ZW5j", "call-1", "msg-1"]
    for text in (*hidden, "town", "carrier", "function"):
        assert await provider.log.page("s", search=text) == [], text


async def test_messages_belong_to_the_user_of_the_provider(
    provider: LocusHistoryProvider,
) -> None:
    mine = LocusHistoryProvider(provider.log, user_id="u")
    await mine.save_messages("s", [user("a")])
    await provider.save_messages("t", [user("b")])
    assert await provider.log.backend.threads_of("u") == ["s"]


def test_what_is_no_name_of_a_source_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="source_id"):
        LocusHistoryProvider(open_message_log("memory://"), source_id="")
