"""Open files of a directory: what may be opened, what is locked, and what a forked child gets."""

from __future__ import annotations

import errno
import os
import stat
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from locus_store.errors import BackendError, ConnectionFailedError, IntegrityError, LocusStoreError
from locus_store.files.names import shown

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

if TYPE_CHECKING:
    from collections.abc import Iterator

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
    """Whether this system has POSIX file locks."""
    return fcntl is not None


@contextmanager
def opened(path: str, flags: int = os.O_RDONLY) -> Iterator[int | None]:
    """An open file, unlocked and closed at the end; ``None`` where there is none.

    With ``O_DIRECTORY`` it is a directory.

    Raises:
        IntegrityError: Something else than a file is there. It is not waited for.
    """
    descriptor = _descriptor(path, flags | os.O_CLOEXEC)
    if descriptor is None:
        yield None
        return
    _open.add(descriptor)
    try:
        require_file(os.fstat(descriptor), path, flags)
        yield descriptor
    finally:
        if descriptor in _open:  # else this is a child process, and it is closed
            with suppress(OSError):
                fcntl.flock(descriptor, fcntl.LOCK_UN)  # a child forked just now may have it too
            _open.discard(descriptor)
            os.close(descriptor)


def _descriptor(path: str, flags: int) -> int | None:
    no_waiting = 0 if flags & os.O_DIRECTORY else os.O_NOFOLLOW | os.O_NONBLOCK
    try:
        return os.open(path, flags | no_waiting, 0o666)
    except FileNotFoundError:
        return None
    except OSError:
        if os.path.lexists(path):
            require_file(os.lstat(path), path, flags)  # a link, a socket
        raise


def require_file(found: os.stat_result, path: str, flags: int = 0) -> None:
    """Refuse what is neither a regular file nor, with ``O_DIRECTORY``, to be a directory.

    Raises:
        IntegrityError: It is something else.
    """
    if not flags & os.O_DIRECTORY and not stat.S_ISREG(found.st_mode):
        raise IntegrityError(
            f"{shown(path)} is no regular file, and none of this library's; move it out of the "
            "directory"
        )


def try_lock(descriptor: int) -> bool:
    """Lock an open file for writing, unless another one has done so."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def is_at(descriptor: int, path: str) -> bool:
    """Whether the path still names the open file."""
    try:
        found = os.stat(path)
    except FileNotFoundError:
        return False
    return os.path.samestat(found, os.fstat(descriptor))


@dataclass(frozen=True, slots=True)
class Signature:
    """What tells that a file was changed. Inodes are used again, and clocks tick coarsely."""

    device: int
    inode: int
    size: int
    modified: int
    tail: bytes
    """Its last bytes: the checksum of the last entry is among them."""


def signature_of(descriptor: int) -> Signature:
    """Of an open file, as it is now."""
    it = os.fstat(descriptor)
    tail = os.pread(descriptor, _TAIL_BYTES, max(0, it.st_size - _TAIL_BYTES))
    return Signature(it.st_dev, it.st_ino, it.st_size, it.st_mtime_ns, tail)


@dataclass(frozen=True, slots=True)
class Opened:
    """A thread's file, and what identifies its content."""

    path: str
    descriptor: int
    signature: Signature

    def content(self) -> bytes:
        """All of it; a second descriptor would take the lock along into a forked child."""
        with open(self.descriptor, "rb", closefd=False) as file:
            file.seek(0)
            return file.read()


# --- errors


@contextmanager
def translated(path: str) -> Iterator[None]:
    """Errors of the operating system as ours.

    Raises:
        ConnectionFailedError: It cannot be opened.
        BackendError: It failed in use.
    """
    try:
        yield
    except LocusStoreError:  # some are OSErrors too
        raise
    except OSError as exc:
        told = f"{shown(os.fsdecode(exc.filename or path))}: {exc.strerror or exc}"
        if exc.errno in _CANNOT_OPEN:
            raise ConnectionFailedError(
                f"{told}; look at the directory's path and permissions"
            ) from exc
        raise BackendError(
            f"{told}; what was there before is as it was. Look at the disk and its space"
        ) from exc
