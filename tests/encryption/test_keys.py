"""Data keys: created, wrapped again, counted, retired and destroyed."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import sqlite3
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from places import IndexPlace, Place, read_files
from test_stored import fill, read
from tiers import first_of

from locus_store import (
    Encryption,
    EncryptionError,
    InMemoryStore,
    InvalidArgumentError,
    LocalKeyRing,
    Quota,
    QuotaError,
    open_storage,
)
from locus_store.encryption import keys as key_module, rings as ring_module
from locus_store.encryption.keys import TenantKeys
from locus_store.encryption.rings import KeyRing
from locus_store.values import sealing

pytestmark = pytest.mark.anyio

OLD, NEW = os.urandom(32), os.urandom(32)


def with_ring(encryption: Encryption, ring: KeyRing, **options: Any) -> Encryption:
    """Return another process's encryption with the same data keys."""
    return Encryption(ring, encryption.keys, **options)


@pytest.fixture
def old() -> Encryption:
    return Encryption(LocalKeyRing({"old": OLD}, "old"), InMemoryStore())


async def count(storage: Any) -> dict[str, int]:
    return dict(await storage.backend.count_keys() + await storage.store().count_keys())


async def convert(storage: Any) -> int:
    done = [it async for it in storage.backend.reencrypt()]
    return len(done) + len([it async for it in storage.store().reencrypt()])


async def test_data_keys_are_wrapped_again_without_their_data(old: Encryption, url: str) -> None:
    async with open_storage(url, encryption=old) as storage:
        states = await fill(storage)
    both = with_ring(old, LocalKeyRing({"old": OLD, "new": NEW}, "new"))
    assert [it.wrapped_by for it in await both.list_keys()] == ["old"]
    assert (await both.rewrap(), await both.rewrap()) == (1, 0)
    assert [it.wrapped_by for it in await both.list_keys()] == ["new"]
    only = with_ring(old, LocalKeyRing({"new": NEW}, "new"))
    async with open_storage(url, encryption=only) as storage:
        await read(storage, states)
    with pytest.raises(EncryptionError, match="wrapped with the key 'new'"):
        await with_ring(old, LocalKeyRing({"old": OLD}, "old")).load("default")


async def test_a_rotation_keeps_the_embeddings_of_items(old: Encryption, place: Place) -> None:
    async with open_storage(place.url, encryption=old) as storage:
        await storage.store(dimension=2).put_with_embedding(("n",), "k", {"x": 1}, [0.25, -3])
        await old.add_key(storage.backend.tenant or "")
    async with open_storage(place.url, encryption=old) as storage:
        assert await convert(storage) == 1
    async with open_storage(place.url, encryption=old) as storage:
        store = storage.store(dimension=2)
        assert await store.get_embedding(("n",), "k") == [0.25, -3]
        assert (await store.get_item(("n",), "k")).value == {"x": 1}


async def test_no_quota_refuses_a_rotation(old: Encryption, url: str) -> None:
    async with open_storage(url, encryption=old) as storage:
        await fill(storage)
        await old.add_key("default")
        await storage.backend.set_quota(Quota(bytes=1, saves_per_minute=1))
        assert await convert(storage) == 2
        assert len(await count(storage)) == 1
        with pytest.raises(QuotaError):
            await storage.store().put(("n",), "other", 1)


def write_ring(path: Path, current: str, **keys: bytes) -> None:
    values = {name: base64.b64encode(key).decode() for name, key in keys.items()}
    data_keys = f"sqlite:///{path.parent}/keys.db"
    path.write_text(json.dumps({"keys": values, "current": current, "data_keys": data_keys}))


async def test_a_key_that_was_added_to_the_file_is_used_without_a_restart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ring_module, "REREAD_SECONDS", 0.0)
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "keys.json"
    write_ring(path, "old", old=OLD)
    running = Encryption.read("keys.json")
    monkeypatch.chdir("/")
    before = await running.load("acme")
    write_ring(path, "new", old=OLD, new=NEW)
    assert await Encryption.read(str(path)).rewrap() == 1
    assert (await running.load("acme")).current == before.current
    await running.load("other")
    assert {it.wrapped_by for it in await running.list_keys()} == {"new"}
    write_ring(path, "newer", new=NEW, newer=bytes(32))
    await Encryption.read(str(path)).rewrap()
    path.write_text(path.read_text()[:-20])
    match = "wrapped with the key 'newer'.*keys.json must be a JSON object"
    with pytest.raises(EncryptionError, match=match):
        await running.load("acme")
    write_ring(path, "newer", newer=bytes(32))
    assert (await running.load("acme")).current == before.current


async def test_a_ring_in_no_home_directory_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="'~nobody-here/ring': there is no such"):
        Encryption.read("~nobody-here/ring")


async def test_a_ring_without_a_file_names_the_restart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "keys.json"
    write_ring(path, "old", old=OLD)
    monkeypatch.setenv("RING", path.read_text())
    running = Encryption.read("env:RING")
    await running.load("acme")
    write_ring(path, "new", old=OLD, new=NEW)
    await Encryption.read(str(path)).rewrap()
    with pytest.raises(EncryptionError, match="restart this process"):
        await running.load("acme")


async def test_threads_that_miss_a_key_read_the_file_once(tmp_path: Path) -> None:
    reads = list[int]()
    ring, both = LocalKeyRing({"old": OLD}, "old"), LocalKeyRing({"old": OLD, "new": NEW}, "new")

    def reread() -> LocalKeyRing:
        reads.append(1)
        time.sleep(0.05)  # the others ask meanwhile
        return both

    ring.reread = reread
    wrapped = await LocalKeyRing({"new": NEW}, "new").wrap(b"secret", "")
    with ThreadPoolExecutor(8) as threads:
        found = list(threads.map(lambda _: asyncio.run(ring.unwrap(wrapped, "")), range(8)))
    assert (found, len(reads)) == ([b"secret"] * 8, 1)


async def test_a_ring_with_another_value_is_refused(old: Encryption) -> None:
    await old.load("acme")
    with pytest.raises(EncryptionError, match="does not open"):
        await with_ring(old, LocalKeyRing({"old": NEW}, "old")).load("acme")


async def test_two_processes_create_one_key(old: Encryption) -> None:
    other = with_ring(old, old.ring)
    assert (await old.load("acme")).current == (await other.load("acme")).current
    assert (await old.load("acme")).current != (await old.load("other")).current


async def test_a_host_whose_clock_is_ahead_removes_no_key_that_others_use(
    old: Encryption, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Ahead(datetime):
        @classmethod
        def now(cls, tz: Any = None) -> Any:
            return datetime.now(tz) + timedelta(hours=1)

    before = (await old.load("acme")).current.key_id.hex()
    await old.add_key("acme")
    monkeypatch.setattr(key_module, "datetime", Ahead)
    assert await old.retire("acme", [before]) == []


async def test_data_is_sealed_again_beside_a_writer(
    old: Encryption, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_storage(place.url, encryption=old) as storage:
        states = await fill(storage)
        tenant = storage.backend.tenant or ""
        [before] = await count(storage)
        loaded = await storage.backend.read_state("t")
        item = (await storage.store().search(()))[0]
        after = await old.add_key(tenant)
        assert await convert(storage) == 2
        assert (await count(storage)).keys() == {after}
        assert await convert(storage) == 0
        assert (await storage.store().search(()))[0] == item
        await read(storage, states)
        assert await old.retire(tenant, [before, after]) == []  # others may still use it
        monkeypatch.setattr(key_module, "REFRESH_SECONDS", 0.0)
        assert await old.retire(tenant, [before, after]) == [before]
        await read(storage, states)
        head = await storage.backend.version("t")
        assert head.mark == loaded.version.mark  # a writer that loaded it has no conflict
        await storage.backend.write_state("t", {"n": 1}, parent_id="v2", forks=False)
        assert await storage.backend.delete("t", "v1")
        assert await storage.backend.load("t", "v0") == states[0]


async def test_a_storage_in_clear_is_converted(old: Encryption, place: Place) -> None:
    url = place.url
    async with open_storage(url) as storage:
        states = await fill(storage)
        await fill(storage, "u")
    lenient = with_ring(old, old.ring, required=False)
    async with open_storage(url, encryption=lenient) as storage:
        assert "clear" in await count(storage)
        steps = storage.backend.reencrypt()
        assert await anext(steps) == "t"
        await steps.aclose()  # the process is killed
        await read(storage, states)
        assert await convert(storage) == 3
        assert "clear" not in await count(storage)
    async with open_storage(url, encryption=old) as storage:
        await read(storage, states)
        await read(storage, states, "u")
    if isinstance(place, IndexPlace):
        assert b"of Zoe" not in place.read()
    elif url.startswith("file:"):  # the journal of items keeps values until it is written anew
        assert b"of Zoe" not in read_files(place.path, "threads/*.json")


async def test_a_rotation_seals_nothing_in_clear_where_encryption_is_required(
    old: Encryption, place: Place
) -> None:
    async with open_storage(place.url) as storage:  # a program without keys
        await fill(storage)
    async with open_storage(place.url, encryption=old) as storage:
        backend, store = storage.backend, storage.store()
        for steps in (backend.reencrypt(), store.reencrypt()):
            with pytest.raises(EncryptionError, match="in clear"):
                await anext(steps)
        with pytest.raises(EncryptionError, match="in clear"):
            await backend.load("t", "v2")
        with pytest.raises(EncryptionError, match="in clear"):
            await store.get(("t",), "k")


async def test_a_destroyed_key_makes_copies_of_the_data_unreadable(
    old: Encryption, tmp_path: Path
) -> None:
    url = f"sqlite:///{tmp_path}/d.db?tenant=acme"
    async with open_storage(url, encryption=old) as storage:
        await fill(storage)
        await storage.backend.for_tenant("other").save("t", {"n": 1})
    backup = (tmp_path / "d.db").read_bytes()
    async with open_storage(url, encryption=old) as storage:
        await storage.backend.load("t")
        [status] = [it for it in await old.list_keys() if it.tenant == "acme"]
        receipt = await old.destroy("acme")
        assert (receipt.tenant, receipt.key_ids) == ("acme", [status.key_id])
        with pytest.raises(EncryptionError, match="not known"):
            await storage.backend.read_thread("t")
        assert await storage.backend.for_tenant("other").load("t") == {"n": 1}
    (tmp_path / "d.db").write_bytes(backup)
    async with open_storage(url, encryption=old) as storage:
        with pytest.raises(EncryptionError, match="not known"):
            await storage.backend.load("t")


@pytest.mark.parametrize("new", [False, True], ids=["first", "rotated"])
@pytest.mark.parametrize("taken", [False, True], ids=["", "taken"])
async def test_a_key_that_a_restored_store_lacks_is_put_back(
    old: Encryption, url: str, new: bool, taken: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A save that is acknowledged after the restore, before keys are read again, is readable."""
    other = with_ring(old, old.ring)
    async with open_storage(url, encryption=old) as one, open_storage(url, encryption=other) as two:
        key = (await old.load("default")).current
        if new:
            await old.add_key("default")
            key = (await old.load("default")).current
        [*_, lost] = await old.keys.list(("data-keys", "=default"))
        await old.keys.delete(lost.namespace, lost.key)
        if taken:  # by a process that began since
            await (other.add_key if new else other.load)("default")
        await one.backend.save("t", {"n": 1})
        monkeypatch.setattr(key_module, "REFRESH_SECONDS", 0.0)
        assert (await old.load("default")).current == key
        sealing.LOADED.clear()  # as in another process
        assert await two.backend.load("t") == {"n": 1}
        assert len(await old.list_keys()) == 1 + new + taken


async def test_a_key_that_was_retired_or_destroyed_is_not_put_back(old: Encryption) -> None:
    idle = with_ring(old, old.ring)
    before = (await idle.load("acme")).current
    after = await old.add_key("acme")
    await old.keys.delete(("data-keys", "=acme"), "000001")
    assert (await idle.load("acme")).current.key_id.hex() == after
    await old.destroy("acme")
    assert (await idle.load("acme")).key_ids.isdisjoint({before.key_id, bytes.fromhex(after)})


async def test_a_new_key_of_another_process_is_learned(old: Encryption, url: str) -> None:
    other = with_ring(old, old.ring)
    async with open_storage(url, encryption=old) as one, open_storage(url, encryption=other) as two:
        await one.backend.save("t", {"n": 1})
        assert await two.backend.load("t") == {"n": 1}
        await other.add_key("default")
        await two.backend.save("t", {"n": 2})
        key_module.LOADED.pop((await other.load("default")).current.key_id)  # as in a process
        assert await one.backend.load("t") == {"n": 2}


OPENS_SEGMENTS: dict[str, Any] = {
    "load": lambda it: it.checkpointer(state_type=dict).load("t", "v20"),
    "delete": lambda it: it.checkpointer().delete("t", "v20"),
    "read_thread": lambda it: it.backend.read_thread("t"),
    "count_keys": lambda it: it.backend.count_keys(),
    "vacuum": lambda it: it.backend.vacuum(),
}


@pytest.mark.parametrize("call", OPENS_SEGMENTS)
@pytest.mark.parametrize("new", first_of("process", "key"))
async def test_the_rules_of_a_storage_have_keys_that_a_process_does_not_know(
    call: str, new: str, old: Encryption, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    other, known = with_ring(old, old.ring), dict[bytes, Any]()
    if new == "key":
        key = (await other.load("default")).current
        known[key.key_id] = key
        await old.add_key("default")
    async with open_storage(url, encryption=old) as storage:
        checkpointer = storage.checkpointer(state_type=dict)
        for n in range(70):
            state = await checkpointer.load("t") or {"said": [], "pad": "x" * 400}
            state["said"].append(n)
            await checkpointer.save(state, "t", f"v{n}")
    with closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as database, database:
        assert database.execute("SELECT count(*) FROM locus_segments").fetchone() == (1,)
        database.execute("UPDATE locus_checkpoints SET created_at = 0 WHERE sequence < 40")
    for module in (sealing, key_module):
        monkeypatch.setattr(module, "LOADED", known)
    storage = open_storage(url, encryption=other)
    if new == "process" or call != "vacuum":  # which skips the thread, and reports it
        assert await OPENS_SEGMENTS[call](storage)
    assert (await storage.backend.load("t"))["said"] == [*range(70)]
    await storage.backend.close()


async def test_an_encryption_is_read_from_a_file_or_the_environment(
    tmp_path: Path, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    fields = {
        "keys": {"a": base64.b64encode(OLD).decode()},
        "current": "a",
        "data_keys": f"sqlite:///{tmp_path}/keys.db",
        "clear": ["city"],
    }
    (tmp_path / "keys.json").write_text(json.dumps(fields))
    monkeypatch.setenv("KEYS", json.dumps(fields))
    async with open_storage(f"{url}?encryption={tmp_path}/keys.json") as storage:
        states = await fill(storage)
        assert storage.backend.encryption.clear == {"city"}
    async with open_storage(url, encryption="env:KEYS") as storage:
        await read(storage, states)
    for wrong in ({**fields, "curent": "a"}, {**fields, "keys": {"a": "eA=="}}, {}, []):
        monkeypatch.setenv("KEYS", json.dumps(wrong))
        with pytest.raises(InvalidArgumentError):
            open_storage(url, encryption="env:KEYS")


# --- key rings that fail, and keys at a wrong place


class Service(KeyRing):
    """A key management service that returns something else while ``harm`` is set."""

    harm: Any = None

    async def wrap(self, key: bytes, context: str) -> bytes:
        return b"w" + key

    async def unwrap(self, blob: bytes, context: str) -> bytes:
        return self.harm(blob[1:]) if self.harm else blob[1:]


GARBAGE = {
    "nothing": lambda _: b"",
    "none": lambda _: None,
    "short": lambda key: key[:20],
    "zeros": lambda _: bytes(64),
    "a bit": lambda key: bytes([key[0] ^ 1, *key[1:]]),
}


@pytest.mark.parametrize("harm", GARBAGE)
async def test_nothing_is_sealed_with_what_a_ring_returns_by_mistake(
    harm: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ring, store = Service(), InMemoryStore()
    ring.harm = GARBAGE[harm]
    with pytest.raises(EncryptionError, match="something else than the data key"):
        await Encryption(ring, store).load("acme")
    assert await store.list_namespaces() == []  # a later call begins anew
    ring.harm = None
    encryption = Encryption(ring, store)
    before = await encryption.load("acme")
    ring.harm = GARBAGE[harm]
    with pytest.raises(EncryptionError, match="something else than the data key"):
        await encryption.load("acme")
    both = Service()  # unwraps what it should, and wraps what nothing unwraps
    monkeypatch.setattr(both, "wrap", lambda key, context: ring.wrap(bytes(64), context))
    with pytest.raises(EncryptionError, match="something else than the data key"):
        await Encryption(both, store).rewrap()
    ring.harm = None
    assert (await encryption.load("acme")).current == before.current


async def test_a_lost_store_of_data_keys_gets_no_new_key(url: str) -> None:
    """After its restoration everything is there, which a new first key would have prevented."""
    ring, keys = LocalKeyRing({"old": OLD}, "old"), InMemoryStore()
    async with open_storage(url, encryption=Encryption(ring, keys)) as storage:
        states = await fill(storage)
    lost = Encryption(ring, InMemoryStore())
    async with open_storage(url, encryption=lost) as storage:
        for call in (
            storage.backend.save("new", {"n": 1}),
            storage.store().put(("a",), "new", 1),
            storage.messages().append("new", [("Hi", "user", "m1", {}, "Hi")]),
        ):
            with pytest.raises(EncryptionError, match="restore that store from its backup"):
                await call
    assert await lost.keys.list_namespaces() == []
    async with open_storage(url, encryption=Encryption(ring, keys)) as storage:
        await read(storage, states)
        assert not await storage.backend.exists("new")


async def test_calls_at_once_ask_the_ring_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    class Counted(Service):
        async def unwrap(self, blob: bytes, context: str) -> bytes:
            asked.append(context)
            await asyncio.sleep(0.01)
            return await super().unwrap(blob, context)

    ring = Counted()
    encryption = Encryption(ring, InMemoryStore())
    await encryption.load("acme")
    monkeypatch.setattr(key_module, "REFRESH_SECONDS", 0.0)
    for harm in (None, GARBAGE["zeros"]):
        asked.clear()
        ring.harm = harm
        calls = [encryption.get_or_load("acme") for _ in range(50)]
        found = await asyncio.gather(*calls, return_exceptions=True)
        assert len(asked) == 1
        assert {type(it) for it in found} == {TenantKeys if harm is None else EncryptionError}
    ring.harm = None
    first = asyncio.ensure_future(encryption.get_or_load("acme"))
    second = asyncio.ensure_future(encryption.get_or_load("acme"))
    await asyncio.sleep(0)
    first.cancel()  # the question is the other caller's, too
    assert isinstance(await second, TenantKeys)


async def test_a_ring_that_fails_or_hangs_is_an_encryption_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def fail(*_: Any) -> bytes:
        raise OSError("the service is away")

    async def hang(*_: Any) -> bytes:
        await asyncio.sleep(60)
        return b""

    monkeypatch.setattr(ring_module, "RING_SECONDS", 0.05)
    for method in ("wrap", "unwrap"):
        for broken, told in ((fail, "failed with OSError"), (hang, "within 0.05 s")):
            ring, store = Service(), InMemoryStore()
            monkeypatch.setattr(ring, method, broken)
            with pytest.raises(EncryptionError, match=f"{method} of the key ring .*{told}"):
                await Encryption(ring, store).load("acme")
            assert await store.list_namespaces() == []


async def test_keys_are_in_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    key = base64.b64encode(NEW).decode()
    fields = {"keys": {"a": key}, "current": "a", "data_keys": "memory://"}
    whole = json.dumps(fields)
    for given in (key, whole, whole[:-1]):
        with pytest.raises(InvalidArgumentError) as caught:
            open_storage("memory://", encryption=given)
        assert key not in str(caught.value)
    for wrong, told in (
        ({"keys": {"": key}, "current": ""}, "name of a key is empty"),
        ({"keys": {"a\0": key}, "current": "a\0"}, "NUL"),
        ({"clear": 5}, "must be a list"),
        ({"clear": "tags"}, "must be a list"),
        ({"clear": [1]}, "must be a list"),
        ({"required": "false"}, "required must be true or false"),
        ({"required": 0}, "required must be true or false"),
    ):
        monkeypatch.setenv("KEYS", json.dumps(fields | wrong))
        with pytest.raises(InvalidArgumentError, match=told):
            open_storage("memory://", encryption="env:KEYS")


async def test_values_of_another_storage_are_refused_in_the_same_process(
    old: Encryption, tmp_path: Path
) -> None:
    urls = [f"sqlite:///{tmp_path}/{it}.db" for it in "ab"]
    other = Encryption(LocalKeyRing({"other": NEW}, "other"), InMemoryStore())
    async with (
        open_storage(urls[0], encryption=old) as first,
        open_storage(urls[1], encryption=other) as second,
    ):
        for it in (first, second):
            await fill(it)
        with closing(sqlite3.connect(tmp_path / "b.db")) as connection:
            connection.execute("ATTACH ? AS a", (str(tmp_path / "a.db"),))
            for table in ("checkpoints", "writes", "messages", "store"):
                connection.execute(f"DELETE FROM main.locus_{table}")
                connection.execute(f"INSERT INTO main.locus_{table} SELECT * FROM a.locus_{table}")
            connection.commit()
        for call in (
            lambda: second.backend.load("t", "v1"),
            lambda: second.backend.history("t"),
            lambda: second.backend.get_writes("t", "v2"),
            lambda: second.messages().load("t", namespace="n"),
            lambda: second.store().get_item(("t",), "k"),
        ):
            with pytest.raises(EncryptionError, match="is not known here"):
                await call()


async def test_a_first_key_that_another_process_created_and_used_meanwhile_is_taken(
    encryption: Encryption,
) -> None:
    other = Encryption(encryption.ring, encryption.keys)

    async def has_values() -> bool:
        await other.load("acme")
        return True

    found = await encryption.load("acme", has_values)
    assert found.key_ids == (await other.load("acme")).key_ids
