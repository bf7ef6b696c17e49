"""A set of shards that encrypts: moves without keys, keys that all shards judge, and commands."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING, Any

import pytest
import test_cli
from places import read_files
from test_stored import fill, read
from tiers import first_of

from locus_store import (
    Encryption,
    EncryptionError,
    IntegrityError,
    InvalidArgumentError,
    open_message_log,
    open_sharded,
    open_store,
)
from locus_store.backends.sharded import shard_set
from locus_store.backends.sharded.rebalance import rebalance
from locus_store.types import ArchivedThread
from locus_store.values.sealing import LOADED
from locus_store.versions.sharding import choose_shard

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.anyio

run = test_cli.run
THREADS = [f"t{it}" for it in range(8)]


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shard_set, "LEASE_SECONDS", 0.02)
    monkeypatch.setattr(shard_set, "ANNOUNCED_SECONDS", 0.1)


@pytest.fixture
def urls(tmp_path: Path) -> list[str]:
    return [f"sqlite:///{tmp_path}/{it}.db" for it in "abc"]


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    """The file of an encryption, for commands."""
    ring = {"a": base64.b64encode(os.urandom(32)).decode()}
    document = {"keys": ring, "current": "a", "data_keys": f"sqlite:///{tmp_path}/keys"}
    path = tmp_path / "keys.json"
    path.write_text(json.dumps(document))
    return path


def place(thread_id: str, shards: int = 2) -> int:
    return choose_shard(shards, "default", thread_id)


def ask(url: str, query: str) -> list[Any]:
    with closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as connection, connection:
        return connection.execute(query).fetchall()


async def fill_all(storage: Any) -> dict[str, Any]:
    return {it: await fill(storage, it) for it in THREADS}


async def read_all(storage: Any, states: dict[str, Any]) -> None:
    for thread_id, some in states.items():
        await read(storage, some, thread_id)


async def save_many(storage: Any, thread_id: str, count: int) -> None:
    """Save so many versions that a segment joins some."""
    checkpointer = storage.checkpointer(state_type=dict)
    for number in range(count):
        state: Any = await checkpointer.load(thread_id) or {"said": []}
        state["said"].append(f"the secret of Zoe {number}")
        await checkpointer.save(state, thread_id)


async def test_a_rebalance_moves_what_is_sealed_without_keys(
    urls: list[str], encryption: Encryption, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    long = next(f"long {it}" for it in range(99) if place(f"long {it}", 3) == 2)
    async with open_sharded(urls[:2], encryption=encryption) as storage:
        states = await fill_all(storage)
        await save_many(storage, long, 200)
        loaded: Any = await storage.checkpointer(state_type=dict).load(long)
    joined = "SELECT last, first, chain, payload FROM locus_segments"
    before = [row for url in urls[:2] for row in ask(url, joined)]
    assert before
    with monkeypatch.context() as patch:
        patch.setattr("locus_store.values.sealing.open_sealed", None)
        patch.setattr("locus_store.versions.segments.open_sealed", None)
        LOADED.clear()
        async with open_sharded(urls) as storage:
            assert (await rebalance(storage.backend)).moved > 1
    assert ask(urls[2], joined) == before
    assert b"of Zoe" not in read_files(tmp_path)
    again = Encryption(encryption.ring, encryption.keys)
    async with open_sharded(urls, encryption=again) as storage:
        await read_all(storage, states)
        checkpointer = storage.checkpointer(state_type=dict)
        assert await checkpointer.load(long) == loaded
        assert len(await checkpointer.list_checkpoints(long, limit=1000)) == 200
        assert await storage.backend.damage() == []
    assert {it.tenant for it in await again.list_keys()} == {"default"}


@pytest.mark.parametrize("whose", ["thread", "item"])
async def test_all_shards_judge_whether_a_key_is_needed(
    whose: str, urls: list[str], encryption: Encryption
) -> None:
    """A note of a thread of each shard, and of an item, that a killed process has left."""
    async with open_sharded(urls[:2], encryption=encryption) as storage:
        states = await fill_all(storage)
        assert {place(it) for it in THREADS} == {0, 1}
        subjects = {("thread", it) for it in [*THREADS, "gone"]}
        if whose == "item":
            subjects = {("items", it) for it in [*THREADS, "gone"]}
        await encryption.note("default", subjects)
        await storage.backend.forget_user("nobody")
        [receipt] = await encryption.list_receipts("default")
        assert len(receipt.key_ids) == 1
        await read_all(storage, states)


async def test_the_items_of_a_person_are_forgotten_and_counted(
    urls: list[str], encryption: Encryption
) -> None:
    async with open_sharded(urls[:2], encryption=encryption) as storage:
        for key in ("a", "b"):
            await storage.store().put(("n",), key, {}, {"user_id": "zoe"})
        assert (await storage.backend.forget_user("zoe"))["store"] == 2
        assert (await storage.backend.forget_user("zoe"))["store"] == 0
        assert await storage.store().list(("n",)) == []
        assert len(await encryption.list_receipts("default")) == 1


async def test_a_thread_out_of_its_place_is_forgotten_with_its_key(
    urls: list[str], encryption: Encryption
) -> None:
    async with open_sharded(urls[:2], encryption=encryption) as storage:
        thread_id = next(it for it in THREADS if place(it) == 0)
        for user_id in ("zoe", "max"):
            await storage.backend.save(thread_id, {"n": 1}, metadata={"user_id": user_id})
            stored = await storage.backend.shards[0].read_stored(thread_id)
            await storage.backend.shards[1].remove_thread(thread_id)
            await storage.backend.shards[1].restore(stored)
            await storage.backend.remove_thread(thread_id)
            assert await storage.backend.scan() == [thread_id]
            assert (await storage.backend.forget_user(user_id))["threads"] == 1
            assert await storage.backend.scan() == []
        assert len(await encryption.list_receipts("default")) == 2


async def test_rows_of_another_shard_are_refused(urls: list[str], encryption: Encryption) -> None:
    async with open_sharded(urls[:2], encryption=encryption) as storage:
        await fill_all(storage)
        one, other = (next(it for it in THREADS if place(it) == at) for at in (0, 1))

    async with open_sharded(urls[:2]) as plain:
        donor: Any = await plain.backend.read_thread(one)

        def swap(thread: ArchivedThread) -> ArchivedThread:
            own = thread.lines[0].records
            given = donor.lines[0].records
            own[-1] = given[-1]
            return thread

        await plain.backend.rewrite_thread(other, swap)
    async with open_sharded(urls[:2], encryption=encryption) as storage:
        with pytest.raises(IntegrityError):
            await storage.backend.load(other)


async def test_a_set_in_clear_is_encrypted_while_it_is_rebalanced(
    urls: list[str], encryption: Encryption, tmp_path: Path
) -> None:
    async with open_sharded(urls[:2]) as storage:
        states = await fill_all(storage)
    lenient = Encryption(encryption.ring, encryption.keys, required=False)
    async with open_sharded(urls, encryption=lenient) as storage:
        again = [it async for it in storage.backend.reencrypt(after="t3")]
        assert again == THREADS[4:]
        await rebalance(storage.backend)
        again = [it async for it in storage.backend.reencrypt()]
        assert again == THREADS[:4]
        assert len([it async for it in storage.store().reencrypt()]) == len(THREADS)
        counts = await storage.backend.count_keys() + await storage.store().count_keys()
        assert counts.keys() == {(await encryption.load("default")).current.key_id.hex()}
    async with open_sharded(urls, encryption=encryption) as storage:
        await read_all(storage, states)


async def test_lost_data_keys_are_noticed_by_the_store_of_a_set(
    urls: list[str], encryption: Encryption
) -> None:
    second = next(it for it in THREADS if place(it) == 1)
    async with open_sharded(urls[:2], encryption=encryption) as storage:
        await storage.backend.save(second, {"n": 1})
    for _ in await encryption.list_keys():
        await encryption.keys.delete(("data-keys", "=default"), "000001")
    lost = Encryption(encryption.ring, encryption.keys)
    store = open_store(f"sharded:{' '.join(urls[:2])}", encryption=lost)
    with pytest.raises(EncryptionError, match="restore that store from its backup"):
        await store.put(("a",), "k", 1)
    await store.close()


async def test_objects_of_their_own_encrypt(
    urls: list[str], encryption: Encryption, tmp_path: Path
) -> None:
    url = f"sharded:{' '.join(urls[:2])}"
    async with open_message_log(url, encryption=encryption) as log:
        for thread_id in THREADS:
            await log.append(thread_id, [("the secret of Zoe", "user")])
            await log.backend.copy_thread(thread_id, f"{thread_id}x")
            assert await log.contents(f"{thread_id}x") == ["the secret of Zoe"]
    async with open_store(url, encryption=encryption) as store:
        await store.put(("a",), "k", "the secret of Zoe")
        assert [it.value for it in await store.search((), query="secret")] == ["the secret of Zoe"]
    assert b"of Zoe" not in read_files(tmp_path)


def test_urls_that_differ_in_their_encryption_are_refused(urls: list[str], keys: Path) -> None:
    sealed = [f"{it}?encryption={keys}" for it in urls]
    for some in (
        [sealed[0], urls[1]],
        [urls[0], sealed[1]],
        [sealed[0], f"{urls[1]}?encryption=x"],
    ):
        with pytest.raises(InvalidArgumentError, match="pass it as an argument"):
            open_sharded(some)
    assert open_sharded(sealed).backend.encryption.required  # type: ignore[attr-defined]


async def test_a_shard_by_its_own_url_is_refused_with_keys(
    urls: list[str], keys: Path, run: Any
) -> None:
    """It would destroy the keys of what the other shards have."""
    sealed = [f"{it}?encryption={keys}" for it in urls[:2]]
    async with open_sharded(sealed) as storage:
        states = await fill_all(storage)
    for url in sealed:
        for words in (
            ("db", "keys", "status"),
            ("db", "keys", "rotate", "--data"),
            ("forget", "--yes", "--user", "zoe"),
            ("forget", "--yes", "--user", "zoe", "--namespace", "t1"),
            ("threads", "list"),
        ):
            code, _, error = await asyncio.to_thread(run, *words, "--url", url)
            assert (code, "of 2, and a save here" in error) == (1, True), (words, error)
    async with open_sharded(sealed) as storage:
        await read_all(storage, states)
        assert len(await storage.backend.encryption.list_keys()) == 1  # type: ignore[attr-defined]


@pytest.mark.parametrize("has_keys", first_of(True, False))
def test_commands_on_a_set(has_keys: bool, urls: list[str], keys: Path, run: Any) -> None:
    sealed = [f"{it}?encryption={keys}" for it in urls]
    url = f"sharded:{' '.join(sealed)}"

    async def begin() -> dict[str, Any]:
        async with open_sharded(sealed[:2]) as storage:
            return await fill_all(storage)

    async def check(states: dict[str, Any]) -> None:
        async with open_sharded(sealed) as storage:
            await read_all(storage, states)

    states = asyncio.run(begin())
    code, text, error = run(
        "shards", "rebalance", "--json", "--url", url if has_keys else f"sharded:{' '.join(urls)}"
    )
    assert (code, error, json.loads(text)["shards"]) == (0, "", 3)
    asyncio.run(check(states))
    for words in (["rotate", "--new-key", "--data"], ["status", "--json"]):
        code, text, error = run("db", "keys", *words, "--url", url)
        assert (code, error) == (0, "")
    counted = json.loads(text)
    assert counted["values"].keys() == {counted["keys"][-1]["key_id"]}
    asyncio.run(check(states))
    code, text, error = run("verify", "--url", url)
    assert (code, error) == (0, "")
    code, text, error = run("forget", "--yes", "--where", "who=the secret of Zoe", "--url", url)
    assert (code, "8 threads" in text) == (0, True), (text, error)
    code, text, error = run("db", "keys", "destroy", "--yes", "--url", url)
    assert (code, error) == (0, "")
