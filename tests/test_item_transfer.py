"""Items of a store that are copied, exported and imported."""

from __future__ import annotations

import io
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import orjson
import pytest
from tiers import full

from locus_store import (
    ConflictError,
    Encryption,
    EncryptionError,
    InMemoryStore,
    IntegrityError,
    InvalidArgumentError,
    LocalKeyRing,
    SchemaError,
    open_storage,
)
from locus_store.testing import HOSTILE_IDS
from locus_store.transfer.archive import import_threads
from locus_store.transfer.copying import copy
from locus_store.transfer.items import export_items, find_store, make_last_line

if TYPE_CHECKING:
    from pathlib import Path

    from locus_store.backend import StorageBackend

pytestmark = pytest.mark.anyio

COUNT = 7


@pytest.fixture(params=["sqlite", "redis", *full("file", "postgresql")])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'data.db'}"
    if request.param == "file":
        return f"file://{tmp_path / 'data'}"
    return str(request.getfixturevalue("redis_url" if request.param == "redis" else "database"))


@pytest.fixture
def other(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'other.db'}"


def make_encryption(name: str = "a") -> Encryption:
    return Encryption(LocalKeyRing({name: bytes(32)}, name), InMemoryStore())


async def fill(storage: Any, dimension: int | None = 3) -> list[Any]:
    """Put items of all kinds; return them as they are stored."""
    store = storage.store(dimension=dimension)
    await store.put((), "root", "at the root")
    await store.put(("a", "*"), HOSTILE_IDS[5], {"text": "\ud800", "n": 2**63}, {"m": 1.0})
    await store.put(("a", "*"), "expires", 1, ttl_seconds=3600)
    await store.put(("a", "*"), "over", 1, ttl_seconds=1e-6)
    for number in range(COUNT):
        await store.put(("a", "*"), "counted", number)
    if dimension is not None:
        await store.put_with_embedding(("e",), "k", "near", [0.5, 0.25, number])
    return await read(storage.backend)


async def read(backend: StorageBackend) -> list[Any]:
    store = await find_store(backend)
    assert store is not None
    found = []
    for item in await store.search((), limit=100):
        vectors = store.dimension and await store.vectors_of(item.namespace, item.key)
        found.append((item, vectors or []))
    return found


async def export(backend: StorageBackend, **options: Any) -> list[bytes]:
    file = io.BytesIO()
    count = await export_items(backend, file, **options)
    file.write(make_last_line(0, count))
    return file.getvalue().splitlines()


async def test_items_are_copied_and_exported_as_they_are(url: str, other: str) -> None:
    async with open_storage(url) as here, open_storage(other) as there:
        items = await fill(here)
        counts = await copy(here.backend, there.backend)
        assert (counts.items_written, counts.items_same) == (len(items), 0)
        assert await read(there.backend) == items
        counts = await copy(there.backend, here.backend)
        assert (counts.items_written, counts.items_same) == (0, len(items))
        lines = await export(there.backend)
        await here.store().clear_namespace((), recursive=True)
        counts = await import_threads(here.backend, lines)
        assert (counts.items_written, counts.items_same) == (len(items), 0)
        assert await read(here.backend) == items


async def test_another_item_of_a_name_is_a_conflict_and_stays(url: str, other: str) -> None:
    async with open_storage(url) as here, open_storage(other) as there:
        items = await fill(here, None)
        await there.store().put((), "root", "another")
        with pytest.raises(ConflictError, match=r"item 'root' of namespace \(\): the target"):
            await copy(here.backend, there.backend)
        assert await there.store().get((), "root") == "another"
        assert len(await read(there.backend)) == len(items)


async def test_a_store_with_other_embeddings_is_refused(tmp_path: Path, other: str) -> None:
    async with open_storage(f"file://{tmp_path}/d") as here, open_storage(other) as there:
        await fill(here)
        await there.store(dimension=2).put_with_embedding((), "k", 1, [1.0, 2.0])
        with pytest.raises(SchemaError, match="dimension"):
            await copy(here.backend, there.backend)


async def test_a_damaged_line_is_named_and_stops_no_other(tmp_path: Path, other: str) -> None:
    async with open_storage(f"file://{tmp_path}/d") as here, open_storage(other) as there:
        items = await fill(here)
        lines = await export(here.backend)
        damaged = [it.replace(b"at the root", b"at the riit") for it in lines]
        with pytest.raises(IntegrityError, match=r"item 'root' of namespace \(\): it is not what"):
            await import_threads(there.backend, damaged)
        assert len(await read(there.backend)) == len(items) - 1
        for cut, match in ((lines[:-1], "cut off"), (lines[1:], "items expected")):
            with pytest.raises(IntegrityError, match=match):
                await import_threads(there.backend, cut)
        assert await read(there.backend) == items


@pytest.mark.parametrize(
    "change",
    [
        {"format": 9}, {"key": ""}, {"namespace": [""]}, {"namespace": "ab"}, {"version": 0},
        {"updated_at": None}, {"created_at": "2020-01-01T00:00:00"}, {"embeddings": ["AAAAAA=="]},
        {"embeddings": ["AAAA"]}, {"ttl_seconds": 5.0}, {"expires_at": "9999-01-01T00:00:00Z"},
        {"tenant": ""}, {"version": 2**63 - 1}, {"created_at": "1969-12-31T23:59:59+00:00"},
        {"created_at": "9999-12-31T23:59:59-12:00"}, {"embeddings": [""]},
        {"updated_at": "2020-01-01T00:00:00+02:00"},
    ],
)  # fmt: skip
async def test_lines_that_no_export_wrote_are_refused(
    tmp_path: Path, other: str, change: dict[str, Any]
) -> None:
    async with open_storage(f"file://{tmp_path}/d") as here, open_storage(other) as there:
        await fill(here)
        [line] = [it for it in await export(here.backend) if b'"near"' in it]
        given = orjson.loads(line) | change
        if change == {"embeddings": ["AAAA"]}:
            given["embeddings"] += ["AAAAAA=="]
        with pytest.raises(IntegrityError):
            await import_threads(there.backend, [orjson.dumps(given), make_last_line(0, 1)])
        assert await read(there.backend) == []


async def test_items_of_a_storage_that_encrypts_are_sealed_in_a_file(
    tmp_path: Path, other: str
) -> None:
    url, encryption = f"sqlite:///{tmp_path}/d.db", make_encryption()
    async with open_storage(url, encryption=encryption) as here:
        items = await fill(here)
        sealed = await export(here.backend)
        clear = await export(here.backend, in_clear=True)
        assert b"at the root" not in b"".join(sealed)
        assert b"at the root" in b"".join(clear)
        await here.store().clear_namespace((), recursive=True)
        await import_threads(here.backend, sealed)
        assert await read(here.backend) == items
        moved = [it.replace(b'"key":"root"', b'"key":"boot"') for it in sealed]
        with pytest.raises(IntegrityError, match="item 'boot'"):
            await import_threads(here.backend, moved)
        with pytest.raises(EncryptionError, match="--clear"):
            await import_threads(here.backend, clear)
        async with open_storage(other) as there:
            with pytest.raises(EncryptionError, match="the file is sealed"):
                await import_threads(there.backend, sealed)
            await copy(here.backend, there.backend)
            assert await read(there.backend) == items
    others = make_encryption("b")
    async with open_storage(f"file://{tmp_path}/f", encryption=others) as there:
        with pytest.raises(IntegrityError, match="key"):
            await import_threads(there.backend, sealed)
        assert await others.list_keys() == []
        await import_threads(there.backend, clear, in_clear=True)
        assert await read(there.backend) == items


async def test_a_copy_beside_writers_misses_no_item(
    url: str, other: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [(f"n{at:02}",) for at in range(40)]
    async with open_storage(url) as here, open_storage(other) as there:
        store = here.store()
        await store.put_batch([(name, key, 1) for name in names for key in "ab"])
        read_page = type(store).page

        async def page(self: Any, *wanted: Any) -> Any:
            found = await read_page(self, *wanted)
            await store.clear_namespace(names[0])  # those behind it move up
            return found

        with monkeypatch.context() as patched:
            patched.setattr(type(store), "page", page)
            await copy(here.backend, there.backend)
        for name in names:
            assert await there.store().list_keys(name) == ["a", "b"]


async def test_a_copied_item_has_the_embedding_of_its_value(
    url: str, other: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_storage(url) as here, open_storage(other) as there:
        store = here.store(dimension=2)
        await store.put_with_embedding((), "changed", 1, [1.0, 1.0])
        await store.put_with_embedding((), "deleted", 1, [1.0, 1.0])
        await store.put_with_embedding((), "same", 1, [1.0, 1.0])
        read_vectors, changes = type(store).vectors_of, ["changed", "deleted"]

        async def vectors_of(self: Any, *name: Any) -> Any:
            if changes:
                await store.delete((), changes.pop())
                await store.put_with_embedding((), "changed", 2, [2.0, 2.0])
            return await read_vectors(self, *name)

        with monkeypatch.context() as patched:
            patched.setattr(type(store), "vectors_of", vectors_of)
            await copy(here.backend, there.backend)
        copied = there.store(dimension=2)
        assert await copied.list_keys(()) == ["changed", "same"]
        assert await copied.get((), "changed") == 2
        assert await copied.get_embedding((), "changed") == [2.0, 2.0]


async def test_an_item_that_cannot_be_opened_stops_no_other(tmp_path: Path, other: str) -> None:
    url, encryption = f"sqlite:///{tmp_path}/d.db", make_encryption()
    async with open_storage(url, encryption=encryption) as here, open_storage(other) as there:
        for key in "acd":
            await here.store().put((), key, 1)
        async with open_storage(url) as below:
            await below.store().put((), "b", await below.store().get((), "d"))
        with pytest.raises(IntegrityError, match=r"item 'b' of namespace \(\).*3 were written"):
            await copy(here.backend, there.backend)
        assert await there.store().list_keys(()) == ["a", "c", "d"]
        assert len(await export(here.backend)) == len(["a", "b", "c", "d", "end"])
        with pytest.raises(IntegrityError, match="a sealed value"):
            await export(here.backend, in_clear=True)


async def test_what_comes_before_a_line_that_is_refused_is_put(tmp_path: Path, other: str) -> None:
    async with open_storage(f"sqlite:///{tmp_path}/d") as here, open_storage(other) as there:
        await here.store().put((), "k", 1)
        [line, _] = await export(here.backend)
        [of_tenant, _] = await export(here.backend, names_tenant=True)
        with pytest.raises(InvalidArgumentError, match="tenant"):
            await import_threads(there.backend, [line, of_tenant, make_last_line(0, 2)])
        assert await there.store().list_keys(()) == ["k"]


async def test_times_are_kept_to_the_microsecond(url: str, other: str) -> None:
    async with open_storage(url) as here, open_storage(other) as there:
        await here.store().put((), "k", 1, ttl_seconds=3600)
        await copy(here.backend, there.backend)
        [(item, _)], [(kept, _)] = await read(here.backend), await read(there.backend)
        assert (kept.updated_at, kept.expires_at) == (item.updated_at, item.expires_at)
        assert kept.expires_at - kept.updated_at == timedelta(hours=1)
