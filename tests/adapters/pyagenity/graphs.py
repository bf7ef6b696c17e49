"""Real graphs of the installed library, each in a process of its own.

Both libraries keep one checkpointer per process. A forked process has imported the library already.
"""

from __future__ import annotations

import asyncio
import importlib
import os
import signal
import time
import traceback
import warnings
from importlib.metadata import version
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # PyAgenity's own
    from locus_store.adapters import pyagenity as ours
from locus_store.adapters.pyagenity import find_installed

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

MODELS = find_installed().models
AgentState, Message, ThreadInfo = MODELS
NAME = AgentState.__module__.partition(".")[0]
IS_AGENTFLOW = NAME == "agentflow"
VERSION = version("10xscale-agentflow" if IS_AGENTFLOW else "pyagenity")
GRAPHS = "agentflow.core.graph" if IS_AGENTFLOW else "pyagenity.graph"
with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # PyAgenity's own
    StateGraph = importlib.import_module(GRAPHS).StateGraph
BASE = find_installed().base
END = importlib.import_module(f"{NAME}.utils").END
ALICE = {"thread_id": "t", "user_id": "alice"}
BOB = {"thread_id": "t", "user_id": "bob"}

forking = get_context("forkserver")
forking.set_forkserver_preload(
    [
        *("locus_store.adapters.pyagenity", GRAPHS, "locus_store.session.redis_cache"),
        *("locus_store.backends.sqlite.backend", "locus_store.backends.postgresql.backend"),
    ]
)


class TravelState(AgentState):
    """A user's own state."""

    budget: int = 0


class Place(NamedTuple):
    """A database, and a cache that processes share; ``None``: one in each process."""

    database: str
    cache_url: str | None

    def opened(self, **options: Any) -> Any:
        if self.cache_url is None:
            return ours.SqliteCheckpointer(self.database, **options)
        return ours.PgCheckpointer(self.database, redis_url=self.cache_url, **options)


# --- processes


class Running:
    """A coroutine function that runs in a process of its own."""

    def __init__(self, function: Callable[..., Awaitable[Any]], *args: Any, **options: Any) -> None:
        self._answer, theirs = forking.Pipe()
        self.process = forking.Process(target=_work, args=(theirs, function, args, options))
        self.process.start()
        theirs.close()

    def result(self) -> Any:
        """The value that it returned."""
        assert self._answer.poll(60), "the process does not answer"
        error, found = self._answer.recv()
        self.process.join()
        assert error is None, error
        return found


def _work(answer: Any, function: Any, args: Any, options: Any) -> None:
    try:
        answer.send((None, asyncio.run(function(*args, **options))))
    except BaseException:  # noqa: BLE001  (the parent raises it)
        answer.send((traceback.format_exc(), None))


def run(function: Callable[..., Awaitable[Any]], *args: Any, **options: Any) -> Any:
    """Return what a coroutine function returns in a process of its own."""
    return Running(function, *args, **options).result()


# --- graphs


def said(text: str) -> Any:
    return Message.text_message(text)


def compiled(
    checkpointer: Any,
    ran: list[str],
    names: str = "ab",
    within: Callable[[str], Awaitable[None]] | None = None,
    state: Any = None,
    **options: Any,
) -> Any:
    """A chain of nodes, each of which says its name and the length of the context.

    Args:
        checkpointer: Of the graph.
        ran: Is given the name of each node that ran.
        names: Of the nodes.
        within: Called in each node.
        state: The first state of each thread.
        options: Of ``compile``.
    """
    graph = StateGraph(state) if state is not None else StateGraph()

    def node(name: str) -> Any:
        async def speak(state: AgentState, config: dict) -> list[Message]:
            ran.append(name)
            if within is not None:
                await within(name)
            return [Message.text_message(f"{name}{len(state.context)}", role="assistant")]

        return speak

    for name in names:
        graph.add_node(name, node(name))
    graph.set_entry_point(names[0])
    for one, other in zip(names, [*names[1:], END], strict=True):
        graph.add_edge(one, other)
    return graph.compile(checkpointer=checkpointer, **options)


async def told(checkpointer: Any, ran: list[str], config: dict[str, Any] = ALICE) -> dict[str, Any]:
    """Return the facts of a thread, after a graph ran."""
    state = await checkpointer.aget_state(dict(config))
    found = {
        "ran": "".join(ran),
        "context": [it.text() for it in state.context] if state else None,
        "status": state.execution_meta.status.value if state else None,
        "log": [it.text() for it in await checkpointer.alist_messages(dict(config))],
        "versions": len(await checkpointer.backend.history("t")),
        "class": type(state).__name__,
    }
    await checkpointer.arelease()
    return found


async def talk(
    place: Place, *turns: str, config: dict[str, Any] = ALICE, **options: Any
) -> dict[str, Any]:
    """Run a graph once for each turn; an empty turn has no message."""
    checkpointer, ran = place.opened(), []
    app = compiled(checkpointer, ran, **options)
    for text in turns:
        given = {"messages": [said(text)]} if text else {}
        await app.ainvoke(given, dict(config))
    return await told(checkpointer, ran, config)


async def crash(place: Place, text: str) -> None:
    """Kill this process in the second node."""

    async def die(name: str) -> None:
        if name == "b":
            os.kill(os.getpid(), signal.SIGKILL)

    app = compiled(place.opened(), [], within=die)
    await app.ainvoke({"messages": [said(text)]}, dict(ALICE))


async def overtaken(place: Place, text: str, reached: Any, may_go_on: Any) -> list[str]:
    """Run a graph that waits in its first node; return the classes of its error."""

    async def wait(name: str) -> None:
        reached.set()
        await asyncio.to_thread(may_go_on.wait, 60)

    checkpointer = place.opened()
    app = compiled(checkpointer, [], within=wait)
    try:
        await app.ainvoke({"messages": [said(text)]}, dict(ALICE))
    except Exception as exc:  # noqa: BLE001  (the test asks for its classes)
        return [it.__name__ for it in type(exc).__mro__]
    finally:
        await checkpointer.arelease()
    return []


async def stream(place: Place, text: str) -> dict[str, Any]:
    checkpointer, ran = place.opened(), []
    app = compiled(checkpointer, ran)
    chunks = [it async for it in app.astream({"messages": [said(text)]}, dict(ALICE))]
    return {"chunks": len(chunks), **await told(checkpointer, ran)}


async def fork(place: Place, text: str) -> tuple[dict[str, Any], list[str]]:
    """Run a graph on a copy of a thread; return the facts of the first, and the fork's context."""
    checkpointer, branch = place.opened(), {**ALICE, "thread_id": "branch"}
    app = compiled(checkpointer, [])
    await checkpointer.aput_state(branch, await checkpointer.aget_state(ALICE))
    await app.ainvoke({"messages": [said(text)]}, dict(branch))
    context = [it.text() for it in (await checkpointer.aget_state(branch)).context]
    return await told(checkpointer, []), context


async def injected(place: Place) -> list[bool]:
    """Ask the container for the checkpointer, while a graph runs and by a decorated function."""
    from injectq import Inject, InjectQ, inject

    checkpointer, found = place.opened(), []

    @inject
    async def asked(checkpointer: BASE = Inject[BASE]) -> Any:
        return await checkpointer.aget_thread(ALICE)

    async def look(name: str) -> None:
        found.append(InjectQ.get_instance().get(BASE) is checkpointer)

    app = compiled(checkpointer, [], within=look)
    await app.ainvoke({"messages": [said("hello")]}, dict(ALICE))
    found.append((await asked()).user_id == "alice")
    await checkpointer.arelease()
    return found


async def hang(place: Place, reached: Any) -> dict[str, Any]:
    """Run a graph whose second node never returns."""

    async def wait(name: str) -> None:
        if name == "b":
            reached.set()
            await asyncio.sleep(600)

    checkpointer, ran = place.opened(), []
    app = compiled(checkpointer, ran, within=wait)
    await app.ainvoke({"messages": [said("hello")]}, dict(ALICE))
    return await told(checkpointer, ran)


async def stop(place: Place) -> Any:
    checkpointer = place.opened()
    answer = await compiled(checkpointer, []).astop(dict(ALICE))
    await checkpointer.arelease()
    return answer


async def call_tools(place: Place, text: str, ledger: str) -> dict[str, Any]:
    """Run a graph with two tools; the second one kills the process at its first call.

    Args:
        place: Of the thread.
        text: Of the user; empty: the run continues.
        ledger: Path of a file to which each tool appends its name.
    """
    from agentflow.core.graph import ToolNode

    def note(name: str) -> str:
        with Path(ledger).open("a") as file:
            file.write(name)
        return name

    def charge() -> str:
        """Charge the card."""
        return note("c")

    def post() -> str:
        """Post the parcel, after the card was charged."""
        while checkpointer.get_tool_result(ALICE, "m:call-charge") is None:
            time.sleep(0.01)
        is_first = "p" not in Path(ledger).read_text()
        note("p")
        if is_first:
            os.kill(os.getpid(), signal.SIGKILL)
        return "posted"

    async def agent(state: AgentState, config: dict) -> list[Message]:
        calls = [
            {
                "id": f"call-{name}",
                "type": "function",
                "function": {"name": name, "arguments": "{}"},
            }
            for name in ("charge", "post")
        ]
        return [Message(message_id="m", role="assistant", content=[], tools_calls=calls)]

    checkpointer = place.opened()
    graph = StateGraph()
    graph.add_node("agent", agent)
    graph.add_node("tools", ToolNode([charge, post]))
    graph.set_entry_point("agent")
    graph.add_edge("agent", "tools")
    graph.add_edge("tools", END)
    app = graph.compile(checkpointer=checkpointer)
    await app.ainvoke({"messages": [said(text)]} if text else {}, dict(ALICE))
    return await told(checkpointer, [])
