"""Several processes on shared threads, killed ones, killed servers, in short: benchmarks/storms."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import servers
from tiers import first_of

ROOT = Path(__file__).resolve().parents[2]


def ran(script: str, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-W", "error", "-m", f"benchmarks.storms.{script}", *options]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


def storm(*options: str, saves: int = 200) -> subprocess.CompletedProcess[str]:
    return ran("storm", "--saves", str(saves), *options)


def found_nothing(done: subprocess.CompletedProcess[str], told: str) -> bool:
    assert told in done.stdout, done.stdout + done.stderr
    assert (done.returncode, done.stderr) == (0, ""), done.stdout + done.stderr
    return True


PLACES = ["sqlite", "postgresql"]

FAULTS = [
    ("no-conflicts", "lost save|wrong parent"),
    ("any-basis", "wrong read"),
    ("frames-stay", "wrong read"),
    ("lost-acknowledgement", "lost save|wrong read"),
    ("stale-shapes", "other exception"),
]


@pytest.fixture(params=first_of(*PLACES))
def place(request: pytest.FixtureRequest) -> list[str]:
    """The database of the storm: a new file, or one on the tests' server."""
    if request.param == "sqlite":
        return []
    return ["--url", request.getfixturevalue("migrated_database")]


def test_a_storm_reads_nothing_wrong_and_loses_no_acknowledged_save(place: list[str]) -> None:
    done = storm("--processes", "3", "--seed", "5", *place, saves=400)
    assert found_nothing(done, "violations: 0")


def test_a_storm_over_the_full_text_index_leaves_it_true(place: list[str]) -> None:
    done = storm("--processes", "2", "--seed", "6", "--index", *place)
    assert found_nothing(done, "violations: 0")


def test_a_storm_with_segments_reads_nothing_wrong(place: list[str]) -> None:
    done = storm("--processes", "3", "--seed", "7", "--segments", *place, saves=400)
    assert found_nothing(done, "violations: 0")


@pytest.mark.parametrize(
    ("fault", "promise", "place"),
    first_of(*((*fault, place) for fault in FAULTS for place in PLACES)),
    indirect=["place"],
)
def test_a_storm_notices_a_broken_store(fault: str, promise: str, place: list[str]) -> None:
    noticed(fault, promise, place)


@pytest.mark.parametrize("fault", first_of("grouped-without-conflicts", "grouped-and-undone"))
def test_a_storm_notices_broken_groups(fault: str, migrated_database: str) -> None:
    noticed(fault, "lost save", ["--url", migrated_database])


def noticed(fault: str, promise: str, place: list[str]) -> None:
    """Within three storms: on a busy machine one has few saves that meet the fault."""
    for seed in ("3", "4", "5"):
        done = storm("--processes", "2", "--tasks", "4", "--seed", seed, "--fault", fault, *place)
        if re.search(f" x ({promise})", done.stdout):
            break
    assert re.search(f" x ({promise})", done.stdout), done.stdout + done.stderr
    assert done.returncode == 1


WHOLE = "missing: 0, torn: 0, deleted, but there: 0, did not go on: 0, too many: 0"


def test_killed_writers_lose_no_acknowledged_save(migrated_database: str) -> None:
    done = ran("kills", "--trials", "3", "--seed", "2", "--url", migrated_database)
    assert found_nothing(done, WHOLE)


def test_writers_that_are_killed_while_they_join_records_lose_no_acknowledged_save(
    place: list[str],
) -> None:
    assert found_nothing(ran("kills", "--trials", "3", "--segments", *place), WHOLE)


def test_killed_writers_that_keep_the_last_versions_lose_none_of_those() -> None:
    assert found_nothing(ran("kills", "--trials", "3", "--keep-last", "5"), WHOLE)


@pytest.fixture
def binaries() -> None:
    """For scripts that start a server of their own."""
    try:
        servers.binaries("18")
    except servers.UnavailableError as error:
        servers.missing(error)


def test_killed_servers_lose_no_acknowledged_save_and_their_writers_go_on(binaries: None) -> None:
    done = ran("crashes", "--trials", "3", "--writers", "4")
    assert found_nothing(done, "lost: 0, torn: 0, unknown: 0")


def test_a_save_whose_answer_was_lost_is_there_once(binaries: None) -> None:
    done = ran("replies", "--trials", "20")
    assert found_nothing(done, "lost: 0, twice: 0, torn: 0, unknown: 0, wrong id: 0")


def test_a_storm_on_a_bucket_reads_nothing_wrong_and_loses_no_acknowledged_save() -> None:
    pytest.importorskip("oci")
    done = storm("--oci", "--processes", "3", "--seed", "5")
    assert found_nothing(done, "violations: 0")


def test_writers_that_are_killed_on_opensearch_lose_no_acknowledged_save(index: Any) -> None:
    done = ran("kills", "--trials", "3", "--seed", "2", "--url", index.url())
    assert found_nothing(done, WHOLE)
