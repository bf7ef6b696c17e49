"""Google ADK's memory service on each storage with a store, beside the framework's own one."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
import storages
from lazily import TESTS_RUN
from storages.memory import BareBackend

from locus_store import (
    IntegrityError,
    InvalidArgumentError,
    SerializationError,
    UnsupportedError,
    open_checkpointer,
    open_store,
)

if TESTS_RUN:
    from google.adk.cli.service_registry import load_services_module
    from google.adk.cli.utils.service_factory import create_memory_service_from_options
    from google.adk.events import Event
    from google.adk.memory import InMemoryMemoryService
    from google.adk.memory.memory_entry import MemoryEntry
    from google.adk.sessions import Session
    from google.genai import types

    from locus_store.adapters.adk import LocusMemoryService

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

pytestmark = pytest.mark.anyio

U = {"app_name": "app", "user_id": "u"}
V = {"app_name": "app", "user_id": "v"}

SAID = {
    "e0": "I like Python, and tea in the morning.",
    "e1": "My sister lives in Porto.",
    "e2": "Python 3.14 is out; my sister told me.",
    "e3": "私はPythonを使う",
    "e4": "서울에서 만나요",
    "e5": "The café is on foo_bar street 100%.",
    "e6": "Tea, tea, tea!",
}
QUERIES = (
    "Python",
    "what does my sister do with python?",
    "PORTO",
    "tea",
    "Pyth",
    "を使う",
    "서울",
    "café",
    "100% of ' \" OR 1=1 --",
    "nothing of this kind 42",
    "",
    "?!",
)


def said(key: str, text: str, at: float = 0.0) -> Event:
    content = types.Content(role="user", parts=[types.Part(text=text)])
    return Event(id=key, author="user", invocation_id="i", content=content, timestamp=at)


def session_of(*events: Event, user: str = "u", name: str = "s") -> Session:
    return Session(app_name="app", user_id=user, id=name, events=list(events))


if TESTS_RUN:
    CHAT = [said(key, text, at) for at, (key, text) in enumerate(SAID.items())]


async def ids(service: Any, query: str, names: dict[str, str] = U) -> list[str]:
    found = await service.search_memory(**names, query=query)
    return [it.id for it in found.memories]


def rows() -> list[Any]:
    kinds = {name: it for name, it in storages.STORAGES.items() if "store" in it.contracts}
    whole = {name: it for name, it in kinds.items() if not it.seams or name == "http-sqlite"}
    everyday = {"memory", "sqlite"}
    return [
        name if name in everyday else pytest.param(name, marks=pytest.mark.full) for name in whole
    ]


@pytest.fixture(params=rows())
def row(request: Any) -> Any:
    return storages.STORAGES[request.param].storage(request)


@pytest.fixture
async def place(row: Any, anyio_backend: str) -> AsyncIterator[Any]:
    await row.open()
    yield row
    await row.close()


@pytest.fixture
async def store(place: Any) -> AsyncIterator[Any]:
    async with place.store() as opened:
        yield opened


@pytest.fixture
def service(store: Any) -> LocusMemoryService:
    return LocusMemoryService(store)


class TestBesideTheFrameworks:
    async def test_the_same_queries_find_the_same_memories(self, service: Any) -> None:
        theirs = InMemoryMemoryService()
        for it in (service, theirs):
            await it.add_session_to_memory(session_of(*CHAT))
            await it.add_session_to_memory(session_of(said("v0", "Python of v"), user="v"))
        for query in QUERIES:
            for names in (U, V, {"app_name": "other", "user_id": "u"}):
                expected = await ids(theirs, query, names)
                assert sorted(await ids(service, query, names)) == sorted(expected), query
        found = await ids(service, "what does my sister do with python?")
        assert found[0] == (await ids(theirs, "what does my sister do with python?"))[0] == "e2"
        assert (await ids(service, "Pythonを"))[0] == "e3"

    async def test_a_memory_comes_back_whole(self, service: Any) -> None:
        parts = [
            types.Part(text="ß%_'😀 porto"),
            types.Part(inline_data=types.Blob(data=b"\xff\x00", mime_type="image/png")),
            types.Part(function_call=types.FunctionCall(name="f", args={"n": None, "x": 2**70})),
        ]
        event = said("e", "")
        event.content = types.Content(role="model", parts=parts)
        theirs = InMemoryMemoryService()
        for it in (service, theirs):
            await it.add_session_to_memory(session_of(event))
        [found] = (await service.search_memory(**U, query="porto")).memories
        [expected] = (await theirs.search_memory(**U, query="porto")).memories
        assert found.content == expected.content == event.content
        assert (found.id, found.author) == (expected.id, expected.author) == ("e", "user")
        assert found.timestamp == "1970-01-01T00:00:00+00:00"

    async def test_ten_memories_at_most_the_best_first(self, service: Any) -> None:
        theirs = InMemoryMemoryService()
        many = [said(f"m{n:02}", f"word{n} tea" + " porto" * (n == 3), n) for n in range(30)]
        for it in (service, theirs):
            await it.add_session_to_memory(session_of(*many))
        expected = await ids(theirs, "tea in porto")
        found = await ids(service, "tea in porto")
        assert len(found) == len(expected) == 10
        assert found[0] == expected[0] == "m03"
        assert found[1:] == [f"m{n}" for n in range(29, 20, -1)]

    async def test_events_are_added_once_and_a_session_replaces_them(self, service: Any) -> None:
        theirs = InMemoryMemoryService()
        for it in (service, theirs):
            await it.add_events_to_memory(**U, events=[said("e", "porto")], session_id="s")
            await it.add_events_to_memory(**U, events=[said("e", "lisbon")], session_id="s")
            assert await ids(it, "porto lisbon") == ["e"]
            assert await ids(it, "lisbon") == []
            await it.add_session_to_memory(session_of(said("e", "lisbon")))
            assert await ids(it, "porto") == []
            assert await ids(it, "lisbon") == ["e"]

    async def test_a_deleted_memory_stays_deleted(self, service: Any) -> None:
        theirs = InMemoryMemoryService()
        for it in (service, theirs):
            await it.add_session_to_memory(session_of(*CHAT))
            await it.delete_memory(**U, memory_id="e1")
            await it.delete_memory(**U, memory_id="none")
            await it.delete_memory(**U)
            await it.add_session_to_memory(session_of(*CHAT))
            await it.add_events_to_memory(**U, events=CHAT, session_id="s")
            assert await ids(it, "porto") == []
            assert await ids(it, "sister") == ["e2"]

    async def test_events_without_a_text_are_left_out(self, service: Any) -> None:
        empty = Event(id="e", author="a", invocation_id="i")
        for it in (service, InMemoryMemoryService()):
            await it.add_session_to_memory(session_of(empty, said("f", "")))
            assert await ids(it, "a i f user") == []


class TestOurs:
    async def test_ids_and_roles_are_not_searched(self, service: Any) -> None:
        await service.add_session_to_memory(session_of(said("e", "porto")))
        assert await ids(service, "user e u app s") == []

    async def test_memories_are_added_directly(self, service: Any) -> None:
        content = types.Content(parts=[types.Part(text="Likes tea")])
        entries = [
            MemoryEntry(content=content, custom_metadata={"a": 1}),
            MemoryEntry(content=content, id="m", author="clerk"),
        ]
        await service.add_memory(**U, memories=entries, custom_metadata={"a": 2, "b": float("inf")})
        found = (await service.search_memory(**U, query="tea")).memories
        by_id = {it.id: it for it in found}
        assert len(by_id) == 2
        assert (by_id["m"].author, by_id.pop("m").custom_metadata) == (
            "clerk",
            {"a": 2, "b": float("inf")},
        )
        [(key, other)] = by_id.items()
        assert key
        assert other.custom_metadata == {"a": 1, "b": float("inf")}

    async def test_metadata_of_events_is_found_with_them(self, service: Any) -> None:
        given = {"kind": "fact"}
        await service.add_events_to_memory(**U, events=CHAT, custom_metadata=given)
        [found] = (await service.search_memory(**U, query="porto")).memories
        assert found.custom_metadata == given

    async def test_what_json_cannot_keep_is_refused(self, service: Any) -> None:
        with pytest.raises(SerializationError, match="memory 'e0'"):
            await service.add_events_to_memory(**U, events=CHAT, custom_metadata={"bytes": b"\xff"})
        assert await ids(service, "python") == []

    async def test_more_memories_than_a_page_are_searched(
        self, service: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("locus_store.adapters.adk.memory_service.PAGE", 3)
        await service.add_session_to_memory(session_of(*CHAT))
        assert await ids(service, "tea") == ["e6", "e0"]
        assert await ids(service, "sister python") == ["e2", "e3", "e1", "e0"]

    async def test_racing_additions_lose_nothing(self, service: Any) -> None:
        adds = [service.add_events_to_memory(**U, events=CHAT[n:]) for n in range(4)]
        await asyncio.gather(*adds, service.add_session_to_memory(session_of(*CHAT)))
        assert sorted(await ids(service, " ".join(SAID.values()))) == list(SAID)

    async def test_a_user_is_deleted(self, service: Any, store: Any) -> None:
        for user in ("u", "u2"):
            await service.add_session_to_memory(session_of(*CHAT, user=user))
        assert await service.delete_user(**U) == len(CHAT)
        assert await service.delete_user(**U) == 0
        assert await store.list_namespaces() == [("adk-memory", "app", "u2")]

    async def test_a_damaged_memory_raises_an_error(self, service: Any, store: Any) -> None:
        await store.put(("adk-memory", "app", "u"), "e", "porto", {"memory": {"content": 3}})
        with pytest.raises(IntegrityError, match="memory 'e'"):
            await ids(service, "porto")

    async def test_a_store_that_embeds_ranks_by_meaning(self, place: Any) -> None:
        def embed(texts: list[str]) -> list[list[float]]:
            return [[float("tea" in it), float("porto" in it), 0.1] for it in texts]

        async with place.store(embed=embed) as store:
            service = LocusMemoryService(store)
            chat = said("t", "green tea"), said("p", "porto and rain")
            await service.add_session_to_memory(session_of(*chat))
            assert await ids(service, "a word that is not there: portos") == ["p", "t"]
            await service.delete_memory(**U, memory_id="p")
            assert await ids(service, "porto") == ["t"]
            assert await ids(service, " ") == []


class TestOpening:
    async def test_services_yaml_opens_a_service(self, tmp_path: Path) -> None:
        (tmp_path / "services.yaml").write_text(
            "services:\n"
            "  - scheme: locus+sqlite\n"
            "    type: memory\n"
            "    class: locus_store.adapters.adk.LocusMemoryService\n"
        )
        load_services_module(str(tmp_path))
        url = f"sqlite:///{tmp_path / 'a.db'}"
        service: Any = create_memory_service_from_options(
            base_dir=tmp_path, memory_service_uri=f"locus+{url}"
        )
        await service.add_session_to_memory(session_of(*CHAT))
        await service.close()
        async with LocusMemoryService.from_url(url) as other:
            assert await ids(other, "porto") == ["e1"]
            assert await ids(other.for_tenant("b"), "porto") == []
            await other.for_tenant("b").close()
            assert await ids(other, "porto") == ["e1"]

    def test_a_store_or_a_uri_is_needed(self) -> None:
        for options in ({}, {"store": open_store("memory://"), "uri": "memory://"}):
            with pytest.raises(InvalidArgumentError, match="uri="):
                LocusMemoryService(**options)

    async def test_forgetting_a_user_deletes_the_memories(self, tmp_path: Path) -> None:
        async with open_checkpointer(f"sqlite:///{tmp_path / 'a.db'}") as checkpointer:
            service = LocusMemoryService(checkpointer.backend)
            for user in ("u", "u2"):
                await service.add_session_to_memory(session_of(*CHAT, user=user))
            await service.delete_memory(**U, memory_id="e0")
            assert (await checkpointer.backend.forget_user("u"))["store"] == len(CHAT)
            assert await ids(service, "porto") == []
            assert await ids(service, "porto", {**U, "user_id": "u2"}) == ["e1"]
            await service.close()
            assert "LocusMemoryService(" in repr(service)

    def test_a_backend_without_a_store_is_refused(self, tmp_path: Path) -> None:
        with pytest.raises(UnsupportedError):
            LocusMemoryService(BareBackend())


async def test_a_memory_that_was_deleted_may_be_added_again(service: Any) -> None:
    await service.add_session_to_memory(session_of(*CHAT))
    await service.delete_memory(**U, memory_id="e1")
    content = types.Content(parts=[types.Part(text="My sister lives in Faro.")])
    await service.add_memory(**U, memories=[MemoryEntry(id="e1", content=content)])
    assert await ids(service, "faro") == ["e1"]


async def test_a_session_leaves_the_metadata_of_its_events(service: Any) -> None:
    await service.add_events_to_memory(**U, events=CHAT[:1], custom_metadata={"k": 1})
    await service.add_session_to_memory(session_of(*CHAT))
    found = await service.search_memory(**U, query="morning")
    assert [it.custom_metadata for it in found.memories] == [{"k": 1}]


async def test_equal_memories_are_ordered_by_their_moments(service: Any) -> None:
    content = types.Content(parts=[types.Part(text="tea")])
    times = {
        "a": "2026-01-01T05:00:00+09:00", "b": "2026-01-01T00:00:00+00:00", "c": "garbage",
        "d": "2025-12-31T23:00:00",
    }  # fmt: skip
    await service.add_memory(
        **U, memories=[MemoryEntry(id=k, content=content, timestamp=v) for k, v in times.items()]
    )
    assert await ids(service, "tea") == ["b", "d", "a", "c"]


@pytest.mark.parametrize("name", ["half \ud83d", "nul\0"])
async def test_a_name_that_no_storage_keeps_is_refused(service: Any, name: str) -> None:
    with pytest.raises(InvalidArgumentError):
        await service.add_events_to_memory(**U, events=[said(name, "tea")])
    with pytest.raises(InvalidArgumentError):
        await service.add_events_to_memory(app_name="app", user_id=name, events=CHAT)
