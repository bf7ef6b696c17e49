"""A directory of JSON files: their names, their locks, and how one is replaced as a whole."""

from __future__ import annotations

import errno
import os
import time
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from locus_store.errors import (
    BackendError,
    ConnectionFailedError,
    IntegrityError,
    LocusStoreError,
    UnsupportedError,
)
from locus_store.files.descriptors import (
    Opened,
    has_locks,
    is_at,
    opened,
    require_file,
    signature_of,
    translated,
    try_lock,
)
from locus_store.files.names import (
    FOLDER,
    HEAD_BYTES,
    IDENTITY,
    SUFFIX,
    TEMPORARY,
    identity_text,
    refuse_sdk,
    store_in,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from locus_store.files.descriptors import Signature

_COPY_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Held:
    """A thread's place in the directory, locked for writing."""

    path: str
    file: Opened | None
    """``None``: there is no file, and the directory is locked so that nobody makes one."""


class ChangedError(Exception):
    """The file was changed while it was locked, by a program that locks nothing."""


# --- the directory


class Directory:
    """Files of one directory.

    A writer locks the file that it replaces (``flock``), and looks whether it is still the one that
    the path names; for a new one it locks the directory. Readers need no lock: a file that they
    opened stays whole.

    Args:
        root: The directory, made at the first write.
        busy_timeout_seconds: How long to wait for another writer.
    """

    def __init__(self, root: str, busy_timeout_seconds: float) -> None:
        if not has_locks():
            raise UnsupportedError(
                "the file backend needs POSIX file locks, which this system does not have; use "
                "sqlite_checkpointer"
            )
        self.root = root
        self._timeout = busy_timeout_seconds
        self._has_identity = False
        self._is_swept = False

    def path(self, name: str) -> str:
        """Of a file of the directory."""
        return os.path.join(self.root, name)

    @contextmanager
    def reading(self, name: str) -> Iterator[Opened | None]:
        """An open file; ``None`` where there is none."""
        path = self.path(name)
        with translated(path), opened(path) as descriptor:
            if descriptor is None:
                self.require_identity()
                yield None
            else:
                if not self._has_identity:
                    self.identity()  # whose loss is told from now on
                yield Opened(path, descriptor, signature_of(descriptor))

    def size(self, name: str) -> int:
        """Of a file; 0 where there is none any more."""
        path = self.path(name)
        with translated(path), suppress(FileNotFoundError):
            found = os.lstat(path)
            require_file(found, path)
            return found.st_size
        return 0

    def names(self) -> Iterator[str]:
        """Names of all files that are or should be threads, in no order; of no directories."""
        with translated(self.root):
            self.require_identity()
            yield from self._below("", SUFFIX)

    def _below(self, folder: str, suffix: str) -> Iterator[str]:
        try:
            with os.scandir(self.path(folder)) as entries:
                found = list(entries)
        except FileNotFoundError:
            return
        for entry in found:
            name = f"{folder}{entry.name}"
            if entry.name.startswith("."):
                continue
            if entry.is_dir(follow_symlinks=False):
                if entry.name.endswith(FOLDER):
                    yield from self._below(f"{name}/", suffix)
            elif entry.name.endswith(suffix):
                yield name

    # --- which store it is

    def identity(self) -> str | None:
        """Which store this is; ``None`` before its first write.

        Raises:
            IntegrityError: The identity file is damaged, or is none.
        """
        path = self.path(IDENTITY)
        with translated(path), opened(path) as descriptor:
            if descriptor is None:
                return None
            store = store_in(os.pread(descriptor, HEAD_BYTES, 0))
        if store is None:
            raise IntegrityError(
                f"{path} is damaged; restore it from a backup, or remove it: the next save makes "
                "another one"
            )
        self._has_identity = True
        return store

    def require_identity(self) -> str | None:
        """The identity, where one is to be expected.

        Raises:
            ConnectionFailedError: It was there before: the directory is gone, or not mounted.
            SchemaError: It holds files of the Locus SDK.
        """
        had_identity = self._has_identity  # another thread may write it from here on
        found = self.identity()
        if found is None and had_identity:
            raise ConnectionFailedError(
                f"{self.path(IDENTITY)} was there and is gone, with the directory or its file "
                "system; bring it back. To begin anew in an empty directory, open it again"
            )
        if found is None:
            refuse_sdk(self.root)
        return found

    def identify(self, store: str) -> None:
        """Write the identity; the directory is locked."""
        self._replace(self.path(IDENTITY), None, 0, identity_text(store))
        self._has_identity = True

    # --- writing

    @contextmanager
    def holding(self, name: str, *, creates: bool = False) -> Iterator[Held | None]:
        """Hold a thread's place; ``None`` where there is no file and none is to be made.

        Raises:
            BackendError: Another writer held it for too long.
        """
        path, deadline = self.path(name), time.monotonic() + self._timeout
        with translated(path):
            self._sweep_once()
            while True:
                with opened(path) as descriptor:
                    if descriptor is not None:
                        self._lock(descriptor, path, deadline)
                        if is_at(descriptor, path):
                            yield Held(path, Opened(path, descriptor, signature_of(descriptor)))
                            return
                        continue
                if not creates:
                    self.require_identity()
                    yield None
                    return
                with self._locked_root(deadline) as is_there:
                    if is_there and not os.path.lexists(path):
                        yield Held(path, None)
                        return

    @contextmanager
    def _locked_root(self, deadline: float) -> Iterator[bool]:
        self.require_identity()
        _make(self.root)
        with opened(self.root, os.O_RDONLY | os.O_DIRECTORY) as descriptor:
            if descriptor is not None:
                self._lock(descriptor, self.root, deadline)
            yield descriptor is not None and is_at(descriptor, self.root)

    def _lock(self, descriptor: int, path: str, deadline: float) -> None:
        pause = 0.0005
        while not try_lock(descriptor):
            if time.monotonic() > deadline:
                raise BackendError(
                    f"another process has held {path} for {self._timeout:g} s; nothing was "
                    "written. Find it with `fuser`, or raise busy_timeout_seconds"
                )
            time.sleep(pause)
            pause = min(2 * pause, 0.02)

    def replace(self, held: Held, kept_bytes: int, rest: bytes) -> Signature:
        """Make the file its first ``kept_bytes`` and ``rest``: on disk when this returns.

        Raises:
            ChangedError: Somebody else changed the file meanwhile.
        """
        if held.file is None:
            _make(os.path.dirname(held.path))
        return self._replace(held.path, held.file, kept_bytes, rest)

    def _replace(self, path: str, old: Opened | None, kept_bytes: int, rest: bytes) -> Signature:
        temporary = path + TEMPORARY
        with self._temporary(temporary) as descriptor:
            if old is not None:
                os.fchmod(descriptor, os.fstat(old.descriptor).st_mode & 0o777)
                _copy(old.descriptor, descriptor, kept_bytes)
            _write(descriptor, rest)
            os.fsync(descriptor)
            _require_unchanged(path, old)
            os.rename(temporary, path)
            _sync(os.path.dirname(path))
            return signature_of(descriptor)

    @contextmanager
    def _temporary(self, path: str) -> Iterator[int]:
        """An empty file, locked; what a killed writer left of it is used again."""
        deadline = time.monotonic() + self._timeout
        while True:
            with opened(path, os.O_RDWR | os.O_CREAT) as descriptor:
                if descriptor is None:
                    raise FileNotFoundError(errno.ENOENT, "no such directory", path)
                self._lock(descriptor, path, deadline)
                if not is_at(descriptor, path):
                    continue
                try:
                    os.ftruncate(descriptor, 0)
                    yield descriptor
                except BaseException:
                    if is_at(descriptor, path):
                        os.unlink(path)
                    raise
                return

    def remove(self, held: Held) -> None:
        """Remove the file; its name is free when this returns, after a crash too.

        Raises:
            ChangedError: Somebody else changed the file meanwhile.
        """
        _require_unchanged(held.path, held.file)
        os.unlink(held.path)
        _sync(os.path.dirname(held.path))

    def tidy(self, name: str) -> None:
        """Remove the directories of a long name that are empty."""
        folder = os.path.dirname(name)
        if not folder:
            return
        deadline = time.monotonic() + self._timeout
        with suppress(OSError, LocusStoreError), self._locked_root(deadline):
            while folder:
                os.rmdir(self.path(folder))
                folder = os.path.dirname(folder)

    # --- what killed writers leave

    def _sweep_once(self) -> None:
        if not self._is_swept:
            self._is_swept = True
            with suppress(LocusStoreError):  # what another user left hinders no save
                self.sweep()

    def sweep(self) -> None:
        """Remove the temporary files of writers that were killed."""
        with translated(self.root):
            left = [*self._below("", SUFFIX + TEMPORARY), IDENTITY + TEMPORARY]
        for path in map(self.path, left):
            with suppress(IntegrityError), translated(path), opened(path) as descriptor:
                if descriptor is not None and try_lock(descriptor) and is_at(descriptor, path):
                    os.unlink(path)


def _require_unchanged(path: str, old: Opened | None) -> None:
    if old is None:
        if os.path.lexists(path):
            raise ChangedError
    elif not is_at(old.descriptor, path) or signature_of(old.descriptor) != old.signature:
        raise ChangedError


def _make(path: str) -> None:
    """Make a directory and those above it; they are there after a crash."""
    if os.path.isdir(path):
        return
    above = os.path.dirname(os.path.abspath(path))
    _make(above)
    with suppress(FileExistsError):
        os.mkdir(path)
    _sync(above)


def _sync(path: str) -> None:
    """Put a directory's names on disk."""
    descriptor = os.open(path or ".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _copy(source: int, target: int, size: int) -> None:
    """Copy the first bytes of a file, inside the kernel where it can."""
    done = 0
    with suppress(OSError, AttributeError):  # not every system and file system has it
        while done < size and (step := os.copy_file_range(source, target, size - done, done)):
            done += step
    while done < size:
        chunk = os.pread(source, min(_COPY_BYTES, size - done), done)
        if not chunk:
            raise ChangedError
        _write(target, chunk)
        done += len(chunk)


def _write(descriptor: int, content: bytes) -> None:
    rest = memoryview(content)
    while rest:
        rest = rest[os.write(descriptor, rest) :]
