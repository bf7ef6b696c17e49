"""Data of the benchmarks: texts and states that grow a turn at a time, from a fixed seed."""

from __future__ import annotations

import base64
import random
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

State = dict[str, Any]
Text = Callable[[random.Random, int], str]

_STEMS = "ag mem pro con re de trans inter sub con per ob dis ad ex im in un over under"
_MIDDLES = "form port serv duc scrib tend plic clud vers mit spec ject quir sist cept grad lat mov"
_ENDS = "s ed ing er ion ive able ment ance al ly ity or"
_SHORT = "the of and to a in is that for it was on are as with his they at be this from"
VOCABULARY = sorted(
    {
        stem + middle + end
        for stem in _STEMS.split()
        for middle in _MIDDLES.split()
        for end in ["", *_ENDS.split()]
    }
    | set(_SHORT.split())
)
"""4,809 English-like words of nine letters on average; each is drawn as often as the others."""


def prose(rng: random.Random, characters: int) -> str:
    """Random words: deflate makes 0.41 of 1,400 characters of them."""
    words = rng.choices(VOCABULARY, k=characters // 6)
    return " ".join(words)[:characters]


def noise(rng: random.Random, characters: int) -> str:
    """Base64 of random bytes: nothing makes less than 0.75 of it."""
    return base64.b64encode(rng.randbytes(characters)).decode()[:characters]


def chat(turns: int, text: Text = prose) -> Iterator[State]:
    """Two messages a turn, 1.4 KB of text; the same object grows."""
    rng = random.Random(7)
    state: State = {"messages": []}
    for _ in range(turns):
        state["messages"].append({"role": "user", "content": text(rng, 400)})
        state["messages"].append({"role": "assistant", "content": text(rng, 1000)})
        yield state


def locus(turns: int) -> Iterator[Any]:
    """The Locus SDK's own state: a user's turn with one tool call, 1.4 KB of text."""
    from locus.core.messages import Message, ToolCall, ToolResult
    from locus.core.state import AgentState, ReasoningStep, ToolExecution

    rng = random.Random(7)
    at = datetime(2026, 1, 1, tzinfo=UTC)
    state = AgentState(run_id=f"{rng.getrandbits(128):032x}", agent_id="assistant", started_at=at)
    for turn in range(turns):
        at += timedelta(seconds=20, microseconds=rng.randrange(10**6))
        call = ToolCall(
            id=f"call_{rng.getrandbits(96):024x}",
            name="search",
            arguments={"query": prose(rng, 60), "limit": 5},
        )
        result = prose(rng, 300)
        done = ToolExecution(
            tool_name="search",
            tool_call_id=call.id,
            arguments=call.arguments,
            result=result,
            duration_ms=round(rng.uniform(5, 500), 3),
            timestamp=at,
        )
        step = ReasoningStep(
            iteration=turn,
            thought=prose(rng, 150),
            tool_calls=[call],
            tool_results=[done],
            timestamp=at,
        )
        messages = [
            Message.user(prose(rng, 250)),
            Message.assistant(prose(rng, 100), tool_calls=[call]),
            Message.tool(ToolResult(tool_call_id=call.id, name="search", content=result)),
            Message.assistant(prose(rng, 600)),
        ]
        state = state.with_messages(messages).with_tool_execution(done).with_reasoning_step(step)
        state = state.next_iteration().with_token_usage(rng.randrange(4000), rng.randrange(400))
        yield state
