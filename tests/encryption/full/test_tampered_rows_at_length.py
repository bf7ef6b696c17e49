"""Rows of real databases are tampered with, hundreds of times; LOCUS_TEST_ROWS says how often."""

from __future__ import annotations

import os
from typing import Any

import pytest
from test_tampered_rows import count_refused

from locus_store import Encryption

pytestmark = pytest.mark.anyio

ROWS = int(os.environ.get("LOCUS_TEST_ROWS", "300"))


async def test_tampered_rows_of_sqlite(encryption: Encryption, url: str) -> None:
    print(await count_refused(url, encryption, ROWS))


async def test_tampered_rows_of_postgresql(encryption: Encryption, migrated_database: str) -> None:
    print(await count_refused(migrated_database, encryption, ROWS))


async def test_tampered_rows_of_redis(encryption: Encryption, redis_url: str) -> None:
    print(await count_refused(redis_url, encryption, ROWS))


async def test_tampered_documents_of_opensearch(
    encryption: Encryption, index: Any, url: str
) -> None:
    print(await count_refused(index.url(), encryption, ROWS, url))
