"""A directory of JSON files: locks, atomic replacement, and the store's identity."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace

from locus_store.backends.documents.protocol import Body, StaleTagError
from locus_store.backends.file.descriptors import (
    Opened,
    Place,
    Signature,
    has_locks,
    is_at,
    open_file,
    read_signature,
    translate_errors,
    try_lock,
)
from locus_store.backends.file.names import (
    FOLDER,
    HEAD_BYTES,
    IDENTITY,
    SUFFIX,
    TEMPORARY,
    decode_identity,
    encode_identity,
    is_of_sdk,
    make_sdk_refusal,
)
from locus_store.errors import (
    BackendError,
    ConnectionFailedError,
    IntegrityError,
    LocusStoreError,
    UnsupportedError,
)

_COPY_BYTES = 1 << 20


class Directory:
    """The files of one directory.

    A writer locks the file that it replaces (``flock``), and looks whether it is still the one that
    the path names; for a new one it locks the directory. Readers need no lock: a file that they
    opened stays whole.

    Below ``root`` no symbolic link is followed: each directory of a long name is opened relative to
    the one above it.

    Args:
        root: The directory, made at the first write; it may be a symbolic link itself.
        busy_timeout_seconds: How long to wait for another writer.
    """

    def __init__(self, root: str, busy_timeout_seconds: float) -> None:
        if not has_locks():
            raise UnsupportedError(
                "the file backend needs POSIX file locks and openat(), which this system does not "
                "have; use sqlite_checkpointer"
            )
        self.root = root
        self._timeout = busy_timeout_seconds
        self._has_identity = False
        self._is_swept = False

    def get_path(self, name: str) -> str:
        return os.path.join(self.root, name)

    @property
    def _root(self) -> Place:
        return Place(None, self.root, self.root)

    @contextmanager
    def _find_place(self, name: str) -> Iterator[Place | None]:
        """Yield a file's place in its open directory; ``None`` if the directory does not exist."""
        *folders, last = name.split("/")
        with ExitStack() as stack:
            at, path = self._root, self.root
            for folder in (*folders, last):
                descriptor = stack.enter_context(open_file(at, os.O_RDONLY | os.O_DIRECTORY))
                if descriptor is None:
                    yield None
                    return
                path = os.path.join(path, folder)
                at = Place(descriptor, folder, path)
            yield at

    @contextmanager
    def _open_file(self, name: str) -> Iterator[tuple[Place, int] | tuple[None, None]]:
        """Open a file; yield its place and descriptor, or two ``None`` if it does not exist."""
        with self._find_place(name) as place:
            if place is None:
                yield None, None
                return
            with open_file(place) as descriptor:
                if descriptor is None:
                    yield None, None
                else:
                    yield place, descriptor

    @contextmanager
    def open_for_reading(self, name: str) -> Iterator[Opened | None]:
        """Open a file for reading; yield ``None`` if it does not exist."""
        path = self.get_path(name)
        with translate_errors(path), self._open_file(name) as (_, descriptor):
            if descriptor is None:
                self.require_identity()
                yield None
            else:
                if not self._has_identity:
                    self.read_identity()  # its loss is an error from now on
                yield Opened(path, descriptor, read_signature(descriptor))

    def iterate_names(self) -> Iterator[str]:
        """Yield the names of all files that are, or should be, threads; in no order."""
        with translate_errors(self.root):
            self.require_identity()
            yield from self._iterate_below(self._root, "", SUFFIX)

    def _iterate_below(self, place: Place, folder: str, suffix: str) -> Iterator[str]:
        """Yield names with a suffix, and symbolic links in place of directories."""
        with open_file(place, os.O_RDONLY | os.O_DIRECTORY) as descriptor:
            for entry in _list_entries(descriptor):
                name = f"{folder}{entry.name}"
                if entry.is_dir(follow_symlinks=False):
                    if entry.name.endswith(FOLDER):
                        below = Place(descriptor, entry.name, self.get_path(name))
                        yield from self._iterate_below(below, f"{name}/", suffix)
                elif entry.name.endswith(suffix) or (
                    entry.name.endswith(FOLDER) and entry.is_symlink()
                ):
                    yield name

    def read_identity(self) -> str | None:
        """Return the store's identity; ``None`` before its first write.

        Raises:
            IntegrityError: The identity file is damaged.
        """
        path = self.get_path(IDENTITY)
        with translate_errors(path), self._open_file(IDENTITY) as (_, descriptor):
            if descriptor is None:
                return None
            store = decode_identity(os.pread(descriptor, HEAD_BYTES, 0))
        if store is None:
            raise IntegrityError(
                f"{path} is damaged; restore it from a backup, or remove it: the next save makes "
                "another one"
            )
        self._has_identity = True
        return store

    def require_identity(self) -> str | None:
        """Return the identity; raise if it has disappeared.

        Raises:
            ConnectionFailedError: It existed before: the directory was removed or is not mounted.
            SchemaError: The directory holds files of the Locus SDK.
        """
        had_identity = self._has_identity  # another thread may write it from here on
        found = self.read_identity()
        if found is None and had_identity:
            raise ConnectionFailedError(
                f"{self.get_path(IDENTITY)} was there and does not exist any more: the directory "
                "or its file system may be missing. Restore it. To start in an empty directory, "
                "open it again"
            )
        if found is None:
            self._refuse_sdk()
        return found

    def _refuse_sdk(self) -> None:
        """Refuse a directory of the Locus SDK, which has a subdirectory per thread."""
        with (
            translate_errors(self.root),
            open_file(self._root, os.O_RDONLY | os.O_DIRECTORY) as root,
        ):
            for entry in _list_entries(root):
                if entry.is_dir(follow_symlinks=False):
                    with suppress(PermissionError, IntegrityError):  # such as lost+found
                        folder = Place(root, entry.name, self.get_path(entry.name))
                        _refuse_sdk_thread(folder)

    def identify(self, store: str) -> None:
        """Write the identity while the directory is locked."""
        self.replace(IDENTITY, None, Body(0, encode_identity(store)))
        self._has_identity = True

    @contextmanager
    def lock(self, name: str, *, creates: bool = False) -> Iterator[Opened | None]:
        """Lock a thread's file, or with ``creates`` the directory if it has none (``None``).

        Raises:
            BackendError: Another writer held it for too long.
        """
        path, deadline = self.get_path(name), time.monotonic() + self._timeout
        with translate_errors(path):
            if not self._is_swept:
                self._is_swept = True
                with suppress(LocusStoreError):  # another user's file does not hinder a save
                    self.sweep()
            while True:
                with self._open_file(name) as (place, descriptor):
                    if place is not None and descriptor is not None:
                        if self._lock(descriptor, place, deadline):
                            yield Opened(path, descriptor, read_signature(descriptor))
                            return
                        continue
                if not creates:
                    self.require_identity()
                    yield None
                    return
                with self._lock_root(deadline) as is_there:
                    if is_there and not self._exists(name):
                        yield None
                        return

    def _exists(self, name: str) -> bool:
        with self._find_place(name) as place:
            return place is not None and place.exists()

    @contextmanager
    def _lock_root(self, deadline: float) -> Iterator[bool]:
        self.require_identity()
        _make_directory(self.root)
        with open_file(self._root, os.O_RDONLY | os.O_DIRECTORY) as descriptor:
            yield descriptor is not None and self._lock(descriptor, self._root, deadline)

    def _lock(self, descriptor: int, place: Place, deadline: float) -> bool:
        """Lock an open file; return whether it is still the one at its place."""
        pause = 0.0005
        while not try_lock(descriptor):
            if time.monotonic() > deadline:
                raise BackendError(
                    f"another process has held {place.path} for {self._timeout:g} s; nothing was "
                    "written. Find it with `fuser`, or raise busy_timeout_seconds"
                )
            time.sleep(pause)
            pause = min(2 * pause, 0.02)
        return is_at(descriptor, place)

    def replace(self, name: str, file: Opened | None, body: Body) -> Signature:
        """Replace a locked file's content by ``body``; it is on disk when this returns.

        Raises:
            StaleTagError: Another process changed the file meanwhile.
        """
        if file is None:
            self._make_folders(name)
        with self._require_place(name) as place:
            temporary = replace(place, name=place.name + TEMPORARY, path=place.path + TEMPORARY)
            with self._open_temporary(temporary) as descriptor:
                if file is not None:
                    os.fchmod(descriptor, os.fstat(file.descriptor).st_mode & 0o777)
                    _copy(file.descriptor, descriptor, body.kept_bytes)
                _write(descriptor, body.rest)
                os.fsync(descriptor)
                _require_unchanged(place, file)
                os.rename(
                    temporary.name,
                    place.name,
                    src_dir_fd=place.directory,
                    dst_dir_fd=place.directory,
                )
                _flush_directory(place)
                return read_signature(descriptor)

    def _make_folders(self, name: str) -> None:
        """Create the directories of a long name; they survive a crash."""
        parts = name.split("/")
        for count in range(1, len(parts)):
            with self._require_place("/".join(parts[:count])) as place:
                with suppress(FileExistsError):
                    os.mkdir(place.name, dir_fd=place.directory)
                _flush_directory(place)

    @contextmanager
    def _require_place(self, name: str) -> Iterator[Place]:
        """Yield the place of a file whose directory must exist."""
        with self._find_place(name) as place:
            if place is None:
                raise FileNotFoundError(errno.ENOENT, "no such directory", self.get_path(name))
            yield place

    @contextmanager
    def _open_temporary(self, place: Place) -> Iterator[int]:
        """Yield an empty, locked file; one that a killed writer left behind is reused."""
        deadline = time.monotonic() + self._timeout
        while True:
            with open_file(place, os.O_RDWR | os.O_CREAT) as descriptor:
                if descriptor is None:
                    raise FileNotFoundError(errno.ENOENT, "no such directory", place.path)
                if not self._lock(descriptor, place, deadline):
                    continue
                try:
                    os.ftruncate(descriptor, 0)
                    yield descriptor
                except BaseException:
                    if is_at(descriptor, place):
                        os.unlink(place.name, dir_fd=place.directory)
                    raise
                return

    def remove(self, name: str, file: Opened | None) -> None:
        """Remove a locked file; the removal survives a crash once this returns.

        Raises:
            StaleTagError: Another process changed the file meanwhile.
        """
        with self._require_place(name) as place:
            _require_unchanged(place, file)
            os.unlink(place.name, dir_fd=place.directory)
            _flush_directory(place)

    def tidy(self, name: str) -> None:
        """Remove the empty directories of a long name."""
        folder = os.path.dirname(name)
        if not folder:
            return
        deadline = time.monotonic() + self._timeout
        with suppress(OSError, LocusStoreError), self._lock_root(deadline):
            while folder:
                with self._require_place(folder) as place:
                    os.rmdir(place.name, dir_fd=place.directory)
                folder = os.path.dirname(folder)

    def sweep(self) -> None:
        """Remove the temporary files of killed writers."""
        with translate_errors(self.root):
            left = [*self._iterate_below(self._root, "", SUFFIX + TEMPORARY), IDENTITY + TEMPORARY]
        for name in left:
            with suppress(IntegrityError), translate_errors(self.get_path(name)):
                self._sweep(name)

    def _sweep(self, name: str) -> None:
        with self._open_file(name) as (place, descriptor):
            if place is None or descriptor is None:
                return
            if try_lock(descriptor) and is_at(descriptor, place):
                os.unlink(place.name, dir_fd=place.directory)


def _list_entries(descriptor: int | None) -> list[os.DirEntry[str]]:
    """Return the entries of an open directory, except names that begin with a dot."""
    if descriptor is None:
        return []
    with os.scandir(descriptor) as entries:
        return [it for it in entries if not it.name.startswith(".")]


def _refuse_sdk_thread(folder: Place) -> None:
    with open_file(folder, os.O_RDONLY | os.O_DIRECTORY) as descriptor:
        for entry in _list_entries(descriptor):
            if entry.name.endswith(SUFFIX) and entry.is_file(follow_symlinks=False):
                place = Place(descriptor, entry.name, os.path.join(folder.path, entry.name))
                with open_file(place) as file:
                    if file is not None and is_of_sdk(os.pread(file, HEAD_BYTES, 0)):
                        raise make_sdk_refusal(place.path)
                return


def _require_unchanged(place: Place, old: Opened | None) -> None:
    if old is None:
        if place.exists():
            raise StaleTagError
    elif not is_at(old.descriptor, place) or read_signature(old.descriptor) != old.signature:
        raise StaleTagError


def _make_directory(path: str) -> None:
    """Create the user's directory and its parents; they survive a crash."""
    if os.path.isdir(path):
        return
    above = os.path.dirname(os.path.abspath(path))
    _make_directory(above)
    with suppress(FileExistsError):
        os.mkdir(path)
    descriptor = os.open(above, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _flush_directory(place: Place) -> None:
    assert place.directory is not None  # noqa: S101  (of a file below the user's directory)
    os.fsync(place.directory)


def _copy(source: int, target: int, size: int) -> None:
    """Copy the first bytes of a file, inside the kernel if possible."""
    done = 0
    with suppress(OSError, AttributeError):  # not every system and file system has it
        while done < size and (step := os.copy_file_range(source, target, size - done, done)):
            done += step
    while done < size:
        chunk = os.pread(source, min(_COPY_BYTES, size - done), done)
        if not chunk:
            raise StaleTagError
        _write(target, chunk)
        done += len(chunk)


def _write(descriptor: int, content: bytes) -> None:
    rest = memoryview(content)
    while rest:
        rest = rest[os.write(descriptor, rest) :]
