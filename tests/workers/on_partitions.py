"""A process whose children move the tables of a database to partitions: ``URL COUNT`` for each.

It prints ``started PID``, ``step`` before each statement, and ``ended`` when the child has ended.
"""

from __future__ import annotations

import os
import sys
from typing import Any

import sqlalchemy as sa

from locus_store.backends.postgresql.partitions import partition


def report(*_: Any) -> None:
    print("step", flush=True)


def have_children_move() -> None:
    sa.event.listen(sa.Engine, "before_cursor_execute", report)
    for line in sys.stdin:
        url, count = line.split()
        pid = os.fork()
        if pid == 0:
            print("started", os.getpid(), flush=True)
            partition(url, int(count))
            os._exit(0)
        os.waitpid(pid, 0)
        print("ended", flush=True)


if __name__ == "__main__":
    have_children_move()
