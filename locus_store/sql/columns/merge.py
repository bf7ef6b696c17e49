"""``MERGE``, which SQLAlchemy has no construct for: insert a row, or replace that of its key."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import sqlalchemy as sa
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.base import Executable

from locus_store.sql.columns.dialect_columns import columns_of
from locus_store.sql.columns.types import now

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sqlalchemy.sql.compiler import SQLCompiler


class Merge(Executable, sa.sql.ClauseElement):
    """A statement that takes a row's columns as parameters.

    Two that make the same row at once may both find none: one of them fails with the error of a
    duplicate key, and must be run again.

    Args:
        table: The table; its primary key identifies the row.
        names: All columns that are bound; what is long stands last, as Oracle asks for.
        clock: Columns that get the server's clock.
    """

    inherit_cache = False

    def __init__(self, table: sa.Table, names: Sequence[str], clock: Sequence[str] = ()) -> None:
        self.table = table
        self.names = names
        self.clock = clock


@compiles(Merge)
def _merge(element: Merge, compiler: SQLCompiler, **kw: Any) -> str:
    table, quote = element.table, compiler.preparer.quote
    keys = [it.name for it in table.primary_key]

    def bound(name: str) -> str:
        return compiler.process(sa.bindparam(name, type_=table.c[name].type), **kw)

    others = {it: compiler.process(now(), **kw) for it in element.clock}
    source = ", ".join(f"{bound(it)} AS {quote(it)}" for it in keys)
    others |= {it: bound(it) for it in element.names if it not in keys}
    no_table = columns_of(compiler.dialect).no_table
    is_same = " AND ".join(f"t.{quote(it)} = s.{quote(it)}" for it in keys)
    update = ", ".join(f"{quote(it)} = {value}" for it, value in others.items())
    columns = ", ".join(map(quote, [*keys, *others]))
    values = ", ".join([*(f"s.{quote(it)}" for it in keys), *others.values()])
    return (
        f"MERGE INTO {compiler.preparer.format_table(table)} t "  # noqa: S608  (ours)
        f"USING (SELECT {source}{no_table}) s ON ({is_same}) "
        f"WHEN MATCHED THEN UPDATE SET {update} "
        f"WHEN NOT MATCHED THEN INSERT ({columns}) VALUES ({values})"
    )
