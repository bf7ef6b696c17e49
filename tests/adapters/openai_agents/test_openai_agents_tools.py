"""Tools of the OpenAI Agents SDK whose calls are effects."""

from __future__ import annotations

from typing import Any

import pytest
from lazily import TESTS_RUN

from locus_store import InvalidArgumentError, MemoryCheckpointer, OutcomeUnknownError
from locus_store.effects import Done

if TESTS_RUN:
    from agents import Usage, function_tool
    from agents.tool_context import ToolContext

    from locus_store.adapters.openai_agents import durable_tool

pytestmark = pytest.mark.anyio


def context_of(call_id: str, arguments: str) -> Any:
    return ToolContext(
        context=None, usage=Usage(), tool_name="pay", tool_call_id=call_id, tool_arguments=arguments
    )


async def test_a_tool_call_is_made_once_in_a_thread() -> None:
    orders: list[int] = []

    @function_tool(failure_error_function=None)
    def pay(order: int) -> str:
        """Pay an order."""
        orders.append(order)
        if order == 0:
            raise TimeoutError("no reply")
        return f"paid {order}"

    tool = durable_tool(pay, MemoryCheckpointer(), "t")

    async def call(call_id: str, order: int) -> Any:
        arguments = f'{{"order": {order}}}'
        return await tool.on_invoke_tool(context_of(call_id, arguments), arguments)

    for _ in range(2):
        assert await call("c1", 7) == "paid 7"
    with pytest.raises(InvalidArgumentError, match="other arguments"):
        await call("c1", 8)
    with pytest.raises(TimeoutError):
        await call("c2", 0)
    with pytest.raises(OutcomeUnknownError):
        await call("c2", 0)
    assert orders == [7, 0]
    assert pay.on_invoke_tool is not tool.on_invoke_tool


async def test_the_json_that_settles_an_unknown_outcome_is_the_result_of_the_tool() -> None:
    @function_tool(failure_error_function=None)
    def pay() -> str:
        """Pay an order."""
        raise TimeoutError("no reply")

    checkpointer = MemoryCheckpointer()
    tool = durable_tool(pay, checkpointer, "t")
    answering = durable_tool(pay, checkpointer, "t", on_unknown=lambda _: Done({"receipt": 7}))
    for call_id in ("c1", "c2"):
        with pytest.raises(TimeoutError):
            await tool.on_invoke_tool(context_of(call_id, "{}"), "{}")
    await checkpointer.resolve_effect("t", "c1", took_place=True, result="paid by hand")
    assert await tool.on_invoke_tool(context_of("c1", "{}"), "{}") == "paid by hand"
    assert await answering.on_invoke_tool(context_of("c2", "{}"), "{}") == {"receipt": 7}
