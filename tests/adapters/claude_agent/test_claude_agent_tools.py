"""Tools of the Claude Agent SDK whose calls are effects."""

from __future__ import annotations

from typing import Any

import pytest
from lazily import TESTS_RUN

from locus_store import InvalidArgumentError, MemoryCheckpointer, OutcomeUnknownError
from locus_store.effects import Done

if TESTS_RUN:
    from claude_agent_sdk import tool

    from locus_store.adapters.claude_agent import durable_tool

pytestmark = pytest.mark.anyio


async def test_a_tool_is_called_once_for_its_key() -> None:
    orders: list[int] = []

    @tool("pay", "Pay an order.", {"order": int, "amount": int})
    async def pay(arguments: dict[str, Any]) -> dict[str, Any]:
        orders.append(arguments["order"])
        if arguments["order"] == 0:
            raise TimeoutError("no reply")
        return {"content": [{"type": "text", "text": f"paid {arguments['order']}"}]}

    made = durable_tool(pay, MemoryCheckpointer(), "t", lambda it: str(it["order"]))
    assert (made.name, made.input_schema) == (pay.name, pay.input_schema)
    for _ in range(2):  # the second call is that of a model that asks again
        found = await made.handler({"order": 7, "amount": 1})
        assert found["content"][0]["text"] == "paid 7"
    with pytest.raises(InvalidArgumentError, match=r"'pay:7' .*other arguments"):
        await made.handler({"order": 7, "amount": 2})
    with pytest.raises(TimeoutError):
        await made.handler({"order": 0, "amount": 1})
    with pytest.raises(OutcomeUnknownError):
        await made.handler({"order": 0, "amount": 1})
    assert orders == [7, 0]


async def test_the_json_that_settles_an_unknown_outcome_is_the_content_of_the_tool() -> None:
    @tool("pay", "Pay an order.", {"order": int})
    async def pay(arguments: dict[str, Any]) -> dict[str, Any]:
        raise TimeoutError("no reply")

    checkpointer = MemoryCheckpointer()
    made = durable_tool(pay, checkpointer, "t", lambda it: str(it["order"]))
    whole = {"content": [{"type": "text", "text": "paid"}]}
    for order, (settled, text) in enumerate(
        [("paid", "paid"), ({"receipt": "é"}, '{"receipt": "é"}'), (None, "null"), (whole, "paid")]
    ):
        with pytest.raises(TimeoutError):
            await made.handler({"order": order})
        await checkpointer.resolve_effect("t", f"pay:{order}", took_place=True, result=settled)
        found = await made.handler({"order": order})
        assert found == {"content": [{"type": "text", "text": text}]}
    answering = durable_tool(
        pay, checkpointer, "t", lambda _: "last", on_unknown=lambda _: Done("paid by hand")
    )
    with pytest.raises(TimeoutError):
        await answering.handler({"order": 9})
    found = await answering.handler({"order": 9})
    assert found == {"content": [{"type": "text", "text": "paid by hand"}]}
