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
from lazily import TESTS_RUN
from tiers import SERVICES, full

from locus_store import (
    BaseCheckpointer,
    CheckpointerCapabilities,
    ConflictError,
    InvalidArgumentError,
    MemoryBackend,
    StorageBackendAdapter,
    open_checkpointer,
)
from locus_store.adapters.locus import register

if TESTS_RUN:
    from locus import Agent, tool
    from locus.core.messages import Message
    from locus.core.state import AgentState
    from locus.memory.registry import get_checkpointer
    from locus.testing import FunctionModel, ScriptedModel, tool_call

pytestmark = pytest.mark.anyio

Open = Callable[..., Any]


def place(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """URL of an empty database."""
    if kind == "sqlite":
        return f"sqlite:///{tmp_path / 'agents.db'}"
    if kind == "file":
        return f"file://{tmp_path / 'agents'}"
    if kind == "oci":
        return str(request.getfixturevalue("bucket").url())
    if kind == "opensearch":
        return str(request.getfixturevalue("index").url())
    if kind in SERVICES:
        return str(request.getfixturevalue("service_over")(kind))
    fixtures = {"redis": "redis_url", "postgresql": "migrated_database"}
    found: str = request.getfixturevalue(fixtures[kind])
    return found


ELSEWHERE = full("postgresql", "redis", "oci", "opensearch", *SERVICES)


@pytest.fixture(params=["sqlite", *ELSEWHERE])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return place(request.param, request, tmp_path)


@pytest.fixture(params=["sqlite", "memory", *full("file"), *ELSEWHERE])
async def opened(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Open]:
    """Opens the same storage with every call, as another process would."""
    made: list[BaseCheckpointer] = []
    backend = MemoryBackend()
    where = "" if request.param == "memory" else place(request.param, request, tmp_path)

    def new(**options: Any) -> BaseCheckpointer:
        if where:
            made.append(open_checkpointer(where, **options))
        else:
            made.append(StorageBackendAdapter(backend, **options))
        return made[-1]

    yield new
    for checkpointer in made:
        await checkpointer.close()


if TESTS_RUN:

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


async def test_the_sample_of_the_locus_documentation_as_it_is_typed(opened: Open) -> None:
    checkpointer, asked = opened(), []

    def model(messages: list[Message], _: list[dict[str, Any]]) -> str:
        asked.append([it.content for it in messages if it.role.value == "user"])
        return "Hello."

    options: dict[str, Any] = {"checkpointer": checkpointer, "model": FunctionModel(model)}

    agent1 = Agent(**options)
    await agent1.run("I'm Alex.", thread_id="t1").__anext__()
    del agent1

    # Simulates a process restart / different worker.
    agent2 = Agent(**options)
    await agent2.run("Who am I?", thread_id="t1").__anext__()
    # The model sees the earlier user turn.

    assert asked[-1] == ["I'm Alex.", "Who am I?"]
    assert said(await checkpointer.load("t1"))[:3] == ["I'm Alex.", "Hello.", "Who am I?"]


async def test_a_run_that_was_left_after_its_first_event_is_remembered(opened: Open) -> None:
    async with contextlib.aclosing(
        agent_of(opened(), "Hello.").run("I'm Alex.", thread_id="t1")
    ) as run:
        await anext(run)
    second = agent_of(opened(), model=FunctionModel(who_am_i))
    async with contextlib.aclosing(second.run("Who am I?", thread_id="t1")) as run:
        await anext(run)
    assert said(await second.get_state("t1"))[-1] == "You are Alex."


def test_run_sync_twice_closes_and_comes_back_in_a_new_loop(url: str) -> None:
    checkpointer = open_checkpointer(url)
    agent = agent_of(checkpointer, "Hello.", "Again?")
    agent.run_sync("I'm Alex.", thread_id="t1")
    result = agent.run_sync("I'm Alex still.", thread_id="t1")
    assert said(result.state) == ["I'm Alex.", "Hello.", "I'm Alex still.", "Again?"]


def test_run_sync_keeps_what_is_in_memory() -> None:
    checkpointer = open_checkpointer("memory://")
    agent_of(checkpointer, "Hello.").run_sync("I'm Alex.", thread_id="t1")
    result = agent_of(checkpointer, model=FunctionModel(who_am_i)).run_sync("Who?", thread_id="t1")
    assert result.text == "You are Alex."


async def test_a_tool_turn_is_stored_with_its_calls_and_results(opened: Open) -> None:
    first = agent_of(opened(), tool_call("add", left=2, right=3), "5, of course.")
    await first.arun("2 + 3?", thread_id="t1")
    state = await agent_of(opened()).get_state("t1")
    assert [it.role.value for it in state.messages] == [
        "system",
        "user",
        "assistant",
        "tool",
        "assistant",
    ]
    assert state.messages[2].tool_calls[0].arguments == {"left": 2, "right": 3}
    assert state.tool_executions[0].result == "5"


# --- versions


if TESTS_RUN:
    THREE_STEPS = (
        tool_call("add", call_id="one", left=1, right=1),
        tool_call("add", call_id="two", left=2, right=2),
        "Done.",
    )


async def test_a_finished_turn_is_one_version(opened: Open) -> None:
    checkpointer = opened()
    await agent_of(checkpointer, *THREE_STEPS).arun("Add.", thread_id="t1")
    assert len(await checkpointer.list_checkpoints("t1")) == 1


async def test_iterations_are_kept_for_those_who_ask(opened: Open) -> None:
    checkpointer = opened()
    agent = agent_of(checkpointer, *THREE_STEPS, keep_iteration_checkpoints=True)
    await agent.arun("Add.", thread_id="t1")
    history = await agent.get_state_history("t1")
    assert [len(state.tool_executions) for _, state in history] == [2, 2, 1]


async def test_every_second_iteration_is_saved_where_that_is_wanted(opened: Open) -> None:
    checkpointer = opened()
    agent = agent_of(
        checkpointer,
        *THREE_STEPS,
        checkpoint_every_n_iterations=2,
        keep_iteration_checkpoints=True,
    )
    await agent.arun("Add.", thread_id="t1")
    history = await agent.get_state_history("t1")
    assert [state.iteration for _, state in history] == [3, 2]


async def two_turns(opened: Open) -> tuple[Agent, list[str]]:
    """An agent after two turns, and the thread's versions, oldest first."""
    await agent_of(opened(), "One.").arun("First.", thread_id="t1")
    agent = agent_of(opened(), "Two.", "Three.")
    await agent.arun("Second.", thread_id="t1")
    return agent, [it for it, _ in await agent.get_state_history("t1")][::-1]


async def test_history_gives_every_turn_newest_first(opened: Open) -> None:
    agent, _ = await two_turns(opened)
    history = await agent.get_state_history("t1")
    assert [said(state) for _, state in history] == [
        ["First.", "One.", "Second.", "Two."],
        ["First.", "One."],
    ]


async def test_an_old_version_is_loaded_as_it_was(opened: Open) -> None:
    agent, versions = await two_turns(opened)
    assert said(await agent.get_state("t1", versions[0])) == ["First.", "One."]
    assert said(await agent.get_state("t1")) == ["First.", "One.", "Second.", "Two."]


async def test_an_edit_is_a_version_of_its_own_and_the_next_turn_goes_on_from_it(
    opened: Open,
) -> None:
    agent, versions = await two_turns(opened)
    edited = await agent.update_state(
        "t1", messages=[Message.user("By the way.")], metadata={"edited": True}
    )
    assert edited not in versions
    result = await agent.arun("Third.", thread_id="t1")
    assert said(result.state)[-3:] == ["By the way.", "Third.", "Three."]
    assert (await agent.get_state("t1")).metadata["edited"] is True


async def test_editing_an_old_version_rewinds_the_thread_and_loses_nothing(opened: Open) -> None:
    agent, versions = await two_turns(opened)
    await agent.update_state("t1", messages=[Message.user("Else.")], checkpoint_id=versions[0])
    result = await agent.arun("Third.", thread_id="t1")
    assert said(result.state) == ["First.", "One.", "Else.", "Third.", "Three."]
    assert said(await agent.get_state("t1", versions[1]))[-1] == "Two."


async def test_an_edit_of_a_version_that_another_one_overtook_is_told(opened: Open) -> None:
    agent, versions = await two_turns(opened)
    stale = await agent.get_state("t1", versions[0])
    await agent_of(opened(), "Three.").arun("Third.", thread_id="t1")
    with pytest.raises(ConflictError):
        await opened().save(stale.with_message(Message.user("Else.")), "t1")


@pytest.mark.parametrize("newest", [True, False])
async def test_a_fork_goes_its_own_way(opened: Open, newest: bool) -> None:
    agent, versions = await two_turns(opened)
    fork = await agent.fork("t1", versions[-1 if newest else 0])
    forked = await agent_of(opened(), "There.").arun("Elsewhere.", thread_id=fork)
    expected = ["First.", "One.", "Second.", "Two."][: 4 if newest else 2]
    assert said(forked.state) == [*expected, "Elsewhere.", "There."]
    result = await agent.arun("Third.", thread_id="t1")
    assert said(result.state) == ["First.", "One.", "Second.", "Two.", "Third.", "Three."]


async def test_a_copied_thread_is_continued_by_an_agent(opened: Open) -> None:
    _, versions = await two_turns(opened)
    checkpointer = opened()
    assert await checkpointer.copy_thread("t1", "t2")
    await agent_of(opened(), "Copied.").arun("Third.", thread_id="t2")
    assert len(await checkpointer.list_checkpoints("t2")) == len(versions) + 1
    assert len(await checkpointer.list_checkpoints("t1")) == len(versions)


async def test_the_mark_of_a_loaded_state_is_never_stored(opened: Open) -> None:
    await two_turns(opened)
    plain = await opened(state_type=dict).load("t1")
    assert plain["metadata"] == {}


async def test_what_the_agent_saved_is_found_by_its_words_and_its_agent_id(opened: Open) -> None:
    await two_turns(opened)
    checkpointer = opened()
    assert [it["thread_id"] for it in await checkpointer.search("second two")] == ["t1"]
    assert len(await checkpointer.query_by_metadata("agent_id", "concierge")) == 2


@pytest.mark.parametrize(
    "thread_id",
    ["principal:thread", "a/b", "../up", "%_'|", "latest", "_checkpoints", "Zoë 🦊", "x" * 255],
)
async def test_any_text_names_a_thread(opened: Open, thread_id: str) -> None:
    await agent_of(opened(), "Hello.").arun("I'm Alex.", thread_id=thread_id)
    second = agent_of(opened(), model=FunctionModel(who_am_i))
    assert (await second.arun("Who am I?", thread_id=thread_id)).text == "You are Alex."
    assert await opened().list_threads() == [thread_id]


# --- two at once


if TESTS_RUN:

    class Waits(ScriptedModel):
        """Waits for permission, then answers."""

        def __init__(self, *turns: Any) -> None:
            super().__init__([*turns])
            self.asked, self.go_on = asyncio.Event(), asyncio.Event()

        async def complete(self, *arguments: Any, **options: Any) -> Any:
            self.asked.set()
            await self.go_on.wait()
            return await super().complete(*arguments, **options)


async def overlapping(opened: Open, **options: Any) -> tuple[Any, Any]:
    """The first of two turns on one thread is overtaken by the second."""
    await agent_of(opened(), "Hello.").arun("Hi.", thread_id="t1")
    model = Waits("Slow.")
    slow = asyncio.create_task(
        agent_of(opened(**options), model=model).arun("Slowly.", thread_id="t1")
    )
    await model.asked.wait()
    quick = await agent_of(opened(**options), "Quick.").arun("Quickly.", thread_id="t1")
    model.go_on.set()
    return quick, (await asyncio.gather(slow, return_exceptions=True))[0]


async def test_of_two_simultaneous_turns_the_later_is_told_and_the_earlier_is_kept(
    opened: Open,
) -> None:
    quick, slow = await overlapping(opened)
    assert quick.text == "Quick."
    assert isinstance(slow, ConflictError)
    assert said(await agent_of(opened()).get_state("t1")) == ["Hi.", "Hello.", "Quickly.", "Quick."]


async def test_a_turn_that_was_told_runs_again_and_nothing_is_lost(opened: Open) -> None:
    await overlapping(opened)
    result = await agent_of(opened(), "Slow.").arun("Slowly.", thread_id="t1")
    assert said(result.state) == ["Hi.", "Hello.", "Quickly.", "Quick.", "Slowly.", "Slow."]


async def test_a_turn_that_came_late_is_kept_on_a_branch_for_those_who_ask(opened: Open) -> None:
    _, slow = await overlapping(opened, on_conflict="branch")
    assert slow.text == "Slow."
    states = [said(state) for _, state in await agent_of(opened()).get_state_history("t1")]
    assert ["Hi.", "Hello.", "Slowly.", "Slow."] in states
    assert said(await agent_of(opened()).get_state("t1"))[-1] == "Quick."


async def test_two_first_turns_at_once_do_not_both_begin_the_thread(opened: Open) -> None:
    models = [Waits("One."), Waits("Two.")]
    checkpointer = opened()
    runs = [
        asyncio.create_task(agent_of(checkpointer, model=it).arun("Hi.", thread_id="t1"))
        for it in models
    ]
    for model in models:
        await model.asked.wait()
    for model in models:
        model.go_on.set()
    results = await asyncio.gather(*runs, return_exceptions=True)
    assert sorted(isinstance(it, ConflictError) for it in results) == [False, True]


async def test_turns_on_different_threads_do_not_meet(opened: Open) -> None:
    agents = [agent_of(opened(), f"Answer {it}.") for it in range(8)]
    results = await asyncio.gather(
        *(agent.arun("Hi.", thread_id=f"t{it}") for it, agent in enumerate(agents))
    )
    assert [it.text for it in results] == [f"Answer {it}." for it in range(8)]


# --- turns that were cut short


async def test_a_cancelled_turn_can_be_followed_by_another(opened: Open) -> None:
    checkpointer = opened()
    model = Waits("Never said.")
    run = asyncio.create_task(agent_of(checkpointer, model=model).arun("I'm Alex.", thread_id="t1"))
    await model.asked.wait()
    run.cancel()
    with pytest.raises(asyncio.CancelledError):
        await run
    for shared in (checkpointer, opened()):
        result = await agent_of(shared, model=FunctionModel(who_am_i)).arun("Who?", thread_id="t1")
        assert result.text == "You are Alex."


async def test_a_turn_cancelled_between_its_tools_can_be_continued(opened: Open) -> None:
    model = Waits(*THREE_STEPS)
    agent = agent_of(opened(), model=model)
    model.go_on.set()
    events = agent.run("Add.", thread_id="t1")
    async for event in events:
        if event.event_type == "tool_complete":
            break
    await events.aclose()
    later = agent_of(opened(), "Done.")
    async for _ in later.continue_turn("t1"):
        pass
    state = await later.get_state("t1")
    assert said(state)[-1] == "Done."


async def test_a_turn_that_failed_can_be_followed_by_another(opened: Open) -> None:
    def fails(messages: list[Message], tools: list[dict[str, Any]]) -> str:
        raise RuntimeError("no model today")

    checkpointer = opened()
    with pytest.raises(RuntimeError, match="no model today"):
        await agent_of(checkpointer, model=FunctionModel(fails)).arun("I'm Alex.", thread_id="t1")
    result = await agent_of(checkpointer, model=FunctionModel(who_am_i)).arun("?", thread_id="t1")
    assert result.text == "You are Alex."


async def test_a_reader_between_a_turns_load_and_its_save_changes_nothing(opened: Open) -> None:
    checkpointer = opened()
    await agent_of(checkpointer, "Hello.").arun("Hi.", thread_id="t1")
    model = Waits("Slow.")
    run = asyncio.create_task(agent_of(checkpointer, model=model).arun("Slowly.", thread_id="t1"))
    await model.asked.wait()
    for _ in range(3):
        await checkpointer.load("t1")
        await opened().load("t1")
    model.go_on.set()
    assert (await run).text == "Slow."


KILLED = """
    import asyncio, os, signal, sys
    from locus import Agent, tool
    from locus.testing import ScriptedModel, tool_call
    from locus_store import open_checkpointer

    @tool
    def note(line: str) -> str:
        "Write a line down."
        with open(sys.argv[2], "a") as file:
            file.write(line)
        if line == "b":
            os.kill(os.getpid(), signal.SIGKILL)
        return f"wrote {line}"

    agent = Agent(
        model=ScriptedModel([tool_call("note", line="a", call_id="1"),
                             tool_call("note", line="b", call_id="2"), "Both."]),
        tools=[note],
        context_window=100_000,
        checkpointer=open_checkpointer(sys.argv[1]),
    )
    asyncio.run(agent.arun("Write a and b.", thread_id="t1"))
"""


@pytest.fixture
def killed(tmp_path: Path, url: str) -> str:
    """URL of the database that a process left which was killed within its second tool call."""
    command = [sys.executable, "-c", textwrap.dedent(KILLED)]
    done = subprocess.run([*command, url, tmp_path / "notes"], check=False, env=os.environ)
    assert done.returncode == -signal.SIGKILL
    assert (tmp_path / "notes").read_text() == "ab"
    return url


async def test_a_turn_whose_process_was_killed_is_continued_by_another(killed: str) -> None:
    async with open_checkpointer(killed) as checkpointer:
        model = ScriptedModel(["Both, I think."])
        agent = agent_of(checkpointer, model=model)
        async for _ in agent.continue_turn("t1"):
            pass
        assert "wrote a" in [it.content for it in model.received_messages[0]]
        assert said(await agent.get_state("t1"))[-1] == "Both, I think."
        assert len(await checkpointer.list_checkpoints("t1")) == 1


@pytest.mark.full
async def test_a_new_turn_may_follow_one_whose_process_was_killed(killed: str) -> None:
    async with open_checkpointer(killed) as checkpointer:
        result = await agent_of(checkpointer, "Nothing.").arun("What now?", thread_id="t1")
        assert said(result.state)[:2] == ["Write a and b.", "wrote a"]
        assert said(result.state)[-2:] == ["What now?", "Nothing."]


# --- other ways in


class KeysAndValues(BaseCheckpointer):
    """A user's own, with the three methods and nothing else."""

    def __init__(self) -> None:
        self.stored: dict[str, Any] = {}

    @property
    def capabilities(self) -> CheckpointerCapabilities:
        return CheckpointerCapabilities(persistent_checkpoint_ids=True)

    async def save(
        self,
        state: Any,
        thread_id: str,
        checkpoint_id: str | None = None,
        metadata: dict[str, Any] | None = None,
    ) -> str:
        named = checkpoint_id or uuid4().hex
        self.stored[f"{thread_id}/{named}"] = state.to_checkpoint()
        return named

    async def load(self, thread_id: str, checkpoint_id: str | None = None) -> Any | None:
        newest = await self.list_checkpoints(thread_id, limit=1)
        if checkpoint_id is None and not newest:
            return None
        found = self.stored.get(f"{thread_id}/{checkpoint_id or newest[0]}")
        return AgentState.from_checkpoint(found) if found else None

    async def list_checkpoints(self, thread_id: str, limit: int = 10) -> list[str]:
        keys = [it for it in reversed(self.stored) if it.startswith(f"{thread_id}/")]
        return [it.rpartition("/")[2] for it in keys[:limit]]


async def test_a_users_own_subclass_works_wherever_a_checkpointer_goes() -> None:
    checkpointer = KeysAndValues()
    await agent_of(checkpointer, tool_call("add", left=1, right=1), "2").arun("?", thread_id="t1")
    agent = agent_of(checkpointer, "Two.")
    await agent.arun("Second.", thread_id="t1")
    assert len(await agent.get_state_history("t1")) == 2
    assert said(await agent.get_state("t1"))[-1] == "Two."


async def test_the_registry_of_locus_opens_ours_by_name(url: str) -> None:
    register()
    async with get_checkpointer(f"locus-store:{url}") as checkpointer:
        await agent_of(checkpointer, "Hello.").arun("I'm Alex.", thread_id="t1")
    async with get_checkpointer(f"locus-store:{url}", keep_last=1) as checkpointer:
        agent = agent_of(checkpointer, model=FunctionModel(who_am_i))
        assert (await agent.arun("Who am I?", thread_id="t1")).text == "You are Alex."


async def test_the_registry_asks_for_the_database_where_none_is_named() -> None:
    register("ours")
    with pytest.raises(InvalidArgumentError, match=r"ours:sqlite:///x\.db"):
        get_checkpointer("ours")
    with pytest.raises(TypeError, match="keep_lats"):
        get_checkpointer("ours:memory://", keep_lats=1)


async def test_a_backend_given_to_an_agent_by_mistake_names_the_factory() -> None:
    with pytest.raises(TypeError, match="MemoryCheckpointer"):
        await agent_of(MemoryBackend(), "Hello.").arun("Hi.", thread_id="t1")


class Watched:
    """A backend, and which of its attributes are read from outside."""

    def __init__(self) -> None:
        self._backend = MemoryBackend()
        self.noted: list[str] = []

    def __getattr__(self, name: str) -> Any:
        self.noted.append(name)
        return getattr(self._backend, name)


async def test_the_sdk_asks_a_backend_for_nothing_but_load_before_its_model_runs() -> None:
    """``load(thread_id)`` is a legitimate call, so no earlier refusal is possible."""
    backend, seen = Watched(), list[list[str]]()

    def answer(messages: list[Message], tools: list[dict[str, Any]]) -> str:
        seen.append(list(backend.noted))
        return "Hello."

    agent = agent_of(backend, model=FunctionModel(answer))
    backend.noted.clear()
    with pytest.raises(TypeError, match="MemoryCheckpointer"):
        await agent.arun("Hi.", thread_id="t1")
    assert seen == [["load"]]


# --- the demo


@pytest.mark.full
def test_the_demo_tells_its_story_without_a_warning(tmp_path: Path) -> None:
    script = Path(__file__).parents[3] / "examples" / "conversation.py"
    command = [sys.executable, "-W", "error", script, "--url", "sqlite:///demo.db"]
    done = subprocess.run(
        command, cwd=tmp_path, check=True, capture_output=True, text=True, encoding="utf-8"
    )
    assert done.stderr == ""
    assert "You are Alex." in done.stdout
    assert "You are Robin." in done.stdout


@pytest.mark.full
def test_the_demo_says_why_it_cannot_run_in_memory(tmp_path: Path) -> None:
    script = Path(__file__).parents[3] / "examples" / "conversation.py"
    done = subprocess.run(
        [sys.executable, script, "--url", "memory://"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert "one process" in done.stderr
