"""A million tampered values, of which none is accepted."""

from __future__ import annotations

import os

from test_sealing import count_accepted, make_key

ROWS = int(os.environ.get("LOCUS_TEST_ROWS", "1000000"))


def test_no_tampered_value_of_a_million_is_accepted() -> None:
    assert count_accepted(ROWS, make_key()) == 0
