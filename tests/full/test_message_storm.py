"""Several processes append to the same message logs, and are killed in between."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from tiers import first_of

from locus_store.blocking import open_message_log

WORKER = Path(__file__).parents[1] / "workers" / "on_log.py"
WRITERS, LOGS = 4, 8
APPENDS = int(os.environ.get("LOCUS_TEST_APPENDS", "1200")) // WRITERS
"""Appends of each writer."""


@pytest.fixture(params=first_of("sqlite", "postgresql"))
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'log.db'}"
    return request.getfixturevalue("migrated_database")


def written(url: str, writer: str) -> tuple[set[int], set[int]]:
    """Append all messages of a writer, whose process is killed now and then.

    Returns:
        The acknowledged numbers, and those that were under way when it was killed.
    """
    numbers, acknowledged, lost, first = random.Random(writer), set[int](), set[int](), 0
    while first < APPENDS:
        arguments = [sys.executable, str(WORKER), url, writer, str(first), str(APPENDS), str(LOGS)]
        process = subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        lines = [process.stdout.readline() for _ in range(numbers.randrange(50, APPENDS))]
        process.kill()
        lines += process.stdout.readlines()  # communicate() would lose what readline() read ahead
        _, error = process.communicate()
        assert process.returncode in {0, -9}, error.decode()
        acknowledged |= {int(it) for it in lines if it.endswith(b"\n")}
        first = max(acknowledged, default=-1) + 1
        if first < APPENDS:
            lost.add(first)
            first += 0 if first % 3 else 1  # without an id, a repetition would be another message
    return acknowledged, lost


def test_killed_writers_lose_double_and_reorder_nothing(url: str) -> None:
    with open_message_log(url) as log:
        log.open()
        names = [f"w{n}" for n in range(WRITERS)]
        with ThreadPoolExecutor(WRITERS) as pool:
            results = dict(zip(names, pool.map(lambda it: written(url, it), names), strict=True))
        found: dict[str, list[int]] = {name: [] for name in names}
        for info in log.logs():
            messages = log.load(info.thread_id, namespace=info.namespace) or []
            assert info.count == len(messages)
            for name in names:
                mine = [it.content[1] for it in messages if it.content[0] == name]
                assert mine == sorted(set(mine))
                found[name] += mine
    for name, (acknowledged, lost) in results.items():
        assert len(found[name]) == len(set(found[name]))
        assert acknowledged <= set(found[name]) <= acknowledged | lost
        assert all(it in found[name] for it in range(APPENDS) if it % 3)
