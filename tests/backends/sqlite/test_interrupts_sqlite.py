"""Signals that strike sync calls on SQLite: no lock stays, no save is lost, and ``close`` ends."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
import servers
from tiers import ALL

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.posix

STRIKES = "200" if ALL else "60"

STRUCK = """
import faulthandler, random, signal, sys, threading, time
from locus_store import blocking

path, kind, form, strikes, seconds = *sys.argv[1:4], int(sys.argv[4]), float(sys.argv[5])

class Struck(Exception):
    pass

def strike(*_):
    raise Struck

number = signal.SIGINT
if kind == "handler":
    number = signal.SIGUSR1
    signal.signal(number, strike)

go = threading.Lock()
go.acquire()
main = threading.get_ident()

def send():
    while True:
        go.acquire()
        time.sleep(random.random() * 0.006)
        signal.pthread_kill(main, number)

is_over = threading.Event()
stored = {name: [] for name in ("main", "a", "b", "c")}
numbers = iter(range(10**9))

if form == "checkpointer":
    opened = blocking.open_checkpointer(f"sqlite:///{path}", state_type=dict)

    def save(name):
        saved = f"v{next(numbers)}"
        assert opened.save({"n": saved}, name, saved, on_conflict="overwrite") == saved
        stored[name].append(saved)
        assert opened.load(name, saved) == {"n": saved}

    def found(name):
        return set(opened.list_checkpoints(name, limit=10**6))
else:
    from langgraph.checkpoint.base import empty_checkpoint
    from locus_store.adapters.langgraph import LangGraphSaver

    opened = LangGraphSaver.from_url(f"sqlite:///{path}")

    def save(name):
        checkpoint = empty_checkpoint()
        configurable = {"thread_id": name, "checkpoint_ns": ""}
        last = opened.get_tuple({"configurable": configurable})
        config = last.config if last else {"configurable": configurable}
        source = {"source": "fork" if last else "input"}
        config = opened.put(config, checkpoint, source, {})
        stored[name].append(checkpoint["id"])
        opened.put_writes(config, [("a", 1)], "task")

    def found(name):
        config = {"configurable": {"thread_id": name, "checkpoint_ns": ""}}
        return {it.checkpoint["id"] for it in opened.list(config)}

def hammer(name):
    while not is_over.is_set():
        save(name)

save("main")
others = [threading.Thread(target=hammer, args=(it,)) for it in ("a", "b", "c")]
for it in others:
    it.start()
threading.Thread(target=send, daemon=True).start()
left = strikes
while left:
    faulthandler.dump_traceback_later(seconds, exit=True)  # of a strike after which nothing moves
    try:
        go.release()
        while True:
            save("main")
    except (KeyboardInterrupt, Struck):
        left -= 1
save("main")
is_over.set()
for it in others:
    it.join()
opened.close()
for name, ids in stored.items():
    assert len(ids) > 1 and set(ids) <= found(name), name
opened.close()
print("whole")
"""


@pytest.mark.parametrize("form", ["checkpointer", pytest.param("graph", marks=pytest.mark.full)])
@pytest.mark.parametrize("kind", ["ctrl-c", "handler"])
def test_signals_leave_no_lock_and_lose_no_acknowledged_save(
    tmp_path: Path, kind: str, form: str
) -> None:
    arguments = [str(tmp_path / "a.db"), kind, form, STRIKES, str(servers.DEADLINE_SECONDS)]
    command = [sys.executable, "-c", STRUCK, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("whole\n", "")


STRUCK_IN_A_WAIT = """
import inspect, signal, sys, threading
from locus_store import blocking

class Struck(Exception):
    pass

waits = threading.Condition.wait.__code__
lines, first = inspect.getsourcelines(waits)
worst = first + next(at for at, it in enumerate(lines) if "gotit = False" in it)

def trace(frame, event, _):
    if frame.f_code is waits and frame.f_lineno == worst:
        raise Struck
    return trace if frame.f_code is waits else None

signal.signal(signal.SIGUSR1, print)  # so each call has a thread of its own
with blocking.open_checkpointer(sys.argv[1], state_type=dict) as opened:
    opened.save({"n": 1}, "t")
    sys.settrace(trace)
    for _ in range(9):
        assert opened.load("t") == {"n": 1}
    sys.settrace(None)
print("whole")
"""


def test_a_signal_cannot_strike_where_python_has_released_the_lock_of_a_thread_that_begins(
    tmp_path: Path,
) -> None:
    """``Thread.start`` waits; a handler that raises in it left a ``KeyError`` of the new thread."""
    command = [sys.executable, "-c", STRUCK_IN_A_WAIT, f"sqlite:///{tmp_path / 'a.db'}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("whole\n", "")
