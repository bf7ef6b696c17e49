"""Amounts of generated tests: all of them with ``make test-all``, else fewer."""

from __future__ import annotations

import os

import pytest

ALL = bool(os.environ.get("LOCUS_TEST_ALL"))

LONG = bool(os.environ.get("LOCUS_TEST_LONG"))
"""The campaign: as many requests as the proofs of the service name."""

SERVICES = ["http", "http-sqlite", "http-postgresql"] if ALL else ["http"]
"""Storages behind a service on loopback; ``http`` is over memory."""

OPENSEARCH_VARIANT = pytest.param("opensearch", marks=pytest.mark.variant)
"""The node of OpenSearch as a parameter of a test that runs on each storage."""

SERVICE_VARIANTS = [pytest.param(it, marks=pytest.mark.variant) for it in SERVICES]
"""The same as parameters of a test that runs on each storage."""
