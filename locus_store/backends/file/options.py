"""The options of files."""

from __future__ import annotations

from typing import Annotated
from urllib.parse import unquote, urlsplit

from locus_store.errors import InvalidArgumentError
from locus_store.types.options import CheckpointOptions, Option, Patience, StateOptions


class FileOptions(StateOptions, total=False):
    """Of ``FileBackend``, beside ``directory``."""

    busy_timeout_seconds: Annotated[
        Patience, Option(30.0, "how long to wait for another process that writes the same thread")
    ]


class FileCheckpointerOptions(FileOptions, CheckpointOptions, total=False):
    """Of ``FileCheckpointer``, beside the directory and ``state_type``."""


URL_OPTIONS = FileOptions


def parse_place(url: str) -> tuple[dict[str, str], str]:
    """Return the directory in a URL, and its query string; as in RFC 8089.

    Raises:
        InvalidArgumentError: The URL has a host or a fragment, or no directory.
    """
    parts = urlsplit(url)
    if parts.netloc or parts.fragment or not parts.path.strip("/"):
        raise InvalidArgumentError(
            "a file: URL names a directory of this host; write file:///absolute or file:relative,"
            " and %23 for #"
        )
    return {"directory": unquote(parts.path)}, parts.query
