"""File backend: a directory with one readable JSON file per thread, which suits git."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final, Unpack

from locus_store.backends.documents.backend import DocumentBackend
from locus_store.backends.documents.message_log import DocumentMessageLog
from locus_store.backends.documents.protocol import Body, Documents, Found, StaleTagError, Tag
from locus_store.backends.documents.store import DocumentStore
from locus_store.backends.file.descriptors import Opened
from locus_store.backends.file.directory import Directory
from locus_store.backends.file.format import LinesForm
from locus_store.backends.file.names import (
    decode_name,
    encode_name,
    escape_path,
    is_of_sdk,
    make_sdk_refusal,
)
from locus_store.backends.file.options import FileCheckpointerOptions, FileOptions
from locus_store.checkpointer import S, StorageBackendAdapter
from locus_store.errors import IntegrityError, InvalidArgumentError, LocusStoreError
from locus_store.runtime.extras import make_factory
from locus_store.store import Embed
from locus_store.types.arguments import choose_backend, make_absolute
from locus_store.types.facts import Fact
from locus_store.types.options import CheckpointOptions, fill_defaults, split_options
from locus_store.values.vectors import Metric


class HeldFile:
    """Access to a file that is locked for writing, or to be created."""

    def __init__(self, directory: Directory, name: str, file: Opened | None) -> None:
        self.is_removed = False
        self._directory = directory
        self._name = name
        self._file = file

    def get(self, key: str, *, known: Tag | None = None) -> Found | None:
        return _read_document(self._file, known) if self._file else None

    def put(self, key: str, body: Body, *, tag: Tag | None) -> Tag:
        self._require(tag)
        return self._directory.replace(self._name, self._file, body)

    def delete(self, key: str, *, tag: Tag) -> None:
        self._require(tag)
        self._directory.remove(self._name, self._file)
        self.is_removed = True

    def _require(self, tag: Tag | None) -> None:
        if tag != (self._file.signature if self._file else None):
            raise StaleTagError


def _read_document(file: Opened, tag: Tag | None) -> Found:
    """Return an open file's content, unless its signature is ``tag``; refuse the Locus SDK's."""
    if file.signature == tag:
        return Found(file.signature, None)
    content = file.read_content()
    if is_of_sdk(content):
        raise make_sdk_refusal(file.path)
    return Found(file.signature, content)


class FileDocuments(Directory, Documents):
    """Documents that are files; a writing process locks its file. See ``Directory``."""

    rivals = "a program that locks nothing"
    remedy = "Restore the file, as with `git checkout`, or remove it"

    def get(self, key: str, *, known: Tag | None = None) -> Found | None:
        with self.open_for_reading(encode_name(key)) as opened:
            return _read_document(opened, known) if opened else None

    def put(self, key: str, body: Body, *, tag: Tag | None) -> Tag:
        with self.held(key, creates=tag is None) as held:
            return held.put(key, body, tag=tag)

    def delete(self, key: str, *, tag: Tag) -> None:
        with self.held(key, creates=False) as held:
            held.delete(key, tag=tag)

    def keys(self, after: str = "") -> Iterator[str]:
        return (it for it in self.list_threads()[0] if it > after)

    @contextmanager
    def held(self, key: str, *, creates: bool) -> Iterator[HeldFile]:
        name = encode_name(key)
        with self.lock(name, creates=creates) as file:
            access = HeldFile(self, name, file)
            yield access
        if access.is_removed:
            self.tidy(name)

    def locate(self, key: str) -> str:
        return self.get_path(encode_name(key))

    def list_strays(self) -> list[str]:
        return self.list_threads()[1]

    def list_threads(self) -> tuple[list[str], list[str]]:
        """Return all thread ids in order, expired ones included, and the faults of other files.

        That is: with those that cannot be a thread's.
        """
        names = {name: decode_name(name) for name in self.iterate_names()}
        ids = sorted(it for it in names.values() if it is not None)
        return ids, [self._describe_stray(name) for name in sorted(names) if names[name] is None]

    def _describe_stray(self, name: str) -> str:
        return (
            f"{escape_path(self.get_path(name))} is not named as the file of a thread; move it "
            "out of the directory, or give it its name back"
        )


ITEMS: Final = "store"
"""The subdirectory of the store's journal; those of long names end with ``+``."""

DEFAULT_DIRECTORY: Final = ".locus_checkpoints"
"""The Locus SDK's default directory."""


class FileBackend(DocumentBackend):
    """Keeps each thread in a JSON file of its own.

    Several processes on one host may share the directory. It needs POSIX file locks and a local
    file system. Each save rewrites the thread's file, so its time grows with the file.

    Args:
        directory: Created at the first write if it is missing; ``~`` is expanded.
        options: See ``options.FileOptions``.

    Raises:
        InvalidArgumentError: An option is not valid.
        UnsupportedError: The operating system has no POSIX file locks.
    """

    factory = "FileCheckpointer"
    needs_no_loop = moves_between_threads = True

    def __init__(self, directory: str | os.PathLike[str], **options: Unpack[FileOptions]) -> None:
        given = fill_defaults(FileOptions, options, "FileBackend")
        self._where = make_absolute("directory", directory)
        seconds = given["busy_timeout_seconds"]
        self._directory = FileDocuments(self._where, seconds)
        self.items = FileDocuments(os.path.join(self._where, ITEMS), seconds)
        form = LinesForm(self._directory)
        super().__init__(self._directory, form=form, max_state_bytes=given["max_state_bytes"])

    def __repr__(self) -> str:
        return f"FileBackend({self._where!r})"

    async def open(self) -> None:
        await self._threads.look(self._directory.require_identity)

    async def facts(self) -> list[Fact]:
        return [*await super().facts(), *await self._threads.look(collect_facts, self._directory)]


class FileMessageLog(DocumentMessageLog):
    """Keeps message logs in the JSON files of their threads.

    Arguments and errors are those of ``FileBackend`` and ``BaseMessageLog``, or ``backend`` alone:
    the one whose threads have the logs.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str] | None = None,
        *,
        ttl_seconds: float | None = None,
        backend: FileBackend | None = None,
        **options: Unpack[FileOptions],
    ) -> None:
        place = DEFAULT_DIRECTORY if directory is None else directory
        made = choose_backend(backend, FileBackend, place, defaults=[DEFAULT_DIRECTORY], **options)
        super().__init__(made, owns=backend is None, ttl_seconds=ttl_seconds)


class FileCheckpointer(StorageBackendAdapter[S, FileBackend]):
    """A checkpointer over a directory of JSON files, one per thread.

    Arguments and errors are those of ``FileBackend`` and ``StorageBackendAdapter``. ``base_dir`` is
    the Locus SDK's name for ``directory``, by default ``.locus_checkpoints``.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str] | None = None,
        *,
        base_dir: str | os.PathLike[str] | None = None,
        state_type: type[S] | None = None,
        **options: Unpack[FileCheckpointerOptions],
    ) -> None:
        if directory is not None and base_dir is not None:
            raise InvalidArgumentError("give directory or base_dir, not both")
        chosen = base_dir if directory is None else directory
        own, rest = split_options(CheckpointOptions, options)
        backend = FileBackend(DEFAULT_DIRECTORY if chosen is None else chosen, **rest)
        super().__init__(backend, state_type=state_type, **own)


file_checkpointer = make_factory(
    FileCheckpointer,
    "file_checkpointer",
    "Return a checkpointer over a directory of JSON files; options as ``FileCheckpointer``.",
)


_NEEDS_SPACE = "each save writes its file anew beside the old one; keep_last= bounds files"


def collect_facts(directory: FileDocuments) -> list[Fact]:
    """Return the number of threads, their sizes, and the files that do not belong there."""
    root = directory.root
    if not os.path.isdir(root):
        return [Fact("threads", "none: the first save makes the directory")]
    try:
        ids, wrong = directory.list_threads()
    except IntegrityError as exc:  # of the identity
        return [_make_fault(str(exc))]
    sizes: list[int] = []
    for thread_id in ids:
        try:
            with directory.open_for_reading(encode_name(thread_id)) as file:
                sizes.append(file.signature.size if file else 0)
        except LocusStoreError as exc:
            wrong.append(str(exc))
    return [*_describe_space(root, sizes), *map(_make_fault, wrong)]


def _make_fault(what: str) -> Fact:
    text, _, remedy = what.rpartition("; ")
    return Fact("file", text, "fail", remedy)


def _describe_space(root: str, sizes: list[int]) -> list[Fact]:
    free = shutil.disk_usage(root).free
    is_enough = free > 2 * max(sizes, default=0)
    space = "free space", f"{free:,} bytes"
    return [
        Fact("threads", f"{len(sizes):,} (a file each; {sum(sizes):,} bytes)"),
        Fact(*space, "ok") if is_enough else Fact(*space, "warn", _NEEDS_SPACE),
    ]


class FileStore(DocumentStore):
    """Keeps items in the subdirectory ``store`` of a directory; see ``DocumentStore``.

    Arguments and errors are those of ``FileBackend`` and ``BaseStore``. With ``backend``, its
    directory is used instead.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str] | None = None,
        *,
        dimension: int | None = None,
        metric: Metric = "cosine",
        embed: Embed | None = None,
        backend: FileBackend | None = None,
        **options: Any,
    ) -> None:
        place = DEFAULT_DIRECTORY if directory is None else directory
        made = choose_backend(backend, FileBackend, place, defaults=[DEFAULT_DIRECTORY], **options)
        super().__init__(
            made.items,
            dimension=dimension,
            metric=metric,
            embed=embed,
            max_state_bytes=made.max_state_bytes,
        )
