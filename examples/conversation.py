"""A conversation that survives its process, told step by step.

    make demo
    python examples/conversation.py --url sqlite:///conversation.db
    python examples/conversation.py --url postgresql://app@localhost/agents

Two operating system processes hold one conversation, each with an agent of its own; then its
versions are listed, an old one is loaded and forked, and the text is searched. The agent is the
real one of the Locus SDK; only its model is a script, so that nothing leaves this machine.
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
    """Stand in for a language model; all it knows is the messages that it is given."""
    last = messages[-1]
    if last.role == Role.TOOL:
        return text(f"It is {last.content}, {who_speaks(messages)}.")
    if city := re.search(r"weather in (\w+)", last.content or ""):
        return tool_call("weather", city=city[1])
    return text(f"You are {who_speaks(messages)}.")


def who_speaks(messages: list[Message]) -> str:
    """The name that the user gave last."""
    said = [it.content or "" for it in messages if it.role == Role.USER]
    names = re.findall(r"I'm (\w+)", "\n".join(said))
    return names[-1] if names else "somebody I have not met"


def new_agent(checkpointer: BaseCheckpointer) -> Agent:
    """An agent that remembers nothing by itself."""
    return Agent(
        agent_id="concierge",
        model=FunctionModel(answer),
        tools=[weather],
        system_prompt="You are a concierge.",
        context_window=100_000,
        checkpointer=checkpointer,
        keep_iteration_checkpoints=True,  # so that a turn's middle can be looked at, too
    )


def opened(url: str) -> BaseCheckpointer:
    """The checkpointer of a URL."""
    return open_checkpointer(url)


# --- one turn, in a process of its own


async def say(url: str, thread: str, prompt: str) -> None:
    """Hold one turn of the conversation."""
    async with opened(url) as checkpointer:
        agent = new_agent(checkpointer)
        known = await checkpointer.exists(thread)
        memory = "finds the thread" if known else "finds no such thread, and begins it"
        console.print(f"  [dim]process {os.getpid()} starts with a new agent, {memory}[/]")
        result = await agent.arun(prompt, thread_id=thread)
        console.print(f"  [bold]user [/] {escape(prompt)}")
        for call in result.tool_executions:
            console.print(f"  [dim]tool  {call.tool_name} → {call.result}[/]")
        console.print(f"  [bold green]agent[/] {escape(result.text)}")
    console.print(f"  [dim]process {os.getpid()} exits[/]")


def in_a_new_process(url: str, thread: str, prompt: str) -> None:
    """Run ``say`` in another process, which knows what the database knows and no more."""
    sys.stdout.flush()
    command = [sys.executable, __file__, "--url", url, "--thread", thread, "--say", prompt]
    done = subprocess.run(command, check=False)  # noqa: S603  (this very script)
    if done.returncode:
        raise SystemExit(done.returncode)


# --- what the database kept


async def look_back(url: str, thread: str) -> None:
    """List the versions, load an old one, fork it, and search."""
    async with opened(url) as checkpointer:
        agent = new_agent(checkpointer)

        heading(3, "Every step was kept as a version")
        history = await agent.get_state_history(thread)
        console.print(table_of(history))

        oldest = history[-1][0]
        heading(4, f"Any of them loads again: {short(oldest)}")
        old = await agent.get_state(thread, oldest)
        for message in old.messages:
            shown = message.content or f"calls {', '.join(it.name for it in message.tool_calls)}"
            console.print(f"  [dim]{message.role.value:<9}[/] {escape(shown)}")

        fork = f"{thread}:fork"
        heading(5, f"A fork of it goes its own way: {fork}")
        await agent.fork(thread, oldest, new_thread_id=fork)
        for at in (fork, thread):
            prompt = AFTER_THE_FORK if at == fork else SECOND
            result = await agent.arun(prompt, thread_id=at)
            console.print(f"  [dim]{at:<16}[/] {escape(prompt)} [green]{escape(result.text)}[/]")

        heading(6, "All words of a query, in any thread: search('lisbon alex')")
        for hit in await checkpointer.search("lisbon alex"):
            place, snippet = hit["thread_id"], escape(hit["snippet"])
            console.print(f"  [dim]{place:<16}[/] {short(hit['checkpoint_id'])}  {snippet}")


def without_password(url: str) -> str:
    """The URL without what stands before its host."""
    return re.sub(r"//[^/@]*@", "//", url)


def table_of(history: list[tuple[str, AgentState]]) -> Table:
    """The versions, newest first."""
    table = Table("version", "messages", "ends with", box=None, header_style="dim", padding=(0, 2))
    for checkpoint_id, state in history:
        last = state.messages[-1]
        ends = f"{last.role.value}: {last.content or 'calls a tool'}"
        table.add_row(short(checkpoint_id), str(len(state.messages)), escape(ends))
    return table


def heading(number: int, title: str) -> None:
    """Begin a step."""
    console.print(f"\n[bold cyan]{number}[/]  [bold]{escape(title)}[/]")


def short(checkpoint_id: str) -> str:
    """Enough of an id to recognise it."""
    return f"{checkpoint_id[:8]}…"


# --- the command


def tell(url: str, thread: str) -> None:
    """Run the whole story."""
    if not opened(url).capabilities.persistent_checkpoint_ids:
        raise SystemExit(f"{url} lives in one process; this story needs a database for two")
    console.print(f"[bold]locus-store[/], thread [cyan]{escape(thread)}[/]")
    console.print(f"[dim]{escape(without_password(url))}[/]", soft_wrap=True)
    heading(1, "A process talks, and is gone")
    in_a_new_process(url, thread, FIRST)
    heading(2, "A second one goes on")
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
