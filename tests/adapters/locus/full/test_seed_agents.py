"""The Locus SDK's own samples of an agent that remembers, each day in a process of its own."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

SAMPLE = """
import sys
from locus import tool
from locus.testing import ScriptedModel, tool_call

@tool
def search(query: str) -> str:
    "Look a place up."
    return f"All about {{query}}."

@tool
def summarise(words: str) -> str:
    "Make it shorter."
    return words[:10]

day = int(sys.argv[1])
turns = [tool_call("search", query="Tokyo"), "Tokyo is fine."] if day == 1 else ["Your trip."]
model = ScriptedModel(turns)

# --- as the SDK's page has it
from locus.agent import Agent
{imported}

agent = Agent(
    model=model,
    tools=[search, summarise],
    checkpointer={checkpointer},
    context_window=100_000,
)

{day_1}

{day_2}
# ---

if day == 2:
    for message in model.received_messages[0][1:]:
        print(f"{{message.role.value}}: {{message.content}}")
"""

DAY_1 = """
# Day 1
if day == 1:
    agent.run_sync("I'm planning a trip to Tokyo.", thread_id="user-c42")
"""
DAY_2 = """
# Day 2 — different process, same thread_id, conversation continues
if day == 2:
    agent.run_sync("What were we discussing?", thread_id="user-c42")
"""

FILE = (
    "from locus_store.backends.file import FileCheckpointer",
    'FileCheckpointer(directory="./threads")',
)
SQLITE = (
    "from locus_store.backends import sqlite_checkpointer",
    "sqlite_checkpointer()",
)
POSTGRESQL = (
    "from locus_store.backends import postgresql_checkpointer",
    'postgresql_checkpointer(dsn="{url}", schema="locus_threads")',
)
REDIS = (
    "from locus_store.backends import redis_checkpointer",
    'redis_checkpointer(url="{url}", ttl_seconds=86_400)',
)


def in_a_process(directory: Path, sample: str, day: int) -> str:
    """Return the output of a process that runs the sample on that day."""
    command = [sys.executable, "-W", "error", "-c", sample, str(day)]
    done = subprocess.run(
        command, cwd=directory, check=False, capture_output=True, text=True, encoding="utf-8"
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


@pytest.mark.parametrize(
    ("imported", "checkpointer", "server"),
    [
        pytest.param(*FILE, None, id="file"),
        pytest.param(*SQLITE, None, id="sqlite"),
        pytest.param(*POSTGRESQL, "database", id="postgresql"),
        pytest.param(*REDIS, "redis_url", id="redis"),
    ],
)
def test_day_2_continues_the_conversation_of_day_1_with_its_tool_call(
    imported: str,
    checkpointer: str,
    server: str | None,
    request: pytest.FixtureRequest,
    tmp_path: Path,
) -> None:
    url = request.getfixturevalue(server) if server else ""
    sample = SAMPLE.format(
        imported=imported, checkpointer=checkpointer.format(url=url), day_1=DAY_1, day_2=DAY_2
    )
    in_a_process(tmp_path, sample, 1)
    assert in_a_process(tmp_path, sample, 2).splitlines() == [
        "user: I'm planning a trip to Tokyo.",
        "assistant: None",
        "tool: All about Tokyo.",
        "assistant: Tokyo is fine.",
        "user: What were we discussing?",
    ]
