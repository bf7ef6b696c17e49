"""Options that the SQL databases share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal

from typing_extensions import TypedDict

from locus_store.errors import InvalidArgumentError
from locus_store.types.options import Option, StateOptions, read_options

if TYPE_CHECKING:
    from sqlalchemy.engine import Engine
    from sqlalchemy.ext.asyncio import AsyncEngine
else:  # they are slow to import, and each database checks its own
    AsyncEngine = Engine = Any


__all__ = ["AsyncEngine", "Engine", "SqlOptions", "TableName", "refuse_connections", "require_one"]


class SqlOptions(StateOptions, total=False):
    """Of all SQL databases, beside ``table_name``."""

    prefix: Annotated[
        str | None,
        Option(
            None,
            "prefix of the table names, by default `locus_`: ASCII letters, digits and `_`, at most"
            " 52 characters (116 on Oracle). A name with capitals must be quoted in SQL",
        ),
    ]
    tenant: Annotated[str, Option("default", "the tenant whose threads this object sees")]
    audit: Annotated[
        str | None,
        Option(
            None, "records each call that writes or is refused, by this name: [audit](audit.md)"
        ),
    ]
    audit_reads: Annotated[bool, Option(False, "records the calls that read, too")]
    auto_migrate: Annotated[
        bool | Literal["upgrade"],
        Option(True, "see [migrations](migrations.md#automatic-migration)"),
    ]


class TableName(TypedDict, total=False):
    """Of all SQL databases; the second argument of some."""

    table_name: Annotated[
        str | None,
        Option(
            None, "as in the Locus SDK: `x`, `x_checkpoints` and `x_store` mean the prefix `x_`"
        ),
    ]


def require_one(**given: object) -> None:
    """Refuse more than one of several alternative options."""
    names = [name for name, value in given.items() if value is not None]
    if len(names) > 1:
        raise InvalidArgumentError(f"give {' or '.join(names)}, not both")


def refuse_connections(kind: type, options: Mapping[str, object]) -> None:
    """Refuse options of connections that the caller creates.

    Args:
        kind: The class of those options.
        options: The options.

    Raises:
        InvalidArgumentError: Names those that are not the default.
    """
    other = [
        name
        for name, option in read_options(kind).items()
        if options.get(name, option.default) != option.default
    ]
    if other:
        raise InvalidArgumentError(
            f"{', '.join(other)}: the connections of an engine or a pool are its owner's; set it "
            "there, or leave the engine or pool out"
        )
