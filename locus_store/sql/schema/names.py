"""Names in the database: the tables' prefix, and names derived from it."""

from __future__ import annotations

import hashlib
import re
from typing import Final

from locus_store.errors import InvalidArgumentError
from locus_store.types.arguments import check_text

DEFAULT_PREFIX: Final = "locus_"

MAX_NAME: Final = 63
"""Characters of a name in PostgreSQL; indexes and constraints keep to it everywhere."""

_LONGEST_TABLE: Final = "checkpoints"
_MAX_TABLE_NAME: Final = {"postgresql": MAX_NAME, "oracle": 128, "sqlite": 255}
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_HASH_CHARACTERS: Final = 8


def derived(name: str) -> str:
    """Return the name of an index or constraint, shortened to 63 characters by a hash."""
    if len(name) <= MAX_NAME:
        return name
    digest = hashlib.sha256(name.encode()).hexdigest()[:_HASH_CHARACTERS]
    return f"{name[: MAX_NAME - _HASH_CHARACTERS - 1]}_{digest}"


def max_prefix(dialect: str) -> int:
    """Return the longest prefix, in characters, that lets every table's name fit."""
    return _MAX_TABLE_NAME.get(dialect, MAX_NAME) - len(_LONGEST_TABLE)


def check_prefix(prefix: str, dialect: str = "sqlite") -> str:
    """Return the prefix if it is valid.

    Raises:
        InvalidArgumentError: It cannot start the name of a table.
    """
    _check("prefix", prefix, max_prefix(dialect), dialect, DEFAULT_PREFIX)
    return prefix


def check_schema(schema: str) -> None:
    """Refuse the name of a database schema that PostgreSQL would cut, or a statement misread.

    Raises:
        InvalidArgumentError: It is longer than 63 bytes, or has a colon.
    """
    check_text("schema", schema, minimum=0)
    if len(schema.encode()) > MAX_NAME or ":" in schema:
        raise InvalidArgumentError(
            f"schema={schema!r} must have at most {MAX_NAME} bytes in UTF-8, and no colon"
        )


def prefix_of(table_name: str | None, prefix: str | None, dialect: str) -> str:
    """Return the prefix for a ``table_name`` of the Locus SDK.

    Raises:
        InvalidArgumentError: Both are given, or the one given cannot start the name of a table.
    """
    if table_name is None:
        return check_prefix(DEFAULT_PREFIX if prefix is None else prefix, dialect)
    if prefix is not None:
        raise InvalidArgumentError("give table_name or prefix, not both")
    if not isinstance(table_name, str):
        raise InvalidArgumentError(f"table_name={table_name!r} must be a str")
    stem = table_name.removesuffix("_checkpoints").removesuffix("_store").rstrip("_")
    most = max_prefix(dialect) - 1 + len(table_name) - len(stem)
    _check("table_name", table_name, most, dialect, "locus_checkpoints")
    if not stem:
        raise InvalidArgumentError(f"table_name={table_name!r} names no table")
    return f"{stem}_"


def _check(argument: str, name: object, most: int, dialect: str, example: str) -> None:
    if not isinstance(name, str) or not _NAME.fullmatch(name) or len(name) > most:
        raise InvalidArgumentError(
            f"{argument}={name!r} must be a letter or _, then letters, digits and _, with at most "
            f"{most} characters in all on {dialect}, for example {example!r}"
        )
