"""A service that is killed while clients in other processes use it, in short: benchmarks/storms."""

from __future__ import annotations

import pytest
from test_storm import found_nothing, storm
from tiers import first_of

KILLS = "3"


@pytest.fixture(params=first_of("sqlite", "postgresql"))
def place(request: pytest.FixtureRequest) -> list[str]:
    if request.param == "sqlite":
        return []
    return ["--url", request.getfixturevalue("migrated_database")]


def test_no_acknowledged_save_is_lost_when_the_service_is_killed(place: list[str]) -> None:
    done = storm("--service", "--kills", KILLS, "--processes", "4", "--tasks", "1", *place)
    assert found_nothing(done, "violations: 0")
