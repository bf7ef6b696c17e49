"""The OpenAI Agents SDK's session beside the SDK's own SQL sessions, and in its runner."""

from __future__ import annotations

import asyncio
import gc
import json
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from lazily import TESTS_RUN, Later
from log_urls import EACH, OURS, url_of
from storages.memory import BareBackend

from locus_store import (
    IntegrityError,
    InvalidArgumentError,
    NewMessage,
    NotOwnerError,
    SerializationError,
    UnsupportedError,
    open_message_log,
)
from locus_store.testing.kit import HOSTILE_IDS, INVALID_IDS

if TESTS_RUN:
    from agents import Agent, ModelResponse, Runner, Usage, function_tool, set_tracing_disabled
    from agents.extensions.memory import EncryptedSession, SQLAlchemySession
    from agents.memory import (
        OpenAIResponsesCompactionSession,
        Session,
        SessionSettings,
        SQLiteSession,
    )
    from agents.models.interface import Model
    from openai.types.responses import (
        ResponseFunctionToolCall,
        ResponseOutputMessage,
        ResponseOutputText,
    )

    from locus_store.adapters.openai_agents import LocusSession

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

pytestmark = pytest.mark.anyio
THEIRS = ("SQLiteSession", "SQLAlchemySession")
if TESTS_RUN:
    set_tracing_disabled(disabled=True)


@pytest.fixture(params=EACH)
async def log(request: Any, tmp_path: Path) -> AsyncIterator[Any]:
    url = url_of(request.param, request, tmp_path)
    async with open_message_log(url) as opened:
        yield opened


@pytest.fixture(params=(*EACH, *THEIRS))
async def named(request: Any, tmp_path: Path) -> AsyncIterator[Callable[..., Any]]:
    """Return sessions by their ids, all on one storage: ours, and the SDK's own."""
    path, made = tmp_path / "theirs.db", []
    if request.param in OURS:
        url = url_of(request.param, request, tmp_path)
        async with open_message_log(url) as opened:
            yield lambda name, settings=None: LocusSession(name, opened, session_settings=settings)
        return

    def theirs(name: str, settings: Any = None) -> Any:
        if request.param == "SQLiteSession":
            made.append(SQLiteSession(name, path, session_settings=settings))
        else:
            url = f"sqlite+aiosqlite:///{path}"
            options = {"session_settings": settings, "create_tables": True}
            made.append(SQLAlchemySession.from_url(name, url=url, **options))
        return made[-1]

    yield theirs
    for it in made:
        await it.engine.dispose() if isinstance(it, SQLAlchemySession) else it.close()
    gc.collect()


def user(text: str) -> Any:
    return {"role": "user", "content": text}


def texts(items: list[Any]) -> list[Any]:
    return [it["content"] for it in items]


class TestSessions:
    """Promises of a session: ours and the SDK's keep them."""

    async def test_it_is_a_session(self, named: Any) -> None:
        assert isinstance(named("s"), Session)

    async def test_items_come_back_equal_and_in_order(self, named: Any) -> None:
        call = {"type": "function_call", "call_id": "c", "name": "f", "arguments": '{"a": 1}'}
        odd = {"type": "x", "n": [1.0, 2**53 + 1, None, True, {"": "ß%_'\x00"}]}
        await named("s").add_items([user("a"), call])
        await named("s").add_items([odd, user("a")])
        assert await named("s").get_items() == [user("a"), call, odd, user("a")]

    async def test_items_of_one_moment_keep_their_order(self, named: Any) -> None:
        session = named("s")
        for batch in range(4):
            await session.add_items([user(f"{batch}-{n}") for n in range(50)])
        expected = [f"{batch}-{n}" for batch in range(4) for n in range(50)]
        assert texts(await session.get_items()) == expected
        assert texts(await session.get_items(60)) == expected[-60:]

    async def test_a_limit_counts_the_newest(self, named: Any) -> None:
        session = named("s")
        assert await session.get_items() == await session.get_items(3) == []
        await session.add_items([user(str(n)) for n in range(5)])
        found = [texts(await session.get_items(limit)) for limit in (2, 5, 9, 2**63 - 1, 0, -1)]
        whole = ["0", "1", "2", "3", "4"]
        assert found == [["3", "4"], whole, whole, whole, [], whole]

    @pytest.mark.parametrize("settings", [Later(lambda: SessionSettings(limit=2)), {"limit": 2}])
    async def test_the_settings_have_the_default_limit(self, named: Any, settings: Any) -> None:
        session = named("s", settings)
        await session.add_items([user(str(n)) for n in range(5)])
        assert texts(await session.get_items()) == ["3", "4"]
        assert texts(await session.get_items(3)) == ["2", "3", "4"]
        assert session.session_settings.limit == 2
        assert named("t").session_settings.limit is None

    async def test_pop_removes_the_newest(self, named: Any) -> None:
        session = named("s")
        assert await session.pop_item() is None
        await session.add_items([user("a"), user("b")])
        assert await session.pop_item() == user("b")
        await session.add_items([user("c")])
        assert texts(await session.get_items()) == ["a", "c"]
        assert [await session.pop_item() for _ in range(3)] == [user("c"), user("a"), None]

    async def test_clear_removes_the_items_of_one_session(self, named: Any) -> None:
        session, other = named("s"), named("t")
        await session.clear_session()
        await session.add_items([user("a")])
        await other.add_items([user("b")])
        await session.clear_session()
        assert await session.get_items() == []
        assert texts(await other.get_items()) == ["b"]
        await session.add_items([user("c")])
        assert texts(await session.get_items()) == ["c"]

    async def test_adding_nothing_changes_nothing(self, named: Any) -> None:
        await named("s").add_items([])
        assert await named("s").get_items() == []

    async def test_names_are_kept_apart(self, named: Any) -> None:
        names = sorted({it for it in HOSTILE_IDS if len(it) < 200})
        for it in names[:12]:
            await named(it).add_items([user(it)])
        assert [texts(await named(it).get_items()) for it in names[:12]] == [
            [it] for it in names[:12]
        ]

    async def test_an_item_that_is_no_json_is_refused_and_no_other_is_stored(
        self, named: Any
    ) -> None:
        session = named("s")
        for content in (object(), b"bytes"):
            with pytest.raises((TypeError, ValueError)):
                await session.add_items([user("a"), {"role": "user", "content": content}])
        assert await session.get_items() == []
        await session.add_items([{"role": "user", "content": ("a", {1: "b"})}])
        assert await session.get_items() == [{"role": "user", "content": ["a", {"1": "b"}]}]

    async def test_an_item_of_any_role_is_kept(self, named: Any) -> None:
        """As by the SDK's own sessions, which look at no role."""
        items = [{"role": it, "content": "x"} for it in ("", "x" * 300, "a\0b", "\ud800", 7, None)]
        await named("s").add_items(items)
        assert await named("s").get_items() == items

    async def test_racing_first_writes_lose_nothing(self, named: Any) -> None:
        async def write(n: int) -> None:
            session = named("s")
            for turn in range(3):
                await session.add_items([user(f"{n}-{turn}-{it}") for it in range(3)])

        await asyncio.gather(*map(write, range(4)))
        found = texts(await named("s").get_items())
        batches = [found[it : it + 3] for it in range(0, 36, 3)]
        assert sorted(found) == sorted(
            f"{n}-{turn}-{it}" for n in range(4) for turn in range(3) for it in range(3)
        )
        assert all([it[-1] for it in batch] == ["0", "1", "2"] for batch in batches)

    async def test_racing_pops_give_each_item_once(self, named: Any) -> None:
        await named("s").add_items([user(str(n)) for n in range(6)])
        found = await asyncio.gather(*(named("s").pop_item() for _ in range(8)))
        assert sorted(texts([it for it in found if it])) == [str(n) for n in range(6)]
        assert found.count(None) == 2

    async def test_a_cancelled_caller_waits_for_its_change(self, named: Any) -> None:
        session = named("s")
        await session.add_items([user("first")])
        task = asyncio.create_task(session.add_items([user("a"), user("b")]))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert texts(await session.get_items()) == ["first", "a", "b"]


class TestCompaction:
    """Promises of a snapshot for compaction: ours and the SDK's keep them."""

    async def test_a_suffix_is_replaced(self, named: Any) -> None:
        session = named("s")
        await session.add_items([user(str(n)) for n in range(6)])
        snapshot = await session._get_compaction_snapshot(3)
        assert (texts(snapshot.items), snapshot.complete) == (["3", "4", "5"], False)
        assert await snapshot.replace_suffix(1, [user("summary")]) is True
        assert texts(await session.get_items()) == ["0", "1", "2", "3", "summary"]
        await session.add_items([user("next")])
        assert texts(await session.get_items())[-2:] == ["summary", "next"]
        whole = await session._get_compaction_snapshot(6)
        assert (len(whole.items), whole.complete) == (6, True)
        assert await whole.replace_suffix(0, [user("all"), user("of it")]) is True
        assert texts(await session.get_items()) == ["all", "of it"]

    @pytest.mark.parametrize("change", ["add", "pop", "clear", "compact"])
    async def test_a_suffix_that_has_changed_is_not_replaced(self, named: Any, change: str) -> None:
        session, other = named("s"), named("s")
        await session.add_items([user(str(n)) for n in range(4)])
        snapshot = await session._get_compaction_snapshot(2)
        if change == "add":
            await other.add_items([user("new")])
        elif change == "pop":
            await other.pop_item()
        elif change == "clear":
            await other.clear_session()
            await other.add_items([user("2"), user("3")])
        else:
            faster = await other._get_compaction_snapshot(2)
            assert await faster.replace_suffix(0, [user("x"), user("y")])
        before = await session.get_items()
        assert await snapshot.replace_suffix(0, [user("summary")]) is False
        assert await session.get_items() == before

    async def test_an_empty_suffix_is_not_replaced(self, named: Any) -> None:
        session = named("s")
        empty = await session._get_compaction_snapshot(2)
        assert (empty.items, empty.complete) == ([], True)
        assert await empty.replace_suffix(0, [user("x")]) is False
        await session.add_items([user("a")])
        found = await session._get_compaction_snapshot(2)
        assert await found.replace_suffix(1, [user("x")]) is False

    async def test_expired_items_before_the_suffix_are_removed(self, named: Any) -> None:
        session = named("s")
        await session.add_items([user(it) for it in ("old",) * 5 + ("kept", "old", "a", "b")])
        snapshot = await session._get_compaction_snapshot(
            2, prune_prefix=lambda it: it["content"] == "old"
        )
        assert await snapshot.replace_suffix(0, [user("summary")]) is True
        assert texts(await session.get_items()) == ["kept", "old", "summary"]

    async def test_a_subclass_gives_no_snapshot(self, named: Any) -> None:
        session = named("s")
        session.__class__ = type("Mine", (type(session),), {})
        assert await session._get_compaction_snapshot(2) is None


# --- with the SDK's runner


if TESTS_RUN:

    class Scripted(Model):
        """A model that gives the outputs of a list, and keeps what it was asked."""

        def __init__(self, *outputs: Any) -> None:
            self.outputs = list(outputs)
            self.asked: list[Any] = []

        async def get_response(self, *_: Any, **options: Any) -> ModelResponse:
            self.asked.append(options["input"])
            return ModelResponse(
                output=[self.outputs.pop(0)],
                usage=Usage(),
                response_id=None,
            )

        def stream_response(self, *_: Any, **__: Any) -> Any:
            raise NotImplementedError


def says(text: str) -> ResponseOutputMessage:
    content = ResponseOutputText(text=text, type="output_text", annotations=[])
    return ResponseOutputMessage(
        id=f"m-{text}", content=[content], role="assistant", status="completed", type="message"
    )


def calls(name: str, arguments: str = "{}") -> ResponseFunctionToolCall:
    return ResponseFunctionToolCall(
        call_id=f"c-{name}", name=name, arguments=arguments, type="function_call"
    )


async def test_a_second_turn_has_the_first_one(log: Any) -> None:
    model = Scripted(says("For which day?"), says("Booked."))
    agent = Agent("a", model=model)
    await Runner.run(agent, "Two tickets to Porto.", session=LocusSession("s", log))
    result = await Runner.run(agent, "Friday.", session=LocusSession("s", log))
    assert result.final_output == "Booked."
    said = [it["content"] for it in model.asked[1] if it["role"] == "user"]
    assert said == ["Two tickets to Porto.", "Friday."]
    roles = [it.role for it in await log.load("s")]
    assert roles == ["user", "assistant", "user", "assistant"]
    assert [it.content["role"] for it in await log.page("s", search="which DAY")] == ["assistant"]


async def test_a_tool_call_is_kept_with_its_output(log: Any) -> None:
    @function_tool
    def seats() -> str:
        """Return the free seats."""
        return "12A"

    model = Scripted(calls("seats"), says("Seat 12A."), says("Yes."))
    agent = Agent("a", model=model, tools=[seats])
    await Runner.run(agent, "Which seat?", session=LocusSession("s", log))
    await Runner.run(agent, "Sure?", session=LocusSession("s", log))
    kinds = [it.get("type", "message") for it in model.asked[2]]
    assert kinds == ["message", "function_call", "function_call_output", "message", "message"]
    assert model.asked[2][2]["output"] == "12A"


async def test_an_interrupted_run_continues(log: Any) -> None:
    @function_tool(needs_approval=True)
    def pay() -> str:
        """Pay."""
        return "paid"

    model = Scripted(calls("pay"), says("Done."))
    agent = Agent("a", model=model, tools=[pay])
    paused = await Runner.run(agent, "Pay.", session=LocusSession("s", log))
    (interruption,) = paused.interruptions
    state = paused.to_state()
    state.approve(interruption)
    result = await Runner.run(agent, state, session=LocusSession("s", log))
    assert result.final_output == "Done."
    kinds = [it.content.get("type", "message") for it in await log.load("s")]
    assert kinds == ["message", "function_call", "function_call_output", "message"]


async def test_the_sdk_compacts_a_session(log: Any) -> None:
    summary = {"type": "compaction", "id": "cmp", "encrypted_content": "x"}

    async def compact(**_: Any) -> Any:
        return SimpleNamespace(output=[summary], usage=None)

    client: Any = SimpleNamespace(responses=SimpleNamespace(compact=compact))
    session = OpenAIResponsesCompactionSession(
        "s", LocusSession("s", log), client=client, compaction_mode="input"
    )
    await session.add_items([user(str(n)) for n in range(20)])
    await session.run_compaction({"force": True})
    assert await LocusSession("s", log).get_items() == [summary]


async def test_an_encrypted_session_stores_no_plain_text(log: Any) -> None:
    under = LocusSession("s", log)
    session = EncryptedSession("s", under, encryption_key="a secret")
    await session.add_items([user("Two tickets to Porto.")])
    assert await session.get_items() == [user("Two tickets to Porto.")]
    assert "Porto" not in str(await under.get_items())


# --- ours alone


async def test_a_damaged_item_is_an_error_and_no_item_is_left_out(tmp_path: Path) -> None:
    import sqlite3
    from contextlib import closing

    url = f"sqlite:///{tmp_path / 'a.db'}"
    async with LocusSession.from_url("s", url) as session:
        await session.add_items([user("a"), user("b")])
    with closing(sqlite3.connect(tmp_path / "a.db")) as connection, connection:
        connection.execute("UPDATE locus_messages SET role = 'x' WHERE sequence = 2")
    async with LocusSession.from_url("s", url) as session:
        for call in (session.get_items, session.pop_item):
            with pytest.raises(IntegrityError):
                await call()


async def test_sessions_of_a_process_share_a_log(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'a.db'}"
    async with open_message_log(url) as log:
        async with LocusSession("s", log) as session:
            await session.add_items([user("a")])
        await log.append("s", [NewMessage("beside")], namespace="notes")
        assert await LocusSession("s", log).for_tenant("acme").get_items() == []
        await session.clear_session()
        assert [it.namespace for it in await log.logs("s")] == ["notes"]
    async with LocusSession.from_url("s", url=url, session_settings={"limit": 1}) as session:
        await session.add_items([user("a"), user("b")])
        assert texts(await session.get_items()) == ["b"]
    with pytest.raises(UnsupportedError):
        LocusSession("s", BareBackend())


async def test_a_search_finds_what_a_person_reads(log: Any) -> None:
    image = "data:image/png;base64,iVBORw0KGgo="
    items: list[Any] = [
        {"role": "user", "content": "Hello"},
        {
            "role": "user",
            "content": [
                {"type": "input_text", "text": "Look at this"},
                {"type": "input_image", "image_url": image, "detail": "auto"},
                {"type": "input_file", "filename": "plan.pdf", "file_data": image},
            ],
        },
        {
            "type": "reasoning",
            "id": "rs_1",
            "summary": [{"type": "summary_text", "text": "Porto is far"}],
            "encrypted_content": "gAAAAAZW5jcnlwdGVk",
        },
        {
            "type": "function_call",
            "call_id": "call_1",
            "name": "find_flights",
            "arguments": '{"town": "Lisbon", "seats": 271}',
        },
        {"type": "function_call_output", "call_id": "call_1", "output": '{"carrier": "TAP"}'},
        {
            "type": "function_call_output",
            "call_id": "call_2",
            "output": [
                {"type": "input_text", "text": "A map"},
                {"type": "input_image", "image_url": image},
            ],
        },
        {"type": "image_generation_call", "id": "ig_1", "result": "aGVsbG8gd29ybGQ="},
        {
            "type": "message",
            "id": "msg_1",
            "role": "assistant",
            "status": "completed",
            "content": [{"type": "output_text", "text": f"Done {image}", "annotations": []}],
        },
    ]
    await LocusSession("s", log).add_items(items)
    read = ["Look at", "plan.pdf", "Porto", "find_flights", "lisbon", "271", "TAP", "A map", "Done"]
    for text in read:
        assert len(await log.page("s", search=text)) == 1, text
    hidden = ["user", "assistant", "input_text", "iVBOR", "aGVs", "gAAAA", "rs_1", "call_1"]
    hidden += ["completed", "town", "carrier", "data:", "function_call", "auto"]
    for text in hidden:
        assert await log.page("s", search=text) == [], text


async def test_a_compaction_of_a_whole_history_is_one_change(
    log: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = LocusSession("s", log, user_id="u")
    await session.add_items([user(str(n)) for n in range(5)])
    wrapped = OpenAIResponsesCompactionSession("s", session, client=SimpleNamespace())
    changes, change = [], log.change

    async def note(given: Any) -> Any:
        changes.append(given)
        return await change(given)

    monkeypatch.setattr(log, "change", note)
    await wrapped._replace_underlying_session_items(
        output_items=[user("all")], previous_items=await session.get_items()
    )
    assert await session.get_items() == [user("all")]
    assert len(changes) == 1
    deep = {"role": "user", "content": json.loads("[" * 210 + "]" * 210)}
    with pytest.raises(SerializationError):
        await session._atomic_replace_items([user("a"), deep])
    assert await session.get_items() == [user("all")]


async def test_a_subclass_replaces_its_items_itself(log: Any) -> None:
    class Mine(LocusSession):
        pass

    assert not await Mine("s", log)._atomic_replace_items([user("a")])
    assert await LocusSession("s", log).get_items() == []


async def test_a_session_belongs_to_its_user(log: Any, tmp_path: Path) -> None:
    await LocusSession("s", log, user_id="u").add_items([user("a")])
    assert await log.backend.threads_of("u") == ["s"]
    with pytest.raises(NotOwnerError):
        await LocusSession("s", log, user_id="v").add_items([user("b")])
    async with LocusSession.from_url("s", f"sqlite:///{tmp_path / 'u.db'}", user_id="u") as other:
        await other.add_items([user("a")])
        assert await other.log.backend.threads_of("u") == ["s"]


@pytest.mark.parametrize("name", INVALID_IDS, ids=ascii)
def test_what_is_no_id_is_refused_by_the_constructor(name: Any) -> None:
    with pytest.raises(InvalidArgumentError, match="session_id"):
        LocusSession(name, open_message_log("memory://"))


NO_ITEMS = ["hello", 5, None, ["hello"], {"role": "user"}, [None], [object()], [{"n": object()}]]


@pytest.mark.parametrize("items", NO_ITEMS)
async def test_what_is_no_list_of_items_is_refused(items: Any) -> None:
    async with open_message_log("memory://") as log:
        with pytest.raises(InvalidArgumentError, match=r"items? must be a (list|dict)"):
            await LocusSession("s", log).add_items(items)
        with pytest.raises(InvalidArgumentError, match="limit must be a whole number"):
            await LocusSession("s", log).get_items("5")
        assert await log.logs() == []
