"""Fail-over of PostgreSQL under Patroni, in short: benchmarks/storms/failovers.

Each fault twice with a synchronous standby, and two kills without; ``make campaign`` does the rest.
"""

from __future__ import annotations

import re
import shutil

import patroni_clusters
import pytest
import servers
from test_storm import ran

from benchmarks.storms.failovers import find_illegal
from benchmarks.storms.verdict import NEVER

SAVED = ("ok", "a", "", 0, 1)
FORGED = {
    "a save that was lost": [SAVED, ("read", "", "", 2, 3)],
    "an older head": [SAVED, ("ok", "b", "a", 2, 3), ("read", "a", "", 4, 5)],
    "two versions on one": [SAVED, ("ok", "b", "a", 2, 3), ("ok", "c", "a", 2, 3)],
    "a refused save that is there": [SAVED, ("conflict", "b", "a", 2, 3), ("read", "b", "", 4, 5)],
    "a refusal without a reason": [SAVED, ("conflict", "b", "a", 2, 3)],
}
TRUE = [SAVED, ("unknown", "b", "a", 2, NEVER), ("read", "a", "", 4, 5), ("read", "b", "", 6, 7)]


@pytest.fixture(scope="module", autouse=True)
def programs() -> None:
    try:
        patroni_clusters.programs()
        servers.binaries("debian")
    except servers.UnavailableError as error:
        servers.missing(error)
    if shutil.which("go") is None:
        servers.missing("Porcupine: no Go; apt install golang-go")


def test_a_fail_over_loses_no_acknowledged_save_and_nothing_is_restarted() -> None:
    done = ran("failovers", "--trials", "2", "--clusters", "2", "--asynchronous", "kill")
    assert re.search(r"^wrong: 0$", done.stdout, re.MULTILINE), done.stdout + done.stderr
    assert done.returncode == 0, done.stdout + done.stderr


def test_porcupine_refuses_what_no_order_explains() -> None:
    names = ("Outcome", "ID", "Parent", "Begun", "Ended")
    found = find_illegal(
        {"Thread": thread, **dict(zip(names, call, strict=True))}
        for thread, calls in {**FORGED, "true": TRUE}.items()
        for call in calls
    )
    assert set(found) == set(FORGED)
