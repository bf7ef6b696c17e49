"""Tools of the OpenAI Agents SDK whose calls are effects of a thread."""

from __future__ import annotations

from copy import copy
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from agents import FunctionTool
    from agents.tool_context import ToolContext

    from locus_store.effects import RunsEffects


def durable_tool(
    tool: FunctionTool, checkpointer: RunsEffects, thread_id: str, **options: Any
) -> FunctionTool:
    """Return a tool each of whose calls is made once; the id of the tool call is the effect's key.

    Give the tool ``failure_error_function=None``: else the SDK turns its errors into results, which
    are kept.

    Args:
        tool: A tool that returns JSON, such as text.
        checkpointer: An asynchronous checkpointer, or a saver.
        thread_id: The thread of the run.
        options: Of ``effect``.
    """
    made, invoke = copy(tool), tool.on_invoke_tool

    async def run(context: ToolContext[Any], arguments: str) -> Any:
        async def call(_: str) -> Any:
            return await invoke(context, arguments)

        return await checkpointer.effect(
            thread_id, context.tool_call_id, call, arguments=arguments, **options
        )

    made.on_invoke_tool = run
    return made
