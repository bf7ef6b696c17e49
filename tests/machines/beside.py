"""Runs every call on a storage and on the rules in memory, and compares the answers.

Hypothesis makes the steps; each example has names of its own, so that all share a storage.
"""

from __future__ import annotations

import asyncio
from itertools import count
from typing import TYPE_CHECKING, Any, ClassVar

import hypothesis
import pytest
from hypothesis.stateful import RuleBasedStateMachine, run_state_machine_as_test
from storages import STORAGES
from tiers import LONG, full

from locus_store import LocusStoreError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

SETTINGS = hypothesis.settings(
    max_examples=1000 if LONG else 50,
    stateful_step_count=30,
    deadline=None,
    derandomize=not LONG,
    suppress_health_check=list(hypothesis.HealthCheck),
)


class Beside(RuleBasedStateMachine):
    """The base of the machines.

    ``both`` awaits the same call on the storage and on the reference. An error counts as an answer.
    """

    objects: ClassVar[tuple[Any, Any]]
    """What is tested, and the reference in memory."""

    run: ClassVar[Callable[[Any], Any]]
    """Runs a coroutine in the event loop of the test."""

    numbers: ClassVar[Any] = count()

    def __init__(self) -> None:
        super().__init__()
        self.number = next(self.numbers)

    def named(self, name: str) -> str:
        """Return a name of this example."""
        return f"{self.number}-{name}"

    def both(self, call: Callable[[Any, int], Any]) -> Any:
        """Return both answers of ``call(object, side)``; they have to be of one kind."""
        ours, reference = self.ours(call), self.run(answer(call(self.objects[1], 1)))
        assert type(ours) is type(reference), (ours, reference)
        return ours, reference

    def ours(self, call: Callable[[Any, int], Any]) -> Any:
        """Return the answer of what is tested."""
        return self.run(answer(call(self.objects[0], 0)))

    def same(self, call: Callable[[Any, int], Any]) -> Any:
        """Return the answer of both; the two have to be equal."""
        ours, reference = self.both(call)
        assert told(ours) == told(reference)
        return ours


async def answer(call: Any) -> Any:
    try:
        return await call
    except LocusStoreError as error:
        return error


def told(result: Any) -> Any:
    """Return what of an answer has to be equal."""
    if isinstance(result, LocusStoreError):
        return type(result), getattr(result, "head_id", None), getattr(result, "parent_id", None)
    return result


def on_storages(everyday: Collection[str], *others: str) -> Any:
    """Parametrize a test of a machine: `make test` takes a few examples, on some storages."""
    several = [(it, SETTINGS.max_examples) for it in (*everyday, *others)]
    return pytest.mark.parametrize(
        ("name", "count"), [*((it, 8) for it in everyday), *full(*several)]
    )


def run_beside(
    machine: type[Beside], name: str, contract: str, request: pytest.FixtureRequest, count: int
) -> None:
    """Run a machine on a storage of the table, beside memory.

    Args:
        machine: Its class.
        name: A row of the table.
        contract: The method of ``Storage`` that makes the objects.
        request: Of the test.
        count: Examples.
    """
    settings = hypothesis.settings(SETTINGS, max_examples=count)
    storages = [STORAGES[it].storage(request) for it in (name, "memory")]
    with asyncio.Runner() as runner:
        for it in storages:
            runner.run(it.open())
        objects = [getattr(it, contract)() for it in storages]
        members = {"objects": tuple(objects), "run": staticmethod(runner.run)}
        try:
            run_state_machine_as_test(
                type(machine.__name__, (machine,), members), settings=settings
            )
        finally:
            for it in objects:
                runner.run(it.close())
            for it in storages:
                runner.run(it.close())
