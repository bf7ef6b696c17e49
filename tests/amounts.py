"""Amounts of generated tests: all of them with ``make test-all``, else fewer."""

from __future__ import annotations

import os

ALL = bool(os.environ.get("LOCUS_TEST_ALL"))

SERVICES = ["http", "http-sqlite", "http-postgresql"] if ALL else ["http"]
"""Storages behind a service on loopback; ``http`` is over memory."""
