"""The message log in SQLite: its contract, and damage."""

from __future__ import annotations

import sqlite3

import pytest
from tiers import ALL

from locus_store import IntegrityError, NewMessage, SQLiteMessageLog
from locus_store.transfer.verifying import verify
from locus_store.versions.archives import Problem


@pytest.mark.anyio
@pytest.mark.full
async def test_verify_finds_every_flipped_bit_of_a_message(database_file) -> None:
    async with SQLiteMessageLog(database_file) as log:
        await log.append("t", [NewMessage({"said": "ten"}, "user", "m", {"k": 1}, "text")])
        assert await problems_of(log) == []
        database = sqlite3.connect(database_file, isolation_level=None)
        for column in ("namespace", "message_id", "role", "metadata", "digest", "text", "payload"):
            query = f"SELECT {column} FROM locus_messages"
            [(kept,)] = database.execute(query).fetchall()
            for flipped in flips(kept):
                database.execute(f"UPDATE locus_messages SET {column} = ?", [flipped])
                assert await problems_of(log) != [], (column, kept, flipped)
            database.execute(f"UPDATE locus_messages SET {column} = ?", [kept])
        assert await problems_of(log) == []
        database.execute("UPDATE locus_logs SET message_count = 2")
        assert any("do not count" in it for it in await problems_of(log))
        database.close()


@pytest.mark.anyio
@pytest.mark.parametrize("others", [0, 20])
async def test_contents_refuse_every_flipped_bit_of_a_message(database_file, others) -> None:
    async with SQLiteMessageLog(database_file) as log:
        await log.append("t", [NewMessage("x", message_id=f"m{at}") for at in range(others)])
        await log.append("t", [NewMessage({"said": "ten"}, "user", "m", {"k": 1}, "text")])
        there = await log.contents("t")
        database = sqlite3.connect(database_file, isolation_level=None)
        for column in ("message_id", "role", "metadata", "digest", "text", "payload"):
            query = f"SELECT {column} FROM locus_messages WHERE sequence = {others + 1}"
            [(kept,)] = database.execute(query).fetchall()
            change = f"UPDATE locus_messages SET {column} = ? WHERE sequence = {others + 1}"
            for flipped in [*flips(kept)[::5], None, b"", "", 7, b"7"]:
                if column in {"message_id", "role", "digest"} and flipped is None:
                    continue  # not nullable
                database.execute(change, [flipped])
                with pytest.raises(IntegrityError):
                    await log.contents("t")
            database.execute(change, [kept])
        assert await log.contents("t") == there
        database.close()


async def problems_of(log) -> list[str]:
    return [str(it) async for it in verify(log.backend) if isinstance(it, Problem)]


EVERY = 1 if ALL else 5
"""Bits from one that is flipped to the next; five and eight have no factor in common."""


def flips(value: str | bytes) -> list[str | bytes]:
    """The value with one bit flipped, as far as it stays text."""
    data = value.encode() if isinstance(value, str) else value
    found: list[str | bytes] = []
    for at in range(0, 8 * len(data), EVERY):
        changed = bytearray(data)
        changed[at // 8] ^= 1 << at % 8
        found.append(changed.decode("latin-1") if isinstance(value, str) else bytes(changed))
    return found


@pytest.mark.anyio
async def test_a_damaged_message_can_be_removed_unread(database_file) -> None:
    async with SQLiteMessageLog(database_file) as log:
        await log.append("t", [NewMessage(1, message_id="a"), NewMessage(2, message_id="b")])
        database = sqlite3.connect(database_file, isolation_level=None)
        database.execute("UPDATE locus_messages SET role = 'x' WHERE message_id = 'b'")
        database.close()
        for call in (log.load("t"), log.contents("t"), log.pop("t"), log.get("t", "b")):
            with pytest.raises(IntegrityError, match="message 'b' of thread 't'"):
                await call
        await log.remove("t", ["b"])
        assert (await log.pop("t")).message.content == 1
