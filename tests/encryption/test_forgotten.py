"""Forgetting: the keys of a person's threads and items are destroyed, and no copy is read."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from dataclasses import replace
from typing import Any

import pytest
from places import Place
from test_sealing import make_data_key
from test_stored import fill

from locus_store import Encryption, EncryptionError, open_storage
from locus_store.types import PendingWrite
from locus_store.values.sealing import LEAF_BYTES, ForgottenError

pytestmark = pytest.mark.anyio


def test_a_key_that_was_destroyed_cannot_be_derived_and_all_others_can() -> None:
    whole = make_data_key()
    subjects = [("thread", f"t{at}") for at in range(200)]
    before = {it: whole.derive(it) for it in subjects}
    nodes, leaves = whole.puncture(subjects[:20])
    left = replace(whole, nodes=nodes)
    assert leaves == [before[it].leaf for it in subjects[:20]]
    for leaf in leaves:
        with pytest.raises(ForgottenError):
            left.find(leaf)
    for subject in subjects[20:]:
        assert left.derive(subject).repeatable[0] == before[subject].repeatable[0]
    for subject in subjects[:20]:  # used again, it has another leaf
        assert left.derive(subject).leaf != before[subject].leaf
    assert len(nodes) < 20 * 8 * LEAF_BYTES
    assert left.puncture([])[0] == nodes


async def fill_person(storage: Any, user_id: str, thread_id: str) -> list[dict[str, Any]]:
    """Store one of each for a user whom only the thread's last version names."""
    states = await fill(storage, thread_id)
    await storage.backend.write_state(
        thread_id, {"n": 1}, checkpoint_id="v3", metadata={"user_id": user_id}
    )
    await storage.store().put(("m", user_id), "k", {"of": user_id}, {"user_id": user_id})
    return states


async def assert_readable(storage: Any, thread_id: str, states: list[dict[str, Any]]) -> None:
    assert [await storage.backend.load(thread_id, f"v{at}") for at in range(3)] == states
    assert len(await storage.backend.get_writes(thread_id, "v2")) == 1
    assert len(await storage.messages().load(thread_id, namespace="n")) == 1


async def assert_unreadable(storage: Any, thread_id: str) -> None:
    backend = storage.backend
    for reading in (
        backend.load(thread_id, "v0"),
        backend.load(thread_id),
        backend.history(thread_id),
        backend.get_writes(thread_id, "v2"),
        backend.read_thread(thread_id),
        storage.messages().load(thread_id, namespace="n"),
    ):
        with pytest.raises(EncryptionError, match="forgotten"):
            await reading


@pytest.mark.parametrize("clear", [[], ["user_id"]], ids=["sealed", "clear"])
async def test_no_backup_of_a_forgotten_person_is_read(
    clear: list[str], encryption: Encryption, place: Place
) -> None:
    url = place.url
    chosen = Encryption(encryption.ring, encryption.keys, clear=clear)
    async with open_storage(url, encryption=chosen) as storage:
        await fill_person(storage, "zoe", "t")
        others = await fill_person(storage, "max", "u")
        await fill(storage, "v")
    restore = place.back_up()
    async with open_storage(url, encryption=chosen) as storage:
        tenant = storage.backend.tenant or ""
        assert (await storage.backend.forget_user("zoe"))["threads"] == 1
        receipts = await chosen.list_receipts(tenant)
        assert sum(len(it.key_ids) for it in receipts) == 2
        assert (await storage.backend.forget_user("zoe"))["threads"] == 0
        assert await chosen.list_receipts(tenant) == receipts
        await assert_readable(storage, "u", others)
        await storage.backend.save("t", {"again": True})
        assert await storage.backend.load("t") == {"again": True}
    restore()
    again = Encryption(encryption.ring, encryption.keys, clear=clear)
    async with open_storage(url, encryption=again) as storage:
        await assert_unreadable(storage, "t")
        await assert_readable(storage, "u", others)
        with pytest.raises(EncryptionError, match="forgotten"):
            await storage.store().get(("m", "zoe"), "k")
        assert (await storage.backend.forget_user("zoe"))["threads"] == 1
        assert await storage.backend.scan() == ["u", "v"]
        assert await storage.store().get(("m", "max"), "k") == {"of": "max"}


async def test_a_namespace_is_forgotten_with_its_keys(encryption: Encryption, url: str) -> None:
    async with open_storage(url, encryption=encryption) as storage:
        store = storage.store()
        for namespace in (("m", "zoe"), ("m", "zoe", "deep"), ("m", "max")):
            await store.put(namespace, "k", {"x": 1})
        await store.put(("m", "zoe"), "named", {"x": 1}, {"user_id": "zoe"})
        await store.put(("m", "all"), "shared", {"x": 1}, {"user_id": "zoe"})
        before = await store.list_namespaces()
        assert await store.forget_namespace(("m", "zoe")) == 3
        [receipt] = await encryption.list_receipts("default")
        assert len(receipt.key_ids) == 2
        assert await store.list_namespaces() == [it for it in before if it[:2] != ("m", "zoe")]
        assert await store.get(("m", "all"), "shared") == {"x": 1}
        assert (await storage.backend.forget_user("zoe"))["store"] == 1
        assert len(await encryption.list_receipts("default")) == 2


async def test_an_item_that_is_replaced_while_it_is_forgotten_stays(
    encryption: Encryption, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_storage(place.url, encryption=encryption) as storage:
        store = storage.store()
        for key in ("replaced", "old"):
            await store.put(("m",), key, {"of": "zoe"}, {"user_id": "zoe"})
        note = Encryption.note

        async def note_late(self: Encryption, tenant: str, subjects: Any) -> None:
            await note(self, tenant, subjects)
            if subjects and not await store.get(("m",), "new"):
                for key in ("replaced", "new"):
                    await store.put(("m",), key, {"of": "max"}, {"user_id": "max"})

        monkeypatch.setattr(Encryption, "note", note_late)
        assert (await storage.backend.forget_user("zoe"))["store"] == 1
        left = {it.key: it.value for it in await store.list(("m",))}
        assert left == {"new": {"of": "max"}, "replaced": {"of": "max"}}
        assert len(await encryption.list_receipts(storage.backend.tenant or "")) == 1
        assert await store.put(("m",), "old", 1) == 1


async def test_the_record_names_the_items_that_are_forgotten(
    encryption: Encryption, url: str
) -> None:
    async with open_storage(url, encryption=encryption, audit="me") as storage:
        await storage.store().put(("m",), "k", 1, {"user_id": "zoe"})
        await storage.backend.forget_user("zoe")
    with closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as connection:
        rows = connection.execute("SELECT detail FROM locus_audit WHERE method = 'forget_user'")
        assert any("k" in json.loads(it).get("items", [[]])[0] for (it,) in rows)


async def test_a_forgetting_that_was_killed_is_completed_by_the_next(
    encryption: Encryption, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_storage(url, encryption=encryption) as storage:
        await fill_person(storage, "zoe", "t")
        others = await fill_person(storage, "max", "u")
        backend = storage.backend

        async def die(*_: Any) -> None:
            raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(Encryption, "destroy_noted", die)
            with pytest.raises(KeyboardInterrupt):
                await backend.forget_user("zoe")
        assert await encryption.list_receipts("default") == []
        await backend.forget_user("nobody")
        receipts = await encryption.list_receipts("default")
        assert sum(len(it.key_ids) for it in receipts) == 2  # the thread's, and the item's
        assert (await backend.forget_user("zoe"))["store"] == 0
        await assert_readable(storage, "u", others)


@pytest.mark.parametrize("whose", ["person", "tenant"])
async def test_no_key_is_destroyed_without_its_receipt(
    whose: str, encryption: Encryption, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = encryption.keys
    async with open_storage(url, encryption=encryption) as storage:
        await fill_person(storage, "zoe", "t")
        sealing = (await encryption.load("default")).current
        wanted = sealing.derive(("thread", "t")).key_id if whose == "person" else sealing.key_id

        async def destroy() -> Any:
            if whose == "tenant":
                return await encryption.destroy("default")
            return await storage.backend.forget_user("zoe")

        def dying(method: Any) -> Any:
            async def die(*given: Any, **options: Any) -> Any:
                if "destroyed-data-keys" in repr(given):
                    raise KeyboardInterrupt
                return await method(*given, **options)

            return die

        with monkeypatch.context() as patch:
            for name in ("put", "apply"):
                patch.setattr(keys, name, dying(getattr(keys, name)))
            with pytest.raises(KeyboardInterrupt):
                await destroy()
        assert await encryption.has_keys("default")
        await destroy()
        receipts = await encryption.list_receipts("default")
        assert wanted.hex() in {it for receipt in receipts for it in receipt.key_ids}


async def test_a_thread_that_is_saved_meanwhile_keeps_its_key(
    encryption: Encryption, url: str
) -> None:
    async with open_storage(url, encryption=encryption) as storage:
        backend = storage.backend
        await backend.save("t", {"n": 1})
        await encryption.note("default", {("thread", "t"), ("thread", "gone")})
        await backend.forget_user("zoe")
        assert await backend.load("t") == {"n": 1}
        [receipt] = await encryption.list_receipts("default")
        assert len(receipt.key_ids) == 1


async def test_two_that_are_forgotten_at_once_have_no_keys_after_it(
    encryption: Encryption, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One is forgotten as a whole while the other's thread is noted, and not yet removed."""
    async with open_storage(url, encryption=encryption) as storage:
        await fill_person(storage, "zoe", "t")
        await fill_person(storage, "max", "u")
        backend, other = storage.backend, storage.backend.for_tenant("default")
        remove = backend.remove_thread

        async def remove_after_the_other(thread_id: str, **which: Any) -> Any:
            await other.forget_user("max")
            return await remove(thread_id, **which)

        monkeypatch.setattr(backend, "remove_thread", remove_after_the_other)
        await backend.forget_user("zoe")
        receipts = await encryption.list_receipts("default")
        assert sum(len(it.key_ids) for it in receipts) == 4  # of two threads, and of their users


async def test_a_process_that_has_not_read_the_keys_loses_what_it_saves(
    encryption: Encryption, url: str
) -> None:
    other = Encryption(encryption.ring, encryption.keys)
    async with (
        open_storage(url, encryption=encryption) as one,
        open_storage(url, encryption=other) as two,
    ):
        await one.backend.save("t", {"n": 1}, metadata={"user_id": "zoe"})
        assert await two.backend.load("t") == {"n": 1}
        await one.backend.forget_user("zoe")
        await two.backend.save("t", {"n": 2})
        with pytest.raises(EncryptionError, match="forgotten"):
            await one.backend.load("t")
        assert (await one.backend.forget_user("max"))["threads"] == 1
        assert await one.backend.scan() == []


async def test_keys_of_all_data_keys_are_destroyed(encryption: Encryption, url: str) -> None:
    async with open_storage(url, encryption=encryption) as storage:
        await fill_person(storage, "zoe", "t")
        before = encryption.get_loaded("default").current
        await encryption.add_key("default")
        await storage.backend.put_writes("t", "v2", [PendingWrite("new", 0, "c", "t", b"x")])
        await storage.backend.forget_user("zoe")
        receipts = await encryption.list_receipts("default")
        ids = [it for receipt in receipts for it in receipt.key_ids]
        assert len(ids) == 4  # a thread's and a user's, of two data keys
        assert sum(it.startswith(before.key_id.hex()) for it in ids) == 2


def test_the_error_names_the_key() -> None:
    assert "beef" in str(ForgottenError.make(b"\xbe\xef"))
