"""Real graphs, in the tests' process or in one of its own: ``on_graph.py WHAT URL FORM [...]``."""

from __future__ import annotations

import asyncio
import json
import logging
import operator
import sys
import threading
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Annotated, Any, TypedDict

from langgraph.channels import DeltaChannel
from langgraph.graph import END, START, StateGraph
from langgraph.types import Command, Send, interrupt
from pydantic import BaseModel

from locus_store import CheckpointSaver, MemoryBackend
from locus_store.adapters.langgraph import LangGraphSaver

if TYPE_CHECKING:
    from pathlib import Path

DEADLINE_SECONDS = 60.0


def told(what: object) -> None:
    sys.stdout.write(json.dumps(what) + "\n")  # in one piece: tasks tell at once
    sys.stdout.flush()


def at(thread_id: str = "t", **more: Any) -> dict[str, Any]:
    return {"configurable": {"thread_id": thread_id, **more}}


class Caller:
    """Calls a graph's methods in one of their two forms, the async ones all on one loop.

    Args:
        form: ``"sync"`` or ``"async"``.
    """

    def __init__(self, form: str) -> None:
        self.form = form
        self._runner = asyncio.Runner() if form == "async" else None

    def __call__(self, graph: Any, name: str, *args: Any, **kwargs: Any) -> Any:
        if self._runner is None:
            return getattr(graph, name)(*args, **kwargs)

        async def call() -> Any:
            return await getattr(graph, f"a{name}")(*args, **kwargs)

        return self._runner.run(call())

    def invoke(self, graph: Any, given: Any, config: Any = None, **kwargs: Any) -> Any:
        return self(graph, "invoke", given, config or at(), **kwargs)

    def state(self, graph: Any, config: Any = None, **kwargs: Any) -> Any:
        return self(graph, "get_state", config or at(), **kwargs)

    def update(self, graph: Any, config: Any, values: Any, **kwargs: Any) -> Any:
        return self(graph, "update_state", config, values, **kwargs)

    def all(self, graph: Any, name: str, *args: Any, **kwargs: Any) -> list[Any]:
        """Return the items that a method yields."""
        if self._runner is None:
            return list(getattr(graph, name)(*args, **kwargs))

        async def collect() -> list[Any]:
            return [it async for it in getattr(graph, f"a{name}")(*args, **kwargs)]

        return self._runner.run(collect())

    def history(self, graph: Any, config: Any = None, **kwargs: Any) -> list[Any]:
        """The snapshots, newest first."""
        return self.all(graph, "get_state_history", config or at(), **kwargs)

    def close(self) -> None:
        if self._runner is not None:
            self._runner.close()


def outcome(form: str, call: Any) -> Any:
    """Return the result or the error of ``call`` in a new thread."""
    found: list[Any] = []

    def body() -> None:
        caller = Caller(form)
        try:
            found.append(call(caller))
        except Exception as exc:  # noqa: BLE001 - the test looks at it
            found.append(exc)
        finally:
            caller.close()

    thread = threading.Thread(target=body)
    thread.start()
    thread.join(DEADLINE_SECONDS)
    return found[0] if found else TimeoutError("the run has not ended")


class Storage:
    """One storage, and savers on it as several processes would have them.

    Args:
        request: Of a fixture; its parameter names the kind.
        path: A folder for it.
    """

    def __init__(self, request: Any, path: Path) -> None:
        urls = {
            "memory": lambda: "memory://",
            "file": lambda: f"file://{path / 'files'}",
            "sqlite": lambda: f"sqlite:///{request.getfixturevalue('database_file')}",
            "postgresql": lambda: request.getfixturevalue("migrated_database"),
            "redis": lambda: request.getfixturevalue("redis_url"),
            "oci": lambda: request.getfixturevalue("bucket").url(),
            "opensearch": lambda: request.getfixturevalue("index").url(),
        }
        if request.param.startswith("http"):
            self.url = request.getfixturevalue("service_over")(request.param)
        else:
            self.url = urls[request.param]()
        self._shared = MemoryBackend() if request.param == "memory" else None
        self._opened: list[LangGraphSaver] = []

    def open(self, **options: Any) -> LangGraphSaver:
        if self._shared is not None:
            saver = LangGraphSaver(CheckpointSaver(self._shared, **options))
        else:
            saver = LangGraphSaver.from_url(self.url, **options)
        self._opened.append(saver)
        return saver

    def close(self) -> None:
        for saver in self._opened:
            saver.close()


# --- graphs


class Said(TypedDict):
    said: Annotated[list, operator.add]


def extend(old: list, writes: list[list]) -> list:
    return [*old, *(it for write in writes for it in write)]


class DeltaSaid(TypedDict):
    said: Annotated[list, DeltaChannel(extend)]


def chain(*nodes: Any, state: Any = Said) -> StateGraph:
    """A graph of nodes that run one after another."""
    builder = StateGraph(state)
    for node in nodes:
        builder.add_node(node)
    names = [START, *(it.__name__ for it in nodes), END]
    for one, other in pairwise(names):
        builder.add_edge(one, other)
    return builder


def waits(*_: Any) -> None:
    """For a process that kills this one."""
    told("waits")
    sys.stdin.readline()


def steps(stop: Any) -> StateGraph:
    """Three steps, each of which tells that it ran; the second calls ``stop``."""

    def one(state):
        told("one")
        return {"said": ["one"]}

    def two(state):
        told("two")
        stop()
        return {"said": ["two"]}

    def three(state):
        told("three")
        return {"said": ["three"]}

    return chain(one, two, three)


def fan_out(stop: Any) -> StateGraph:
    """Three tasks at once, each of which tells that it ran; the last calls ``stop``."""

    def split(state):
        return {"said": ["split"]}

    def work(number):
        told(number)
        if number == 2:
            stop()
        return {"said": [number]}

    def end(state):
        return {"said": ["end"]}

    builder = StateGraph(Said).add_node(split).add_node(work).add_node(end)
    builder.add_edge(START, "split").add_edge("work", "end").add_edge("end", END)
    return builder.add_conditional_edges("split", lambda _: [Send("work", n) for n in range(3)])


def asks(state: Any) -> Any:
    """A node that asks its user."""
    return {"said": [interrupt("which?")]}


def tells(state: Any) -> Any:
    return {"said": ["told"]}


GRAPHS = {"steps": steps, "fan_out": fan_out, "asking": lambda _: chain(asks, tells)}


# --- processes


def run(url: str, form: str, name: str, durability: str) -> None:
    """Begin a run that is to be killed."""
    caller = Caller(form)
    with LangGraphSaver.from_url(url) as saver:
        graph = GRAPHS[name](waits).compile(checkpointer=saver)
        told(caller.invoke(graph, {"said": ["in"]}, durability=durability)["said"])
    caller.close()


def resume(url: str, form: str, name: str, answer: str | None = None) -> None:
    """Go on with a run that another process began."""
    caller = Caller(form)
    with LangGraphSaver.from_url(url) as saver:
        graph = GRAPHS[name](lambda: None).compile(checkpointer=saver)
        given = Command(resume=answer) if answer else None
        told({"state": caller.invoke(graph, given)["said"]})
    caller.close()


def chat(url: str, form: str, text: str) -> None:
    """Say one thing."""
    caller = Caller(form)
    with LangGraphSaver.from_url(url) as saver:
        told(caller.invoke(chain(tells).compile(checkpointer=saver), {"said": [text]})["said"])
    caller.close()


@dataclass
class Item:
    """A class of the state's, which nobody allowed."""

    name: str
    parts: tuple[int, ...] = ()


class Order(BaseModel):
    """Another one, which holds the first."""

    number: int
    items: list[Item] = []


class Shop(TypedDict):
    order: Order
    items: Annotated[list[Item], operator.add]


def strict(url: str, form: str) -> None:
    """Classes of the graph's own state, under ``LANGGRAPH_STRICT_MSGPACK``."""

    def buy(state):
        item = Item(f"item {len(state.get('items', []))}", (1, 2))
        return {"order": Order(number=7, items=[item]), "items": [item]}

    caller = Caller(form)
    with LangGraphSaver.from_url(url) as saver:
        graph = chain(buy, state=Shop).compile(checkpointer=saver)
        caller.invoke(graph, {"items": [Item("first")]})
    with LangGraphSaver.from_url(url) as saver:
        graph = chain(buy, state=Shop).compile(checkpointer=saver)
        found = caller.invoke(graph, {"items": []})
        seen = [it.values for it in caller.history(graph)]
    caller.close()
    types = {type(it).__name__ for of in seen for it in of.get("items", [])}
    order = found["order"]
    told([len(found["items"]), sorted(types), type(order).__name__, type(order.items[0]).__name__])
    told(sorted({type(it.parts).__name__ for it in found["items"]}))


if __name__ == "__main__":
    logging.getLogger("asyncio").setLevel(logging.ERROR)
    globals()[sys.argv[1]](*sys.argv[2:])
