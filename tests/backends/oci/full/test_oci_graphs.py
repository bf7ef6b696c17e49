"""Graphs of LangGraph on a bucket: parallel subgraphs share the head of their thread."""

from __future__ import annotations

import asyncio
import operator
from itertools import pairwise
from typing import TYPE_CHECKING, Annotated, Any, TypedDict

import pytest
from lazily import TESTS_RUN

if TESTS_RUN:
    from langgraph.graph import START, StateGraph
    from langgraph.types import Send

    from locus_store.adapters.langgraph import LangGraphSaver

if TYPE_CHECKING:
    from buckets import DoubleBucket

pytestmark = pytest.mark.anyio

PARALLEL = 6
STEPS = 4


class Said(TypedDict):
    said: Annotated[list[str], operator.add]


class Part(TypedDict):
    name: int
    said: Annotated[list[str], operator.add]


def graph(saver: LangGraphSaver) -> Any:
    """Return a graph that sends its parts to one subgraph, which saves after each of its steps."""
    inner = StateGraph(Part)
    names = [f"step-{n}" for n in range(STEPS)]
    for name in names:

        async def step(state: Part, name: str = name) -> dict[str, Any]:
            await asyncio.sleep(0)
            return {"said": [f"{state['name']} {name}"]}

        inner.add_node(name, step)
    inner.add_edge(START, names[0])
    for one, other in pairwise(names):
        inner.add_edge(one, other)
    outer = StateGraph(Said).add_node("part", inner.compile())
    sends = [Send("part", {"name": n, "said": []}) for n in range(PARALLEL)]
    return outer.add_conditional_edges(START, lambda _: sends).compile(checkpointer=saver)


async def test_parallel_subgraphs_of_a_thread_never_conflict(bucket: DoubleBucket) -> None:
    del bucket.double.log[:]
    async with LangGraphSaver.from_url(bucket.url()) as saver:
        config = {"configurable": {"thread_id": "t"}}
        found = await graph(saver).ainvoke({"said": []}, config)
        wanted = {f"{part} step-{n}" for part in range(PARALLEL) for n in range(STEPS)}
        assert wanted <= {*found["said"]}
    backend = bucket.backend()
    assert len(await backend.namespaces("t")) == 1 + PARALLEL
    await backend.close()
    puts = [status for kind, _, status in bucket.double.log if kind == "put"]
    refused = sum(it in {409, 412} for it in puts)
    print(f"{len(puts)} puts, {refused} of them refused and decided again")
    assert refused <= len(puts) / 2
