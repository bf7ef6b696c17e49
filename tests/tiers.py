"""The tiers of the tests: ``make test``, ``make test-all``, ``make campaign``.

A whole run takes the everyday tests: those that are in no folder ``full`` and do not have the mark
``full``. ``LOCUS_TEST_ALL=1`` takes every test. So does a path on the command line, for that path.
"""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path
from typing import Any

import pytest

ALL = bool(os.environ.get("LOCUS_TEST_ALL"))
"""``make test-all``: every test, and more examples of generated tests."""

LONG = bool(os.environ.get("LOCUS_TEST_LONG"))
"""``make campaign``: as many examples as the published figures name."""

SERVICES = ["http", "http-sqlite", "http-postgresql"] if ALL else ["http"]
"""Storages behind a service on loopback; ``http`` is over memory."""

TESTS = Path(__file__).parent


_has_full = True


def choose(config: pytest.Config) -> None:
    """Decide whether ``full`` gives parameters, before the first test module is imported."""
    global _has_full  # noqa: PLW0603
    _has_full = not is_everyday(config)


@cache
def is_everyday(config: pytest.Config) -> bool:
    """Return whether a run takes the everyday tests only."""
    if config.option.everyday or config.option.eighth is not None:
        return config.option.everyday
    named = {(config.invocation_params.dir / it).resolve() for it in config.args}
    return not ALL and named <= {TESTS, TESTS.parent}


def is_in_full(path: Path) -> bool:
    """Return whether a file of tests is in a folder ``full``."""
    return "full" in path.relative_to(TESTS).parts


def full(*values: Any) -> list[Any]:
    """Return parameters that only ``make test-all`` takes; a tuple is for several names.

    A run of everyday tests has none: making 2,900 tests to deselect them takes 0.3 s of CPU.
    """
    if not _has_full:
        return []
    several = [it if isinstance(it, tuple) else (it,) for it in values]
    return [pytest.param(*it, marks=pytest.mark.full) for it in several]


def first_of(first: Any, *others: Any) -> list[Any]:
    """Return parameters of which the everyday tests take the first."""
    return [first, *full(*others)]
