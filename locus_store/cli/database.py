"""``locus-store db …``: the schema, row security; ``oci …``: a bucket; ``shards …``: databases."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from locus_store.cli.help import add_command, make_group
from locus_store.cli.opening import (
    DEFAULT_PREFIX,
    DEFAULT_URL,
    AsJson,
    Url,
    Yes,
    admit_shard,
    ask,
    open_backend,
    run,
)
from locus_store.cli.output import (
    PROBLEMS,
    confirm,
    format_count,
    note,
    print_line,
    put_json,
    put_outcome,
    select,
    show_progress,
)
from locus_store.errors import InvalidArgumentError, LocusStoreError, UnsupportedError

if TYPE_CHECKING:
    from locus_store.backends.opensearch.backend import IndexStatus
    from locus_store.backends.opensearch.client import IndexClient

db = make_group("Create, upgrade and check the database schema.")

Prefix = Annotated[str, typer.Option(help="Prefix of every table's name.")]
Schema = Annotated[
    str | None, typer.Option(help="Database schema; without it the connection's default.")
]
Revision = Annotated[str, typer.Argument(help="A revision of 'history'.")]


@dataclass(frozen=True, kw_only=True)
class TableOptions:
    """The options of a command on the tables of a database."""

    url: Url = DEFAULT_URL
    schema: Schema = None
    prefix: Prefix = DEFAULT_PREFIX

    @property
    def names(self) -> dict[str, Any]:
        """The arguments of a migration."""
        return {"prefix": self.prefix, "schema": self.schema}

    @property
    def options(self) -> dict[str, Any]:
        """The options of ``open_backend``."""
        return {"prefix": self.prefix} | ({"schema": self.schema} if self.schema else {})

    @property
    def definition(self) -> Any:
        """The operations on the schema of what the URL names."""
        return _Indexes() if self.url.startswith("opensearch") else _import()

    def tell(self, done: str) -> None:
        """Print what was done, after the address of the database."""
        print_line(f"{self.definition.name_place(self.url, **self.names)}: {done}")


@add_command(db)
def upgrade(revision: Revision = "head", *, at: TableOptions) -> None:
    """Create the schema, or upgrade it to a revision."""
    with show_progress("upgrading"):
        reached = at.definition.upgrade(at.url, revision, **at.names)
    at.tell(f"schema revision {reached}")


@add_command(db)
def downgrade(revision: Revision, *, at: TableOptions, yes: Yes = False) -> None:
    """Downgrade the schema to a revision; 'base' deletes every table with its rows."""
    if not yes:
        status = at.definition.check(at.url, **at.names)
        note(status.message)
        lost = _list_losses(status.revision, revision, at.prefix, _count_rows(at))
        deletes = f"deletes {'; '.join(lost)}" if lost else "deletes nothing that is stored"
        confirm(f"This goes down to {revision} and {deletes}.")
    reached = at.definition.downgrade(at.url, revision, **at.names)
    at.tell(f"schema revision {reached or 'none'}")


def _list_losses(
    current: str | None, revision: str, prefix: str, rows: dict[str, str]
) -> list[str]:
    """Return what a downgrade deletes."""
    lost = None if current is None else _import().list_losses(current, revision)
    if lost is None:
        return [f"rows of {table} {count}" for table, count in rows.items()] or ["every table"]
    return [it for table, it in lost.items() if rows.get(prefix + table) not in {"0", ""}]


def _count_rows(at: TableOptions) -> dict[str, str]:
    """Return the number of rows of each table, as far as they can be read."""
    with suppress(LocusStoreError):
        facts = ask(at.url, lambda it: it.facts(), **at.options)
        named = [(it.name.removeprefix("rows of "), it.value) for it in facts]
        return {table: count for table, count in named if table.startswith(at.prefix)}
    return {}


@add_command(db, "current")
def print_revision(*, at: TableOptions, as_json: AsJson = False) -> None:
    """Print the database's revision, or 'none'; --json: {revision}."""
    revision = at.definition.read_revision(at.url, **at.names)
    put_outcome({"revision": revision}, revision or "none", as_json=as_json)


@add_command(db)
def check(*, at: TableOptions, as_json: AsJson = False) -> None:
    """Report whether this library can work on the database; change nothing.

    --json: {state, revision, usable, message}; state is ok, missing, behind, newer, too new,
    foreign or damaged.
    """
    status = at.definition.check(at.url, **at.names)
    if as_json:
        put_json(select(status, ("state", "revision", "usable", "message")))
    else:
        (print_line if status.usable else note)(status.message)
    if not status.usable:
        raise typer.Exit(PROBLEMS)


@add_command(db, "sql")
def print_sql(
    revision: Annotated[str, typer.Argument(help="The target revision, or from:to.")] = "head",
    *,
    dialect: Annotated[str, typer.Option(help="sqlite, postgresql or oracle.")],
    schema: Schema = None,
    prefix: Prefix = DEFAULT_PREFIX,
) -> None:
    """Print the SQL of an upgrade, to be run by hand or by a DBA; needs no database."""
    sys.stdout.write(_import().render_upgrade(dialect, revision, prefix=prefix, schema=schema))


@add_command(db, "search-index")
def search_index(*, at: TableOptions) -> None:
    """Create the full-text index, which makes 'search' fast and takes space; run it once."""
    with show_progress("creating"):
        created = run(_search_index(at))
    at.tell(_describe("the full-text index", is_new=created))


def _describe(what: str, *, is_new: bool) -> str:
    return f"created {what}" if is_new else f"{what} exists already; nothing was changed"


@add_command(db, "vector-index")
def create_vector_index(
    *,
    dimension: Annotated[int, typer.Option(help="Dimensions of the embeddings; permanent.")],
    metric: Annotated[str, typer.Option(help="cosine, l2 or ip.")] = "cosine",
    method: Annotated[str, typer.Option(help="hnsw or ivfflat.")] = "hnsw",
    at: TableOptions,
) -> None:
    """Create the table of embeddings, and its index (pgvector, Oracle); run it once."""
    vectors = importlib.import_module("locus_store.sql.schema.vectors")
    made = vectors.create_vector_index(
        at.url, dimension=dimension, metric=metric, method=method, **at.names
    )
    what = f"the vector index of dimension {dimension} ({metric}, {method})"
    at.tell(_describe(what, is_new=made))


@add_command(db)
def partition(
    *,
    by_line: Annotated[
        int, typer.Option(help="Partitions: a power of two up to 256; 1 makes plain tables again.")
    ],
    at: TableOptions,
) -> None:
    """Divide the tables of versions in PostgreSQL into hash partitions, beside readers and writers.

    It needs the space of the largest table once more. An interrupted run is continued by the next
    one, and undone by one with the present number. Restart the processes that have the database
    open.
    """
    module = importlib.import_module("locus_store.backends.postgresql.partitions")
    with show_progress("copying"):
        waited = module.partition(at.url, by_line, **at.names)
    if waited is None:
        at.tell(f"partitions by line: {by_line} already; nothing was changed")
    else:
        at.tell(f"partitions by line: {by_line}; saves waited for {waited:.2f} s at most")


@add_command(db, "user-ids")
def set_user_id_type(
    users: Annotated[str, typer.Argument(metavar="TYPE", help="string, int or bigint.")],
    *,
    dialect: Annotated[
        str | None,
        typer.Option("--sql", help="Print the SQL for sqlite, postgresql or oracle; run nothing."),
    ] = None,
    at: TableOptions,
) -> None:
    """Keep users' ids as text, or as numbers of 32 or 64 bits.

    It is refused if a thread's user is not such a number. Restart the processes that have the
    database open.
    """
    module = importlib.import_module("locus_store.sql.schema.user_ids")
    if dialect is not None:
        sys.stdout.write(module.render_sql(dialect, users, **at.names))
        return
    changed = module.set_user_id_type(at.url, users, **at.names)
    was = "are now" if changed else "were"
    at.tell(f"users' ids {was} of the type {users}" + ("" if changed else "; nothing was changed"))


async def _search_index(at: TableOptions) -> bool:
    backend = open_backend(at.url, creates=True, **at.options)
    admit_shard(backend)
    async with backend:
        make = getattr(backend, "create_search_index", None)
        if make is None:
            raise UnsupportedError(f"{type(backend).__name__} has no full-text index to make")
        made: bool = await make()
        return made


@add_command(db, "history")
def print_revisions(*, as_json: AsJson = False) -> None:
    """List the revisions that this library knows, oldest first; --json: [{revision, title}]."""
    revisions = _import().list_revisions()
    if as_json:
        put_json([{"revision": revision, "title": title} for revision, title in revisions])
        return
    for revision, title in revisions:
        print_line(f"{revision}  {title}")


def _import() -> Any:
    return importlib.import_module("locus_store.sql.migrate")


class _Indexes:
    """The operations of ``sql.migrate`` on OpenSearch: the mappings of its two indexes."""

    def upgrade(self, url: str, revision: str, *, prefix: str, schema: str | None) -> str:
        """Create the index of threads if there is none; return the version of its mapping.

        Raises:
            InvalidArgumentError: Only ``head`` can be reached.
            SchemaError: This index, or that of the store, has another mapping.
        """
        if revision != "head":
            raise InvalidArgumentError(f"an index is upgraded to 'head' only, not to {revision!r}")
        with _open_indexes(url, prefix, schema) as (threads, store):
            store.get_own_alias()
            threads.create()
            return str(threads.layout.version)

    def downgrade(self, url: str, revision: str, *, prefix: str, schema: str | None) -> str:
        """Refuse: an index has one mapping."""
        raise UnsupportedError(
            f"an index of OpenSearch is not downgraded to {revision!r}; restore a snapshot of it"
        )

    def name_place(self, url: str, *, prefix: str, schema: str | None) -> str:
        """Return the name of the index of threads, as messages have it."""
        with _open_indexes(url, prefix, schema) as (threads, _):
            return str(threads.place)

    def read_revision(self, url: str, *, prefix: str, schema: str | None) -> str | None:
        """Return the version of the mapping of threads."""
        with _open_indexes(url, prefix, schema) as (threads, _):
            return _check_index(threads).revision

    def check(self, url: str, *, prefix: str, schema: str | None) -> IndexStatus:
        """Return the status of the index of threads, or of the store's if that is not usable."""
        with _open_indexes(url, prefix, schema) as both:
            threads, store = map(_check_index, both)
        return store if threads.usable and not store.usable else threads


def _check_index(index: IndexClient) -> IndexStatus:
    module = importlib.import_module("locus_store.backends.opensearch.backend")
    found: IndexStatus = module.check_index(index)
    return found


@contextmanager
def _open_indexes(url: str, prefix: str, schema: str | None) -> Iterator[tuple[IndexClient, ...]]:
    """Yield the indexes of threads and of items of a URL; they have no prefix and no schema."""
    if prefix != DEFAULT_PREFIX or schema is not None:
        raise InvalidArgumentError(
            "an opensearch:// URL names the index: leave out --prefix and --schema"
        )
    backend: Any = open_backend(url)
    items = importlib.import_module("locus_store.backends.opensearch.items")
    store = items.open_item_index(backend.index.place, backend.index.access)
    try:
        yield backend.index, store
    finally:
        store.close()
        run(backend.close())


row_security = make_group("Let PostgreSQL itself keep tenants apart.")

AsSql = Annotated[
    bool, typer.Option("--sql", help="Print the SQL for the owner of the tables; run nothing.")
]
TenantName = Annotated[str, typer.Argument(metavar="TENANT", help="Name of the tenant.")]
RoleName = Annotated[str, typer.Argument(metavar="ROLE", help="A role of the server.")]


def _change_policies(action: str, at: TableOptions, done: str, *values: str, as_sql: bool) -> None:
    module: Any = importlib.import_module("locus_store.backends.postgresql.row_security")
    if as_sql:
        sys.stdout.write(module.render_sql(action, *values, **at.names))
        return
    changed = getattr(module, action.replace("-", "_"))(at.url, *values, **at.names)
    at.tell(done if changed else "nothing was changed")


@add_command(row_security)
def enable(*, as_sql: AsSql = False, at: TableOptions) -> None:
    """Enable row security on all tables with rows of tenants; restore what they lack of it.

    Calls wait for the transaction. A process that has the database open fails one call, and then
    names its tenant.
    """
    _change_policies("enable", at, "row security is enabled", as_sql=as_sql)


@add_command(row_security)
def disable(*, as_sql: AsSql = False, at: TableOptions) -> None:
    """Remove row security; refused while a role is bound to a tenant."""
    _change_policies("disable", at, "row security is disabled", as_sql=as_sql)


@add_command(row_security, "add-role")
def add_role(
    tenant: TenantName, role: RoleName, *, as_sql: AsSql = False, at: TableOptions
) -> None:
    """Bind an existing role to a tenant, and grant it what the library needs."""
    done = f"role {role} sees tenant {tenant!r} only"
    _change_policies("add-role", at, done, tenant, role, as_sql=as_sql)


@add_command(row_security, "remove-role")
def remove_role(role: RoleName, *, as_sql: AsSql = False, at: TableOptions) -> None:
    """Take from a role what add-role granted."""
    done = f"role {role} sees no rows any more"
    _change_policies("remove-role", at, done, role, as_sql=as_sql)


@add_command(row_security, "status")
def show_status(*, at: TableOptions, as_json: AsJson = False) -> None:
    """Print whether row security is enabled, what tables lack of it, and the roles of tenants.

    --json: {enabled, problems, roles}. Problems end with the exit code of 'verify'.
    """
    module: Any = importlib.import_module("locus_store.backends.postgresql.row_security")
    found = module.read(at.url, **at.names)
    if as_json:
        facts = {"enabled": found.is_enabled, "problems": found.problems}
        put_json(facts | {"roles": dict(found.roles)})
    else:
        print_line(f"row security is {'enabled' if found.is_enabled else 'disabled'}")
        for role, tenant in found.roles.items():
            print_line(f"role {role}: tenant {tenant!r}")
        for problem in found.problems:
            note(problem)
    if found.problems:
        raise typer.Exit(PROBLEMS)


oci = make_group("Manage threads in a bucket of OCI.")
shards = make_group("Manage a set of shards.")


@oci.callback()
@shards.callback()
def keep_group() -> None:
    """Keep the only command of a group a command of its own."""


Days = Annotated[int, typer.Option(help="Idle days after which a thread is removed.")]
Write = Annotated[bool, typer.Option("--write", help="Add the rule to the bucket's policy.")]


@add_command(oci, "lifecycle")
def print_lifecycle(*, days: Days = 90, write: Write = False, url: Url = DEFAULT_URL) -> None:
    """Print the lifecycle rule that removes idle threads, as JSON.

    With --write it is added to the bucket's policy, whose other rules stay. The rule covers the
    heads of threads only: run 'threads vacuum' to remove what belonged to them.
    """
    if not url.startswith("oci://"):
        raise InvalidArgumentError("pass --url oci://namespace/bucket/prefix")
    run(_apply_rule(open_backend(url), days, write=write))


async def _apply_rule(backend: Any, days: int, *, write: bool) -> None:
    rules = importlib.import_module("locus_store.backends.oci.lifecycle")
    rule = rules.make_rule(backend.documents.prefix, days)
    try:
        if write:
            others = rules.write(backend.bucket, rule)
            note(f"The rule was written; {format_count(others, 'other rule')} stayed.")
    finally:
        await backend.close()
    put_json(rule)


@add_command(shards)
def rebalance(
    *,
    url: Url = DEFAULT_URL,
    remove: Annotated[
        str | None, typer.Option(help="Remove the shard of this URL, the last one of the list.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Add the databases at the end of a sharded: URL to its set, and move threads to them.

    First restart the applications with the longer URL; they may read and write meanwhile. An
    interrupted rebalance is continued by the next one. --json: {shards, moved}.
    """
    with show_progress("moving"):
        done = run(_rebalance(url, remove))
    text = f"{format_count(done['moved'], 'thread')} moved; the set has {done['shards']} shards"
    put_outcome(done, text, as_json=as_json)


async def _rebalance(url: str, last: str | None) -> dict[str, int]:
    if not url.startswith("sharded:"):
        raise InvalidArgumentError("pass --url 'sharded:URL URL …', the URLs of all shards")
    if last is not None and url.removeprefix("sharded:").split()[-1:] != [last]:
        raise InvalidArgumentError(
            "--remove names the last URL of the list: only the last shard can be removed"
        )
    module = importlib.import_module("locus_store.backends.sharded.rebalance")
    async with open_backend(url, creates=True) as backend:
        done = await module.rebalance(backend, removes_last=last is not None)
    return {"shards": done.shards, "moved": done.moved}
