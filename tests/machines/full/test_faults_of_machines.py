"""The machine of threads finds the faults of the examples that it stands for in the first tier.

A fault is in one of two memories: it is there while that one is called.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import hypothesis
import pytest
from beside import SETTINGS
from hypothesis.stateful import run_state_machine_as_test
from storages import FOUND_BY_MACHINES
from test_faults import FAULTS
from test_threads_beside_memory import Threads

from locus_store import MemoryBackend

if TYPE_CHECKING:
    from collections.abc import Callable

FAST = hypothesis.settings(
    SETTINGS, max_examples=500, phases=[hypothesis.Phase.generate], database=None, print_blob=False
)
"""The first failure ends a test. Hypothesis draws other steps if other modules are imported."""
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
