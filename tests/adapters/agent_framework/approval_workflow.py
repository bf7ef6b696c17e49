"""A workflow of Agent Framework that asks for an approval; run by tests, and in another process.

``approval_workflow.py URL`` continues the latest checkpoint with a yes, and prints the output.
"""

import asyncio
import sys
from dataclasses import dataclass
from typing import Any

from agent_framework import (
    Executor,
    Workflow,
    WorkflowBuilder,
    WorkflowContext,
    handler,
    response_handler,
)

from locus_store.adapters.agent_framework import LocusCheckpointStorage


@dataclass
class Order:
    """What is to be approved."""

    item: str
    tags: tuple[str, ...] = ()


class Desk(Executor):
    """Takes an order, and asks for an approval of it."""

    taken = 0

    @handler
    async def take(self, item: str, ctx: WorkflowContext[str]) -> None:
        self.taken += 1
        order = Order(item, ("new", "checked"))
        ctx.set_state("order", order)
        await ctx.request_info(order, bool, request_id="r1")

    @response_handler
    async def approved(self, order: Order, answer: bool, ctx: WorkflowContext[str]) -> None:
        await ctx.send_message(f"{order.item} {order.tags} {answer} {self.taken}")

    async def on_checkpoint_save(self) -> dict[str, Any]:
        return {"taken": self.taken}

    async def on_checkpoint_restore(self, state: dict[str, Any]) -> None:
        self.taken = state["taken"]


class Printer(Executor):
    """Yields what it is sent."""

    @handler
    async def print(self, text: str, ctx: WorkflowContext[None, str]) -> None:
        await ctx.yield_output(text)


def workflow(storage: Any) -> Workflow:
    """Return a new workflow."""
    desk, printer = Desk(id="desk"), Printer(id="printer")
    builder = WorkflowBuilder(start_executor=desk, name="orders", checkpoint_storage=storage)
    return builder.add_edge(desk, printer).build()


async def main(url: str) -> None:
    async with LocusCheckpointStorage.from_url(url, allowed=[Order]) as storage:
        latest = await storage.get_latest(workflow_name="orders")
        made = workflow(storage)
        result = await made.run(responses={"r1": True}, checkpoint_id=latest.checkpoint_id)
        print(*result.get_outputs())


if __name__ == "__main__":
    from approval_workflow import main as main_of_module  # whose classes have the module's name

    asyncio.run(main_of_module(sys.argv[1]))
