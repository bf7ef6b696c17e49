"""Tools of LangGraph whose calls are effects of the thread."""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

from langchain_core.runnables.config import ensure_config
from langgraph.errors import GraphBubbleUp

from locus_store.adapters.langgraph.saver import LangGraphSaver
from locus_store.errors import InvalidArgumentError

if TYPE_CHECKING:
    from langchain_core.tools import BaseTool


T = TypeVar("T", bound="BaseTool")

IDEMPOTENCY_KEY: Final = "idempotency_key"
"""In ``config["configurable"]`` of the tool."""


def durable_tool(tool: T, saver: LangGraphSaver, **options: Any) -> T:
    """Return a tool each of whose calls is made once; the id of the tool call is the effect's key.

    It finds its thread and the id of its call in what a graph gives to a tool. After an
    interrupt within the tool, it begins again with the answer.

    Args:
        tool: Any tool. ``config["configurable"]["idempotency_key"]`` has the key for the outside
            system.
        saver: Of the graph.
        options: Of ``CheckpointSaver.effect``.
    """
    options = {"not_done": (GraphBubbleUp,)} | options
    kind: Any = type(tool)

    class Durable(kind):  # type: ignore[misc]
        def invoke(self, input: Any, config: Any = None, **kwargs: Any) -> Any:  # noqa: A002
            call = _Call(self.name, self.args, input, config)

            def make(key: str) -> Any:
                return _dump(saver, tool.invoke(input, call.give(key), **kwargs))

            effect = call.bind(saver, make, options)
            portals = saver._portals  # noqa: SLF001  (of this adapter)
            return _load(saver, portals.run(type(saver).__name__, effect))

        async def ainvoke(self, input: Any, config: Any = None, **kwargs: Any) -> Any:  # noqa: A002
            call = _Call(self.name, self.args, input, config)

            async def make(key: str) -> Any:
                return _dump(saver, await tool.ainvoke(input, call.give(key), **kwargs))

            return _load(saver, await call.bind(saver, make, options)())

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

    def give(self, key: str) -> Any:
        """Return the config with the idempotency key."""
        configurable = {**self._config.get("configurable", {}), IDEMPOTENCY_KEY: key}
        return {**self._config, "configurable": configurable}

    def bind(self, saver: LangGraphSaver, make: Any, options: Mapping[str, Any]) -> Any:
        """Return the effect as an async function without arguments."""
        place = str(self._thread_id), str(self._key)
        return partial(saver.saver.effect, *place, make, arguments=self._arguments, **options)


def _dump(saver: LangGraphSaver, result: Any) -> dict[str, str]:
    kind, data = saver.serde.dumps_typed(result)
    return {"type": kind, "data": b64encode(data).decode()}


def _load(saver: LangGraphSaver, result: Mapping[str, str]) -> Any:
    return saver.serde.loads_typed((result["type"], b64decode(result["data"])))
