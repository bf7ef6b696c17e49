"""Several processes append to the same sessions of frameworks, and are killed in between."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from pathlib import Path

import pytest
from log_urls import url_of
from tiers import LONG

from locus_store.blocking import open_message_log

WORKER = Path(__file__).parents[1] / "workers" / "on_sessions.py"
WRITERS, TASKS = 4 if LONG else 2, 16
APPENDS = int(os.environ.get("LOCUS_TEST_APPENDS", "10000" if LONG else "96")) // WRITERS
"""Appends of each writer."""

BETWEEN_KILLS = min(APPENDS, 500)
"""Acknowledged appends of a process after which it is killed, at most."""

KINDS = {
    "adk": ("", lambda it: it.content["content"]["parts"][0]["text"].split()),
    "openai": ("", lambda it: (it.role, it.content["content"])),
    "claude": ("", lambda it: (it.role, it.content["content"])),
    "pydantic": ("messages", lambda it: it.content["parts"][0]["content"].split()),
    "agent-framework": ("", lambda it: it.content["contents"][0]["text"].split()),
    "strands": ("messages/a", lambda it: it.content["message"]["content"][0]["text"].split()),
}
"""Namespace of a framework's messages, and the writer and number of one."""

DATABASES = ("sqlite", "postgresql", "file", "oci", "opensearch", "redis")
SHORT = [
    *(("adk", it) for it in DATABASES),
    ("openai", "sqlite"),
    ("claude", "postgresql"),
    ("pydantic", "postgresql"),
    ("agent-framework", "sqlite"),
]
"""The storms of ``make test-all``."""


@pytest.fixture
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return url_of(request.param, request, tmp_path)


def written(kind: str, url: str, writer: str) -> tuple[set[int], set[int]]:
    """Append all numbers of a writer, whose process is killed now and then.

    Returns:
        The acknowledged numbers, and those that were under way when it was killed.
    """
    chance, todo = random.Random(writer), list(range(APPENDS))
    acknowledged, lost = set[int](), set[int]()
    while todo:
        arguments = [sys.executable, str(WORKER), kind, url, writer]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        process = subprocess.Popen(arguments, **pipes)
        process.stdin.write(json.dumps(todo).encode())
        process.stdin.close()
        lines = [process.stdout.readline() for _ in range(chance.randrange(20, BETWEEN_KILLS))]
        process.kill()
        lines += process.stdout.read().splitlines(keepends=True)
        error = process.stderr.read()
        assert process.wait() in {0, -9}, error.decode()
        process.stdout.close()
        process.stderr.close()
        acknowledged |= {int(it) for it in lines if it.endswith(b"\n")}
        todo = [it for it in todo if it not in acknowledged]
        if kind == "openai":  # without an id, a repetition would be another item
            first = {it % TASKS: it for it in reversed(todo)}
            lost |= set(first.values())
            todo = [it for it in todo if it not in lost]
    return acknowledged, lost


@pytest.mark.parametrize(
    ("kind", "url"), list(product(KINDS, DATABASES)) if LONG else SHORT, indirect=["url"]
)
def test_killed_writers_lose_double_and_reorder_nothing(kind: str, url: str) -> None:
    namespace, read = KINDS[kind]
    names = [f"w{n}" for n in range(WRITERS)]
    with open_message_log(url) as log:
        log.open()
        with ThreadPoolExecutor(WRITERS) as pool:
            results = dict(
                zip(names, pool.map(lambda it: written(kind, url, it), names), strict=True)
            )
        found: dict[str, list[int]] = defaultdict(list)
        for info in log.logs(namespace=namespace):
            messages = log.load(info.thread_id, namespace=namespace) or []
            assert info.count == len(messages)
            if kind == "pydantic":  # each entry continues the one before
                parents = [it.metadata["parent_id"] for it in messages]
                assert parents == [None, *(it.message_id for it in messages[:-1])]
            said = list(map(read, messages))
            for name in names:
                mine = [int(number) for writer, number in said if writer == name]
                for task in range(TASKS):
                    of_task = [it for it in mine if it % TASKS == task]
                    assert of_task == sorted(set(of_task))
                found[name] += mine
        if kind == "adk":
            for head in log.heads(prefix="app/u/s", namespace="adk-state"):
                (newest,) = log.load(head.info.thread_id, newest=1)
                state = head.messages[0].content["state"]
                assert state["newest"] == newest.content["content"]["parts"][0]["text"]
        if kind == "claude":
            heads = log.heads(namespace="claude-summary")
            assert {it.messages[0].content["last_prompt"] for it in heads} <= set(names)
            assert [it.info.thread_id for it in heads] == [f"p/s{n}" for n in range(8)]
    for name, (acknowledged, lost) in results.items():
        assert len(found[name]) == len(set(found[name]))
        assert acknowledged <= set(found[name]) <= acknowledged | lost
        assert acknowledged | lost == set(range(APPENDS))
