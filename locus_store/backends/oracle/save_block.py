"""A plain append as one PL/SQL block: one round trip; the server decides and commits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from locus_store.backends.oracle.append import appending, made_by
from locus_store.types import Mark, Written

if TYPE_CHECKING:
    from collections.abc import Mapping

    import sqlalchemy as sa
    from sqlalchemy.engine import Connection, Dialect

    from locus_store.sql.schema.tables import Tables
    from locus_store.types import Save

RAW_BYTES: Final = 32_767
"""A PL/SQL block takes so much at once; more is written to a temporary LOB first."""


class OneTrip:
    """A plain append as one PL/SQL block, which detects a conflict on the server and commits."""

    def __init__(self, tables: Tables, dialect: Dialect) -> None:
        self._tables = tables
        self._dialect = dialect
        self._blocks: dict[tuple[bool, bool], _Block] = {}

    def save(self, connection: Connection, save: Save, values: Mapping[str, Any]) -> Written | None:
        """Save ``values`` (of ``values_of``); return ``None`` if the rules have to decide."""
        block = self._block(
            is_first=values["its_line"] is None, expires=save.ttl_seconds is not None
        )
        cursor: Any = connection.connection.cursor()
        try:
            made = {it: cursor.var(int) for it in ("won", "made_line", "made_sequence")}
            cursor.setinputsizes(**block.sizes(values))
            cursor.execute(block.text, {**block.bound(values), **made})
            won, line, sequence = (it.getvalue() for it in made.values())
        finally:
            cursor.close()
        if not won:
            return None
        mark = Mark(values["its_store_id"], int(line), int(sequence), save.change.shape.digest)
        return Written(save.checkpoint_id, mark, "head")

    def _block(self, *, is_first: bool, expires: bool) -> _Block:
        key = is_first, expires
        if key not in self._blocks:
            self._blocks[key] = self._made(is_first=is_first, expires=expires)
        return self._blocks[key]

    def _made(self, *, is_first: bool, expires: bool) -> _Block:
        types: dict[str, sa.types.TypeEngine[Any]] = {}

        def text(statement: Any) -> str:
            compiled: Any = statement.compile(dialect=self._dialect)
            types.update({name: it.type for name, it in compiled.binds.items()})
            return str(compiled).replace(f":{_PAYLOAD}", "p_payload").replace("\n", " ")

        table = self._dialect.identifier_preparer.format_table(self._tables.checkpoints)
        lines = [f"LOCK TABLE {table} IN ROW EXCLUSIVE MODE;"]  # nobody makes the index meanwhile
        for step in appending(self._tables, is_first=is_first, expires=expires):
            lines.append(f"{text(step.statement)};")
            if step.must_hit:
                lines.append("IF SQL%ROWCOUNT <> 1 THEN RAISE refused; END IF;")
        made = text(made_by(self._tables))
        lines.append(made.replace(" FROM ", " INTO p_line, p_sequence FROM ", 1) + ";")
        return _Block(_BLOCK.format(body="\n  ".join(lines)), types, self._dialect)


_cache: dict[tuple[Tables, type[Dialect]], OneTrip] = {}


def one_trip(tables: Tables, dialect: Dialect) -> OneTrip:
    """Return the blocks of ``tables``, compiled once per process and dialect."""
    key = (tables, type(dialect))
    if key not in _cache:
        _cache[key] = OneTrip(tables, dialect)
    return _cache[key]


_PAYLOAD: Final = "its_payload"


class _Block:
    """A PL/SQL block, and its parameters' types for the driver."""

    def __init__(
        self, text: str, types: Mapping[str, sa.types.TypeEngine[Any]], dialect: Dialect
    ) -> None:
        self.text = text
        dbapi: Any = dialect.dbapi
        self._lob = dbapi.DB_TYPE_BLOB
        kinds = {name: it.dialect_impl(dialect) for name, it in types.items()}
        self._converts = {name: it.bind_processor(dialect) for name, it in kinds.items()}
        sizes = {name: it.get_dbapi_type(dbapi) for name, it in kinds.items()}
        self._sizes = {name: it for name, it in sizes.items() if it is not None}

    def bound(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return the parameters, as the driver takes them."""
        return {
            name: convert(values[name]) if convert else values[name]
            for name, convert in self._converts.items()
        }

    def sizes(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return the types of the parameters."""
        is_long = len(values[_PAYLOAD]) > RAW_BYTES
        return {**self._sizes, _PAYLOAD: self._lob} if is_long else self._sizes


_BLOCK: Final = """\
DECLARE
  refused EXCEPTION;
  p_payload BLOB := :its_payload;
  p_line NUMBER;
  p_sequence NUMBER;
BEGIN
  {body}
  COMMIT;
  :won := 1;
  :made_line := p_line;
  :made_sequence := p_sequence;
EXCEPTION
  WHEN refused THEN
    ROLLBACK;
    :won := 0;
    :made_line := 0;
    :made_sequence := 0;
  WHEN OTHERS THEN
    ROLLBACK;
    RAISE;
END;"""
