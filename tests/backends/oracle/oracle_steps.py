"""The statements of Oracle's one-trip save, run one by one on a database that is there."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from locus_store.backends.oracle.append import appending, made_by, values_of
from locus_store.backends.postgresql import PostgreSQLBackend
from locus_store.sql.backend import SqlBackend
from locus_store.types import Mark, Written

if TYPE_CHECKING:
    from collections.abc import Sequence

    from locus_store.types import Save


def in_steps(
    connection: Any, ours: Any, steps: Sequence[Any], values: dict[str, Any]
) -> tuple[int, int] | None:
    """Do a save by its statements, one by one; line and sequence, ``None`` where one met no row."""
    for step in steps:
        found = connection.execute(step.statement, named(step.statement, values))
        if step.must_hit and found.rowcount != 1:
            return None
    made = made_by(ours)
    row = connection.execute(made, named(made, values)).one()
    return row.line, row.head


def named(statement: Any, values: dict[str, Any]) -> dict[str, Any]:
    """Those of the values that a statement is bound to."""
    return {it: values[it] for it in names_of(statement) & values.keys()}


def names_of(statement: Any) -> frozenset[str]:
    """The names of a statement's parameters; compiling takes a millisecond, so they are kept."""
    form = statement._generate_cache_key().key
    if form not in _names:
        _names[form] = frozenset(statement.compile().params)
    return _names[form]


_names: dict[Any, frozenset[str]] = {}


class RefusedError(Exception):
    """The statements leave it to the rules."""


class InKindBackend(PostgreSQLBackend):
    """PostgreSQL by the statements that Oracle gets: its saves, its loads, its ``MERGE``."""

    fetch = SqlBackend.fetch
    fetch_head = SqlBackend.fetch_head
    version = SqlBackend.version
    history = SqlBackend.history
    contents = SqlBackend.contents
    store_writes = SqlBackend.store_writes

    async def commit(self, save: Save) -> Written:
        database = self._database

        def at_once(connection: Any) -> Written:
            values = values_of(save, database.store, database.tenant)
            if values is None:
                raise RefusedError
            steps = appending(
                database.tables,
                is_first=values["its_line"] is None,
                expires=save.ttl_seconds is not None,
            )
            found = in_steps(connection, database.tables, steps, values)
            if found is None:
                raise RefusedError
            mark = Mark(database.store, *found, save.change.shape.digest)
            return Written(save.checkpoint_id, mark, "head")

        async def saved() -> Written:
            try:
                return await home.again(lambda: home.transaction(at_once))
            except RefusedError:
                return await home.again(
                    lambda: home.transaction(lambda it: database.on(it).save(save))
                )

        with self._translating():
            home = await self._runner.home()
            return await home.in_order(save.thread_id, saved)
