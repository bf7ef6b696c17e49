"""A million tampered values, of which none is accepted."""

from __future__ import annotations

import os

from test_sealing import count_accepted

from locus_store.values import sealing
from locus_store.values.sealing import DataKey

ROWS = int(os.environ.get("LOCUS_TEST_ROWS", "1000000"))


def test_no_tampered_value_of_a_million_is_accepted() -> None:
    key = DataKey(bytes(8), "acme", bytes(32), bytes(32))
    sealing.load_key(key)
    assert count_accepted(ROWS, key) == 0
