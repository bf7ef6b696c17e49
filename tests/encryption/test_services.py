"""Encryption and services: the service has the keys, or its client does."""

from __future__ import annotations

import io
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pages_reader import Site
from places import read_files
from services import Service
from test_stored import WORDS, fill, read

from locus_store import (
    ConflictError,
    Encryption,
    EncryptionError,
    InMemoryStore,
    IntegrityError,
    InvalidArgumentError,
    LocalKeyRing,
    SQLiteBackend,
    SQLiteMessageLog,
    SQLiteStore,
    UnsupportedError,
    open_storage,
)
from locus_store.timeline.blame import blame
from locus_store.transfer.archive import export_threads
from locus_store.transfer.verifying import verify
from locus_store.types import Stored
from locus_store.values.frames import compare_states, extract_text
from locus_store.values.sealing import split_records
from locus_store.versions.archives import Problem

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize(
    "change",
    [
        "DELETE FROM locus_checkpoints WHERE sequence = 2",
        "UPDATE locus_checkpoints SET payload = NULL WHERE sequence = 3",
        "UPDATE locus_checkpoints SET digest = zeroblob(16) WHERE sequence = 3",
    ],
)
async def test_a_service_with_keys_verifies_states_for_its_clients(
    change: str, encryption: Encryption, url: str
) -> None:
    state = {"said": "x" * 900}
    async with open_storage(url, encryption=encryption) as behind:
        service = Service(behind.backend)
        async with open_storage(service.url) as storage:
            for number in range(3):
                state |= {"n": number}
                await storage.backend.save("t", state)
        with closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as connection, connection:
            connection.execute(change)
        async with open_storage(service.url) as storage:
            with pytest.raises(IntegrityError):
                await storage.backend.load("t")
        service.stop()


async def test_an_export_at_a_client_without_keys_is_in_clear_only_if_that_is_said(
    encryption: Encryption, url: str
) -> None:
    async with open_storage(url, encryption=encryption) as behind:
        service = Service(behind.backend)
        async with open_storage(service.url) as storage:
            await storage.backend.save("t", {"said": WORDS})
            with pytest.raises(UnsupportedError, match="--clear"):
                await export_threads(storage.backend, ["t"], io.BytesIO())
            file = io.BytesIO()
            await export_threads(storage.backend, ["t"], file, in_clear=True)
            assert WORDS.encode() in file.getvalue()
        service.stop()


@pytest.fixture
def other() -> Encryption:
    return Encryption(LocalKeyRing({"b": b"b" * 32}, "b"), InMemoryStore())


@pytest.fixture
def behind(url: str) -> Iterator[Lying]:
    backend = Lying(url.removeprefix("sqlite:///"))
    backend.at = Service(
        backend, store=SQLiteStore(backend=backend), messages=SQLiteMessageLog(backend=backend)
    )
    yield backend
    backend.at.stop()


class Lying(SQLiteBackend):
    """The storage of a service, which may answer with ``lie`` of what is stored."""

    at: Service
    lie: Callable[[Stored], Stored] | None = None

    async def fetch(self, *args: Any, **options: Any) -> Stored | None:
        found = await super().fetch(*args, **options)
        return self.lie(found) if self.lie and found else found

    async def fetch_head(self, *args: Any, **options: Any) -> Stored | None:
        found = await super().fetch_head(*args, **options)
        return self.lie(found) if self.lie and found else found


async def test_a_service_learns_no_content_of_clients_with_keys(
    encryption: Encryption, behind: Lying, tmp_path: Path
) -> None:
    async with open_storage(behind.at.url, encryption=encryption) as storage:
        states = await fill(storage)
        await read(storage, states)
        assert await storage.backend.search("secret zoe") == ["t"]
        assert await blame(storage.backend, "t") is not None
    async with open_storage(behind.at.url, encryption=encryption) as storage:
        await read(storage, states)
    assert b"of Zoe" not in read_files(tmp_path)
    assert [it async for it in verify(behind) if isinstance(it, Problem)] == []


async def test_a_client_without_the_keys_is_refused(
    encryption: Encryption, other: Encryption, behind: Lying
) -> None:
    async with open_storage(behind.at.url, encryption=encryption) as storage:
        await fill(storage)
    for given in (None, other):
        async with open_storage(behind.at.url, encryption=given) as storage:
            for way in (
                storage.backend.load("t"),
                storage.messages().load("t", namespace="n"),
                *([] if given is None else [storage.store().get(("t",), "k")]),
            ):
                with pytest.raises(EncryptionError, match=r"sealed|not known"):
                    await way
    async with open_storage(behind.at.url) as storage:
        assert await storage.backend.search("secret") == []
        assert [it.checkpoint_id for it in await storage.backend.history("t")] == ["v2", "v1", "v0"]


def relabel(found: Stored, **names: Any) -> Stored:
    return replace(found, version=replace(found.version, **names))


LIES: dict[str, Callable[[Stored, Stored, Stored], Stored]] = {
    "another version": lambda asked, older, alien: older,
    "the records of another version": lambda asked, older, alien: replace(
        asked, payloads=older.payloads
    ),
    "another version by this name": lambda asked, older, alien: relabel(older, checkpoint_id="v2"),
    "another thread": lambda asked, older, alien: alien,
    "another thread by this name": lambda asked, older, alien: relabel(alien, thread_id="t"),
    "the records of another thread": lambda asked, older, alien: replace(
        asked, payloads=alien.payloads
    ),
    "a chain cut off": lambda asked, older, alien: replace(asked, payloads=asked.payloads[:-1]),
    "a chain with a gap": lambda asked, older, alien: replace(
        asked, payloads=[asked.payloads[0], asked.payloads[2]]
    ),
    "no records": lambda asked, older, alien: replace(asked, payloads=[]),
    "a state in clear": lambda asked, older, alien: replace(
        asked, payloads=[compare_states({"said": []}, None).to_payload()]
    ),
    "metadata in clear": lambda asked, older, alien: replace(
        asked, version=replace(asked.version, metadata={"who": "me"})
    ),
}


@pytest.mark.parametrize("is_same_key", [True, False])
async def test_a_service_that_lies_is_an_error(
    is_same_key: bool, encryption: Encryption, other: Encryption, behind: Lying
) -> None:
    """The other thread is of the same client, or of one with other keys, as another tenant is."""
    for thread_id, keys in (("u", encryption if is_same_key else other), ("t", encryption)):
        said = [f"{WORDS} in {thread_id} {at}" * 20 for at in range(5)]
        states = [{"said": said[:upto]} for upto in range(3, 6)]
        async with open_storage(behind.at.url, encryption=keys) as storage:
            for at, state in enumerate(states):
                await storage.backend.save(thread_id, state, checkpoint_id=f"v{at}")
    asked = ("t", "v2"), ("t", "v1"), ("u", "v2")
    found = [await behind.fetch(name, checkpoint_id=version) for name, version in asked]
    assert len(found[0].payloads) == 3
    async with open_storage(behind.at.url, encryption=encryption) as storage:
        for lie in LIES.values():
            made = lie(*found)
            behind.lie = lambda _, made=made: made
            with pytest.raises(IntegrityError):
                await storage.backend.load("t", "v2")
        behind.lie = None
        assert await storage.backend.load("t", "v2") == states[2]


async def test_a_head_that_is_said_to_be_known_has_its_own_name(
    encryption: Encryption, behind: Lying
) -> None:
    async with open_storage(behind.at.url, encryption=encryption) as storage:
        await fill(storage)
        await storage.backend.load("t")
        behind.lie = lambda found: relabel(found, checkpoint_id="v7", metadata={})
        with pytest.raises(IntegrityError):
            await storage.backend.load("t")


async def test_the_inspector_of_a_service_without_keys_says_what_is_sealed(
    encryption: Encryption, behind: Lying
) -> None:
    async with open_storage(behind.at.url, encryption=encryption) as storage:
        await fill(storage)
        site = Site(behind)
        assert "v2" in (await site.page("timeline", thread="t")).text
        for name, query in (("version", {"version": "v1"}), ("messages", {"namespace": "n"})):
            answer = await site.get(name, thread="t", **query)
            assert (answer.status_code, "sealed with keys" in answer.text) == (422, True)
        assert WORDS in (await Site(storage.backend).page("version", thread="t")).text


async def test_an_item_of_another_place_or_tenant_is_an_error(
    encryption: Encryption, other: Encryption, url: str, behind: Lying
) -> None:
    for key, keys in (("a", encryption), ("b", encryption), ("c", other)):
        async with open_storage(behind.at.url, encryption=keys) as storage:
            await storage.store().put(("n",), key, WORDS)
    async with open_storage(behind.at.url, encryption=encryption) as storage:
        store = storage.store()
        for key in "bc":
            with closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as connection, connection:
                connection.execute(
                    "UPDATE locus_store SET value = (SELECT value FROM locus_store x "
                    "WHERE x.key = ?) WHERE key = 'a'",
                    [key],
                )
            with pytest.raises(IntegrityError):
                await store.get(("n",), "a")


async def test_nothing_of_a_removed_version_stays_at_a_service_without_keys(
    encryption: Encryption, behind: Lying
) -> None:
    async with open_storage(behind.at.url, encryption=encryption) as storage:
        backend, states = storage.backend, []
        for number in range(6):
            states.append({"base": "x" * 900, "n": number, "said": f"{number}!" * 40})
            await backend.save("t", states[-1], checkpoint_id=f"v{number}")
        for name in ("v2", "v3", "v0"):
            assert await backend.delete("t", name) is True
        for number in (1, 4, 5):
            assert await backend.load("t", f"v{number}") == states[number]
        [line] = (await behind.read_thread("t")).lines
        assert all(len(list(split_records(it.payload))) == 1 for it in line.records)
        opened = await backend.read_thread("t")
        said = "".join(extract_text(it.payload, 10**6) for it in opened.lines[0].records)
        assert [it for it in range(6) if f"{it}!" in said] == [1, 4, 5]
        assert await backend.prune("t") == 2
        assert await backend.load("t") == states[5]


async def test_what_a_service_swept_is_readable_and_a_rotation_cleans_it(
    encryption: Encryption, behind: Lying
) -> None:
    async with open_storage(behind.at.url, encryption=encryption) as storage:
        backend, state = storage.backend, {"base": "x" * 900}
        for number in range(130):
            state = {**state, "said": f"{number}!"}
            await backend.write_state("t", state, keep_last=3)
        [line] = (await behind.read_thread("t")).lines
        assert len(line.records) < 110
        assert max(len(list(split_records(it.payload))) for it in line.records) > 20
        await encryption.add_key("")
        assert [it async for it in backend.reencrypt()] == ["t"]
        [line] = (await behind.read_thread("t")).lines
        assert all(len(list(split_records(it.payload))) == 1 for it in line.records)
        assert len(await backend.count_keys()) == 1
        assert await backend.load("t") == state


async def test_a_chat_grows_linearly(encryption: Encryption, behind: Lying) -> None:
    sizes = []
    async with open_storage(behind.at.url, encryption=encryption) as storage:
        said = list[str]()
        for number in range(1, 201):
            said.append(f"{number:04} " + "word " * 40)
            await storage.backend.save("t", {"said": said})
            if number in {100, 200}:
                [line] = (await behind.read_thread("t")).lines
                sizes.append(sum(len(it.payload) for it in line.records))
    assert sizes[1] < 2.5 * sizes[0]


async def test_a_losing_save_whose_id_is_taken_is_sealed_again(
    encryption: Encryption, behind: Lying
) -> None:
    async with open_storage(behind.at.url, encryption=encryption) as storage:
        one, two = storage.checkpointer(state_type=dict), storage.checkpointer(state_type=dict)
        await one.save({"n": 0}, "t", "v0")
        mine, theirs = await one.load("t"), await two.load("t")
        await one.save({**mine, "n": 1}, "t", "v1")
        name = await two.save({**theirs, "n": 2}, "t", "v1", on_conflict="branch")
        assert name != "v1"
        assert (await two.load("t", name))["n"] == 2
        assert (await two.load("t"))["n"] == 1


async def test_a_person_is_forgotten_though_the_service_knows_none(
    encryption: Encryption, behind: Lying
) -> None:
    async with open_storage(behind.at.url, encryption=encryption) as storage:
        for name in ("zoe", "max"):
            await storage.backend.save(name, {"n": 1}, metadata={"user_id": name})
            await storage.store().put(("a",), name, {"n": 1}, {"user_id": name})
        counts = await storage.backend.forget_user("zoe")
        assert (counts["threads"], counts["store"]) == (1, 1)
        assert await storage.backend.list_threads() == ["max"]
        assert [it.key for it in await storage.store().search(("a",))] == ["max"]


async def test_sealed_records_are_not_sealed_again(
    encryption: Encryption, other: Encryption, url: str
) -> None:
    async with open_storage(url, encryption=other) as behind:
        service = Service(behind.backend)
        async with open_storage(service.url, encryption=encryption) as storage:
            with pytest.raises(UnsupportedError, match="its own keys"):
                await storage.backend.save("t", {"n": 1})
            with pytest.raises(UnsupportedError, match="its own keys"):
                await storage.open()
        service.stop()


async def test_a_thread_is_replaced_only_as_it_was_read(
    encryption: Encryption, behind: Lying
) -> None:
    async with open_storage(behind.at.url, encryption=encryption) as storage:
        await storage.backend.save("t", {"n": 1}, checkpoint_id="v1")
        async with open_storage(behind.at.url) as plain:
            old = await plain.backend.read_thread("t")
            await storage.backend.save("t", {"n": 2})
            with pytest.raises(ConflictError, match="meanwhile"):
                await plain.backend.replace_thread(old, old)
            new = await plain.backend.read_thread("t")
            for made in (replace(new, lines=[]), replace(new, thread_id="u")):
                with pytest.raises(InvalidArgumentError, match="only contents"):
                    await plain.backend.replace_thread(new, made)
            [line] = new.lines
            cut = [replace(it, payload=it.payload[:-1]) for it in line.records]
            with pytest.raises(InvalidArgumentError, match="cut off"):
                await plain.backend.replace_thread(
                    new, replace(new, lines=[replace(line, records=cut)])
                )
        assert await storage.backend.load("t") == {"n": 2}
