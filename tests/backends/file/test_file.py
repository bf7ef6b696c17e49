"""The file backend: names, a line per save, damage, other programs, killed writers, full disks."""

from __future__ import annotations

import asyncio
import errno
import fcntl
import json
import os
import re
import shutil
import signal
import stat
import subprocess
import sys
import threading
import warnings
from collections import deque
from typing import TYPE_CHECKING, Any

import pytest
from lazily import TESTS_RUN

# Run here on files, by the `url` below.
from test_processes import (  # noqa: F401
    Worker,
    test_a_conversation_goes_from_process_to_process,
    test_a_forked_child_and_its_parent_lose_nothing,
    test_a_version_deleted_and_put_again_by_another_process_is_noticed,
    test_an_object_that_nobody_closed_ends_with_its_process,
    test_another_process_reads_every_version,
    test_of_two_racing_processes_one_is_told,
)

from locus_store import (
    BackendError,
    ConflictError,
    ConnectionFailedError,
    FileBackend,
    FileCheckpointer,
    IntegrityError,
    InvalidArgumentError,
    MemoryBackend,
    SchemaError,
    UnsupportedError,
    open_checkpointer,
)
from locus_store.backends.documents import workers
from locus_store.backends.file import (
    descriptors,
    directory as file_directory,
    format as file_format,
)
from locus_store.backends.file.backend import FileDocuments
from locus_store.backends.file.names import decode_name, encode_name
from locus_store.testing import HOSTILE_IDS
from locus_store.transfer.verifying import verify
from locus_store.types import Expected, PendingWrite
from locus_store.values.frames import encode_operations

if TESTS_RUN:
    from locus.core.messages import Message as LocusMessage
    from locus.core.state import AgentState as LocusState
    from locus.memory.backends.file import FileCheckpointer as SdkCheckpointer

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "threads"


@pytest.fixture
def url(directory: Path) -> str:
    return f"file://{directory}"


@pytest.fixture
def backend(directory: Path) -> FileBackend:
    return FileBackend(directory)


async def grown(backend: FileBackend, turns: int, thread_id: str = "t") -> None:
    said: list[str] = []
    for n in range(turns):
        said.append(f"turn {n} " * 20)
        await backend.save(thread_id, {"said": said}, checkpoint_id=f"v{n}")


def left(directory: Path) -> set[str]:
    """Names of all files."""
    return {str(it.relative_to(directory)) for it in directory.rglob("*") if it.is_file()}


def contents(directory: Path) -> dict[str, bytes]:
    return {it: (directory / it).read_bytes() for it in left(directory)}


# --- what a file looks like


async def test_a_file_is_json_with_an_entry_per_line(backend, directory):
    await grown(backend, 3)
    await backend.write_state("t", {"n": 1}, namespace="sub", metadata={"é": "\n"})
    await backend.put_writes("t", "v2", [PendingWrite("a", 0, "c", "t", b"\0")])
    await backend.delete("t", "v1")
    content = (directory / "t.json").read_text(encoding="utf-8")
    whole = json.loads(content)
    assert whole["thread_id"] == "t"
    kinds = [it["kind"] for it in whole["log"]]
    assert sorted(kinds) == ["line", "line", "version", "version", "version", "write"]
    assert content.count("\n") == len(kinds) + 2
    assert '"operations":[["=",[],{"n":1}]]' in content


async def test_a_save_leaves_every_byte_before_the_end_as_it_was(backend, directory):
    path = directory / "t.json"
    for n in range(5):
        before = path.read_bytes() if n else b""
        await grown(backend, 1) if not n else await backend.save("t", {"n": n})
        assert path.read_bytes().startswith(before[: -len(b"\n]}\n")])


async def test_a_deletion_changes_but_its_neighbours(backend, directory):
    await grown(backend, 30)
    before = (directory / "t.json").read_bytes().split(b"\n")
    await backend.delete("t", "v10")
    after = (directory / "t.json").read_bytes().split(b"\n")
    assert len(after) == len(before) - 1
    assert len(set(after) - set(before)) <= 2


async def test_a_save_reads_no_file_again(backend, monkeypatch):
    await grown(backend, 2)
    monkeypatch.setattr(file_format.LinesForm, "parse", None)
    await backend.save("t", {"n": 1})
    assert await backend.load("t") == {"n": 1}


async def test_what_is_kept_of_files_is_bounded(backend):
    for n in range(8):
        await grown(backend, 3, f"t{n}")
    files = backend._threads
    files.limit(2 * files.cache.size // 8)
    await grown(backend, 1, "one more")
    kept = [parsed for parsed, _ in files.cache._kept.values()]
    assert len(kept) <= 3
    assert sum(it.end.size for it in kept) == files.cache.size
    assert (await backend.load("t0"))["said"][2] == "turn 2 " * 20


async def test_files_grow_with_what_was_said(backend, directory):
    sizes = []
    for turns in (100, 200):
        await grown(backend, turns, f"t{turns}")
        sizes.append((directory / f"t{turns}.json").stat().st_size)
    assert sizes[1] <= 2.2 * sizes[0]


async def test_an_object_per_turn_adds_what_was_said_and_no_more(directory):
    for n in range(40):
        checkpointer = FileCheckpointer(directory, state_type=dict)
        state = await checkpointer.load("t") or {"said": []}
        state["said"].append(f"turn {n} " * 100)
        await checkpointer.save(state, "t")
    lines = (directory / "t.json").read_text().splitlines()
    assert sum('["=",[],' in it for it in lines) == 1
    assert max(map(len, lines)) < 2000


async def test_another_object_reads_all_that_one_wrote(backend, directory):
    await grown(backend, 3)
    await backend.write_state("t", {"n": 1}, checkpoint_id="side", parent_id="v0")
    await backend.write_state("t", {"n": 2}, namespace="a:b", keep_last=1, ttl_seconds=1000)
    await backend.put_writes("t", "v2", [PendingWrite("a", -1, "c", "t", b"\0")])
    await backend.delete("t", "side")
    thread = await backend.read_thread("t")
    assert thread.expires_at is not None
    assert await FileBackend(directory).read_thread("t") == thread
    other = MemoryBackend()
    assert await other.write_thread(thread)
    assert await other.read_thread("t") == thread
    assert [it.what async for it in verify(backend) if hasattr(it, "what")] == []


async def test_saves_that_nobody_waited_for_keep_their_order(backend):
    saves = [backend.save("t", {"n": n}, checkpoint_id=f"v{n}") for n in range(40)]
    await asyncio.gather(*saves)
    names = [it.checkpoint_id for it in await backend.history("t", limit=100)]
    assert names == [f"v{n}" for n in reversed(range(40))]


async def turns(is_so: Callable[[], Any]) -> None:
    """Give others their turns until something is so."""
    for _ in range(1_000_000):
        if is_so():
            return
        await asyncio.sleep(0)
    raise AssertionError


async def test_a_cancelled_save_goes_on(backend):
    await backend.save("t", {"n": 0})
    may_end = threading.Event()
    queues = backend._threads._queues._queues
    before = asyncio.create_task(backend._threads.run_in_order("t", may_end.wait))
    save = asyncio.create_task(backend.save("t", {"n": 1}))
    await turns(lambda: len(queues.get("t", ())) == 2)
    save.cancel()
    may_end.set()
    with pytest.raises(asyncio.CancelledError):
        await save
    await before
    await backend.save("t", {"n": 2})  # behind it
    states = [await backend.load("t", it.checkpoint_id) for it in await backend.history("t")]
    assert states == [{"n": 2}, {"n": 1}, {"n": 0}]


# --- names


def test_a_name_is_of_one_thread_and_stays_in_its_directory():
    names = {it: encode_name(it) for it in HOSTILE_IDS}
    assert len({it.casefold() for it in names.values()}) == len(HOSTILE_IDS)
    for thread_id, name in names.items():
        assert decode_name(name) == thread_id
        assert re.fullmatch(r"[a-z0-9%_-][a-z0-9%._+/-]*\.json", name)
        for piece in name.split("/"):
            assert len(piece + ".tmp") <= 255
            assert not piece.startswith(".")


@pytest.mark.parametrize(
    "thread_id", ["a" * 199 + ".b", "." * 255, "a" * 200, "a" * 201, "+", "a+/b", "%2e", "con", "A"]
)
async def test_a_name_at_the_edge_is_written_listed_and_removed(backend, directory, thread_id):
    await backend.save(thread_id, {"n": 1})
    assert decode_name(encode_name(thread_id)) == thread_id
    assert await FileBackend(directory).list_threads() == [thread_id]
    assert await backend.delete(thread_id)
    assert [it.name for it in directory.iterdir()] == [".locus-store"]


@pytest.mark.parametrize(
    "name", ["T.json", "%41%.json", "t .json", "%c3.json", "a%2Fb.json", ".json", "%00.json"]
)
def test_what_no_thread_is_called_is_none(name):
    assert decode_name(name) is None


# --- damage


def refusing(backend: FileBackend) -> list[Callable[[], Any]]:
    return [
        lambda: backend.load("t"),
        lambda: backend.save("t", {"n": 1}),
        lambda: backend.history("t"),
        lambda: backend.read_thread("t"),
        backend.list_threads,
        backend.heads,
        lambda: backend.query("k", 1),
        lambda: backend.search("turn"),
        lambda: backend.threads_of("u"),
    ]


async def require_refusal(directory: Path, path: Path, error: type = IntegrityError) -> None:
    before = contents(directory)
    for call in refusing(FileBackend(directory)):
        with pytest.raises(error, match=re.escape(str(path))):
            await call()
    assert contents(directory) == before


async def test_a_file_that_is_cut_off_anywhere_is_told(backend, directory):
    await grown(backend, 2)
    path = directory / "t.json"
    content, form = path.read_bytes(), file_format.LinesForm(FileDocuments(str(directory), 1.0))
    for size in range(len(content)):
        with pytest.raises(IntegrityError, match=re.escape(str(path))):
            form.parse(content[:size], "t")
    for size in (0, 1, len(content) // 2, len(content) - 1):
        path.write_bytes(content[:size])
        await require_refusal(directory, path)


async def test_any_flipped_bit_is_told(backend, directory):
    await grown(backend, 2)
    await backend.put_writes("t", "v1", [PendingWrite("a", 0, "c", "t", b"\0")])
    path = directory / "t.json"
    content, form = path.read_bytes(), file_format.LinesForm(FileDocuments(str(directory), 1.0))
    for at in range(len(content)):
        for bit in range(8):
            flipped = bytearray(content)
            flipped[at] ^= 1 << bit
            with pytest.raises(IntegrityError):
                form.parse(bytes(flipped), "t")
        path.write_bytes(flipped)
        with pytest.raises(IntegrityError, match=re.escape(str(path))):
            await FileBackend(directory).load("t")
    await require_refusal(directory, path)


@pytest.mark.parametrize(
    "change",
    [
        lambda it: [*it[:2], *it[3:]],
        lambda it: [*it[:3], it[2], *it[3:]],
        lambda it: [*it[:2], it[3], it[2], *it[4:]],
        lambda it: [*it[:1], *it[2:]],
        lambda it: [*it[:3], "<<<<<<< ours", *it[3:]],
        lambda it: [it[0] + " ", *it[1:]],
        lambda it: [it[0], it[1].replace("line", "linf"), *it[2:]],
    ],
    ids=["lost", "twice", "swapped", "no namespace", "merged", "blank", "edited"],
)
async def test_a_line_that_was_changed_lost_or_moved_is_told(backend, directory, change):
    await grown(backend, 4)
    path = directory / "t.json"
    path.write_text("\n".join(change(path.read_text().split("\n"))))
    await require_refusal(directory, path)


async def test_damaged_operations_with_a_right_checksum_are_told(backend, directory):
    """As by a program that writes such files: the state's digest is what counts."""
    await grown(backend, 2)
    thread = backend._threads.read("t")
    row = thread.histories[""].rows[2]
    row.payload = encode_operations([["[", ["said"], 1, 0, ["turn 7"]]])
    (directory / "t.json").write_bytes(file_format.encode_thread(thread)[0].whole())
    with pytest.raises(IntegrityError):
        await FileBackend(directory).load("t")
    found = [it async for it in verify(FileBackend(directory)) if hasattr(it, "what")]
    assert [it.checkpoint_id for it in found] == ["v1"]


@pytest.mark.parametrize(
    "operations",
    [
        *('""', '"4QE="', '"4QE"', '"4QE=é"', '"[]"', "5", "{}", "null", "[5]"),
        '[["=",[],{"n":1}]',
        *('["msgpack",5]', '["msgpack",["=",[],{"n":{"$m":[{"$":"t","t":"x"}]}}]]'),
    ],
)
async def test_a_version_with_a_right_checksum_that_no_save_wrote_is_damage(
    backend, directory, monkeypatch, operations
):
    """Sealed text that is damaged, cut off or no base64, and what is no list of operations."""
    await grown(backend, 2)
    await grown(backend, 2, "other")
    thread = backend._threads.read("t")
    path = directory / "t.json"
    monkeypatch.setattr(file_format, "_encode_body", lambda _: operations.encode())
    path.write_bytes(file_format.encode_thread(thread)[0].whole())
    monkeypatch.undo()
    await FileBackend(directory).load("other")
    with pytest.raises(IntegrityError):
        await FileBackend(directory).load("t")
    problems = [it async for it in verify(FileBackend(directory)) if hasattr(it, "what")]
    assert {it.thread_id for it in problems} == {"t"}


async def test_every_damaged_file_is_found_by_a_check(backend, directory):
    for name in "abc":
        await grown(backend, 2, name)
    for name in "ac":
        (directory / f"{name}.json").write_bytes(b"{")
    found = [it async for it in verify(backend)]
    assert [it.thread_id for it in found if hasattr(it, "what")] == ["a", "c"]
    assert [it.thread_id for it in found if not hasattr(it, "what")] == ["b"]


async def test_a_file_under_another_threads_name_is_told(backend, directory):
    await grown(backend, 2, "u")
    (directory / "u.json").rename(directory / "t.json")
    await require_refusal(directory, directory / "t.json")


async def test_a_foreign_file_is_told_and_left_as_it_is(backend, directory):
    await grown(backend, 1, "u")
    (directory / "t.json").write_text('{"name": "a package"}\n')
    await require_refusal(directory, directory / "t.json")
    (directory / "t.json").rename(directory / "Package.json")
    (damage,) = await backend.damage()
    assert "Package.json" in damage
    for call in (backend.list_threads, lambda: backend.scan(after="u"), backend.expire):
        with pytest.raises(IntegrityError, match=r"Package\.json"):
            await call()
    assert len(await backend.load("u")) == 1


async def test_files_of_other_kinds_are_left_alone(backend, directory):
    await grown(backend, 1)
    (directory / ".git").mkdir()
    (directory / "notes").mkdir()
    others = {".gitignore", "README.md", ".git/x.json", "notes/x.json", ".hidden.json"}
    for name in others:
        (directory / name).write_text("theirs")
    assert await FileBackend(directory).list_threads() == ["t"]
    assert await backend.damage() == []
    await backend.delete("t")
    assert left(directory) == {*others, ".locus-store"}


async def test_files_of_the_sdk_are_refused_with_the_way_out(directory):
    state = LocusState(messages=(LocusMessage.user("hello"),))
    await SdkCheckpointer(directory).save(state, "t")
    (path,) = directory.rglob("*.json")
    backend = FileBackend(directory)
    calls = [backend.list_threads, lambda: backend.load("t"), lambda: backend.save("t", {})]
    for call in calls:
        with pytest.raises(SchemaError, match="locus-store import locus"):
            await call()
    assert left(directory) == {str(path.relative_to(directory))}
    with pytest.raises(SchemaError, match="locus-store import locus"):  # a thread's own directory
        await FileBackend(path.parent).list_threads()


async def test_a_newer_format_is_refused(backend, directory, monkeypatch):
    monkeypatch.setattr(file_format, "FORMAT", 2)
    await backend.save("t", {"n": 1})
    monkeypatch.undo()
    await require_refusal(directory, directory / "t.json", SchemaError)


async def test_a_damaged_identity_is_told_and_may_be_removed(backend, directory):
    await grown(backend, 1)
    path = directory / ".locus-store"
    content = path.read_bytes()
    for at in range(len(content)):
        path.write_bytes(content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :])
        with pytest.raises(IntegrityError, match=r"\.locus-store"):
            await FileBackend(directory).list_threads()
    assert len(await backend.damage()) == 1
    path.unlink()
    other = FileBackend(directory)
    assert await other.list_threads() == ["t"]
    await other.save("t", {"n": 1})
    await other.save("u", {"n": 1})
    assert path.exists()


# --- other programs


def git(directory: Path, *arguments: str) -> str:
    identity = ("-c", "user.name=n", "-c", "user.email=e@example.com")
    done = subprocess.run(
        ["git", *identity, *arguments], cwd=directory, capture_output=True, text=True, check=True
    )
    return done.stdout


@pytest.fixture
def repository(directory: Path) -> Path:
    directory.mkdir()
    git(directory, "init", "-q")
    return directory


async def committed(repository: Path) -> FileBackend:
    backend = FileBackend(repository)
    await grown(backend, 3)
    git(repository, "add", ".")
    git(repository, "commit", "-qm", "three turns")
    return backend


async def test_git_shows_a_save_as_one_line_with_the_turn_in_clear_text(repository):
    backend = await committed(repository)
    found = await backend.load("t")
    await backend.save("t", {"said": [*found["said"], "Grüße aus Zürich"]})
    (counts,) = git(repository, "diff", "--numstat").splitlines()
    assert counts.split() == ["1", "0", "t.json"]
    added = git(repository, "diff").splitlines()
    assert sum("Grüße aus Zürich" in it for it in added if it.startswith("+")) == 1
    assert left(repository) - {it for it in left(repository) if it.startswith(".git/")} == {
        "t.json",
        ".locus-store",
    }


async def test_git_stash_under_a_live_object_is_noticed(repository):
    backend = await committed(repository)
    old = await backend.read_state("t")
    await backend.save("t", {"n": "newer"}, checkpoint_id="v3")
    newer = await backend.read_state("t")
    git(repository, "stash", "-q")
    assert await backend.load("t") == old.state
    assert await backend.load("t", "v3") is None
    stale = Expected(made_from=newer.version.mark, head=newer.head)
    with pytest.raises(ConflictError):
        await backend.write_state("t", {"n": "on newer"}, expected=stale)
    git(repository, "stash", "pop", "-q")
    assert await backend.load("t") == newer.state
    fresh = Expected(made_from=newer.version.mark, head=newer.head)
    await backend.write_state("t", {"n": "on newer"}, expected=fresh)
    assert await FileBackend(repository).load("t") == {"n": "on newer"}


async def test_a_thread_that_git_takes_away_and_brings_back_is_noticed(repository):
    backend = await committed(repository)
    held = await backend.read_state("t")
    git(repository, "rm", "-q", "t.json")
    assert await backend.load("t") is None
    expected = Expected(made_from=held.version.mark, head=held.head)
    with pytest.raises(ConflictError):
        await backend.write_state("t", {"n": 1}, expected=expected)
    git(repository, "reset", "-q", "--hard")
    assert await backend.load("t") == held.state


async def test_an_edit_under_a_live_object_is_noticed(backend, directory):
    await grown(backend, 2)
    path = directory / "t.json"
    content = path.read_bytes()
    path.write_bytes(content.replace(b"turn 0", b"turn 9"))
    with pytest.raises(IntegrityError, match="line 3"):
        await backend.load("t")
    path.write_bytes(content)
    assert (await backend.load("t"))["said"][0].startswith("turn 0")


async def test_a_file_that_changes_under_a_save_is_read_again(backend, directory, monkeypatch):
    """As an editor or git does, which lock nothing."""
    await grown(backend, 2)
    content, sync = (directory / "t.json").read_bytes(), os.fsync
    await grown(backend, 3)

    def meddling(descriptor: int) -> None:
        monkeypatch.undo()
        sync(descriptor)
        (directory / "t.json").write_bytes(content)

    monkeypatch.setattr(os, "fsync", meddling)
    await backend.save("t", {"n": 1}, checkpoint_id="mine")
    names = [it.checkpoint_id for it in await backend.history("t")]
    assert names == ["mine", "v1", "v0"]


async def test_a_directory_that_is_made_while_one_looks_is_not_gone(directory, monkeypatch):
    made, looked = (
        file_directory.Directory(str(directory), 1.0),
        file_directory.Directory.read_identity,
    )
    directory.mkdir()

    def slowly(self: file_directory.Directory) -> str | None:
        found = looked(self)
        if found is None:
            self.identify("0" * 32)
        return found

    monkeypatch.setattr(file_directory.Directory, "read_identity", slowly)
    assert made.require_identity() is None
    assert made.require_identity() == "0" * 32


async def test_a_directory_that_is_gone_is_an_error_not_an_empty_store(backend, directory):
    await grown(backend, 1)
    directory.rename(directory.with_name("elsewhere"))
    for mounted in (False, True):
        if mounted:
            directory.mkdir()
        for call in refusing(backend):
            with pytest.raises(ConnectionFailedError, match="gone"):
                await call()
        assert not left(directory)
    directory.rmdir()
    directory.with_name("elsewhere").rename(directory)
    assert await backend.list_threads() == ["t"]


async def test_a_link_to_a_file_is_refused_and_one_to_the_directory_is_not(backend, directory):
    await grown(backend, 1)
    link = directory.with_name("link")
    link.symlink_to(directory)
    await FileBackend(link).save("t", {"n": 1})
    assert await backend.load("t") == {"n": 1}
    (directory / "u.json").symlink_to(directory / "t.json")
    with pytest.raises(IntegrityError, match=r"u\.json"):
        await backend.load("u")


# --- processes

APPEND = """
import asyncio, sys
from locus_store import open_checkpointer

async def main(url, me):
    checkpointer = open_checkpointer(url, state_type=dict)
    for n in range(15):
        await checkpointer.save({"from": me, "n": n}, "t", f"{me}.{n}")
        print(f"{me}.{n}", flush=True)

asyncio.run(main(*sys.argv[1:]))
"""


def appended(url: str, processes: int) -> list[str]:
    """Return the ids that concurrent processes acknowledged."""
    command = [sys.executable, "-W", "error", "-c", APPEND, url]
    workers = [
        subprocess.Popen([*command, f"p{n}"], stdout=subprocess.PIPE, text=True)
        for n in range(processes)
    ]
    return [name for it in workers for name in it.communicate(timeout=60)[0].split()]


@pytest.mark.full
async def test_8_processes_on_one_thread_lose_no_save(url, directory):
    told = set(appended(url, 8))
    assert len(told) == 8 * 15
    async with open_checkpointer(url, state_type=dict) as checkpointer:
        ids = await checkpointer.list_checkpoints("t", 1000)
        assert len(ids) == len(told)
        assert set(ids) == told
        for name in ids:
            me, n = name.split(".")
            assert await checkpointer.load("t", name) == {"from": me, "n": int(n)}
    assert left(directory) == {"t.json", ".locus-store"}


@pytest.mark.full
async def test_killed_writers_lose_no_acknowledged_save_and_leave_nothing(url, directory):
    newest = -1
    for trial in range(20):
        with Worker("write", url, str(newest + 1)) as worker:
            for _ in range(1 + trial % 7):
                told = worker.tells()
            worker.process.kill()
            told = max([told, *worker.told()])
        async with open_checkpointer(url, state_type=dict) as checkpointer:
            ids = await checkpointer.list_checkpoints("t", limit=100_000)
            newest = len(ids) - 1
            assert ids == [f"v{n}" for n in range(newest, -1, -1)]
            assert newest in {told, told + 1}  # the last one may have gone unacknowledged
            expected = {"lines": [f"line {it}" for it in range(newest + 1)]}
            assert await checkpointer.load("t") == expected
            await checkpointer.save({}, "u")
        assert left(directory) == {"t.json", "u.json", ".locus-store"}


async def test_what_killed_writers_left_is_removed_by_the_next_one(backend, directory):
    await grown(backend, 1)
    for name in ("t.json.tmp", "gone.json.tmp", ".locus-store.tmp"):
        (directory / name).write_bytes(b"half of it")
    assert await backend.list_threads() == ["t"]
    await FileBackend(directory).save("u", {"n": 1})
    assert left(directory) == {"t.json", "u.json", ".locus-store"}
    (directory / "t.json.tmp").write_bytes(b"half of it")
    await backend.save("t", {"n": 1})
    assert left(directory) == {"t.json", "u.json", ".locus-store"}


async def test_a_temporary_file_in_use_is_not_removed(backend, directory):
    await grown(backend, 1)
    path = directory / "u.json.tmp"
    with path.open("wb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        await backend.expire()
        assert path.exists()
    await backend.expire()
    assert not path.exists()


async def test_who_waits_too_long_for_another_writer_is_told(backend, directory):
    await grown(backend, 1)
    hasty = FileBackend(directory, busy_timeout_seconds=0)
    with (directory / "t.json").open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(BackendError, match="busy_timeout_seconds"):
            await hasty.save("t", {"n": 1})
        assert len(await hasty.load("t")) == 1  # readers need no lock
    await hasty.save("t", {"n": 1})


def told_by_a_child(look: Callable[[], int]) -> int:
    """Return a child process's result; below 0 if it hangs."""
    with warnings.catch_warnings():  # Python 3.12 warns of a fork where there are threads
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if not child:
        signal.alarm(20)
        try:
            os._exit(look())
        finally:
            os._exit(99)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


async def test_a_child_process_keeps_no_lock_of_its_parents(backend, directory):
    """A child that is forked in the middle of a save, and lives on when its parent is killed."""
    await grown(backend, 1)
    with backend._directory.lock("t.json"):
        assert told_by_a_child(lambda: len(descriptors._open)) == 0
        assert len(descriptors._open) == 2  # the directory, and the file that is locked
    await backend.save("t", {"n": 1})


def test_a_child_that_was_forked_in_the_middle_of_a_save_saves(backend):
    asyncio.run(grown(backend, 1))
    files = backend._threads._queues
    with files._lock:
        files._queues["t"] = deque([workers._Job(list)])  # by a thread that no child has
        saved = told_by_a_child(lambda: len(asyncio.run(backend.save("t", {"n": 1}))))
        del files._queues["t"]
    assert saved == 24
    assert asyncio.run(backend.load("t")) == {"n": 1}


async def test_a_write_that_an_executor_refused_and_kept_is_done_once(backend, caplog):
    """As ``ThreadPoolExecutor`` does where no thread can begin, for one that ends other work."""

    class Executor:
        def submit(self, *call: Any) -> None:
            self.kept = call
            raise RuntimeError("can't start new thread")

    pool, done = Executor(), []

    def work():
        done.append(True)
        drain, *args = pool.kept
        drain(*args)

    await backend._threads._queues.run("t", work, pool)
    assert (done, caplog.records) == ([True], [])


def fail_to_begin(_: object) -> None:
    raise RuntimeError("can't start new thread")


def test_a_sync_write_leaves_none_that_waits_where_no_thread_can_begin(backend, monkeypatch):
    queues, later = backend._threads._queues, workers._Job(list)

    def work():
        assert queues._add("t", later) is None  # by another thread
        monkeypatch.setattr(threading.Thread, "start", fail_to_begin)
        return 1

    assert queues._run_here("t", workers._Job(work)) == 1
    assert later.future.result(0) == []


# --- disks


async def test_a_save_is_on_disk_before_it_is_acknowledged(backend, directory, monkeypatch):
    """Content before its name, and the name before the answer."""
    await grown(backend, 1)
    done: list[str] = []
    for name in ("fsync", "rename"):
        call = getattr(os, name)

        def noted(*arguments: Any, name: str = name, call: Any = call, **options: Any) -> None:
            call(*arguments, **options)
            is_folder = name == "fsync" and stat.S_ISDIR(os.fstat(arguments[0]).st_mode)
            done.append("fsync of the directory" if is_folder else name)

        monkeypatch.setattr(os, name, noted)
    await backend.save("t", {"n": 1})
    assert done == ["fsync", "rename", "fsync of the directory"]
    done.clear()
    await backend.delete("t")
    assert done == ["fsync of the directory"]


@pytest.mark.parametrize("call", ["write", "fsync", "rename", "copy_file_range"])
@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EIO])
async def test_a_failing_disk_changes_nothing(backend, directory, monkeypatch, call, code):
    """A fault injected into the call."""
    await grown(backend, 2)
    before = contents(directory)

    def failing(*_: object, **__: object) -> None:
        raise OSError(code, os.strerror(code))

    with monkeypatch.context() as patch:
        patch.setattr(os, call, failing, raising=call != "copy_file_range")
        if call == "copy_file_range":  # what it cannot copy is read and written
            patch.setattr(os, "write", failing)
        for save in (backend.save("t", {"n": 1}), backend.save("u", {"n": 1})):
            with pytest.raises(BackendError, match=os.strerror(code)):
                await save
        assert (await backend.load("t"))["said"][1].startswith("turn 1")
    assert contents(directory) == before
    await backend.save("t", {"n": 1})
    assert await FileBackend(directory).load("t") == {"n": 1}


async def test_a_system_that_copies_nothing_itself_is_served(backend, directory, monkeypatch):
    await grown(backend, 2)
    monkeypatch.delattr(os, "copy_file_range", raising=False)  # some builds of Python lack it
    await backend.save("t", {"n": 1})
    assert len(await FileBackend(directory).history("t")) == 3


LIMITED = """
import asyncio, resource, sys
from locus_store import BackendError, open_checkpointer

async def main(url):
    checkpointer = open_checkpointer(url, state_type=dict)
    await checkpointer.save({"said": ["small"]}, "t")
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, resource.RLIM_INFINITY))
    try:
        await checkpointer.save({"said": ["large" * 10_000]}, "t")
    except BackendError as exc:
        print(exc)
    print(await checkpointer.load("t"))

asyncio.run(main(*sys.argv[1:]))
"""


def test_a_file_that_may_not_grow_stays_as_it_was(url, directory):
    done = subprocess.run(
        [sys.executable, "-c", LIMITED, url], capture_output=True, text=True, check=True
    )
    assert "File too large" in done.stdout
    assert done.stdout.splitlines()[-1] == "{'said': ['small']}"
    assert left(directory) == {"t.json", ".locus-store"}


async def test_a_disk_with_little_space_is_told_by_the_doctor(backend, directory, monkeypatch):
    assert [it.value for it in await backend.facts() if it.name == "threads"] == [
        "none: the first save makes the directory"
    ]
    await grown(backend, 1)
    size = (directory / "t.json").stat().st_size
    facts = {it.name: it for it in await backend.facts()}
    assert facts["threads"].value == f"1 (a file each; {size:,} bytes)"
    assert facts["free space"].verdict == "ok"
    usage = shutil.disk_usage(directory)._replace(free=size)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    facts = {it.name: it for it in await backend.facts()}
    assert facts["free space"].verdict == "warn"
    assert "keep_last" in facts["free space"].remedy


async def test_a_directory_that_may_not_be_written_is_told(backend, directory, monkeypatch):
    """A fault injected: root may write everywhere."""
    await grown(backend, 1)
    opened = os.open

    def refusing_writes(path: str, flags: int, *more: Any, **options: Any) -> int:
        if flags & os.O_CREAT:
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), path)
        return opened(path, flags, *more, **options)

    monkeypatch.setattr(os, "open", refusing_writes)
    for thread_id in "tu":
        with pytest.raises(ConnectionFailedError, match="Read-only file system"):
            await backend.save(thread_id, {"n": 1})
    assert len(await backend.load("t")) == 1


async def test_a_file_in_place_of_the_directory_is_told(directory):
    directory.write_text("a file")
    for call in refusing(FileBackend(directory)):
        with pytest.raises(ConnectionFailedError, match=re.escape(str(directory))):
            await call()


async def test_a_thread_keeps_the_mode_of_its_file(backend, directory):
    await grown(backend, 1)
    (directory / "t.json").chmod(0o640)
    await backend.save("t", {"n": 1})
    assert (directory / "t.json").stat().st_mode & 0o777 == 0o640


# --- options


async def test_a_url_names_an_absolute_or_a_relative_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for url, place in [
        (f"file://{tmp_path}/one", "one"), ("file:two", "two"), ("file:a/b%20c", "a/b c"),
        (f"file:{tmp_path}/three?keep_last=1&busy_timeout_seconds=2", "three"),
    ]:  # fmt: skip
        made = open_checkpointer(url, state_type=dict)
        assert isinstance(made.backend, FileBackend)
        await made.save({"n": 1}, "t")
        monkeypatch.chdir("/")  # a relative one is of where it was opened
        await made.save({"n": 2}, "u")
        assert left(tmp_path / place) == {".locus-store", "t.json", "u.json"}
        monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("url", ["file:", "file://", "file:///", "file://host/d", "file:d#x"])
def test_a_url_that_names_no_directory_is_refused(url):
    with pytest.raises(InvalidArgumentError):
        open_checkpointer(url)


@pytest.mark.parametrize(
    ("directory", "options"),
    [
        ("", {}), (7, {}), ("a\0b", {}), ("~nobody_of_this_name/x", {}),
        ("d", {"busy_timeout_seconds": -1}), ("d", {"busy_timeout_seconds": "1"}),
        ("d", {"busy_timeout_seconds": True}), ("d", {"keep_last": 0}),
    ],
)  # fmt: skip
def test_an_option_that_makes_no_sense_is_refused(directory, options):
    with pytest.raises(InvalidArgumentError):
        FileCheckpointer(directory, **options)


def test_an_unknown_option_is_a_type_error():
    with pytest.raises(TypeError):
        FileCheckpointer("d", pretty=True)


def test_a_system_without_posix_locks_is_refused(monkeypatch):
    monkeypatch.setattr(descriptors, "fcntl", None)
    with pytest.raises(UnsupportedError, match="POSIX"):
        FileBackend("d")


def test_nothing_is_made_before_the_first_write(directory):
    backend = FileBackend(directory)
    assert asyncio.run(backend.load("t")) is None
    assert asyncio.run(backend.list_threads()) == []
    assert asyncio.run(backend.delete("t")) is False
    assert not directory.exists()
