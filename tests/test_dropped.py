"""Objects that nobody closes: the garbage collector may find them within any call."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
from time import monotonic, sleep
from typing import TYPE_CHECKING, Any

import pytest
from tiers import ALL

from locus_store import SQLiteBackend, StorageBackendAdapter
from locus_store.runtime.portals import call_when_dropped

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

WAIT = 30


class Owner:
    pass


def test_the_end_of_an_object_waits_for_no_lock_of_the_thread_that_drops_it() -> None:
    lock, ended = threading.Lock(), threading.Event()

    def end() -> None:
        with lock:
            ended.set()

    owner = Owner()
    call_when_dropped(owner, end)
    with lock:
        del owner
        gc.collect()
    assert ended.wait(WAIT)


def lock_of_threads() -> Any:
    """Return the lock that ``threading`` holds where a thread begins and ends, if it has one."""
    return getattr(threading, "_shutdown_locks_lock", None) or threading.Lock()


def wait_for_the_end_of(threads: set[threading.Thread]) -> None:
    until = monotonic() + WAIT
    while any(it.is_alive() for it in threads):
        assert monotonic() < until
        sleep(0.01)


@pytest.mark.anyio
async def test_an_sqlite_backend_may_be_dropped_while_a_thread_begins(
    database_file: Path, begun_threads: Callable[[], set[threading.Thread]]
) -> None:
    checkpointer = StorageBackendAdapter(SQLiteBackend(database_file))
    await checkpointer.save({"n": 1}, "t")
    assert await checkpointer.load("t") == {"n": 1}
    begun = begun_threads()
    assert begun
    with lock_of_threads():
        del checkpointer
        gc.collect()
    wait_for_the_end_of(begun)


def test_what_was_not_closed_ends_before_the_process(tmp_path: Path) -> None:
    code = (
        "import threading\n"
        "from locus_store.runtime.portals import call_when_dropped\n"
        "class Owner: pass\n"
        "owner = Owner()\n"
        "main = threading.get_ident()\n"
        "call_when_dropped(owner, lambda: print(threading.get_ident() == main))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True)
    assert done.stdout.strip() == "True"


def test_an_object_that_is_dropped_at_the_end_leaves_no_log(tmp_path: Path) -> None:
    code = (
        "import sys\n"
        "from locus_store.blocking import open_checkpointer\n"
        "def main():\n"
        "    open_checkpointer(f'sqlite:///{sys.argv[1]}').save({'n': 1}, 't')\n"
        "main()\n"
    )
    path = tmp_path / "a.db"
    for _ in range(3 if ALL else 1):
        subprocess.run([sys.executable, "-c", code, path], check=True)
        assert not path.with_name("a.db-wal").exists()
