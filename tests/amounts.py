"""Amounts of generated tests: all of them with ``make test-all``, else fewer."""

from __future__ import annotations

import os
from typing import Any

import pytest

ALL = bool(os.environ.get("LOCUS_TEST_ALL"))

LONG = bool(os.environ.get("LOCUS_TEST_LONG"))
"""The campaign: as many requests as the proofs of the service name."""

SERVICES = ["http", "http-sqlite", "http-postgresql"] if ALL else ["http"]
"""Storages behind a service on loopback; ``http`` is over memory."""


class Choice(str):
    """A parameter that is found by its identity among those of a test."""

    __slots__ = ()


def one_of(*values: str | tuple[str, ...]) -> list[Any]:
    """Parameters of which each test has one, not always the same one; with ALL it has every one.

    Args:
        values: The storages of a test that says the same of each. A tuple is for several names.
    """
    made = [tuple(map(Choice, [it] if isinstance(it, str) else it)) for it in values]
    return [
        pytest.param(*it, marks=pytest.mark.one_of(it, at, len(made))) for at, it in enumerate(made)
    ]


OPENSEARCH_VARIANT = pytest.param("opensearch", marks=pytest.mark.variant)
"""The node of OpenSearch as a parameter of a test that runs on each storage."""

SERVICE_VARIANTS = [pytest.param(it, marks=pytest.mark.variant) for it in SERVICES]
"""The same as parameters of a test that runs on each storage."""
