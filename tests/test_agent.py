"""The agent of the Locus SDK as it is, on our checkpointers; only its model is a script."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from locus import Agent, tool
from locus.core.messages import Message
from locus.core.state import AgentState
from locus.memory.registry import get_checkpointer, register_checkpointer
from locus.testing import FunctionModel, ScriptedModel, text, tool_call

from locus_store import (
    BaseCheckpointer,
    CheckpointerCapabilities,
    ConflictError,
    MemoryBackend,
    StorageBackendAdapter,
    open_checkpointer,
    sqlite_checkpointer,
)

pytestmark = pytest.mark.anyio

Open = Callable[..., Any]


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(params=["sqlite", "memory"])
async def opened(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Open]:
    """Opens the same storage with every call, as another process would."""
    made: list[BaseCheckpointer] = []
    backend = MemoryBackend()

    def new(**options: Any) -> BaseCheckpointer:
        options = {"state_type": AgentState, **options}
        if request.param == "sqlite":
            made.append(sqlite_checkpointer(tmp_path / "agents.db", **options))
        else:
            made.append(StorageBackendAdapter(backend, **options))
        return made[-1]

    yield new
    for checkpointer in made:
        await checkpointer.close()


@tool
def add(left: int, right: int) -> str:
    """Add two numbers."""
    return str(left + right)


def agent_of(checkpointer: Any, *turns: Any, model: Any = None, **options: Any) -> Agent:
    return Agent(
        agent_id="concierge",
        model=model or ScriptedModel([*turns]),
        tools=[add],
        checkpointer=checkpointer,
        context_window=100_000,
        **options,
    )


def said(state: AgentState) -> list[str]:
    return [it.content for it in state.messages if it.content and it.role.value != "system"]


def who_am_i(messages: list[Message], tools: list[dict[str, Any]]) -> str:
    found = [it.content for it in messages if (it.content or "").startswith("I'm ")]
    return found[-1].replace("I'm", "You are") if found else "We have not met."


# --- turns, one after another


async def test_a_new_agent_answers_from_the_earlier_turn(opened: Open) -> None:
    await agent_of(opened(), "Hello Alex.").arun("I'm Alex.", thread_id="t1")
    second = agent_of(opened(), model=FunctionModel(who_am_i))
    result = await second.arun("Who am I?", thread_id="t1")
    assert result.text == "You are Alex."
    assert said(result.state) == ["I'm Alex.", "Hello Alex.", "Who am I?", "You are Alex."]


async def test_a_thread_that_nobody_wrote_starts_empty(opened: Open) -> None:
    result = await agent_of(opened(), model=FunctionModel(who_am_i)).arun("Who?", thread_id="t1")
    assert result.text == "We have not met."


async def test_a_run_of_which_only_the_first_event_was_read_is_remembered(opened: Open) -> None:
    first = agent_of(opened(), "Hello Alex.")
    await anext(first.run("I'm Alex.", thread_id="t1"))
    del first
    second = agent_of(opened(), model=FunctionModel(who_am_i))
    await anext(second.run("Who am I?", thread_id="t1"))
    print([ (m.role, m.content) for m in (await second.get_state("t1")).messages])
    assert 0
