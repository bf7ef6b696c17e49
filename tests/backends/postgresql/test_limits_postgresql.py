"""The settings by which a server ends a session or a statement, named by our errors."""

from __future__ import annotations

import asyncpg
import pytest

from locus_store.backends.postgresql.dialect import PostgreSQLDatabase
from locus_store.sql.schema import tables


@pytest.mark.parametrize(
    ("state", "setting"),
    [
        ("25P03", "idle_in_transaction_session_timeout"),
        ("25P04", "transaction_timeout"),
        ("57P05", "idle_session_timeout"),
        ("55P03", "lock_timeout"),
    ],
)
def test_the_error_names_the_limit(state: str, setting: str) -> None:
    database = PostgreSQLDatabase("url", tables(), tenant="default", auto_migrate=False)
    error = asyncpg.PostgresError.new({"C": state, "M": "the server's words"})
    told = str(database.translated(error))
    assert state in told
    assert setting in told
