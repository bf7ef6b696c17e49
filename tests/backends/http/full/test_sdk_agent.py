"""The Locus SDK's agent with its own client on our service; our client on a foreign service."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import httpx
import pytest
from lazily import TESTS_RUN
from servers import CuttingProxy
from services import Service
from test_http_transports import length
from test_sdk_wire import IDS, Foreign

from locus_store import (
    ConflictError,
    ConnectionFailedError,
    MemoryBackend,
    UnsupportedError,
    http_checkpointer,
)

if TESTS_RUN:
    from locus import Agent, tool
    from locus.memory.backends.http import HTTPCheckpointer as SdkCheckpointer
    from locus.testing import FunctionModel, ScriptedModel, tool_call

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from locus.core.messages import Message
    from locus.core.state import AgentState

pytestmark = pytest.mark.anyio


@pytest.fixture
def service() -> Iterator[Service]:
    made = Service(MemoryBackend())
    yield made
    made.stop()


@asynccontextmanager
async def sdk(url: str, **options: Any) -> AsyncIterator[SdkCheckpointer]:
    made = SdkCheckpointer(url, **options)
    yield made
    await made.close()


if TESTS_RUN:

    @tool
    def add(left: int, right: int) -> str:
        """Add two numbers."""
        return str(left + right)


def agent(checkpointer: Any, *turns: Any, model: Any = None) -> Agent:
    return Agent(
        agent_id="concierge",
        model=model or ScriptedModel([*turns]),
        tools=[add],
        checkpointer=checkpointer,
        context_window=100_000,
    )


def said(state: AgentState) -> list[str]:
    return [it.content for it in state.messages if it.content and it.role.value != "system"]


def who_am_i(messages: list[Message], tools: list[dict[str, Any]]) -> str:
    found = [it.content for it in messages if (it.content or "").startswith("I'm ")]
    return found[-1].replace("I'm", "You are") if found else "We have not met."


@pytest.mark.parametrize("thread", ["t1", *IDS[10:20], "a/b?c#d%e:f", "🎉"])
async def test_another_agent_goes_on_from_the_earlier_turn(service: Service, thread: str) -> None:
    async with sdk(service.url) as first:
        await agent(first, "Hello Alex.").arun("I'm Alex.", thread_id=thread)
    async with sdk(service.url) as second:
        result = await agent(second, model=FunctionModel(who_am_i)).arun("Who?", thread_id=thread)
    assert said(result.state) == ["I'm Alex.", "Hello Alex.", "Who?", "You are Alex."]


async def test_a_turn_with_a_tool_keeps_its_calls_and_results(service: Service) -> None:
    async with sdk(service.url) as first:
        turn = tool_call("add", left=2, right=3), "5, of course."
        await agent(first, *turn).arun("2 + 3?", thread_id="t1")
    async with http_checkpointer(service.url) as ours:
        state = await agent(ours).get_state("t1")
    assert state.messages[2].tool_calls[0].arguments == {"left": 2, "right": 3}
    assert state.tool_executions[0].result == "5"


async def test_an_agent_goes_from_one_client_to_the_other_and_back(service: Service) -> None:
    async with sdk(service.url) as theirs, http_checkpointer(service.url) as ours:
        await agent(theirs, "One.").arun("1", thread_id="t1")
        await agent(ours, "Two.").arun("2", thread_id="t1")
        result = await agent(theirs, "Three.").arun("3", thread_id="t1")
    assert said(result.state) == ["1", "One.", "2", "Two.", "3", "Three."]


@pytest.mark.parametrize("client", ["sdk", "ours"])
async def test_a_load_from_a_service_that_hangs_is_empty_for_the_sdks_client_only(
    service: Service, client: str
) -> None:
    """``docs/http.md`` warns of it."""
    proxy = CuttingProxy(service.port)
    url = f"http://127.0.0.1:{proxy.port}"
    made = sdk(url, timeout=0.2)
    if client == "ours":
        made = http_checkpointer(url, timeout=0.2, retry_seconds=0)
    async with sdk(service.url) as first:
        await agent(first, "Hello Alex.").arun("I'm Alex.", thread_id="t1")
    proxy.hold()
    async with made as checkpointer:
        [found] = await asyncio.gather(checkpointer.load("t1"), return_exceptions=True)
    assert isinstance(found, ConnectionFailedError) or (client == "sdk" and found is None)
    proxy.close()


# --- our client, over TCP, on a service that knows the SDK's wire only


@asynccontextmanager
async def foreign(made: Foreign) -> AsyncIterator[str]:
    """Yield the URL of a foreign service that listens."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                method, path, _ = head.split(b" ", 2)
                body = await reader.readexactly(length(head))
                url = httpx.URL("http://foreign", raw_path=path)
                found = made(httpx.Request(method.decode(), url, content=body))
                line = f"HTTP/1.1 {found.status_code} X\r\ncontent-type: application/json\r\n"
                size = (
                    "" if found.status_code == 204 else f"content-length: {len(found.content)}\r\n"
                )
                writer.write(f"{line}{size}\r\n".encode() + found.content)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    server.close()


@pytest.mark.parametrize("form", ["wrapped", "data", "bare"])
async def test_a_foreign_service_keeps_the_turns_of_an_agent(form: str) -> None:
    made = Foreign(form)
    async with foreign(made) as url:
        for n in ("1", "2"):
            async with http_checkpointer(url) as ours:
                await agent(ours, f"Answer {n}.").arun(n, thread_id="a/b %?#")
        async with http_checkpointer(url) as ours:
            state = await agent(ours).get_state("a/b %?#")
            assert said(state) == ["1", "Answer 1.", "2", "Answer 2."]
            assert not ours.capabilities.search
            with pytest.raises(UnsupportedError):
                await ours.search("x")
            assert await ours.delete("a/b %?#")
            assert await ours.load("a/b %?#") is None


async def test_hostile_ids_are_threads_of_their_own_on_a_foreign_service() -> None:
    made = Foreign()
    async with foreign(made) as url, http_checkpointer(url, state_type=dict) as ours:
        for it in IDS:
            await ours.save({"id": it}, it, it)
        assert sorted(made.threads) == sorted(IDS)
        for it in IDS:
            assert await ours.load(it, it) == {"id": it}
            assert await ours.list_checkpoints(it) == [it]


async def test_two_writers_on_a_foreign_service_conflict() -> None:
    async with (
        foreign(Foreign()) as url,
        http_checkpointer(url, state_type=dict) as one,
        http_checkpointer(url, state_type=dict) as other,
    ):
        await one.save({"n": 0}, "t")
        mine, theirs = await one.load("t"), await other.load("t")
        theirs["n"] = 1
        await other.save(theirs, "t")
        mine["n"] = 2
        with pytest.raises(ConflictError):
            await one.save(mine, "t")
