"""Stored bytes under encryption, and the errors when they are changed."""

from __future__ import annotations

import random
import sqlite3
from contextlib import closing
from typing import Any

import pytest
from places import Place

from locus_store import (
    Encryption,
    EncryptionError,
    InMemoryStore,
    IntegrityError,
    InvalidArgumentError,
    LocalKeyRing,
    UnsupportedError,
    open_message_log,
    open_storage,
    open_store,
)
from locus_store.session import LocalCache, SessionCheckpointer
from locus_store.types import PendingWrite

pytestmark = pytest.mark.anyio

WORDS = "the secret of Zoe"
LABELS: list[dict[str, Any]] = [{}, {"user_id": WORDS}, {"tags": [WORDS], "class": "c"}]


async def fill(storage: Any, thread_id: str = "t") -> list[dict[str, Any]]:
    """Store one of each: states, a write, a message, an item; return the states."""
    said = [f"{WORDS} {at}" for at in range(3)]
    states = [{"long": WORDS * 40, "said": said[:upto]} for upto in range(1, 4)]
    for at, state in enumerate(states):
        await storage.backend.write_state(
            thread_id, state, checkpoint_id=f"v{at}", metadata={"who": WORDS}, labels=LABELS[at]
        )
    write = PendingWrite("task", 0, "c", "t", WORDS.encode())
    await storage.backend.put_writes(thread_id, "v2", [write])
    await storage.messages().append(
        thread_id, [(WORDS, "user", "m1", {"about": WORDS}, WORDS)], namespace="n"
    )
    await storage.store().put((thread_id,), "k", {"x": WORDS}, {"about": WORDS})
    return states


async def read(storage: Any, states: list[dict[str, Any]], thread_id: str = "t") -> None:
    """Read all that ``fill`` has stored, and compare it."""
    backend = storage.backend
    for at, state in enumerate(states):
        assert await backend.load(thread_id, f"v{at}") == state
    listed = await backend.history(thread_id)
    assert [it.metadata for it in listed] == [{"who": WORDS}] * len(states)
    assert [it.labels for it in listed] == LABELS[::-1]
    [write] = await backend.get_writes(thread_id, "v2")
    assert write.payload == WORDS.encode()
    [message] = await storage.messages().load(thread_id, namespace="n")
    assert (message.content, message.text) == (WORDS, WORDS)
    assert message.metadata == {"about": WORDS}
    item = await storage.store().get_item((thread_id,), "k")
    assert (item.value, item.metadata) == ({"x": WORDS}, {"about": WORDS})


async def test_no_content_is_stored_in_clear(encryption: Encryption, place: Place) -> None:
    async with open_storage(place.url, encryption=encryption) as storage:
        states = {it: await fill(storage, it) for it in "tuvw"}
    assert b"of Zoe" not in place.read()
    again = Encryption(encryption.ring, encryption.keys)
    async with open_storage(place.url, encryption=again) as storage:
        for thread_id, some in states.items():
            await read(storage, some, thread_id)


STATEMENTS = {
    "a payload of another version": "UPDATE locus_checkpoints SET payload = (SELECT payload FROM "
    "locus_checkpoints x WHERE x.sequence = 2) WHERE sequence = 3",
    "a payload and a digest of another version": "UPDATE locus_checkpoints SET (payload, digest) = "
    "(SELECT payload, digest FROM locus_checkpoints x WHERE x.sequence = 2) WHERE sequence = 3",
    "an id of another version": "UPDATE locus_checkpoints SET checkpoint_id = CASE sequence "
    "WHEN 3 THEN 'v9' ELSE checkpoint_id END",
    "a version in another thread": "UPDATE locus_lines SET thread_id = thread_id || 'x'; "
    "UPDATE locus_threads SET thread_id = thread_id || 'x'",
    "a payload in clear": "UPDATE locus_checkpoints SET payload = x'0200020002' WHERE sequence = 3",
    "no payload": "UPDATE locus_checkpoints SET payload = NULL WHERE sequence = 3",
    "a record cut off": "UPDATE locus_checkpoints SET payload = substr(payload, 1, "
    "length(payload) - 1) WHERE sequence = 3",
    "metadata in clear": 'UPDATE locus_checkpoints SET metadata = \'{"who":"me"}\'',
    "no metadata": "UPDATE locus_checkpoints SET metadata = NULL",
    "labels": 'UPDATE locus_checkpoints SET labels = \'{"class":"x"}\'',
    "metadata of another version": "UPDATE locus_checkpoints SET metadata = (SELECT metadata FROM "
    "locus_checkpoints x WHERE x.sequence = 1) WHERE sequence = 3",
}


async def test_a_side_branch_has_sealed_labels(encryption: Encryption, url: str) -> None:
    async with open_storage(url, encryption=encryption) as storage:
        checkpointer = storage.checkpointer(state_type=dict, on_conflict="branch")
        await checkpointer.save({"n": 0, "user_id": "u"}, "t")
        states: list[Any] = [await checkpointer.load("t") for _ in range(2)]
        for number, state in enumerate(states, 1):
            state["n"] = number
            await checkpointer.save(state, "t", checkpoint_id=f"v{number}")
        side, _, _ = await storage.backend.history("t")
        assert (side.labels["side_branch"], side.labels["user_id"]) == ("conflict", "u")
        assert await checkpointer.load("t", "v2") == {"n": 2, "user_id": "u"}
        await storage.backend.copy_thread("t", "u")
        assert await checkpointer.load("u", "v2") == {"n": 2, "user_id": "u"}


@pytest.mark.parametrize("column", ["metadata", "labels"])
@pytest.mark.parametrize("value", [None, '{"who":"me"}'])
async def test_a_list_notices_removed_metadata(column: str, value: str | None, url: str) -> None:
    ring = LocalKeyRing({"a": bytes(32)}, "a")
    encryption = Encryption(ring, InMemoryStore(), clear={"who"})
    async with open_storage(url, encryption=encryption) as storage:
        labels = {"state_class": "x"}
        await storage.backend.write_state("t", {"n": 1}, metadata={"who": "Zoe"}, labels=labels)
        await storage.backend.write_state("u", {"n": 1}, labels=labels)
        with closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as database, database:
            database.execute(f"UPDATE locus_checkpoints SET {column} = ?", [value])
        for thread_id in ("t", "u"):
            with pytest.raises(IntegrityError):
                await storage.backend.history(thread_id)
        if column == "metadata":
            with pytest.raises(IntegrityError):
                await storage.backend.heads()


@pytest.mark.parametrize("way", STATEMENTS)
async def test_a_changed_version_is_an_error(way: str, encryption: Encryption, url: str) -> None:
    async with open_storage(url, encryption=encryption) as storage:
        await fill(storage)
    with closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as connection, connection:
        connection.executescript(STATEMENTS[way])
    async with open_storage(url, encryption=encryption) as storage:
        thread_id = (await storage.backend.scan())[0]
        with pytest.raises(IntegrityError):
            await storage.backend.load(thread_id)
        with pytest.raises(IntegrityError):
            await storage.backend.read_thread(thread_id)


async def test_a_changed_write_message_or_item_is_an_error(
    encryption: Encryption, url: str
) -> None:
    async with open_storage(url, encryption=encryption) as storage:
        await fill(storage)
        await fill(storage, "u")
        backend, log, store = storage.backend, storage.messages(), storage.store()
        with closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as connection, connection:
            for table, key in (("writes", "line"), ("messages", "thread"), ("store", "item")):
                column = "value" if table == "store" else "payload"
                rows = connection.execute(f"SELECT {key}, {column} FROM locus_{table}").fetchall()
                (one, first), (other, second) = rows
                update = f"UPDATE locus_{table} SET {column} = ? WHERE {key} = ?"
                connection.executemany(update, [(second, one), (first, other)])
        for thread_id in "tu":
            with pytest.raises(IntegrityError):
                await backend.get_writes(thread_id, "v2")
            with pytest.raises(IntegrityError):
                await log.load(thread_id, namespace="n")
            with pytest.raises(IntegrityError):
                await store.get((thread_id,), "k")


async def test_rows_are_tampered_with_at_random(encryption: Encryption, url: str) -> None:
    """Bytes of any row are changed; a read gives what was saved, or an error."""
    rng, path = random.Random(1), url.removeprefix("sqlite:///")
    async with open_storage(url, encryption=encryption) as storage:
        states = await fill(storage)
    columns = [("checkpoints", "payload"), ("checkpoints", "digest"), ("checkpoints", "metadata")]
    refused = 0
    for _ in range(60):
        table, column = rng.choice(columns)
        with closing(sqlite3.connect(path)) as connection, connection:
            rows = connection.execute(f"SELECT rowid, {column} FROM locus_{table}").fetchall()
            key, content = rng.choice(rows)
            raw = bytearray(content.encode() if isinstance(content, str) else content)
            raw[rng.randrange(len(raw))] ^= 1 << rng.randrange(7)
            changed = raw.decode("latin-1") if isinstance(content, str) else bytes(raw)
            update = f"UPDATE locus_{table} SET {column} = ? WHERE rowid = ?"
            connection.execute(update, (changed, key))
        async with open_storage(url, encryption=encryption) as storage:
            try:  # the last digit of base64 has bits that mean nothing
                await read(storage, states)
            except (IntegrityError, ValueError):
                refused += 1
        with closing(sqlite3.connect(path)) as connection, connection:
            connection.execute(update, (content, key))
    assert refused > 50
    async with open_storage(url, encryption=encryption) as storage:
        await read(storage, states)


async def test_a_clear_storage_is_refused_unless_it_is_being_converted(
    encryption: Encryption, place: Place
) -> None:
    async with open_storage(place.url) as storage:
        states = await fill(storage)
    async with open_storage(place.url, encryption=encryption) as storage:
        for reading in (storage.backend.load("t"), storage.backend.get_writes("t", "v2")):
            with pytest.raises(EncryptionError, match="in clear"):
                await reading
        with pytest.raises(EncryptionError, match="in clear"):
            await storage.messages().load("t", namespace="n")
        with pytest.raises(EncryptionError, match="in clear"):
            await storage.store().get(("t",), "k")
    lenient = Encryption(encryption.ring, encryption.keys, required=False)
    async with open_storage(place.url, encryption=lenient) as storage:
        await read(storage, states)
        state = {"said": [*states[-1]["said"], "more"]}
        await storage.backend.write_state("t", state, checkpoint_id="v3")
        assert await storage.backend.load("t") == state
        assert await storage.backend.load("t", "v1") == states[1]


async def test_listed_keys_of_metadata_stay_in_clear(encryption: Encryption, place: Place) -> None:
    chosen = Encryption(encryption.ring, encryption.keys, clear=["city"])
    async with open_storage(place.url, encryption=chosen) as storage:
        backend = storage.backend
        await backend.write_state("t", {"n": 1}, metadata={"city": "Bern", "who": "Zoe B."})
        for key, value in (("city", "Bern"), ("who", "Zoe B.")):
            assert [it.thread_id for it in await backend.query(key, value)] == ["t"]
            assert await backend.threads_where(key, value) == ["t"]
    found = place.read()
    assert b"Bern" in found
    assert b"Zoe B." not in found


async def test_hashed_keys_of_metadata_are_found_and_not_read(
    encryption: Encryption, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = place.url
    chosen = Encryption(encryption.ring, encryption.keys, hashed=["city", "user_id", "tags"])
    async with open_storage(url, encryption=chosen) as storage:
        backend, cities = storage.backend, ["Bern 3", ["Bern 3", "Ulm"], 3, None, {"a": "Bern 3"}]
        for at, city in enumerate(cities):
            labels = {"user_id": "zoe@b.ch", "tags": ["x", "y"]}
            await backend.write_state(f"t{at}", {}, metadata={"city": city}, labels=labels)

        async def find(key: str, value: Any) -> list[str]:
            found = sorted(it.thread_id for it in await backend.query(key, value))
            assert sorted(await backend.threads_where(key, value)) == found
            return found

        assert await find("city.a", "Bern 3") == ["t4"]
        assert await find("city", {"a": "Bern 3"}) == ["t4"]
        monkeypatch.setattr("locus_store.encryption.backend._iterate_threads", None)  # none is read
        assert await find("city", "Bern 3") == ["t0", "t1"]
        assert await find("city", ["Ulm"]) == ["t1"]
        assert (await find("city", 3.0), await find("city", "3")) == (["t2"], [])
        assert await find("city", None) == ["t3"]
        assert len(await find("tags", ["y", "x"])) == len(await backend.threads_of("zoe@b.ch")) == 5
    again = Encryption(encryption.ring, encryption.keys)
    async with open_storage(url, encryption=again) as storage:
        listed = [await storage.backend.history(f"t{at}") for at in range(len(cities))]
        assert [it.metadata["city"] for [it] in listed] == cities
    assert b"Bern 3" not in place.read()
    assert b"zoe@b.ch" not in place.read()


async def test_objects_of_their_own_encrypt(encryption: Encryption, place: Place) -> None:
    async with open_message_log(place.url, encryption=encryption) as log:
        await log.append("t", [(WORDS, "user")])
        await log.backend.copy_thread("t", "u")
        assert await log.contents("u") == [WORDS]
    async with open_store(place.url, encryption=encryption) as store:
        await store.put(("a",), "k", WORDS)
        assert [it.value for it in await store.search((), query="secret")] == [WORDS]
    assert b"of Zoe" not in place.read()


async def test_a_cache_outside_of_the_process_is_refused(encryption: Encryption) -> None:
    from locus_store.session import RedisCache

    async with open_storage("memory://", encryption=encryption) as storage:
        SessionCheckpointer(storage.backend, cache=LocalCache())
        with pytest.raises(UnsupportedError, match="in clear"):
            SessionCheckpointer(storage.backend, cache=RedisCache("redis://127.0.0.1:1"))


def test_an_encryption_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(InvalidArgumentError, match="must be an Encryption"):
        open_storage(url, encryption=5)
    with pytest.raises(InvalidArgumentError, match="cannot be read"):
        open_storage(f"{url}?encryption=/nowhere/keys.json")
    ring = LocalKeyRing({"a": bytes(32)}, "a")
    with pytest.raises(InvalidArgumentError, match="choose one"):
        Encryption(ring, None, clear=["city"], hashed=["city"])  # type: ignore[arg-type]
    with pytest.raises(InvalidArgumentError, match="a list of keys"):
        Encryption(LocalKeyRing({"a": bytes(32)}, "a"), None, clear="city")  # type: ignore[arg-type]


async def test_a_hashed_number_may_be_beyond_64_bits(encryption: Encryption) -> None:
    chosen = Encryption(encryption.ring, encryption.keys, hashed=["n"])
    async with open_storage("memory://", encryption=chosen) as storage:
        for number in (1e300, -1e19, 1e19):
            await storage.backend.write_state("t", {}, metadata={"n": number})
            [found] = await storage.backend.query("n", number)
            assert found.metadata == {"n": number}
        assert len(await storage.backend.query("n", 10**19)) == 1
