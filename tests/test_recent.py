"""The cache of recently used values, and what begins anew in a forked child."""

from __future__ import annotations

import gc
import os
import subprocess
import sys

import pytest

from locus_store.runtime import forks
from locus_store.runtime.recent import Recent


def test_what_was_used_lately_stays_within_its_bound() -> None:
    kept: Recent[int, bytes] = Recent(100)
    for number in range(1000):
        kept.put(number % 70, b"", 10)
        assert sum(size for _, size in kept._kept.values()) == kept.size <= 100
    kept.put(3, b"most of it", 90)
    assert kept.get(3) == b"most of it"
    assert kept.size <= 100
    kept.put(1, b"large", 101)
    assert kept.get(1) is None
    kept.put(2, b"new", 10)
    assert kept.get(2) == b"new"
    kept.drop(2)
    assert kept.get(2) is None


def test_the_least_recently_used_value_is_dropped_first() -> None:
    kept: Recent[str, int] = Recent(2)
    kept.put("a", 1)
    kept.put("b", 2)
    assert kept.get("a") == 1
    kept.put("c", 3)
    assert (kept.get("a"), kept.get("b"), kept.get("c")) == (1, None, 3)
    kept.limit(1)
    assert (kept.get("a"), kept.get("c")) == (None, 3)


def test_the_last_value_may_be_kept_whatever_its_size() -> None:
    kept: Recent[str, int] = Recent(10, keeps_last=True)
    kept.put("a", 1, 5)
    kept.put("b", 2, 50)
    assert (kept.get("a"), kept.get("b")) == (None, 2)
    kept.limit(0)
    assert kept.get("b") == 2
    kept.put("b", 3, 5)
    assert kept.size == 5


@pytest.mark.posix
def test_a_forked_child_begins_with_an_empty_cache_and_a_free_lock() -> None:
    kept: Recent[str, int] = Recent(10)
    kept.put("a", 1)
    with kept._lock:
        if not (child := os.fork()):
            os._exit(0 if kept.get("a") is None else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert kept.get("a") == 1


def test_an_object_that_is_gone_is_not_started_again() -> None:
    gc.collect()
    before = len(forks._starts)
    kept: Recent[str, int] = Recent(1)
    assert len(forks._starts) == before + 1
    del kept
    gc.collect()
    assert len(forks._starts) == before


def test_a_process_that_ends_with_a_cycle_prints_nothing() -> None:
    code = "from locus_store.runtime.recent import Recent; it = Recent(1); it.own = it"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
    assert done.stderr == b""
