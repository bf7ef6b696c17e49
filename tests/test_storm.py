"""Several processes on shared threads, in short: benchmarks/storm.py, and that it can fail."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

STORM = Path(__file__).resolve().parent.parent / "benchmarks" / "storm.py"


def storm(*options: str, saves: int = 200) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-W", "error", str(STORM), "--saves", str(saves), *options]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_a_storm_reads_nothing_wrong_and_loses_no_acknowledged_save() -> None:
    done = storm("--processes", "3", "--seed", "5", saves=400)
    assert "violations: 0" in done.stdout, done.stdout + done.stderr
    assert done.returncode == 0, done.stderr


def test_a_storm_over_the_full_text_index_leaves_it_true() -> None:
    done = storm("--processes", "2", "--seed", "6", "--index")
    assert "violations: 0" in done.stdout, done.stdout + done.stderr
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("fault", "promise"),
    [
        ("no-conflicts", "lost save"),
        ("any-basis", "wrong read"),
        ("frames-stay", "wrong read"),
        ("lost-acknowledgement", "lost save"),
    ],
)
def test_a_storm_notices_a_broken_store(fault: str, promise: str) -> None:
    done = storm("--processes", "2", "--seed", "3", "--fault", fault)
    assert f"x {promise}" in done.stdout, done.stdout + done.stderr
    assert done.returncode == 1
