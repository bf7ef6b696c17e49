"""Processes that run the same program at once, forked from one that has its modules already.

Each of sixteen processes would import them for most of a second, and begin when it has done so.
"""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import traceback
from contextlib import redirect_stdout
from importlib import import_module
from pathlib import Path

MODULES = ("alembic.command", "asyncpg", "locus_store.sql.migrate", "sqlalchemy.ext.asyncio")
ROOT = Path(__file__).parents[2]


def at_once(program: str, *arguments: list[str]) -> list[str]:
    """The lines that the processes printed, one process for each list of arguments.

    Args:
        program: Its source; a read of the standard input lasts until all processes are there.
        arguments: Its ``sys.argv[1:]``.
    """
    done = subprocess.run(
        [sys.executable, "-W", "error", __file__, program, json.dumps(arguments)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
        timeout=180,
    )
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    return done.stdout.splitlines()


def _forked(program: str, arguments: list[list[str]]) -> list[int]:
    """The exit codes of the processes, which wait until the last of them was started."""
    waits, start = os.pipe()
    children = []
    for it in arguments:
        child = os.fork()
        if child == 0:
            os.close(start)
            os.dup2(waits, 0)
            os._exit(_run(program, it))
        children.append(child)
    os.close(start)
    return [os.waitstatus_to_exitcode(os.waitpid(it, 0)[1]) for it in children]


def _run(program: str, arguments: list[str]) -> int:
    sys.argv = ["-c", *arguments]
    printed = io.StringIO()
    try:
        with redirect_stdout(printed):
            exec(program, {"__name__": "__main__"})  # noqa: S102  (as `python -c` does)
    except BaseException:  # noqa: BLE001  (whatever it was, this process ends)
        traceback.print_exc()
        return 1
    os.write(1, printed.getvalue().encode())  # at once: the processes share a pipe
    return 0


if __name__ == "__main__":
    for name in MODULES:
        import_module(name)
    sys.exit(any(_forked(sys.argv[1], json.loads(sys.argv[2]))))
