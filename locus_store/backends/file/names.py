"""Names of the files in a directory, and recognition of the Locus SDK's files."""

from __future__ import annotations

import os
import re
from typing import Final
from urllib.parse import unquote_to_bytes
from zlib import crc32

from locus_store.errors import SchemaError
from locus_store.types.arguments import MAX_ID_CHARACTERS

SUFFIX: Final = ".json"
TEMPORARY: Final = ".tmp"
FOLDER: Final = "+"
"""Ending of a directory's name; the directory holds the rest of a long name."""

IDENTITY: Final = ".locus-store"
"""Name of the file that says which store the directory is; no thread's begins with a dot."""

PIECE_CHARACTERS: Final = 200
"""The longest part of a name: file systems allow 255 bytes, endings included."""

HEAD_BYTES: Final = 4096
"""Enough of a file to see whose it is."""

_PLAIN = frozenset(b"abcdefghijklmnopqrstuvwxyz0123456789-_.")


def encode_name(thread_id: str) -> str:
    """Return the file's name relative to the directory; no two thread ids share one.

    Small letters, digits, ``-``, ``_`` and inner dots are themselves, every other byte is ``%xx``,
    so that no file system takes two names for one. What is longer goes into directories.
    """
    text = "".join(chr(it) if it in _PLAIN else f"%{it:02x}" for it in thread_id.encode())
    cuts = range(0, len(text), PIECE_CHARACTERS)
    pieces = [re.sub(r"^\.", "%2e", text[at : at + PIECE_CHARACTERS]) for at in cuts]
    return f"{FOLDER}/".join(pieces) + SUFFIX


def decode_name(name: str) -> str | None:
    """Return the thread id that has this file name; ``None`` if no id has it."""
    text = name.removesuffix(SUFFIX).replace(f"{FOLDER}/", "")
    try:
        thread_id = unquote_to_bytes(text).decode()
    except UnicodeError:
        return None
    if not 0 < len(thread_id) <= MAX_ID_CHARACTERS or "\0" in thread_id:
        return None
    return thread_id if encode_name(thread_id) == name else None


def escape_path(path: str) -> str:
    """Return a path of any bytes as text that any terminal and JSON can represent."""
    return os.fsencode(path).decode(errors="backslashreplace")


def encode_identity(store: str) -> bytes:
    """Return the content of the identity file."""
    text = f'{{"locus_store_directory":1,"store":"{store}"'
    return f'{text},"check":"{crc32(text.encode()):08x}"}}\n'.encode()


def decode_identity(content: bytes) -> str | None:
    """Return the store that an identity file names; ``None`` if the file is damaged."""
    found = re.match(rb'.*"store":"([0-9a-f]{32})"', content)
    store = found[1].decode() if found else ""
    return store if content == encode_identity(store) else None


_SDK_FILE = re.compile(rb'\s*\{\s*"checkpoint_id":.*"thread_id":', re.DOTALL)


def is_of_sdk(content: bytes) -> bool:
    """Return whether the content begins like a file of the Locus SDK's ``FileCheckpointer``."""
    return _SDK_FILE.match(content[:HEAD_BYTES]) is not None


def make_sdk_refusal(path: str) -> SchemaError:
    """Return the error for such a file, which says what to do with it."""
    return SchemaError(
        f"{escape_path(path)} was written by the FileCheckpointer of the Locus SDK, and is left "
        "as it is; choose another directory, and import its threads with `locus-store import locus`"
    )
