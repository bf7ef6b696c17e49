"""The files of a directory as documents, by thread id."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from locus_store.backends.documents.protocol import ChangedError, Documents, Found
from locus_store.backends.file.directory import Directory
from locus_store.backends.file.names import (
    decode_name,
    encode_name,
    escape_path,
    is_of_sdk,
    make_sdk_refusal,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from locus_store.backends.documents.protocol import Body, Tag
    from locus_store.backends.file.descriptors import Opened
    from locus_store.backends.file.directory import Held


class HeldFile:
    """Access to a file that is locked for writing."""

    def __init__(self, directory: Directory, held: Held) -> None:
        self.is_removed = False
        self._directory = directory
        self._held = held

    def get(self, key: str, *, known: Tag | None = None) -> Found | None:
        """See ``Access``, also for the following methods."""
        del key
        return _found(self._held.file, known) if self._held.file else None

    def put(self, key: str, body: Body, *, tag: Tag | None) -> Tag:
        del key
        self._require(tag)
        return self._directory.replace(self._held, body)

    def delete(self, key: str, *, tag: Tag) -> None:
        del key
        self._require(tag)
        self._directory.remove(self._held)
        self.is_removed = True

    def _require(self, tag: Tag | None) -> None:
        if tag != (self._held.file.signature if self._held.file else None):
            raise ChangedError


def _found(file: Opened, known: Tag | None) -> Found:
    """Return the content of an open file, unless its signature is ``known``.

    Raises:
        SchemaError: It is of the Locus SDK.
    """
    if file.signature == known:
        return Found(file.signature, None)
    content = file.read_content()
    if is_of_sdk(content):
        raise make_sdk_refusal(file.path)
    return Found(file.signature, content)


class FileDocuments(Directory, Documents):
    """Documents that are files; a writing process locks its file. See ``Directory``."""

    rivals = "a program that locks nothing"
    remedy = "Restore the file, as with `git checkout`, or remove it"

    def open_subdirectory(self, folder: str) -> FileDocuments:
        """Return the documents of a subdirectory, which are no threads."""
        return FileDocuments(self.get_path(folder), self._timeout)

    def get(self, key: str, *, known: Tag | None = None) -> Found | None:
        """See ``Documents``, also for the following methods."""
        with self.open_for_reading(encode_name(key)) as opened:
            return _found(opened, known) if opened else None

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
        with self.lock(name, creates=creates) as held:
            access = HeldFile(self, held)
            yield access
        if access.is_removed:
            self.tidy(name)

    def where(self, key: str) -> str:
        return self.get_path(encode_name(key))

    def strays(self) -> list[str]:
        return self.list_threads()[1]

    def list_threads(self) -> tuple[list[str], list[str]]:
        """Return all thread ids in order, expired ones included, and the faults of other files.

        That is: with those that cannot be a thread's.
        """
        names = {name: decode_name(name) for name in self.iterate_names()}
        ids = sorted(it for it in names.values() if it is not None)
        return ids, [self._misnamed(name) for name in sorted(names) if names[name] is None]

    def _misnamed(self, name: str) -> str:
        return (
            f"{escape_path(self.get_path(name))} is not named as the file of a thread; move it "
            "out of the directory, or give it its name back"
        )
