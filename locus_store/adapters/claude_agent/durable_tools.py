"""Tools of the Claude Agent SDK whose calls are effects of a thread."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from claude_agent_sdk import SdkMcpTool

from locus_store.effects import RunsEffects


def durable_tool(
    tool: SdkMcpTool[Any],
    checkpointer: RunsEffects,
    thread_id: str,
    key: Callable[[Any], str],
    **options: Any,
) -> SdkMcpTool[Any]:
    """Return a tool for ``create_sdk_mcp_server`` each of whose calls is made once.

    After a crash the model asks again, and the SDK gives its call a new id. So the arguments name
    the call.

    Args:
        tool: Made by ``tool`` of the SDK. It should raise errors: a result with ``is_error`` is
            kept.
        checkpointer: An asynchronous checkpointer, or a saver.
        thread_id: The thread of the effects.
        key: Returns the key of the effect for the arguments, for example the id of an order.
        options: Of ``effect``.
    """

    async def run(arguments: Any) -> Any:
        async def call(_: str) -> Any:
            return await tool.handler(arguments)

        name = f"{tool.name}:{key(arguments)}"
        return await checkpointer.effect(thread_id, name, call, arguments=arguments, **options)

    return replace(tool, handler=run)
