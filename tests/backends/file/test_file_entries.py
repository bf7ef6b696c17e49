"""Foreign entries in a directory of threads, and children that are forked during a call."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import socket
import warnings
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest
from lazily import TESTS_RUN
from test_cli import run  # noqa: F401

from locus_store import FileBackend, IntegrityError, LocusStoreError, MemoryBackend, SchemaError
from locus_store.backends.file import descriptors
from locus_store.transfer.copying import copy
from locus_store.transfer.verifying import Checked, verify
from locus_store.types import PendingWrite

if TESTS_RUN:
    from locus.core.messages import Message as LocusMessage
    from locus.core.state import AgentState as LocusState
    from locus.memory.backends.file import FileCheckpointer as SdkCheckpointer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "threads"


@pytest.fixture
def backend(directory: Path) -> FileBackend:
    """Over two threads."""
    made = FileBackend(directory, busy_timeout_seconds=0)
    for name in ("b", "y"):
        asyncio.run(made.save(name, {"n": 1}, checkpoint_id="v1"))
    return made


# --- what is no thread


def fifo(path: Path) -> None:
    os.mkfifo(path)


def link(path: Path) -> None:
    path.symlink_to(path.with_name("b.json"))


def dangling(path: Path) -> None:
    path.symlink_to("nowhere")


def bound(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(os.path.relpath(path))  # which may be longer than a socket's address


def truncated(path: Path) -> None:
    path.write_bytes(b"{")


def of_sdk(path: Path) -> None:
    state = LocusState(messages=(LocusMessage.user("hello"),))
    elsewhere = path.parent.with_name("elsewhere")
    asyncio.run(SdkCheckpointer(elsewhere).save(state, "t"))
    (made,) = elsewhere.rglob("*.json")
    made.rename(path)


UNUSUAL = {
    "a fifo": ("m.json", fifo),
    "a link": ("a.json", link),
    "a dangling link": ("a.json", dangling),
    "a socket": ("z.json", bound),
    "a truncated file": ("a.json", truncated),
    "a file of the SDK": ("z.json", of_sdk),
    "notes": ("My Notes.json", truncated),
    "a misnamed fifo": ("My Notes.json", fifo),
    "no text": (b"\xff.json", truncated),
}
BY_CONTENT = {"a truncated file", "a file of the SDK"}
MISNAMED = {"notes", "a misnamed fifo", "no text"}


@pytest.fixture(params=list(UNUSUAL))
def kind(request: pytest.FixtureRequest, directory: Path, backend: FileBackend) -> str:
    """An entry of a kind of its own is there beside the two threads."""
    name, make = UNUSUAL[request.param]
    make(directory / os.fsdecode(name))
    return request.param


def told(kind: str) -> str:
    """Return an error's text for the entry."""
    return os.fsencode(UNUSUAL[kind][0]).decode(errors="backslashreplace")


async def test_an_unusual_entry_is_told_once_and_all_else_is_checked(kind, backend):
    found = [it async for it in verify(backend)]
    assert [it.thread_id for it in found if isinstance(it, Checked)] == ["b", "y"]
    (problem,) = [it for it in found if not isinstance(it, Checked)]
    assert told(kind) in problem.what
    assert (problem.thread_id is None) == (kind in MISNAMED)


async def test_an_unusual_entry_is_told_by_lists_and_by_who_loads_it(kind, backend, directory):
    calls = [
        backend.list_threads, backend.heads, lambda: backend.query("k", 1),
        lambda: backend.search("x"), lambda: backend.threads_of("u"),
        lambda: backend.forget_user("u"), lambda: copy(backend, MemoryBackend()),
    ]  # fmt: skip
    if kind not in MISNAMED:
        thread_id = told(kind)[0]
        calls += [lambda: backend.load(thread_id), lambda: backend.save(thread_id, {})]
    for call in calls:
        with pytest.raises((IntegrityError, SchemaError)) as caught:
            await consumed(call())
        assert told(kind) in str(caught.value)
    for thread_id in ("b", "y"):
        assert await backend.load(thread_id) == {"n": 1}
        await backend.save(thread_id, {"n": 2})


async def consumed(call: Any) -> Any:
    return [it async for it in call] if hasattr(call, "__aiter__") else await call


async def test_a_scan_returns_every_thread_before_it_tells_of_a_misnamed_file(kind, backend):
    expected = ["b", "y"] if kind in MISNAMED else sorted({"b", "y", told(kind)[0]})
    assert await backend.scan() == expected
    assert await backend.scan(1) == expected[:1]
    assert await backend.scan(0) == []
    if kind in MISNAMED:
        with pytest.raises(IntegrityError, match=re.escape(told(kind))):
            await backend.scan(after="y")
    else:
        assert await backend.scan(after=expected[-1]) == []


async def test_a_copy_of_all_is_made_before_it_tells_of_a_misnamed_file(backend, directory):
    (directory / "My Notes.json").write_bytes(b"{")
    other = MemoryBackend()
    with pytest.raises(IntegrityError, match="My Notes"):
        await consumed(copy(backend, other))
    assert await other.scan() == ["b", "y"]


async def test_an_unusual_entry_keeps_no_other_thread_from_housekeeping(kind, backend, directory):
    await backend.save("y", {"n": 2})
    await backend.write_state("c", {"n": 1}, ttl_seconds=1e-6)
    with pytest.raises(LocusStoreError, match="threads 1") as caught:
        await backend.expire()
    assert told(kind) in str(caught.value)
    assert not (directory / "c.json").exists()
    with pytest.raises(LocusStoreError) as caught:
        await backend.vacuum(0)
    assert told(kind) in str(caught.value)
    assert "versions 3" in str(caught.value)
    assert len(list(directory.iterdir())) == 2  # the entry, and which store it is


async def test_several_unusual_entries_are_counted(backend, directory):
    for name in ("c.json", "My Notes.json", "z.json"):
        truncated(directory / name)
    with pytest.raises(IntegrityError, match=r"My Notes.*2 more"):
        await backend.expire()


async def test_an_unusual_entry_is_named_by_the_doctor(kind, backend):
    faults = [it for it in await backend.facts() if it.verdict == "fail"]
    if kind in BY_CONTENT:
        assert not faults  # it looks at no contents
    else:
        (fault,) = faults
        assert told(kind) in fault.value
        assert "move it out" in fault.remedy


async def test_directories_are_left_alone_whatever_they_are_called(backend, directory):
    for name in ("data.json", "b.json.tmp", ".locus-store.tmp"):
        (directory / name).mkdir()
        (directory / name / "x.json").write_bytes(b"{")
    assert await backend.scan() == ["b", "y"]
    assert sorted(await backend.list_threads()) == ["b", "y"]
    assert await backend.damage() == []
    assert all(it.verdict != "fail" for it in await backend.facts())
    assert await backend.expire() == await backend.vacuum() == 0
    for call in (backend.load("data"), backend.save("data", {}), backend.save("b", {})):
        with pytest.raises(IntegrityError, match=r"data\.json|b\.json\.tmp"):
            await call
    assert await FileBackend(directory).save("y", {"n": 2})


@pytest.mark.parametrize("make", [fifo, link, dangling, bound])
async def test_what_is_called_like_a_temporary_file_and_is_none_is_left(backend, directory, make):
    make(directory / "c.json.tmp")
    assert await backend.expire() == 0
    assert await FileBackend(directory).save("y", {"n": 2})
    assert "c.json.tmp" in {it.name for it in directory.iterdir()}
    with pytest.raises(IntegrityError, match=r"c\.json\.tmp"):
        await backend.save("c", {"n": 1})


def refuse(monkeypatch: pytest.MonkeyPatch, name: str, ending: str) -> None:
    """A fault injected: root may look at everything."""
    call = getattr(os, name)

    def refusing(path: Any, *more: Any, **options: Any) -> Any:
        if str(path).endswith(ending):
            raise PermissionError(13, os.strerror(13), str(path))
        return call(path, *more, **options)

    monkeypatch.setattr(os, name, refusing)


async def test_what_another_user_left_hinders_no_save(backend, directory, monkeypatch):
    (directory / "b.json.tmp").write_bytes(b"half of it")
    refuse(monkeypatch, "open", "b.json.tmp")
    assert await FileBackend(directory).save("y", {"n": 2})
    with pytest.raises(LocusStoreError, match=r"b\.json\.tmp"):
        await backend.expire()


async def test_a_file_that_may_not_be_read_is_the_problem_of_its_thread(backend, monkeypatch):
    refuse(monkeypatch, "open", "b.json")
    found = [it async for it in verify(backend)]
    assert [type(it).__name__ for it in found] == ["Problem", "Checked"]
    assert [it.thread_id for it in found] == ["b", "y"]


async def test_a_new_file_system_with_its_lost_and_found_is_a_place(directory, monkeypatch):
    (directory / "lost+found").mkdir(parents=True)
    refuse(monkeypatch, "open", "lost+found")
    backend = FileBackend(directory)
    assert await backend.list_threads() == []
    assert await backend.save("t", {"n": 1})


async def test_a_fifo_in_a_directory_beside_hangs_nothing(directory):
    (directory / "theirs").mkdir(parents=True)
    os.mkfifo(directory / "theirs" / "x.json")
    assert await FileBackend(directory).list_threads() == []


# --- which store it is


@pytest.fixture(params=["damaged", "a directory", "a fifo", "a link"])
def lost(request: pytest.FixtureRequest, backend: FileBackend, directory: Path) -> FileBackend:
    """Of a directory whose identity is something else."""
    path = directory / ".locus-store"
    path.unlink()
    make: Callable[[Path], Any] = {
        "damaged": truncated, "a directory": os.mkdir, "a fifo": fifo, "a link": link,
    }[request.param]  # fmt: skip
    make(path)
    return FileBackend(directory)


async def test_an_identity_that_is_none_is_told_of_everything_and_counted_once(lost):
    calls = [
        lost.list_threads, lost.scan, lost.expire, lost.vacuum, lambda: lost.load("b"),
        lambda: lost.load("new"), lambda: lost.save("b", {}), lambda: lost.save("new", {}),
    ]  # fmt: skip
    for call in calls:
        with pytest.raises(IntegrityError, match=r"\.locus-store"):
            await call()
    (problem,) = [it async for it in verify(lost)]
    assert problem.thread_id is None
    assert ".locus-store" in problem.what
    (fault,) = [it for it in await lost.facts() if it.verdict == "fail"]
    assert ".locus-store" in fault.value
    assert fault.remedy


def test_the_command_line_tells_it_by_its_exit_codes(lost, directory, run):  # noqa: F811
    url = f"file:{directory}"
    for arguments, expected in [
        (("verify",), 3), (("doctor",), 3), (("threads", "list"), 1), (("threads", "expire"), 1),
    ]:  # fmt: skip
        code, out, errors = run(*arguments, "--url", url)
        assert code == expected
        assert ".locus-store" in "".join((out + errors).split())


def test_the_command_line_shows_a_name_that_is_no_text(backend, directory, run):  # noqa: F811
    (directory / os.fsdecode(b"\xff.json")).write_bytes(b"{")
    url = f"file:{directory}"
    for arguments, expected in [
        (("verify",), 3), (("verify", "--json"), 3), (("doctor",), 3), (("doctor", "--json"), 3),
        (("threads", "list"), 1), (("threads", "expire"), 1),
    ]:  # fmt: skip
        code, out, errors = run(*arguments, "--url", url)
        assert code == expected
        assert r"\xff.json" in "".join((out + errors).replace("\\\\", "\\").split())


# --- children


@contextmanager
def forking(monkeypatch: pytest.MonkeyPatch, directory: Path) -> Iterator[list[int]]:
    """Forks a child at each opening and closing of a file below; they live until the end."""
    children: list[int] = []
    ending, held = os.pipe()
    opened, closed, parent = os.open, os.close, os.getpid()

    def fork() -> None:
        with warnings.catch_warnings():  # Python 3.12 warns of a fork where there are threads
            warnings.simplefilter("ignore", DeprecationWarning)
            child = os.fork()
        if child:
            children.append(child)
            return
        closed(held)
        signal.alarm(120)
        os.read(ending, 1)
        os._exit(0)

    def forking_open(path: Any, *more: Any, **options: Any) -> int:
        descriptor = opened(path, *more, **options)
        if str(path).startswith(str(directory)):
            fork()
        return descriptor

    def forking_close(descriptor: int) -> None:
        if os.getpid() == parent:
            fork()
        closed(descriptor)

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", forking_open)
        patch.setattr(os, "close", forking_close)
        try:
            yield children
        finally:
            patch.undo()
            closed(held)
            for child in children:
                os.waitpid(child, 0)
            closed(ending)


@pytest.mark.full
async def test_children_forked_at_any_moment_of_a_write_keep_no_lock(
    backend, directory, monkeypatch
):
    """The backend waits for no lock at all."""
    await backend.save("b", {"said": ["much " * 100_000]}, checkpoint_id="v2")
    with forking(monkeypatch, directory) as children:
        for n in range(4):
            write = PendingWrite(f"task {n}", 0, "c", "t", b"\0")
            await backend.put_writes("b", "v2", [write])
        await backend.save("new", {"n": 1})
        await backend.delete("new")
        assert await backend.expire() == 0
        assert len(await backend.get_writes("b", "v2")) == 4
        assert len(children) > 20
    assert not descriptors._open
