"""A conversation that survives its process, step by step.

    make demo
    python examples/conversation.py --url sqlite:///conversation.db
    python examples/conversation.py --url postgresql://app@localhost/agents

Two operating system processes hold one conversation, each with an agent of its own; then its
versions are listed, an old one is loaded and forked, and the text is searched. The agent is a
real one of the Locus SDK; only its model is scripted, so that no data leaves this machine.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import re
import secrets
import subprocess
import sys
import tempfile
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from locus import Agent, tool
from locus.core.messages import Message, Role
from locus.testing import FunctionModel, text, tool_call
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from locus_store import BaseCheckpointer, LocusStoreError, open_checkpointer

if TYPE_CHECKING:
    from locus.core.state import AgentState
    from locus.models.base import ModelResponse

console = Console(highlight=False)

FIRST = "I'm Alex. What is the weather in Lisbon?"
SECOND = "Who am I?"
AFTER_THE_FORK = "I'm Robin now. Who am I?"


# --- the agent


@tool
def weather(city: str) -> str:
    """Tell the weather in a city."""
    return f"18 °C and raining in {city}"


def answer(messages: list[Message], tools: list[dict[str, Any]]) -> ModelResponse:
    """Return a scripted answer in place of a language model, based on the messages alone."""
    last = messages[-1]
    if last.role == Role.TOOL:
        return text(f"It is {last.content}, {who_speaks(messages)}.")
    if city := re.search(r"weather in (\w+)", last.content or ""):
        return tool_call("weather", city=city[1])
    return text(f"You are {who_speaks(messages)}.")


def who_speaks(messages: list[Message]) -> str:
    """Return the last name that the user gave."""
    said = [it.content or "" for it in messages if it.role == Role.USER]
    names = re.findall(r"I'm (\w+)", "\n".join(said))
    return names[-1] if names else "a stranger"


def new_agent(checkpointer: BaseCheckpointer) -> Agent:
    """Return an agent without any memory except the checkpointer."""
    return Agent(
        agent_id="concierge",
        model=FunctionModel(answer),
        tools=[weather],
        system_prompt="You are a concierge.",
        context_window=100_000,
        checkpointer=checkpointer,
        keep_iteration_checkpoints=True,  # keep the versions within a turn, too
    )


def opened(url: str) -> BaseCheckpointer:
    """Return the checkpointer of a URL."""
    return open_checkpointer(url)


# --- one turn, in a process of its own


async def say(url: str, thread: str, prompt: str) -> None:
    """Hold one turn of the conversation."""
    async with opened(url) as checkpointer:
        agent = new_agent(checkpointer)
        known = await checkpointer.exists(thread)
        memory = "finds the thread" if known else "creates the thread"
        console.print(f"  [dim]process {os.getpid()} starts with a new agent, {memory}[/]")
        result = await agent.arun(prompt, thread_id=thread)
        console.print(f"  [bold]user [/] {escape(prompt)}")
        for call in result.tool_executions:
            console.print(f"  [dim]tool  {call.tool_name} → {call.result}[/]")
        console.print(f"  [bold green]agent[/] {escape(result.text)}")
    console.print(f"  [dim]process {os.getpid()} exits[/]")


def in_a_new_process(url: str, thread: str, prompt: str) -> None:
    """Run ``say`` in another process, which shares only the database."""
    sys.stdout.flush()
    command = [sys.executable, __file__, "--url", url, "--thread", thread, "--say", prompt]
    done = subprocess.run(command, check=False)  # noqa: S603  (this very script)
    if done.returncode:
        raise SystemExit(done.returncode)


# --- versions, forks and search


async def look_back(url: str, thread: str) -> None:
    """List the versions, load an old one, fork it, and search."""
    async with opened(url) as checkpointer:
        agent = new_agent(checkpointer)

        heading(3, "Every step is a version")
        history = await agent.get_state_history(thread)
        console.print(table_of(history))

        oldest = history[-1][0]
        heading(4, f"An old version can be loaded: {short(oldest)}")
        old = await agent.get_state(thread, oldest)
        for message in old.messages:
            shown = message.content or f"calls {', '.join(it.name for it in message.tool_calls)}"
            console.print(f"  [dim]{message.role.value:<9}[/] {escape(shown)}")

        fork = f"{thread}:fork"
        heading(5, f"A fork continues separately: {fork}")
        await agent.fork(thread, oldest, new_thread_id=fork)
        for at in (fork, thread):
            prompt = AFTER_THE_FORK if at == fork else SECOND
            result = await agent.arun(prompt, thread_id=at)
            console.print(f"  [dim]{at:<16}[/] {escape(prompt)} [green]{escape(result.text)}[/]")

        heading(6, "Search all threads for words: search('lisbon alex')")
        for hit in await checkpointer.search("lisbon alex"):
            place, snippet = hit["thread_id"], escape(hit["snippet"])
            console.print(f"  [dim]{place:<16}[/] {short(hit['checkpoint_id'])}  {snippet}")


def without_password(url: str) -> str:
    """Return the URL without its user and password."""
    return re.sub(r"//[^/@]*@", "//", url)


def table_of(history: list[tuple[str, AgentState]]) -> Table:
    """Return a table of the versions, newest first."""
    table = Table("version", "messages", "ends with", box=None, header_style="dim", padding=(0, 2))
    for checkpoint_id, state in history:
        last = state.messages[-1]
        ends = f"{last.role.value}: {last.content or 'calls a tool'}"
        table.add_row(short(checkpoint_id), str(len(state.messages)), escape(ends))
    return table


def heading(number: int, title: str) -> None:
    """Print the heading of a step."""
    console.print(f"\n[bold cyan]{number}[/]  [bold]{escape(title)}[/]")


def short(checkpoint_id: str) -> str:
    """Return the first characters of an id."""
    return f"{checkpoint_id[:8]}…"


# --- the command


def tell(url: str, thread: str) -> None:
    """Run all steps."""
    if not opened(url).capabilities.persistent_checkpoint_ids:
        raise SystemExit(f"{url} is limited to one process; this demo needs a database for two")
    console.print(f"[bold]locus-store[/], thread [cyan]{escape(thread)}[/]")
    console.print(f"[dim]{escape(without_password(url))}[/]", soft_wrap=True)
    heading(1, "A process holds a turn and exits")
    in_a_new_process(url, thread, FIRST)
    heading(2, "A second process continues the conversation")
    in_a_new_process(url, thread, SECOND)
    asyncio.run(look_back(url, thread))


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description="A conversation that survives its process.")
    parser.add_argument("--url", help="of the database; a temporary SQLite file unless given")
    parser.add_argument("--thread", help="id of the thread; a new one unless given")
    parser.add_argument("--say", metavar="PROMPT", help="hold one turn only, and exit")
    options = parser.parse_args()
    thread = options.thread or f"alex:{secrets.token_hex(2)}"
    try:
        if options.say and options.url:
            asyncio.run(say(options.url, thread, options.say))
        elif options.url:
            tell(options.url, thread)
            console.print("\nThe threads are still there: run it again, or look with SQL.")
        else:
            with tempfile.TemporaryDirectory(prefix="locus-store-") as directory:
                tell(f"sqlite:///{quote(directory)}/conversation.db", thread)
            console.print("\nThat database was temporary; keep one: --url sqlite:///my.db")
    except LocusStoreError as exc:
        raise SystemExit(f"{type(exc).__name__}: {exc}") from exc


if __name__ == "__main__":
    main()
