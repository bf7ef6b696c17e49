"""Exports of a storage that encrypts: sealed lines, which only its keys open."""

from __future__ import annotations

import base64
import io
import random
from pathlib import Path
from typing import Any

import orjson
import pytest
from test_sealing import tamper
from test_stored import WORDS, fill

from locus_store import (
    Encryption,
    EncryptionError,
    InMemoryStore,
    IntegrityError,
    LocalKeyRing,
    MemoryBackend,
    open_storage,
)
from locus_store.transfer.archive import all_threads, export_threads, import_threads

pytestmark = pytest.mark.anyio


async def export(backend: Any, **options: Any) -> bytes:
    file = io.BytesIO()
    await export_threads(backend, all_threads(backend), file, **options)
    return file.getvalue()


async def fill_threads(url: str, encryption: Encryption, **options: Any) -> bytes:
    """Fill two threads; return their export."""
    async with open_storage(url, encryption=encryption, **options) as storage:
        for thread_id in ("t", "u"):
            await fill(storage, thread_id)
        names_tenant = "tenant" in options
        return await export(storage.backend, names_tenant=names_tenant)


async def read_all(backend: Any) -> dict[str, Any]:
    return {it: await backend.read_thread(it) for it in await backend.scan()}


@pytest.fixture
def copy_url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/copy.db"


async def test_an_export_is_sealed_and_imported_with_the_same_keys(
    encryption: Encryption, url: str, copy_url: str
) -> None:
    file = await fill_threads(url, encryption)
    assert WORDS.encode() not in file
    assert b"about" not in file
    async with open_storage(url, encryption=encryption) as storage:
        whole = await read_all(storage.backend)
        async with open_storage(copy_url, encryption=encryption) as copy:
            lines = file.splitlines(keepends=True)
            assert (await import_threads(copy.backend, lines)).written == 2
            assert (await import_threads(copy.backend, lines)).same == 2
            assert await read_all(copy.backend) == whole


def change_line(lines: list[bytes], at: int, clear: bytes, older: bytes) -> list[list[bytes]]:
    """Return the lines with one changed, in several ways."""
    rng, own = random.Random(at), orjson.loads(lines[at])
    content = tamper(base64.b64decode(own["sealed"]), rng)
    swapped, other = list(lines), rng.randrange(len(lines))
    swapped[at], swapped[other] = lines[other], lines[at]
    before, behind = lines[:at], lines[at + 1 :]
    changed = orjson.dumps({**own, "sealed": base64.b64encode(content).decode()})
    ways = [[*before, it, *behind] for it in (changed, clear, older)]
    ways += [before + behind, [*before, lines[at], *lines[at:]], swapped]
    return [it for it in ways if it != lines]


async def test_no_changed_line_of_a_sealed_export_is_accepted(
    encryption: Encryption, url: str, copy_url: str
) -> None:
    lines, refused = (await fill_threads(url, encryption)).splitlines(), 0
    async with open_storage(url, encryption=encryption) as storage:
        whole = await read_all(storage.backend)
        older = (await export(storage.backend)).splitlines()
        clear = (await export(storage.backend, in_clear=True)).splitlines()
    async with open_storage(copy_url, encryption=encryption) as copy:
        for at in range(0, len(lines) - 1, 2):  # the last line is in clear
            for changed in change_line(lines, at, clear[at], older[at]):
                with pytest.raises(IntegrityError):
                    await import_threads(copy.backend, changed)
                for thread_id, thread in (await read_all(copy.backend)).items():
                    assert thread == whole[thread_id]
                    await copy.backend.remove_thread(thread_id)
                refused += 1
    assert refused > 2 * len(lines)


async def test_a_clear_export_is_accepted_only_if_that_is_said(
    encryption: Encryption, url: str, copy_url: str
) -> None:
    await fill_threads(url, encryption)
    async with open_storage(url, encryption=encryption) as storage:
        file = (await export(storage.backend, in_clear=True)).splitlines()
        whole = await read_all(storage.backend)
    assert WORDS.encode() in b"".join(file)
    async with open_storage(copy_url, encryption=encryption) as copy:
        with pytest.raises(EncryptionError, match="--clear"):
            await import_threads(copy.backend, file)
        assert await copy.backend.scan() == []
        await import_threads(copy.backend, file, in_clear=True)
        assert await read_all(copy.backend) == whole


async def test_a_sealed_export_needs_its_keys(
    encryption: Encryption, url: str, copy_url: str
) -> None:
    lines = (await fill_threads(url, encryption)).splitlines()
    with pytest.raises(EncryptionError, match="the file is sealed"):
        await import_threads(MemoryBackend(), lines)
    others = Encryption(LocalKeyRing({"a": bytes(32)}, "a"), InMemoryStore())
    async with open_storage(copy_url, encryption=others) as storage:
        with pytest.raises(
            EncryptionError, match=r"'t': the data key .* Nor were 1 others: thread 'u'"
        ):
            await import_threads(storage.backend, lines)
        named = [it.replace(b'"format":2', b'"format":2,"tenant":"evil"') for it in lines]
        with pytest.raises(EncryptionError, match="the data key"):
            await import_threads(storage.backend, named)
    assert await others.list_keys() == []


async def test_a_forgotten_thread_is_in_no_export(
    encryption: Encryption, url: str, copy_url: str
) -> None:
    lines = (await fill_threads(url, encryption)).splitlines()
    async with open_storage(url, encryption=encryption) as storage:
        await storage.backend.save("t", {}, metadata={"user_id": "zoe"})
        await storage.backend.forget_user("zoe")
    async with open_storage(copy_url, encryption=encryption) as copy:
        with pytest.raises(EncryptionError, match=r"'t': .* its owner was forgotten.* 1 were"):
            await import_threads(copy.backend, lines)
        assert await copy.backend.scan() == ["u"]


async def test_a_thread_moves_to_another_tenant_only_if_that_is_said(
    encryption: Encryption, url: str, copy_url: str
) -> None:
    named = (await fill_threads(url, encryption, tenant="acme")).splitlines()
    async with open_storage(url, encryption=encryption, tenant="acme") as storage:
        unnamed = (await export(storage.backend)).splitlines()
        whole = await read_all(storage.backend)
    async with open_storage(copy_url, encryption=encryption, tenant="globex") as copy:
        renamed = [it.replace(b'"tenant":"acme"', b'"tenant":"globex"') for it in named]
        added = [it.replace(b'"format":2', b'"format":2,"tenant":"acme"') for it in unnamed]
        for lines in (unnamed, renamed, added):
            with pytest.raises(IntegrityError):
                await import_threads(copy.backend, lines, all_tenants=True)
            with pytest.raises(IntegrityError):
                await import_threads(copy.backend, added, from_tenant="acme")
        assert await copy.backend.scan() == []
        assert (await import_threads(copy.backend, named, from_tenant="other")).written == 0
        await import_threads(copy.backend, named, from_tenant="acme")
        assert await read_all(copy.backend) == whole
