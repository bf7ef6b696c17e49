"""Pages of figures: printed, or kept in ``benchmarks/results`` with their command and commit."""

from __future__ import annotations

import shlex
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import argparse

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"


def add_write(parser: argparse.ArgumentParser) -> None:
    """Add the option ``--write``."""
    parser.add_argument("--write", action="store_true", help="keep the page in benchmarks/results")


def publish(name: str, page: str, *, write: bool, commit: str | None = None) -> None:
    """Print a page of Markdown; with ``write``, keep it as ``benchmarks/results/NAME.md``.

    Args:
        name: Of the page.
        page: Its text, without the last line.
        write: Keep the page.
        commit: That was measured; ``None``: that of the working tree.
    """
    commit = commit or find_commit()
    text = f"{page.strip()}\n\nMeasured by `{_command()}` at commit {commit} on {_date()}.\n"
    print("\n" + text)
    if write:
        (RESULTS / f"{name}.md").write_text(text, encoding="utf-8")


def _command() -> str:
    """The command of this run, without folders of this machine."""
    module = sys.modules["__main__"].__spec__
    assert module is not None  # noqa: S101  (benchmarks run with -m)
    words = (Path(word).name for word in sys.argv[1:])
    return shlex.join(["python", "-m", module.name, *words])


def find_commit() -> str:
    """Return the commit that is measured, and if the package differs from it."""
    commit = _git("rev-parse", "--short", "HEAD")
    return commit + (" with changes" if _git("status", "--porcelain", "locus_store") else "")


def _git(*words: str) -> str:
    done = subprocess.run(
        ["git", *words],  # noqa: S607
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    )
    return done.stdout.strip()


def _date() -> str:
    return time.strftime("%Y-%m-%d", time.gmtime())
