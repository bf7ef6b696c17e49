"""The machine that figures were measured on, in general terms, and how they are laid out."""

from __future__ import annotations

import os
import platform
import sqlite3
from importlib.metadata import version
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path


def described() -> str:
    """Cores, memory, operating system, Python, SQLite: no names."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    release = ".".join(platform.release().split("-")[0].split(".")[:2])
    return (
        f"{os.cpu_count()} cores ({platform.machine()}), {memory:.0f} GB of memory, "
        f"{platform.system()} {release}, Python {platform.python_version()}, "
        f"SQLite {sqlite3.sqlite_version}"
    )


def peers() -> str:
    """The packages compared, with their versions."""
    names = ("langgraph-checkpoint-sqlite", "langgraph-checkpoint", "locus-sdk", "sqlalchemy")
    return ", ".join(f"{name} {version(name)}" for name in names)


def load_average() -> str:
    """Return the load of the machine: the average number of waiting processes over five minutes."""
    return f"{os.getloadavg()[1]:.1f}"


def disk_bytes(path: Path) -> int:
    """Of an SQLite database with its write-ahead log."""
    files = (path, path.with_name(path.name + "-wal"))
    return sum(it.stat().st_size for it in files if it.exists())


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A Markdown table."""
    lines = [head, ["---"] + ["---:"] * (len(head) - 1), *rows]
    return "\n".join("| " + " | ".join(map(str, line)) + " |" for line in lines)
