"""How much is tested: with ``make test-all`` all of it, else what finds nearly all."""

from __future__ import annotations

import os

ALL = bool(os.environ.get("LOCUS_TEST_ALL"))
