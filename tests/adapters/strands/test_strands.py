"""Strands Agents' session repository beside its own file repository, and with its agents."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from lazily import TESTS_RUN
from log_urls import EACH, url_of
from storages.memory import BareBackend

from locus_store import ConflictError, LocusStoreError, UnsupportedError, blocking
from locus_store.backends import SQLiteBackend

if TESTS_RUN:
    from strands import Agent, tool
    from strands.models import Model
    from strands.session import FileSessionManager, RepositorySessionManager
    from strands.types.exceptions import SessionException
    from strands.types.session import Session, SessionAgent, SessionMessage, SessionType

    from locus_store.adapters.strands import (
        LocusSessionRepository,
        SessionConflictError,
        SessionNotFoundError,
    )

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture(params=EACH)
def repository(request: Any, tmp_path: Path) -> Iterator[LocusSessionRepository]:
    with LocusSessionRepository.from_url(url_of(request.param, request, tmp_path)) as made:
        yield made


@pytest.fixture(params=(*EACH, "theirs"))
def either(request: Any, tmp_path: Path) -> Iterator[Any]:
    """Our repository, and the framework's own one of files."""
    if request.param == "theirs":
        yield FileSessionManager("other", storage_dir=str(tmp_path / "theirs"))
        return
    with LocusSessionRepository.from_url(url_of(request.param, request, tmp_path)) as made:
        yield made


def session(name: str = "s") -> Session:
    return Session(session_id=name, session_type=SessionType.AGENT)


def state(agent_id: str = "a", **values: Any) -> SessionAgent:
    return SessionAgent(agent_id=agent_id, state=values, conversation_manager_state={})


def message(index: int, text: str = "hi", **fields: Any) -> SessionMessage:
    said: Any = {"role": "user", "content": [{"text": text}]}
    return SessionMessage(message=said, message_id=index, **fields)


def ready(repository: Any, *agents: str) -> Any:
    repository.create_session(session())
    for it in agents or ("a",):
        repository.create_agent("s", state(it))
    return repository


class TestRepositories:
    """Promises of a repository: ours and the framework's keep them."""

    def test_a_session_comes_back(self, either: Any) -> None:
        assert either.read_session("s") is None
        made = either.create_session(session())
        assert either.read_session("s") == made
        with pytest.raises(SessionException):
            either.create_session(session())
        either.delete_session("s")
        assert either.read_session("s") is None
        with pytest.raises(SessionException):
            either.delete_session("s")

    def test_an_agent_comes_back_and_changes(self, either: Any) -> None:
        either.create_session(session())
        assert either.read_agent("s", "a") is None
        first = state(n=1, bytes_of=b"\x00\xff", text="ß%_'")
        either.create_agent("s", first)
        assert either.read_agent("s", "a") == first
        either.update_agent("s", state(n=2))
        found = either.read_agent("s", "a")
        assert (found.state, found.created_at) == ({"n": 2}, first.created_at)
        with pytest.raises(SessionException):
            either.update_agent("s", state("none"))

    def test_messages_come_back_in_pages(self, either: Any) -> None:
        ready(either)
        assert either.list_messages("s", "a") == []
        made = [message(n, str(n)) for n in range(12)]
        for it in made:
            either.create_message("s", "a", it)
        assert either.list_messages("s", "a") == made
        assert either.list_messages("s", "a", offset=10) == made[10:]
        assert either.list_messages("s", "a", limit=3, offset=9) == made[9:]
        assert either.list_messages("s", "a", limit=0) == []
        assert either.list_messages("s", "a", offset=50) == []
        assert either.read_message("s", "a", 3) == made[3]
        assert either.read_message("s", "a", 99) is None
        with pytest.raises(SessionException):
            either.list_messages("s", "none")

    def test_a_message_is_redacted_in_its_place(self, either: Any) -> None:
        ready(either)
        for n in range(3):
            either.create_message("s", "a", message(n, created_at=f"2026-01-0{n + 1}"))
        redacted: Any = {"role": "user", "content": [{"text": "[redacted]"}]}
        either.update_message("s", "a", message(1, redact_message=redacted))
        found = either.list_messages("s", "a")
        assert [it.message_id for it in found] == [0, 1, 2]
        assert (found[1].to_message(), found[1].created_at) == (redacted, "2026-01-02")
        with pytest.raises(SessionException):
            either.update_message("s", "a", message(9))

    def test_agents_of_a_session_are_kept_apart(self, either: Any) -> None:
        ready(either, "a", "b")
        either.create_message("s", "a", message(0, "to a"))
        either.create_message("s", "b", message(0, "to b"))
        said = [either.list_messages("s", it)[0].message["content"][0]["text"] for it in "ab"]
        assert said == ["to a", "to b"]

    def test_bytes_in_a_message_come_back(self, either: Any) -> None:
        ready(either)
        image: Any = {"image": {"format": "png", "source": {"bytes": b"\x89PNG\x00"}}}
        made = SessionMessage(message={"role": "user", "content": [image]}, message_id=0)
        either.create_message("s", "a", made)
        assert either.list_messages("s", "a") == [made]

    def test_the_state_of_several_agents_comes_back(self, either: Any) -> None:
        graph: Any = SimpleNamespace(id="g", serialize_state=lambda: {"n": 1})
        either.create_session(session())
        assert either.read_multi_agent("s", "g") is None
        with pytest.raises(SessionException):
            either.update_multi_agent("s", graph)
        either.create_multi_agent("s", graph)
        assert either.read_multi_agent("s", "g") == {"n": 1}
        graph.serialize_state = lambda: {"n": [2]}
        either.update_multi_agent("s", graph)
        assert either.read_multi_agent("s", "g") == {"n": [2]}


# --- with the framework's agents


if TESTS_RUN:

    class Scripted(Model):
        """A model that gives the answers of a list, and keeps what it was asked."""

        def __init__(self, *answers: Any) -> None:
            self.answers = list(answers)
            self.asked: list[Any] = []

        def update_config(self, **_: Any) -> None:
            """There is no configuration."""

        def get_config(self) -> Any:
            return {}

        def structured_output(self, *_: Any, **__: Any) -> Any:
            raise NotImplementedError

        async def stream(self, messages: Any, *_: Any, **__: Any) -> Any:
            self.asked.append([dict(it) for it in messages])
            answer = self.answers.pop(0)
            yield {"messageStart": {"role": "assistant"}}
            if isinstance(answer, dict):
                yield {"contentBlockStart": {"start": {"toolUse": answer}}}
                yield {"contentBlockDelta": {"delta": {"toolUse": {"input": "{}"}}}}
            else:
                yield {"contentBlockStart": {"start": {}}}
                yield {"contentBlockDelta": {"delta": {"text": answer}}}
            yield {"contentBlockStop": {}}
            yield {
                "messageStop": {
                    "stopReason": "tool_use" if isinstance(answer, dict) else "end_turn"
                }
            }

    @tool
    def seats() -> str:
        """Return the free seats."""
        return "12A"


def agent(repository: Any, model: Scripted, **options: Any) -> Agent:
    manager = RepositorySessionManager("s", repository)
    return Agent(
        model=model, agent_id="a", session_manager=manager, callback_handler=None, **options
    )


def said(messages: Any) -> list[str]:
    return [block["text"] for it in messages for block in it["content"] if "text" in block]


def test_an_agent_continues_its_session_after_a_restart(
    repository: LocusSessionRepository,
) -> None:
    first = agent(repository, Scripted("For which day?"), state={"step": 1})
    first("Two tickets to Porto.")
    model = Scripted("Booked.")
    second = agent(repository, model)
    assert second.state.get("step") == 1
    second("Friday.")
    assert said(model.asked[0]) == ["Two tickets to Porto.", "For which day?", "Friday."]
    third = agent(repository, Scripted())
    assert said(third.messages)[-1] == "Booked."


def test_a_tool_call_is_kept_with_its_result(repository: LocusSessionRepository) -> None:
    call = {"name": "seats", "toolUseId": "t1"}
    agent(repository, Scripted(call, "Seat 12A."), tools=[seats])("Which seat?")
    kinds = [next(iter(it["content"][0])) for it in agent(repository, Scripted()).messages]
    assert kinds == ["text", "toolUse", "toolResult", "text"]


def test_a_second_agent_on_one_session_overwrites_nothing(
    repository: LocusSessionRepository,
) -> None:
    agent(repository, Scripted("yes"))("first")
    one, other = (agent(repository, Scripted("1")) for _ in range(2))
    one("from one")
    with pytest.raises(SessionConflictError, match="create the agent again") as caught:
        other("from the other")
    assert isinstance(caught.value, SessionException)
    assert isinstance(caught.value, LocusStoreError)
    assert said(agent(repository, Scripted()).messages) == ["first", "yes", "from one", "1"]


def test_of_racing_messages_with_one_index_one_is_stored(
    repository: LocusSessionRepository,
) -> None:
    ready(repository)
    begin = threading.Barrier(4)

    def write(n: int) -> bool:
        begin.wait()
        try:
            repository.create_message("s", "a", message(0, str(n)))
        except SessionConflictError:
            return False
        return True

    with ThreadPoolExecutor(4) as pool:
        assert sorted(pool.map(write, range(4))) == [False, False, False, True]
    assert len(repository.list_messages("s", "a")) == 1


# --- ours alone


def test_errors_are_of_both_kinds(repository: LocusSessionRepository) -> None:
    repository.create_session(session())
    with pytest.raises(SessionConflictError) as exists:
        repository.create_session(session())
    with pytest.raises(SessionNotFoundError) as absent:
        repository.list_messages("s", "a")
    for it in (exists, absent):
        assert isinstance(it.value, SessionException)
        assert isinstance(it.value, LocusStoreError)


def test_what_was_opened_elsewhere_stays_open(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'a.db'}"
    with blocking.open_message_log(url) as log:
        with LocusSessionRepository(log) as shared:
            ready(shared)
        assert shared.for_tenant("acme").read_session("s") is None
        assert [it.namespace for it in log.logs("s")] == ["agent/a", "strands-session"]
    with LocusSessionRepository(SQLiteBackend(tmp_path / "a.db")) as over:
        assert over.read_session("s") is not None
        with pytest.raises(ConflictError):
            over.create_session(session())
    with pytest.raises(UnsupportedError):
        LocusSessionRepository(BareBackend())


def test_a_search_finds_what_a_person_reads(repository: LocusSessionRepository) -> None:
    ready(repository, "a")
    png: Any = {"image": {"format": "png", "source": {"bytes": b"picture"}}}
    document: Any = {"format": "pdf", "name": "The plan", "source": {"bytes": b"document"}}
    result = {"content": [{"text": "Not on Mondays"}, {"json": {"carrier": "TAP"}}, png]}
    contents: list[list[Any]] = [
        [{"text": "Look at this"}, png, {"document": document}],
        [
            {"reasoningContent": {"reasoningText": {"text": "Porto", "signature": "c2lnbmVk"}}},
            {"reasoningContent": {"redactedContent": b"encrypted"}},
            {"toolUse": {"toolUseId": "tooluse_1", "name": "Flights", "input": {"town": "Rome"}}},
        ],
        [{"toolResult": {"toolUseId": "tooluse_1", "status": "success", **result}}],
    ]
    for index, content in enumerate(contents):
        new = SessionMessage(message={"role": "user", "content": content}, message_id=index)
        repository.create_message("s", "a", new)
    secret = message(3, "secret")
    secret.redact_message = {"role": "user", "content": [{"text": "withheld"}]}
    repository.create_message("s", "a", secret)
    log = repository.log
    for text in ("look", "plan", "Porto", "flights", "Rome", "Mondays", "TAP", "withheld"):
        assert len(log.page("s", namespace="messages/a", search=text)) == 1, text
    hidden = ["user", "cGljdHVyZQ", "ZG9jdW1lbnQ", "c2ln", "tooluse", "success", "town", "png"]
    for text in (*hidden, "carrier", "secret"):
        assert log.page("s", namespace="messages/a", search=text) == [], text


def test_sessions_belong_to_the_user_of_the_repository(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'a.db'}"
    with LocusSessionRepository.from_url(url, user_id="u") as repository:
        ready(repository, "a").create_message("s", "a", message(0))

    async def forgotten() -> dict[str, int]:
        async with SQLiteBackend(tmp_path / "a.db") as backend:
            return await backend.forget_user("u")

    counts = asyncio.run(forgotten())
    assert (counts["threads"], counts["messages"]) == (1, 3)
