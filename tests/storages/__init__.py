"""The storages that tests run on, in one table; ``pytest --storage redis`` chooses rows by name."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from importlib import import_module
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

EVERY = ("checkpointer", "backend", "store", "log")


@dataclass(frozen=True)
class Kind:
    """A row of the table: one storage, or one way to it."""

    made_by: str
    """Module of this folder and class, a ``Storage``."""

    contracts: tuple[str, ...] = EVERY
    """The contracts that it keeps."""

    seams: frozenset[str] = frozenset()
    """Of a wrapper: what it changes. It runs the tests with the mark of one of these seams."""

    everyday: tuple[str, ...] = ()
    """What ``make test`` runs here: modules of ``locus_store.testing``, tests, or ``*`` for all."""

    without: frozenset[str] = frozenset()
    """Tests that ask for what this way to a storage does not give; its page says so."""

    def runs(self, contract: str, test: Callable[..., Any]) -> bool:
        """Return whether a contract's test runs on this storage."""
        if test.__name__ in self.without:
            return False
        seams = frozenset({"state"}) if contract in STATES else self.seams
        return not seams or bool(seams & getattr(test, "seams", frozenset()))

    def runs_everyday(self, test: Callable[..., Any]) -> bool:
        """Return whether ``make test`` runs the test here."""
        if test.__name__ in LONG and self.made_by not in {"memory.Memory", "sqlite.OnFile"}:
            return False
        names = {"*", test.__module__.rpartition(".")[2], test.__name__}
        return not names.isdisjoint(self.everyday)

    def storage(self, request: Any, shared: dict[Any, Any] | None = None) -> Storage:
        """Return an empty storage for a test; see it for ``shared``."""
        module, name = self.made_by.split(".")
        made: Storage = getattr(import_module(f"storages.{module}"), name)(request)
        if not self.seams:
            made.shared = shared
        return made


class Storage:
    """An empty storage of a test's own; it gives the object of each contract that its row names.

    Args:
        request: Pytest's, of the test.
    """

    persists = True
    """Objects share what is stored."""

    tenant: Mapping[str, str] = MappingProxyType({})
    """The options of a tenant of the test's own, if it has one."""

    shared: dict[Any, Any] | None = None
    """Open objects that several tests share, each for its own tenant."""

    def __init__(self, request: Any) -> None:
        self.request = request

    def fixture(self, name: str) -> Any:
        """Return the value of a fixture."""
        return self.request.getfixturevalue(name)

    def own_tenant(self) -> dict[str, str]:
        """Return the options of a tenant of the test's own, in a database that tests share.

        A test that looks below the storage or is about tenants has a database, and no options.
        """
        node = self.request.node
        function = getattr(node, "function", None)  # the machines have no node of their own
        is_alone = function is None or function.__module__.endswith(".tenants")
        return {} if is_alone or "storage" in node.fixturenames else {"tenant": uuid.uuid4().hex}

    def new(self, factory: Callable[..., Any], place: Any, **options: Any) -> Any:
        """Return an object for the test's tenant.

        The first one of a test has the connections of a shared object: to open connections and to
        compile statements takes most of the time of a test.
        """
        shared, self.shared = self.shared, None
        if shared is None or not self.tenant:
            return factory(place, **self.tenant, **options)
        key = (factory, place, *options.items())
        if key not in shared:
            shared[key] = factory(place, **options)
        return shared[key].for_tenant(**self.tenant)

    async def open(self) -> None:
        """Prepare the storage, in the event loop of the test."""

    async def close(self) -> None:
        """Release what ``open`` made."""

    def checkpointer(self, **options: Any) -> Any:
        """Return a checkpointer on the storage, with a factory's options."""
        raise NotImplementedError

    def backend(self) -> Any:
        """Return a backend on the storage."""
        raise NotImplementedError

    def store(self, **options: Any) -> Any:
        """Return a store on the storage; its ``dimension`` is 3 unless given."""
        raise NotImplementedError

    def log(self, **options: Any) -> Any:
        """Return a message log on the storage."""
        raise NotImplementedError

    def probe(self) -> Any:
        """Return access below the storage."""
        return None

    def check(self) -> None:
        """Check what holds for the stored data after any test."""


def wraps(*seams: str) -> frozenset[str]:
    return frozenset(seams)


STATES: Final = ("states", "locus states")
"""Checkpointers with states of other classes run the tests of the seam ``state``."""

THREADS: Final = ("checkpointer", "backend")
LOCUS: Final = (*THREADS, "locus states")
ONE: Final = ("checkpointer",)

ALL: Final = ("*",)
HALF: Final = (
    "conflicts", "deleting", "history", "steps", "existing", "store", "store_items", "messages",
    "message_rules", "test_every_operator_takes_what_its_examples_say",
)  # fmt: skip
"""Half of the contracts: what PostgreSQL and Redis do in statements and scripts of their own."""

OF_ALL_TENANTS: Final = frozenset({
    "test_many_tenants_at_once_lose_nothing",
    "test_tenants_are_listed_by_name_with_what_they_have",
    "test_vacuum_removes_of_its_own_tenant_only",
    "test_expire_removes_of_its_own_tenant_only",
})  # fmt: skip
"""Tests that list all tenants, as only the owner of the tables may under row security."""

WITHOUT_KEYS: Final = frozenset({
    # The client chooses another id, and repeats a request below that.
    "test_a_losing_save_whose_answer_was_lost_is_kept_once",
    # The service joins records of removed versions unread, whatever they make.
    "test_a_save_is_not_failed_by_its_sweep",
    "test_a_later_save_sweeps_what_an_earlier_one_left",
    "test_deleting_beside_a_version_above_the_limit_names_it",
    "test_vacuum_goes_on_behind_a_thread_above_the_limit",
    # Pending writes are stored whole.
    "test_a_write_may_be_what_changed_in_its_checkpoint",
    "test_a_checkpoint_that_is_replaced_keeps_its_writes_whole",
    "test_a_checkpoint_that_is_saved_again_keeps_its_writes",
    "test_a_deletion_before_leaves_a_change_readable",
    "test_a_thread_is_copied_with_its_changes",
})  # fmt: skip
"""Tests of what a service cannot do with records that its clients have sealed."""

LONG: Final = frozenset({
    "test_1100_versions_are_deleted",
    "test_250_versions_are_listed_through_pages_of_100",
    "test_any_edits_leave_every_version_exact",
})  # fmt: skip
"""Long tests, which ``make test`` runs in memory and on SQLite."""

SHARDED: Final = ("finding", "version_lists", "message_pages")
"""The contracts whose answers come from several shards."""

STORAGES: Final = {
    "memory": Kind("memory.Memory", (*EVERY, "states"), everyday=ALL),
    "memory-blocking": Kind("memory.Blocking", ("store",), wraps("loop"), ALL),
    "bare": Kind("memory.Bare", ONE),
    "memory-encrypted": Kind("encrypted.Memory", EVERY),
    "file": Kind("file.Files", (*EVERY, "locus states"), everyday=("messages", "message_rules")),
    "file-encrypted": Kind("encrypted.Files", EVERY),
    "file-blocking": Kind("file.Blocking", ONE, wraps("loop")),
    "drawer": Kind("objects.OfDrawer", EVERY),
    "objects": Kind("objects.OnShelf", EVERY, everyday=ALL),
    "objects-segments": Kind("objects.Segments", EVERY),
    "oci": Kind("oci.OnBucket", (*EVERY, "locus states")),
    "oci-encrypted": Kind("encrypted.OnOCIBucket", EVERY),
    "oci-blocking": Kind("oci.Blocking", ONE, wraps("loop")),
    "opensearch": Kind("opensearch.OnIndex", (*EVERY, "locus states")),
    "opensearch-encrypted": Kind("encrypted.OnIndex", EVERY),
    "opensearch-blocking": Kind("opensearch.Blocking", ("checkpointer", "store"), wraps("loop")),
    "sqlite": Kind("sqlite.OnFile", (*EVERY, "locus states"), everyday=ALL),
    "sqlite-audited": Kind("sqlite.Audited", EVERY, wraps("connection", "layout")),
    "sqlite-encrypted": Kind("encrypted.OnFile", EVERY, everyday=("steps", "backend")),
    "sqlite-blocking": Kind("sqlite.Blocking", ONE, wraps("loop"), ALL),
    "sqlite-index": Kind("sqlite.Indexed", ONE, wraps("search")),
    "sqlite-segments": Kind("sqlite.Joined", ONE, wraps("layout")),
    "sqlite-memory": Kind("sqlite.InMemory", ONE, wraps("connection")),
    "sqlite-engine": Kind("sqlite.OverEngine", ONE, wraps("connection"), ALL),
    "sqlite-async-engine": Kind("sqlite.OverAsyncEngine", ONE, wraps("connection")),
    "portable": Kind("sqlite.Portable", THREADS),
    "postgresql": Kind("postgresql.OnServer", (*EVERY, "locus states"), everyday=HALF),
    "postgresql-audited": Kind("postgresql.Audited", EVERY, wraps("connection", "layout")),
    "postgresql-encrypted": Kind("encrypted.OnServer", EVERY, everyday=("steps",)),
    "postgresql-ungrouped": Kind("postgresql.Ungrouped", ONE, wraps("connection")),
    "postgresql-segments": Kind("postgresql.Joined", ONE, wraps("layout")),
    "postgresql-partitions": Kind("postgresql.Divided", THREADS),
    "postgresql-row-security": Kind(
        "postgresql.Secured", (*EVERY, "locus states"), without=OF_ALL_TENANTS
    ),
    "postgresql-index": Kind("postgresql.Indexed", ONE, wraps("search")),
    "postgresql-engine": Kind("postgresql.OverEngine", ONE, wraps("connection")),
    "postgresql-pool": Kind("postgresql.OverPool", ONE, wraps("connection")),
    "postgresql-pgbouncer": Kind("postgresql.OverPgBouncer", ONE, wraps("connection")),
    "oracle-statements": Kind("postgresql.OracleStatements", THREADS),
    "oracle-double": Kind("oracle.Double"),
    "oracle-encrypted": Kind("encrypted_oracle.OnDouble", EVERY),
    "oracle-segments": Kind("oracle.Joined", ONE, wraps("layout")),
    "redis": Kind("redis.OnValkey", (*EVERY, "locus states"), everyday=HALF),
    "redis-encrypted": Kind("encrypted.OnValkey", EVERY),
    "redis-7": Kind("redis.OnRedis7", (*ONE, "store"), wraps("connection", "layout")),
    "redis-cluster": Kind("redis.OnCluster", (*THREADS, "store"), wraps("connection", "layout")),
    "redis-client": Kind("redis.OverClient", ONE, wraps("connection")),
    "redis-cluster-client": Kind("redis.OverClusterClient", ONE, wraps("connection")),
    "redis-blocking": Kind("redis.Blocking", (*ONE, "store"), wraps("loop")),
    "s3": Kind("s3.OnService", (*EVERY, "locus states")),
    "s3-encrypted": Kind("encrypted.OnBucket", EVERY),
    "sharded": Kind("sharded.OfFiles", everyday=SHARDED),
    "sharded-encrypted": Kind("encrypted.OfFiles", everyday=("message_pages",)),
    "sharded-postgresql": Kind("sharded.OfServers"),
    "sharded-postgresql-encrypted": Kind("encrypted.OfServers"),
    "http": Kind("http.OverMemory", everyday=("minimal", "steps", "store_items", "message_rules")),
    "http-sqlite": Kind("http.OverSQLite", EVERY, wraps("connection")),
    "http-encrypting": Kind("encrypted.AtService", EVERY, everyday=("minimal",)),
    "http-encrypted": Kind(
        "encrypted.OverSQLite", EVERY, everyday=("minimal",), without=WITHOUT_KEYS
    ),
    "http-encrypted-postgresql": Kind(
        "encrypted.OverPostgreSQL", (*THREADS, "log"), without=WITHOUT_KEYS
    ),
    "http-postgresql": Kind("http.OverPostgreSQL", (*THREADS, "log"), wraps("connection")),
}


def chosen(
    contract: str, test: Callable[..., Any], *, names: list[str], is_everyday: bool
) -> Iterator[Any]:
    """Yield the storages on which a contract's test runs, as parameters.

    Args:
        contract: A word of a row's ``contracts``.
        test: The function.
        names: Of rows, or how they begin; all rows if it is empty.
        is_everyday: Take what ``make test`` runs.
    """
    for name, kind in STORAGES.items():
        is_named = any(name == it or name.startswith(f"{it}-") for it in names)
        if contract in kind.contracts and is_named >= bool(names) and kind.runs(contract, test):
            if kind.runs_everyday(test):
                yield name
            elif not is_everyday:
                yield pytest.param(name, marks=pytest.mark.full)
