"""Amounts of generated tests: all of them with ``make test-all``, else fewer."""

from __future__ import annotations

import os

ALL = bool(os.environ.get("LOCUS_TEST_ALL"))
