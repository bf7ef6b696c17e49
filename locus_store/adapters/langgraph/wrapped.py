"""Tools of LangGraph whose calls are effects, and graphs whose runs hold turns, of a thread."""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import aclosing, nullcontext
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar, Unpack

from langchain_core.runnables.config import ensure_config, merge_configs

from locus_store.adapters.langgraph.loads import format_thread_id
from locus_store.adapters.langgraph.saver import LangGraphSaver
from locus_store.errors import InvalidArgumentError
from locus_store.runtime import holding
from locus_store.types.turns import TurnOptions

if TYPE_CHECKING:
    from langchain_core.tools import BaseTool
    from langgraph.pregel import Pregel

T = TypeVar("T", bound="BaseTool")
G = TypeVar("G", bound="Pregel[Any, Any, Any, Any]")

IDEMPOTENCY_KEY: Final = "idempotency_key"
"""In ``config["configurable"]`` of the tool."""


def durable_tool(tool: T, saver: LangGraphSaver, **options: Any) -> T:
    """Return a tool each of whose calls is made once; the id of the tool call is the effect's key.

    It finds its thread and the id of its call in what a graph gives to a tool. After an
    interrupt within the tool, it begins again with the answer.

    Args:
        tool: Any tool. ``config["configurable"]["idempotency_key"]``, also of its ``runtime``, has
            the key for the outside system.
        saver: Of the graph.
        options: Of ``CheckpointSaver.effect``.
    """
    from langgraph.errors import GraphBubbleUp  # noqa: PLC0415  (not in langgraph-checkpoint)

    options = {"not_done": (GraphBubbleUp,)} | options
    kind: Any = type(tool)

    class Durable(kind):  # type: ignore[misc]
        def invoke(self, input: Any, config: Any = None, **kwargs: Any) -> Any:  # noqa: A002
            call = _Call(self.name, self.args, input, config)

            def make(key: str) -> Any:
                return _dump(saver, tool.invoke(*call.give(key), **kwargs))

            run = saver._portals.run  # noqa: SLF001  (of this adapter)
            return call.load(saver, run(type(saver).__name__, call.bind(saver, make, options)))

        async def ainvoke(self, input: Any, config: Any = None, **kwargs: Any) -> Any:  # noqa: A002
            call = _Call(self.name, self.args, input, config)

            async def make(key: str) -> Any:
                return _dump(saver, await tool.ainvoke(*call.give(key), **kwargs))

            return call.load(saver, await call.bind(saver, make, options)())

    made = tool.model_copy()
    Durable.__name__ = kind.__name__
    object.__setattr__(made, "__class__", Durable)
    return made


class _Call:
    """A tool call of a graph.

    Raises:
        InvalidArgumentError: There is no thread, or no id of the call.
    """

    def __init__(self, name: str, schema: Mapping[str, Any], call: Any, config: Any) -> None:
        self._name, self._call = name, call
        self._config = ensure_config(config)
        self._thread_id = self._config.get("configurable", {}).get("thread_id")
        is_call = isinstance(call, dict) and call.get("type") == "tool_call"
        self._key = call.get("id") if is_call else None
        if self._thread_id is None or not self._key:
            raise InvalidArgumentError(
                f"the durable tool {name!r} needs a thread and the id of a tool call: call it in a "
                "graph with a thread_id, or with a ToolCall and a config"
            )
        # What the graph injects, such as its state, is no argument of the model's.
        self._arguments = {it: value for it, value in call["args"].items() if it in schema}

    def give(self, key: str) -> tuple[Any, Any]:
        """Return the call and the config, both with the idempotency key."""

        def add_key(config: Any) -> Any:
            configurable = {**config.get("configurable", {}), IDEMPOTENCY_KEY: key}
            return {**config, "configurable": configurable}

        args = dict(self._call["args"])
        for name, value in args.items():
            if hasattr(value, "tool_call_id") and hasattr(value, "config"):  # a ToolRuntime
                args[name] = replace(value, config=add_key(value.config))
        return {**self._call, "args": args}, add_key(self._config)

    def bind(self, saver: LangGraphSaver, make: Any, options: Mapping[str, Any]) -> Any:
        """Return the effect as an async function without arguments."""
        place = str(self._thread_id), str(self._key)
        return partial(saver.saver.effect, *place, make, arguments=self._arguments, **options)

    def load(self, saver: LangGraphSaver, result: Any) -> Any:
        """Return the output that was kept; of JSON that settled the effect, a tool's output."""
        if isinstance(result, dict) and result.keys() == {"type", "data"}:
            return saver.serde.loads_typed((result["type"], b64decode(result["data"])))
        from langchain_core.tools import StructuredTool  # noqa: PLC0415  (slow to import)

        settled = StructuredTool.from_function(lambda: result, name=self._name, description="-")
        call: Any = {"type": "tool_call", "id": self._key, "name": self._name, "args": {}}
        return settled.invoke(call, {"callbacks": []})


def _dump(saver: LangGraphSaver, result: Any) -> dict[str, str]:
    kind, data = saver.serde.dumps_typed(result)
    return {"type": kind, "data": b64encode(data).decode()}


def run_in_turns(graph: G, **options: Unpack[TurnOptions]) -> G:
    """Return a graph whose runs hold the turn of their thread, from the first read to the end.

    The end of a run, and of its turn, is also an error, an interrupt, or a stream that is closed. A
    run in a turn of the thread that the caller holds belongs to that one. The loop over ``astream``
    is outside the turn, because a dropped stream ends in another context than its consumer's.

    A run saves each step before the next one, unless it is given another ``durability``: one that
    lost its turn ends at its next step. By LangGraph's own default it would make all of its steps.

    Args:
        graph: With a ``LangGraphSaver``.
        options: See ``types.turns.TurnOptions``.
    """
    kind: Any = type(graph)

    class InTurns(kind):  # type: ignore[misc]
        def stream(self, input: Any, config: Any = None, **kwargs: Any) -> Iterator[Any]:  # noqa: A002
            with _make_turn(self, config, kwargs, options):
                yield from super().stream(input, config, **kwargs)

        async def astream(
            self,
            input: Any,  # noqa: A002
            config: Any = None,
            **kwargs: Any,
        ) -> AsyncIterator[Any]:
            held, run = _make_turn(self, config, kwargs, options), super().astream
            async with held as turn, aclosing(run(input, config, **kwargs)) as parts:
                async for part in parts:
                    if turn is not None:  # the consumer's context keeps no number
                        turn.leave()
                    try:
                        yield part
                    finally:
                        if turn is not None:
                            turn.enter()

    made = graph.copy()
    InTurns.__name__ = kind.__name__
    made.__class__ = InTurns
    return made


def _make_turn(graph: Any, config: Any, run: dict[str, Any], options: TurnOptions) -> Any:
    """Return the turn of a run; of a subgraph's, or within a turn that is held, nothing.

    ``run`` has the run's arguments; its durability is added.
    """
    configurable = merge_configs(graph.config, config).get("configurable", {})
    if configurable.get("thread_id") is None or configurable.get("checkpoint_ns"):
        return nullcontext()
    saver = graph.checkpointer
    if not isinstance(saver, LangGraphSaver):
        raise InvalidArgumentError(
            f"the graph's checkpointer is {saver!r:.80}, and a run in turns needs a LangGraphSaver:"
            " compile(checkpointer=LangGraphSaver(...))"
        )
    if run.get("durability") is None and "checkpoint_during" not in run:
        run["durability"] = "sync"
    thread_id = format_thread_id(configurable["thread_id"])
    if holding.get_number(saver.backend, thread_id) is not None:
        return nullcontext()
    return saver.turn(thread_id, **options)
