"""Open files of a directory: checks on opening, locks, and handling in a forked child."""

from __future__ import annotations

import errno
import os
import stat
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from locus_store.backends.file.names import escape_path
from locus_store.errors import BackendError, ConnectionFailedError, IntegrityError, LocusStoreError

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

from collections.abc import Iterator

_HAS_OPENAT = os.open in os.supports_dir_fd and hasattr(os, "O_NOFOLLOW")
_TAIL_BYTES = 64
_CANNOT_OPEN = {
    errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EISDIR, errno.ELOOP,
    errno.ENAMETOOLONG, errno.ENOENT, errno.EMFILE, errno.ENFILE,
}  # fmt: skip

_open: set[int] = set()
"""Descriptors that may hold a lock: a child process must not keep it."""


def _close_all() -> None:
    for descriptor in _open:
        os.close(descriptor)
    _open.clear()


if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=_close_all)


def has_locks() -> bool:
    """Return whether this system has POSIX file locks and ``openat``."""
    return fcntl is not None and _HAS_OPENAT


@dataclass(frozen=True, slots=True)
class Place:
    """A name in an open directory, so that no parent can be replaced by a symbolic link."""

    directory: int | None
    """``None``: ``name`` is a path that the user gave, and may be a symbolic link."""

    name: str
    path: str
    """The path as messages show it."""

    @property
    def _is_ours(self) -> bool:
        return self.directory is not None

    def read_status(self) -> os.stat_result:
        """Return the entry's status; a symbolic link below the user's directory is not followed."""
        return os.stat(self.name, dir_fd=self.directory, follow_symlinks=not self._is_ours)

    def exists(self) -> bool:
        """Return whether the name exists, even as a broken link."""
        try:
            os.stat(self.name, dir_fd=self.directory, follow_symlinks=False)
        except FileNotFoundError:
            return False
        return True

    def open(self, flags: int) -> int | None:
        """Return a descriptor; ``None`` if the name does not exist.

        Raises:
            IntegrityError: The name is a link, or not of the kind that ``flags`` ask for.
        """
        is_directory = bool(flags & os.O_DIRECTORY)
        flags |= os.O_CLOEXEC | (os.O_NOFOLLOW if self._is_ours else 0)
        flags |= 0 if is_directory else os.O_NONBLOCK
        try:
            return os.open(self.name, flags, 0o666, dir_fd=self.directory)
        except FileNotFoundError:
            return None
        except OSError as exc:
            if self._is_ours and self.exists():
                self.require(self.read_status(), is_directory=is_directory)
            exc.filename = self.path
            raise

    def require(self, status: os.stat_result, *, is_directory: bool) -> None:
        """Refuse anything but a regular file, or a directory if one is wanted."""
        is_right = stat.S_ISDIR if is_directory else stat.S_ISREG
        if is_right(status.st_mode):
            return
        if not is_directory:
            raise IntegrityError(
                f"{escape_path(self.path)} is not a regular file of this library; move it out "
                "of the directory"
            )
        what = "a symbolic link" if stat.S_ISLNK(status.st_mode) else "not a directory"
        raise IntegrityError(
            f"{escape_path(self.path)} is {what}, where threads with a long id have a directory; "
            "nothing was read or written there. Move it out of the directory; if it leads to "
            "threads of this store, put the directory itself in its place"
        )


@contextmanager
def open_file(place: Place, flags: int = os.O_RDONLY) -> Iterator[int | None]:
    """Open a file, and unlock and close it at the end; yield ``None`` if it does not exist.

    With ``O_DIRECTORY`` it is a directory.

    Raises:
        IntegrityError: The name exists and is not a file. The call does not wait for it.
    """
    descriptor = place.open(flags)
    if descriptor is None:
        yield None
        return
    _open.add(descriptor)
    try:
        place.require(os.fstat(descriptor), is_directory=bool(flags & os.O_DIRECTORY))
        yield descriptor
    finally:
        if descriptor in _open:  # else this is a child process, and it is closed
            with suppress(OSError):
                fcntl.flock(descriptor, fcntl.LOCK_UN)  # a child forked just now may have it too
            _open.discard(descriptor)
            os.close(descriptor)


def try_lock(descriptor: int) -> bool:
    """Lock an open file for writing; return ``False`` if another process has locked it."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def is_at(descriptor: int, place: Place) -> bool:
    """Return whether the open file is still the one at the place."""
    try:
        found = place.read_status()
    except FileNotFoundError:
        return False
    return os.path.samestat(found, os.fstat(descriptor))


@dataclass(frozen=True, slots=True)
class Signature:
    """Detects that a file was changed. Inodes are reused, and clocks tick coarsely."""

    device: int
    inode: int
    size: int
    modified: int
    tail: bytes
    """The last bytes, which include the checksum of the last entry."""


def read_signature(descriptor: int) -> Signature:
    """Return the signature of an open file as it is now."""
    status = os.fstat(descriptor)
    tail = os.pread(descriptor, _TAIL_BYTES, max(0, status.st_size - _TAIL_BYTES))
    return Signature(status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, tail)


@dataclass(frozen=True, slots=True)
class Opened:
    """An open file of a thread, and the signature of its content."""

    path: str
    descriptor: int
    signature: Signature

    def read_content(self) -> bytes:
        """Read all bytes, without a second descriptor: a forked child would inherit its lock."""
        with open(self.descriptor, "rb", closefd=False) as file:
            file.seek(0)
            return file.read()


@contextmanager
def translate_errors(path: str) -> Iterator[None]:
    """Translate the operating system's errors.

    Raises:
        ConnectionFailedError: It cannot be opened.
        BackendError: It failed in use.
    """
    try:
        yield
    except LocusStoreError:  # some are OSErrors too
        raise
    except OSError as exc:
        named = os.fsdecode(exc.filename or "")  # relative to a directory, or the whole path
        message = f"{escape_path(named if os.path.isabs(named) else path)}: {exc.strerror or exc}"
        if exc.errno in _CANNOT_OPEN:
            raise ConnectionFailedError(
                f"{message}; look at the directory's path and permissions, and at ulimit -n"
            ) from exc
        raise BackendError(
            f"{message}; what was there before is as it was. Look at the disk and its space"
        ) from exc
