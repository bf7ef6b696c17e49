"""Bars on a terminal, and nothing elsewhere."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import pytest
import test_cli
from lazily import TESTS_RUN
from test_cli import Terminal
from test_cli_threads import CHAT, save
from tiers import full

if TESTS_RUN:
    from locus_store.cli import output

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from rich.progress import Progress

    Run = Callable[..., tuple[int, str, str]]

run = test_cli.run


@pytest.fixture
def bars(run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[Progress]:
    """Collects the bars of commands whose standard error is a terminal; there are 3 threads."""
    made: list[Progress] = []

    class Bar(output._Bar):
        def __init__(self, *args: Any) -> None:
            super().__init__(*args)
            made.append(self.progress)

    monkeypatch.setattr(output, "_Bar", Bar)
    monkeypatch.setenv("LOCUS_STORE_URL", url := f"sqlite:///{tmp_path / 'here.db'}")
    for thread in ("a", "b", "c"):
        save(url, thread, CHAT[0])
    return made


def on_terminal(run: Run, monkeypatch: pytest.MonkeyPatch, *command: str) -> int:
    """Run a command whose standard error is a terminal; return its exit code."""
    monkeypatch.setattr(sys, "stderr", Terminal())
    return run(*command)[0]


COMMANDS = [
    ("verify",),
    ("export", "--all", "--output", "new.jsonl"),
    ("copy", "--from", "{url}", "--to", "sqlite:///copy.db"),
    ("copy", "--from", "{url}", "--to", "sqlite:///copy.db", "--thread", "a", "--thread", "b"),
    ("import", "file", "kept.jsonl", "--url", "sqlite:///imported.db"),
    ("threads", "vacuum", "--older-than", "0", "--yes"),
    ("threads", "vacuum", "--older-than", "0", "--dry-run"),
]


@pytest.mark.parametrize(
    "command",
    [*COMMANDS[:2], *full(*((it,) for it in COMMANDS[2:]))],
    ids=lambda it: " ".join(it[:2]),
)
def test_a_long_command_has_a_bar_that_reaches_its_total(
    run: Run, bars: list[Progress], monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...],
    tmp_path: Path,
) -> None:  # fmt: skip
    run("export", "--all", "--output", "kept.jsonl")
    url = f"sqlite:///{tmp_path / 'here.db'}"
    assert not bars
    code = on_terminal(run, monkeypatch, *(it.format(url=url) for it in command))
    assert code == 0
    [task] = bars[-1].tasks
    total = command.count("--thread") or 3
    assert (task.completed, task.total) == (total, total)


def test_a_bar_does_not_cross_what_is_printed(
    run: Run, bars: list[Progress], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdout", Terminal())
    on_terminal(run, monkeypatch, "verify", "--json")
    assert not bars


def test_an_export_to_a_terminal_has_no_raw_control_characters(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    import io

    class Screen(io.TextIOWrapper):
        def isatty(self) -> bool:
            return True

    save("sqlite:///here.db", "t", {"said": "\x9b31m \u202e \x7f é"})
    screen = Screen(io.BytesIO(), encoding="utf-8")
    monkeypatch.setattr(sys, "stdout", screen)
    run("export", "--all", "--url", "sqlite:///here.db")
    shown = screen.buffer.getvalue().decode()
    assert "é" in shown
    assert all(it.isprintable() for it in shown.replace("\n", ""))
    assert "\\u009b31m \\u202e \\u007f" in shown
