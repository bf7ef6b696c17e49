"""Symbolic links below a directory of threads: none is followed, whatever is done."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import pytest

from locus_store import FileBackend, IntegrityError, LocusStoreError
from locus_store.backends.file.names import encode_name
from locus_store.transfer.verifying import verify

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.anyio

LONG = "é" * 200
"""An id whose name has two directories above its file."""

FIRST, SECOND = encode_name(LONG).split("/")[:2]


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "threads"


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    """A folder outside the store, which links point to."""
    made = tmp_path / "outside"
    made.mkdir()
    return made


@pytest.fixture
async def backend(directory: Path) -> FileBackend:
    """Over a thread with a short id and one with a long id."""
    made = FileBackend(directory, busy_timeout_seconds=0)
    for name in ("short", LONG):
        await made.save(name, {"n": 1}, checkpoint_id="v1")
    return made


def files_below(path: Path) -> dict[str, bytes]:
    return {str(it.relative_to(path)): it.read_bytes() for it in path.rglob("*") if it.is_file()}


def moved(path: Path, outside: Path) -> None:
    """Move what is at a path outside, and leave a link to it."""
    there = outside / path.name
    path.rename(there)
    path.symlink_to(there)


def calls(backend: FileBackend, thread_id: str) -> list[Any]:
    return [
        lambda: backend.load(thread_id),
        lambda: backend.save(thread_id, {"n": 2}),
        lambda: backend.delete(thread_id),
        lambda: backend.delete(thread_id, "v1"),
        lambda: backend.exists(thread_id),
        lambda: backend.read_thread(thread_id),
        lambda: backend.copy_thread(thread_id, "copy"),
        lambda: backend.copy_thread("short", thread_id),
    ]


@pytest.mark.parametrize("level", [FIRST, f"{FIRST}/{SECOND}"], ids=["first", "second"])
async def test_a_link_in_place_of_a_directory_is_refused(backend, directory, outside, level):
    moved(directory / level, outside)
    before = files_below(outside)
    for other in (backend, FileBackend(directory, busy_timeout_seconds=0)):
        for call in calls(other, LONG):
            with pytest.raises(IntegrityError, match=r"is a symbolic link.*[Mm]ove it out"):
                await call()
    for sweep in (backend.expire, backend.vacuum):
        with pytest.raises(LocusStoreError, match="move it out"):
            await sweep()
    assert files_below(outside) == before
    assert await backend.load("short") == {"n": 1}


@pytest.mark.parametrize("level", [FIRST, f"{FIRST}/{SECOND}"], ids=["first", "second"])
async def test_a_link_where_a_directory_would_be_made_is_refused(directory, outside, level):
    backend = FileBackend(directory)
    await backend.save("short", {"n": 1})
    (directory / level).parent.mkdir(exist_ok=True)
    (directory / level).symlink_to(outside)
    with pytest.raises(IntegrityError, match="is a symbolic link"):
        await backend.save(LONG, {"n": 1})
    assert files_below(outside) == {}


@pytest.mark.parametrize("level", [FIRST, f"{FIRST}/{SECOND}"], ids=["first", "second"])
async def test_a_check_and_the_lists_report_a_linked_directory(backend, directory, outside, level):
    moved(directory / level, outside)
    found = [str(it) for it in [it async for it in verify(backend)] if hasattr(it, "what")]
    assert len(found) == 1
    assert "move it out" in found[0]
    with pytest.raises(IntegrityError, match="move it out"):
        await backend.list_threads()
    assert [it.verdict for it in await backend.facts()].count("fail") == 1


async def test_a_broken_link_and_a_file_in_place_of_a_directory_are_refused(directory):
    backend = FileBackend(directory)
    await backend.save("short", {"n": 1})
    (directory / FIRST).symlink_to(directory / "nowhere")
    with pytest.raises(IntegrityError, match="is a symbolic link"):
        await backend.save(LONG, {"n": 1})
    assert not (directory / "nowhere").exists()
    (directory / FIRST).unlink()
    (directory / FIRST).write_text("a file")
    with pytest.raises(IntegrityError, match="is not a directory"):
        await backend.save(LONG, {"n": 1})


@pytest.mark.parametrize("thread_id", ["short", LONG], ids=["short", "long"])
async def test_a_link_in_place_of_a_file_is_refused(backend, directory, outside, thread_id):
    moved(directory / encode_name(thread_id), outside)
    before = files_below(outside)
    for call in calls(backend, thread_id):
        with pytest.raises(IntegrityError, match="not a regular file"):
            await call()
    assert files_below(outside) == before


@pytest.mark.parametrize("thread_id", ["short", LONG], ids=["short", "long"])
async def test_a_link_in_place_of_a_temporary_file_is_neither_written_nor_removed(
    backend, directory, outside, thread_id
):
    target = outside / "target"
    target.write_text("theirs")
    link = directory / f"{encode_name(thread_id)}.tmp"
    link.symlink_to(target)
    with pytest.raises(IntegrityError, match="not a regular file"):
        await backend.save(thread_id, {"n": 2})
    await backend.expire()
    assert target.read_text() == "theirs"
    assert link.is_symlink()
    assert await backend.load(thread_id) == {"n": 1}


async def test_a_link_in_place_of_the_identity_is_refused(backend, directory, outside):
    moved(directory / ".locus-store", outside)
    with pytest.raises(IntegrityError, match=r"\.locus-store is not a regular file"):
        await FileBackend(directory).save("new", {"n": 1})


async def test_a_directory_that_is_exchanged_for_a_link_meanwhile_is_not_left(
    backend, directory, outside, monkeypatch
):
    """The exchange is made right before the new file takes the place of the old one."""
    rename = os.rename

    def exchanged(*paths: Any, **options: Any) -> None:
        monkeypatch.undo()
        moved(directory / FIRST, outside)
        (directory / FIRST).unlink()
        elsewhere = outside / "elsewhere"
        (elsewhere / SECOND).mkdir(parents=True)
        (directory / FIRST).symlink_to(elsewhere)
        rename(*paths, **options)

    monkeypatch.setattr(os, "rename", exchanged)
    await backend.save(LONG, {"n": 2})
    assert files_below(outside / "elsewhere") == {}
    assert b'"n"' in (outside / encode_name(LONG)).read_bytes()  # in the directory that was opened


async def test_the_directory_itself_may_be_a_link(backend, directory, tmp_path):
    link = tmp_path / "link"
    link.symlink_to(directory)
    linked = FileBackend(link)
    assert await linked.load(LONG) == {"n": 1}
    await linked.save(LONG, {"n": 2}, checkpoint_id="v2")
    await linked.save("new", {"n": 3})
    assert sorted(await backend.list_threads()) == sorted(["new", "short", LONG])
    assert await linked.delete(LONG)
    assert not (directory / FIRST).exists()


async def test_a_directory_of_the_sdk_is_not_looked_for_through_links(directory, outside):
    (outside / "c.json").write_text('{"checkpoint_id": "c", "thread_id": "t"}')
    directory.mkdir()
    (directory / "t").symlink_to(outside)
    assert await FileBackend(directory).save("t", {"n": 1})
