"""A process whose children move the tables of a database to partitions: ``URL COUNT`` for each.

It prints ``started PID``, ``step`` before each statement, and ``ended`` when the child has ended.
A word behind the count stops the child, as SIGSTOP does, after the first statement that has it.
"""

from __future__ import annotations

import os
import signal
import sys
from functools import partial
from typing import Any

import sqlalchemy as sa

from locus_store.backends.postgresql.partitions import partition


def report(*_: Any) -> None:
    print("step", flush=True)


def stop(word: str, connection: Any, cursor: Any, statement: str, *_: Any) -> None:
    if word in statement.split():
        print("stopped", flush=True)
        os.kill(os.getpid(), signal.SIGSTOP)


def have_children_move() -> None:
    sa.event.listen(sa.Engine, "before_cursor_execute", report)
    for line in sys.stdin:
        url, count, *stops_at = line.split()
        pid = os.fork()
        if pid == 0:
            print("started", os.getpid(), flush=True)
            if stops_at:
                sa.event.listen(sa.Engine, "after_cursor_execute", partial(stop, stops_at[0]))
            partition(url, int(count))
            os._exit(0)
        os.waitpid(pid, 0)
        print("ended", flush=True)


if __name__ == "__main__":
    have_children_move()
