"""Facts about a directory of threads for ``locus-store doctor``: names and sizes, no contents."""

from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING

from locus_store.backends.file.names import name_of
from locus_store.errors import IntegrityError
from locus_store.types.facts import Fact

if TYPE_CHECKING:
    from collections.abc import Iterable

    from locus_store.backends.file.documents import FileDocuments

_NEEDS_SPACE = "each save writes its file anew beside the old one; keep_last= bounds files"


def facts(directory: FileDocuments) -> list[Fact]:
    """Return the number of threads, their sizes, and the files that do not belong there."""
    root = directory.root
    if not os.path.isdir(root):
        return [Fact("threads", "none: the first save makes the directory")]
    try:
        ids, wrong = directory.listed()
    except IntegrityError as exc:  # of the identity
        return [_fault(str(exc))]
    sizes, others = _sizes(directory, ids)
    return [*_space(root, sizes), *map(_fault, wrong + others)]


def _fault(what: str) -> Fact:
    told, _, remedy = what.rpartition("; ")
    return Fact("file", told, "fail", remedy)


def _sizes(directory: FileDocuments, ids: Iterable[str]) -> tuple[list[int], list[str]]:
    """Return the sizes of the files, and a fact for each one that is not a regular file."""
    sizes: list[int] = []
    wrong: list[str] = []
    for thread_id in ids:
        try:
            sizes.append(directory.size(name_of(thread_id)))
        except IntegrityError as exc:
            wrong.append(str(exc))
    return sizes, wrong


def _space(root: str, sizes: list[int]) -> list[Fact]:
    free = shutil.disk_usage(root).free
    is_enough = free > 2 * max(sizes, default=0)
    space = "free space", f"{free:,} bytes"
    return [
        Fact("threads", f"{len(sizes):,} (a file each; {sum(sizes):,} bytes)"),
        Fact(*space, "ok") if is_enough else Fact(*space, "warn", _NEEDS_SPACE),
    ]
