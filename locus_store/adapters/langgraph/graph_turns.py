"""Graphs of LangGraph whose runs hold the turns of their threads."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing, nullcontext
from typing import TYPE_CHECKING, Any, TypeVar, Unpack

from langchain_core.runnables.config import merge_configs

from locus_store.adapters.langgraph.loads import format_thread_id
from locus_store.adapters.langgraph.saver import LangGraphSaver
from locus_store.errors import InvalidArgumentError
from locus_store.runtime import holding
from locus_store.types.turns import TurnOptions

if TYPE_CHECKING:
    from langgraph.pregel import Pregel


G = TypeVar("G", bound="Pregel[Any, Any, Any, Any]")


def run_in_turns(graph: G, **options: Unpack[TurnOptions]) -> G:
    """Return a graph whose runs hold the turn of their thread, from the first read to the end.

    The end of a run, and of its turn, is also an error, an interrupt, or a stream that is closed. A
    run in a turn of the thread that the caller holds belongs to that one. The loop over ``astream``
    is outside the turn, because a dropped stream ends in another context than its consumer's.

    Args:
        graph: With a ``LangGraphSaver``.
        options: See ``types.turns.TurnOptions``.
    """
    kind: Any = type(graph)

    class InTurns(kind):  # type: ignore[misc]
        def stream(self, input: Any, config: Any = None, **kwargs: Any) -> Iterator[Any]:  # noqa: A002
            with _make_turn(self, config, options):
                yield from super().stream(input, config, **kwargs)

        async def astream(
            self,
            input: Any,  # noqa: A002
            config: Any = None,
            **kwargs: Any,
        ) -> AsyncIterator[Any]:
            parts = super().astream(input, config, **kwargs)
            async with _make_turn(self, config, options) as turn, aclosing(parts):
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


def _make_turn(graph: Any, config: Any, options: TurnOptions) -> Any:
    """Return the turn of a run; of a subgraph's, or within a turn that is held, nothing."""
    configurable = merge_configs(graph.config, config).get("configurable", {})
    if configurable.get("thread_id") is None or configurable.get("checkpoint_ns"):
        return nullcontext()
    saver = graph.checkpointer
    if not isinstance(saver, LangGraphSaver):
        raise InvalidArgumentError(
            f"the graph's checkpointer is {saver!r:.80}, and a run in turns needs a LangGraphSaver:"
            " compile(checkpointer=LangGraphSaver(...))"
        )
    thread_id = format_thread_id(configurable["thread_id"])
    if holding.get_number(saver.backend, thread_id) is not None:
        return nullcontext()
    return saver.turn(thread_id, **options)
