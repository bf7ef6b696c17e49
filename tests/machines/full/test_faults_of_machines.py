"""The machine of threads finds the faults of these examples, too.

A fault is in one of two memories: it is there while that one is called.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import hypothesis
import pytest
from beside import SETTINGS
from hypothesis.stateful import run_state_machine_as_test
from test_faults import FAULTS
from test_threads_beside_memory import Threads

from locus_store import MemoryBackend

if TYPE_CHECKING:
    from collections.abc import Callable

FAST = hypothesis.settings(
    SETTINGS, max_examples=500, phases=[hypothesis.Phase.generate], database=None, print_blob=False
)
"""The first failure ends a test. Hypothesis draws other steps if other modules are imported."""

FOUND_BY_MACHINES = frozenset({
    "test_a_second_writer_is_told",
    "test_versions_are_listed_newest_first",
    "test_every_version_is_kept_below_the_newest_one",
    "test_a_save_made_from_a_version_that_is_gone_is_a_conflict",
    "test_a_replaced_version_leaves_the_others_exact",
    "test_a_named_parent_makes_a_fork_the_head",
    "test_a_losing_save_is_kept_beside_the_head_and_replaces_nothing",
    "test_whatever_is_deleted_the_others_stay_exact",
    "test_deleting_the_head_shows_its_parent",
    "test_a_head_falls_back_to_an_ancestor",
    "test_changing_what_was_loaded_changes_nothing_stored",
    "test_a_value_comes_back_exactly",
    "test_a_copys_text_is_its_own",
})  # fmt: skip
"""Examples of the contracts."""

NAMES = [name for name, (_, test) in FAULTS.items() if test in FOUND_BY_MACHINES]
ALSO = ["the_floor_is_ignored"]
"""The examples of these faults look below the storage, too, which the machine does not."""


def test_each_example_has_a_fault() -> None:
    assert len(NAMES) == len(FOUND_BY_MACHINES)


@pytest.mark.parametrize("name", [*NAMES, *ALSO])
def test_the_machine_finds_the_fault(name: str) -> None:
    fault, _ = FAULTS[name]

    class Faulty(Threads):
        def ours(self, call: Callable[[Any, int], Any]) -> Any:
            with pytest.MonkeyPatch.context() as patch:
                fault(patch)
                return super().ours(call)

    with asyncio.Runner() as runner:
        Faulty.objects = MemoryBackend(), MemoryBackend()
        Faulty.run = staticmethod(runner.run)
        with pytest.raises((AssertionError, KeyError)):
            run_state_machine_as_test(Faulty, settings=FAST)
