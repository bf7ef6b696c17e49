"""Tampered values, of which none is accepted; LOCUS_TEST_ROWS says how many."""

from __future__ import annotations

import os

import pytest
from test_sealing import PLACES, count_accepted, make_key
from test_tampered_rows import count_accepted_rows

from locus_store import Encryption
from locus_store.values.sealing import Place

ROWS = int(os.environ.get("LOCUS_TEST_ROWS", "0"))


@pytest.mark.parametrize("place", PLACES)
def test_no_tampered_value_of_a_million_is_accepted(place: Place) -> None:
    assert count_accepted(ROWS or 1_000_000, make_key(), place) == 0


@pytest.mark.anyio
async def test_no_tampered_row_of_many_is_accepted(encryption: Encryption, url: str) -> None:
    tried = await count_accepted_rows(url, encryption, ROWS or 20_000)
    print(tried)
    assert tried["accepted"] == 0
