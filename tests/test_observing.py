"""Logs, spans and metrics of operations, which contain no secrets and no content."""

from __future__ import annotations

import asyncio
import logging
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from shutil import copyfile
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import pytest
import servers
from document_probe import DocumentsProbe
from lazily import TESTS_RUN
from tiers import first_of

from locus_store import (
    BaseCheckpointer,
    ConflictError,
    IntegrityError,
    LocusStoreError,
    MemoryBackend,
    MemoryCheckpointer,
    StorageBackend,
    StorageBackendAdapter,
    open_checkpointer,
    postgresql_checkpointer,
)
from locus_store.runtime.observe import observe

if TESTS_RUN:
    from opentelemetry import metrics, trace
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import InMemoryMetricReader
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
    from opentelemetry.trace import SpanKind, StatusCode

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.anyio

ROOT = Path(__file__).parents[1]
SECRET = "s3cr3t"  # noqa: S105
BACKENDS = ["memory", *first_of("sqlite", "postgresql", "redis")]


@pytest.fixture(params=BACKENDS)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "memory":
        return "memory://"
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'checkpoints.db'}"
    return request.getfixturevalue("redis_url" if request.param == "redis" else "migrated_database")


def system(url: str) -> str:
    return url.partition(":")[0]


# --- logging


@pytest.fixture
def logged(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.DEBUG, logger="locus_store")
    return caplog


def lines(caplog: pytest.LogCaptureFixture, level: int) -> list[str]:
    return [
        it.getMessage()
        for it in caplog.records
        if it.name.startswith("locus_store") and it.levelno == level
    ]


async def test_each_operation_is_told_with_its_time_and_sizes(
    url: str, logged: pytest.LogCaptureFixture
) -> None:
    async with open_checkpointer(url, state_type=dict) as checkpointer:
        await checkpointer.save({"said": ["a"]}, "t", "v1")
        await checkpointer.load("t", "v1")
        await checkpointer.list_checkpoints("t")
        await checkpointer.delete("t")
    save, load, listed, deleted = lines(logged, logging.DEBUG)
    assert save.startswith("save: done in ")
    assert "thread_id='t' checkpoint_id='v1' outcome='head' written_bytes=" in save
    assert "read_bytes=" in load
    assert "rows=1" in load
    assert listed.endswith("ms thread_id='t' rows=1")
    assert deleted.endswith("ms thread_id='t' removed=1")


async def test_what_is_opened_and_closed_is_told(
    url: str, logged: pytest.LogCaptureFixture
) -> None:
    async with open_checkpointer(url, state_type=dict) as checkpointer:
        await checkpointer.exists("t")
    told = [it for it in lines(logged, logging.INFO) if not it.startswith("migrated")]
    if system(url) == "memory":  # opens nothing
        assert told == []
    else:
        assert [it.split()[:2] for it in told] == [
            ["opened", system(url)],
            ["closed", system(url)],
        ]


async def test_a_schema_that_is_made_is_told(
    tmp_path: Path, logged: pytest.LogCaptureFixture
) -> None:
    async with open_checkpointer(f"sqlite:///{tmp_path / 'new.db'}") as checkpointer:
        await checkpointer.exists("t")
    told = [it for it in lines(logged, logging.INFO) if it.startswith("migrated the schema of")]
    assert len(told) == 1
    assert "new.db" in told[0]


async def test_an_operation_that_failed_is_told_by_the_class_of_its_error(
    url: str, logged: pytest.LogCaptureFixture
) -> None:
    async with open_checkpointer(url, state_type=dict) as checkpointer:
        with pytest.raises(ConflictError):
            await conflict(checkpointer)
    failed = [it for it in lines(logged, logging.DEBUG) if "ConflictError" in it]
    assert len(failed) == 1
    assert "outcome='conflict'" in failed[0]
    assert lines(logged, logging.WARNING) == []


async def conflict(checkpointer: BaseCheckpointer, **options: Any) -> None:
    """Save a state that another writer overtook."""
    await checkpointer.save({"said": ["a"]}, "t")
    mine = await checkpointer.load("t")
    theirs = await checkpointer.load("t")
    theirs["theirs"] = 1
    await checkpointer.save(theirs, "t")
    mine["mine"] = 1
    await checkpointer.save(mine, "t", **options)


async def test_a_conflict_that_is_kept_as_a_branch_is_a_warning(
    url: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with open_checkpointer(url, state_type=dict) as checkpointer:
        await conflict(checkpointer, checkpoint_id="mine", on_conflict="branch")
    assert lines(caplog, logging.WARNING) == [
        "thread 't' was moved on by another writer; checkpoint 'mine' is kept as a side branch"
    ]


@pytest.mark.parametrize("level", [logging.DEBUG, logging.WARNING])
async def test_damage_is_an_error_told_once(caplog: pytest.LogCaptureFixture, level: int) -> None:
    caplog.set_level(level, logger="locus_store")
    checkpointer = MemoryCheckpointer(state_type=dict)
    await checkpointer.save({"said": SECRET}, "t", "v1")
    DocumentsProbe(checkpointer.backend._documents).damage(lambda it: it[:-3])
    for method in (checkpointer.load, checkpointer.backend.load):
        caplog.clear()
        with pytest.raises(IntegrityError):
            await method("t", "v1")
        (told,) = lines(caplog, logging.ERROR)
        assert told.startswith("load: stored data is damaged (IntegrityError) thread_id='t'")


async def test_nothing_is_told_unless_it_is_asked_for(
    url: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with open_checkpointer(url, state_type=dict) as checkpointer:
        await checkpointer.save({"said": ["a"]}, "t")
        await checkpointer.load("t")
    assert [it for it in caplog.records if it.name.startswith("locus_store")] == []


def test_a_program_without_logging_set_up_hears_nothing() -> None:
    code = """
import asyncio, locus_store
c = locus_store.MemoryCheckpointer(state_type=dict, on_conflict="branch")
async def main():
    await c.save({}, "t"); a = await c.load("t"); b = await c.load("t")
    a["a"] = b["b"] = 1
    await c.save(a, "t"); await c.save(b, "t")
    print(len(await c.list_checkpoints("t")))
asyncio.run(main())
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("3\n", "")


async def everything(checkpointer: StorageBackendAdapter) -> None:
    """Run every kind of operation with secrets in its arguments, failures included."""
    state = {"agent_id": SECRET, "tags": [SECRET], SECRET: [SECRET] * 40, "deep": {SECRET: SECRET}}
    told = {"metadata": {SECRET: SECRET, "user_id": SECRET}}
    await checkpointer.save(state, "t", **told)
    with suppress(ConflictError):
        await conflict(checkpointer, **told)
    await conflict(checkpointer, on_conflict="branch", **told)
    wrong: Any = [{**state, "x": float("nan")}, {**state, "x": {SECRET}}, {SECRET: object()}]
    for bad in wrong:
        with suppress(LocusStoreError, TypeError):
            await checkpointer.save(bad, "t", **told)
        with suppress(LocusStoreError, TypeError):
            await checkpointer.backend.save(bad, "t")
        with suppress(LocusStoreError, TypeError):
            await checkpointer.load(bad)
    with suppress(LocusStoreError):
        await checkpointer.save(state, "t", metadata={SECRET: object()})
    for call in (
        checkpointer.search(SECRET),
        checkpointer.query_by_metadata(SECRET, SECRET),
        checkpointer.list_threads(pattern=SECRET),
        checkpointer.list_with_metadata(),
        checkpointer.get_metadata("t"),
        checkpointer.copy_thread("t", "copy"),
        checkpointer.copy_thread("t", "copy"),
        checkpointer.load("t"),
        checkpointer.load("t", "none"),
        checkpointer.save(state, "t", parent_checkpoint_id="none", **told),
        checkpointer.vacuum(0),
        checkpointer.expire(),
        checkpointer.backend.forget_user(SECRET),
        checkpointer.delete("t"),
    ):
        with suppress(LocusStoreError):
            await call


@pytest.fixture
def root_logged() -> Iterator[list[logging.LogRecord]]:
    """Records of every logger that is ours, whatever takes them."""
    found: list[logging.LogRecord] = []

    class Keeping(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            found.append(record)

    logger, handler = logging.getLogger("locus_store"), Keeping()
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG)
    yield found
    logger.removeHandler(handler)
    logger.setLevel(logging.NOTSET)


async def test_nothing_of_states_metadata_queries_and_passwords_is_told(
    url: str, root_logged: list[logging.LogRecord], telemetry: Telemetry
) -> None:
    if system(url) == "postgresql":
        url = url.replace("postgres@", f"postgres:{quote(SECRET)}@")
    async with open_checkpointer(url, state_type=dict) as checkpointer:
        await everything(checkpointer)
    assert len(root_logged) > 20
    for record in root_logged:
        text = f"{record.getMessage()} {record.__dict__}"
        assert SECRET not in text
    assert telemetry.spans()
    assert SECRET not in "".join(it.to_json() for it in telemetry.exporter.get_finished_spans())
    assert SECRET not in str(telemetry.reader.get_metrics_data())


# --- what goes wrong on the way


async def test_a_save_done_again_after_a_lost_connection_is_told(
    migrated_database: str,
    postgresql: servers.Server,
    caplog: pytest.LogCaptureFixture,
    telemetry: Telemetry,
) -> None:
    proxy = servers.Proxy(postgresql.port)
    try:
        url = proxy.url(postgresql, migrated_database.partition("?")[0].rpartition("/")[2])
        async with postgresql_checkpointer(url, state_type=dict, pool_size=1) as checkpointer:
            for n in range(2):  # the second one prepares the statement
                await checkpointer.save({"n": n}, "t")
            telemetry.clear()
            proxy.swallow_replies()
            saving = asyncio.ensure_future(checkpointer.save({"n": 2}, "t"))
            arrived = "SELECT count(*) FROM locus_checkpoints"
            name = migrated_database.partition("?")[0].rpartition("/")[2]

            def is_there() -> bool:
                return postgresql.value(arrived, database=name) == 3

            await asyncio.to_thread(servers.wait_until, is_there, "the save to arrive")
            proxy.drop()
            proxy.release()
            await saving
    finally:
        proxy.close()
    (span,) = telemetry.spans("save")
    assert span["locus_store.retries"] == 1
    assert span["locus_store.outcome"] == "same"
    assert telemetry.total("locus_store.retries", reason="group") == 1
    told = " ".join(lines(caplog, logging.WARNING))
    assert "group: doing 1 saves of one statement again, one by one, after" in told


async def test_an_idle_connection_that_was_lost_is_told(
    migrated_database: str, postgresql: servers.Server, caplog: pytest.LogCaptureFixture
) -> None:
    proxy = servers.Proxy(postgresql.port)
    try:
        url = proxy.url(postgresql, migrated_database.partition("?")[0].rpartition("/")[2])
        async with postgresql_checkpointer(url, state_type=dict, pool_size=1) as checkpointer:
            await checkpointer.load("t")
            proxy.drop()
            await checkpointer.load("t")
    finally:
        proxy.close()
    assert lines(caplog, logging.WARNING)


async def test_a_database_file_that_was_replaced_is_told(
    tmp_path: Path, migrated: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "replaced.db"
    async with open_checkpointer(f"sqlite:///{path}", state_type=dict) as checkpointer:
        await checkpointer.save({"n": 1}, "t")
        other = tmp_path / "other.db"
        copyfile(migrated, other)
        for log in ("-wal", "-shm"):
            (tmp_path / f"replaced.db{log}").unlink()
        other.replace(path)
        assert await checkpointer.load("t") is None
    assert lines(caplog, logging.WARNING) == [
        "another database was put in the place of the open one; opening it again"
    ]


# --- OpenTelemetry


class Mine(StorageBackend):
    """A backend as a user writes one; where it keeps things is its own affair."""

    def __init__(self) -> None:
        super().__init__()
        self._kept = MemoryBackend()

    async def commit(self, save: Any) -> Any:
        return await self._kept.commit(save)

    async def fetch(self, thread_id: str, **options: Any) -> Any:
        return await self._kept.fetch(thread_id, **options)

    async def history(self, thread_id: str, **options: Any) -> Any:
        return await self._kept.history(thread_id, **options)

    async def remove(self, thread_id: str, checkpoint_ids: Any = None, **options: Any) -> int:
        return await self._kept.remove(thread_id, checkpoint_ids, **options)


if TESTS_RUN:

    class WhileWatched(SimpleSpanProcessor):
        """Keeps nothing of the spans of other tests in this process."""

        is_watching = False

        def on_end(self, span: Any) -> None:
            if self.is_watching:
                super().on_end(span)


class Telemetry:
    """The SDK's own exporters in memory; set once for the process, as the API wants it."""

    def __init__(self) -> None:
        self.exporter = InMemorySpanExporter()
        self.reader = InMemoryMetricReader()
        self.processor = WhileWatched(self.exporter)
        provider = TracerProvider()
        provider.add_span_processor(self.processor)
        trace.set_tracer_provider(provider)
        metrics.set_meter_provider(MeterProvider([self.reader]))
        self._before: dict[Any, float] = {}

    def clear(self) -> None:
        self.exporter.clear()
        self._before = dict(self._points())

    def spans(self, name: str | None = None) -> list[dict[str, Any]]:
        """Attributes of the spans that ended, with what else there is to a span."""
        return [
            {
                **dict(it.attributes or {}),
                "name": it.name,
                "kind": it.kind,
                "status": it.status,
                "events": it.events,
                "parent": it.parent and it.parent.span_id,
                "id": it.context.span_id,
            }
            for it in self.exporter.get_finished_spans()
            if name is None or it.name == f"locus_store.{name}"
        ]

    def total(self, metric: str, **attributes: str) -> float:
        """Return the changes since ``clear``: sums of counters, counts of histograms."""
        wanted = {
            (f"locus_store.{name}" if name in {"reason", "outcome"} else name.replace("_", ".")): it
            for name, it in attributes.items()
        }
        return sum(
            value - self._before.get(key, 0)
            for key, value in self._points().items()
            if key[0] == metric and wanted.items() <= dict(key[1]).items()
        )

    def _points(self) -> dict[Any, float]:
        data = self.reader.get_metrics_data()
        scopes = [
            scope for it in (data.resource_metrics if data else []) for scope in it.scope_metrics
        ]
        return {
            (metric.name, tuple(sorted(point.attributes.items()))): getattr(
                point, "value", getattr(point, "count", 0)
            )
            for scope in scopes
            if scope.scope.name == "locus_store"
            for metric in scope.metrics
            for point in metric.data.data_points
        }


@pytest.fixture(scope="session")
def sdk() -> Telemetry:
    return Telemetry()


@pytest.fixture
def telemetry(sdk: Telemetry) -> Iterator[Telemetry]:
    sdk.clear()
    sdk.processor.is_watching = True
    yield sdk
    sdk.processor.is_watching = False


async def test_an_effect_is_a_span_and_its_call_has_spans_of_its_own(telemetry: Telemetry) -> None:
    async with open_checkpointer("memory://", state_type=dict) as checkpointer:

        async def call(_: str) -> str:
            await checkpointer.save({"n": 1}, "t")
            return "done"

        for _ in range(2):
            await checkpointer.effect("t", "k", call)
        await checkpointer.effects("t")
    found = telemetry.spans()
    names = ["save", "effect", "effect", "effects"]
    assert [it["db.operation.name"] for it in found] == names
    assert [it.get("locus_store.outcome") for it in found] == ["head", None, "known", None]
    assert {it["locus_store.thread_id"] for it in found} == {"t"}


async def test_each_operation_is_one_span_with_what_it_did(url: str, telemetry: Telemetry) -> None:
    async with open_checkpointer(url, state_type=dict) as checkpointer:
        await checkpointer.save({"said": ["a" * 50_000]}, "t", "v1")
        await checkpointer.load("t", "v1")
        await checkpointer.list_checkpoints("t")
        await checkpointer.exists("t")
        await checkpointer.delete("t", "v1")
    found = telemetry.spans()
    names = ["save", "load", "list_checkpoints", "exists", "delete"]
    assert [it["name"] for it in found] == [f"locus_store.{name}" for name in names]
    assert {it["db.system.name"] for it in found} == {system(url)}
    assert [it["db.operation.name"] for it in found] == names
    assert {it["locus_store.thread_id"] for it in found} == {"t"}
    assert {it["status"].status_code for it in found} == {StatusCode.UNSET}
    kind = SpanKind.INTERNAL if url == "memory://" else SpanKind.CLIENT
    assert {it["kind"] for it in found} == {kind}
    save, load, listed, _, deleted = found
    assert save["locus_store.checkpoint_id"] == "v1"
    assert save["locus_store.outcome"] == "head"
    assert load["locus_store.read_bytes"] == save["locus_store.written_bytes"] > 0
    assert load["db.response.returned_rows"] == listed["db.response.returned_rows"] == 1
    assert deleted["locus_store.removed"] == 1
    assert "Backend(" in save["locus_store.backend"]


async def test_each_operation_is_measured(url: str, telemetry: Telemetry) -> None:
    async with open_checkpointer(url, state_type=dict) as checkpointer:
        for n in range(3):
            await checkpointer.save({"n": n}, "t", f"v{n}")
        await checkpointer.load("t", "v1")
        await checkpointer.list_checkpoints("t")
    about = {"db_system_name": system(url)}
    spans = telemetry.spans()
    duration = "db.client.operation.duration"
    total = telemetry.total
    assert total(duration, db_operation_name="save", **about) == 3
    assert total(duration, db_operation_name="load", **about) == 1
    written = sum(it.get("locus_store.written_bytes", 0) for it in spans)
    assert total("locus_store.written", **about) == written > 0
    assert total("locus_store.read", **about) > 0
    assert total("db.client.response.returned_rows", db_operation_name="list_checkpoints") == 1
    assert total("locus_store.conflicts") == total("locus_store.retries") == 0
    groups = total("locus_store.group.size", **about)
    assert groups >= 1 if system(url) in {"sqlite", "postgresql"} else groups == 0


async def test_written_bytes_are_those_of_the_record(url: str, telemetry: Telemetry) -> None:
    async with open_checkpointer(url, state_type=dict) as checkpointer:
        said = [f"line {n}" for n in range(200)]
        await checkpointer.save({"said": said}, "t", "v0")
        await checkpointer.save({"said": [*said, "one more"]}, "t", "v1")
        await checkpointer.save({"said": ["nothing", "in", "common"]}, "t", "v2")
        await checkpointer.save({"said": ["nothing", "in", "common"]}, "t", "v2")
        kept = await checkpointer.backend.read_thread("t")
    records = {it.checkpoint_id: len(it.payload) for it in kept.lines[0].records}
    told = [it["locus_store.written_bytes"] for it in telemetry.spans("save")]
    assert told == [records["v0"], records["v1"], records["v2"], 0]
    assert telemetry.spans("save")[-1]["locus_store.outcome"] == "same"


async def test_a_conflict_is_an_error_of_the_span_and_counted(
    url: str, telemetry: Telemetry
) -> None:
    async with open_checkpointer(url, state_type=dict) as checkpointer:
        with pytest.raises(ConflictError):
            await conflict(checkpointer)
        await conflict(checkpointer, on_conflict="branch")
    lost, *_ = [it for it in telemetry.spans("save") if "error.type" in it]
    assert (lost["error.type"], lost["locus_store.outcome"]) == ("ConflictError", "conflict")
    assert lost["status"].status_code is StatusCode.ERROR
    assert (lost["status"].description, lost["events"]) == ("ConflictError", ())
    assert telemetry.total("locus_store.conflicts", outcome="conflict") == 1
    assert telemetry.total("locus_store.conflicts", outcome="side") == 1
    failed = telemetry.total("db.client.operation.duration", error_type="ConflictError")
    assert failed == 1


async def test_a_cancelled_operation_is_no_error(telemetry: Telemetry) -> None:
    class Hanging(Mine):
        async def fetch(self, *_: Any, **__: Any) -> Any:
            await asyncio.Event().wait()

    task = asyncio.ensure_future(StorageBackendAdapter(Hanging()).load("t"))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    (span,) = telemetry.spans()
    assert span["locus_store.outcome"] == "cancelled"
    assert span["status"].status_code is StatusCode.UNSET


async def test_what_is_no_name_is_told_to_nobody(telemetry: Telemetry) -> None:
    checkpointer: Any = MemoryCheckpointer(state_type=dict)
    for wrong in ("\ud800", "x" * 256, {"a": 1}, None):
        with suppress(LocusStoreError):
            await checkpointer.load(wrong)
    assert len(telemetry.spans()) == 4
    assert not any("locus_store.thread_id" in it for it in telemetry.spans())


async def test_a_span_stands_below_its_callers(telemetry: Telemetry) -> None:
    checkpointer = MemoryCheckpointer(state_type=dict)
    with trace.get_tracer("application").start_as_current_span("turn") as turn:
        await checkpointer.save({}, "t")
    (span,) = telemetry.spans("save")
    assert span["parent"] == turn.get_span_context().span_id


async def test_saves_that_share_a_commit_are_a_span_each_and_one_group(
    migrated_database: str, telemetry: Telemetry
) -> None:
    async with open_checkpointer(migrated_database, state_type=dict) as checkpointer:
        await checkpointer.save({"n": 0}, "t")
        telemetry.clear()
        await asyncio.gather(*(checkpointer.save({"n": n}, f"t{n}") for n in range(40)))
    assert len(telemetry.spans("save")) == 40
    assert 1 <= telemetry.total("locus_store.group.size") < 40


async def test_a_users_backend_is_observed_without_code_of_its_own(
    telemetry: Telemetry,
) -> None:
    checkpointer = StorageBackendAdapter(Mine(), state_type=dict)
    await checkpointer.save({"n": 1}, "t")
    await checkpointer.backend.save("t", {"n": 2})
    assert await checkpointer.backend.load("t") == {"n": 2}
    assert [it["name"] for it in telemetry.spans()] == [
        "locus_store.save",
        "locus_store.save",
        "locus_store.load",
    ]
    assert {it["db.system.name"] for it in telemetry.spans()} == {"mine"}


async def test_a_backend_over_another_one_is_a_span_over_another(telemetry: Telemetry) -> None:
    inner = MemoryCheckpointer(state_type=dict)

    class Relay(Mine):
        async def fetch(self, thread_id: str, **_: Any) -> Any:
            await inner.load(thread_id)

    await StorageBackendAdapter(Relay(), state_type=dict).load("t")
    below, above = telemetry.spans("load")
    assert below["parent"] == above["id"]


def test_every_operation_of_a_checkpointer_is_observed() -> None:
    declared = {
        name
        for name, it in vars(BaseCheckpointer).items()
        if asyncio.iscoroutinefunction(it)
        and not name.startswith("_")
        and name not in {"open", "close", "renewals"}
    }
    ours = vars(StorageBackendAdapter)
    assert {name for name in declared if hasattr(ours.get(name), "__wrapped__")} == declared
    assert hasattr(StorageBackend.write_state, "__wrapped__")
    assert observe.__doc__


def fresh(code: str) -> str:
    """Return the output of a new interpreter."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=False
    )
    assert done.stderr == ""
    return done.stdout.strip()


def test_the_api_is_not_imported_by_us_and_not_needed() -> None:
    save = "asyncio.run(locus_store.MemoryCheckpointer(state_type=dict).save({}, 't', 'v'))"
    code = f"import asyncio, sys, locus_store; print({save}, 'opentelemetry' in sys.modules)"
    assert fresh(code) == "v False"
    blocked = "import sys; sys.modules['opentelemetry'] = None\n" + code.replace(
        ", 'opentelemetry' in sys.modules", ""
    )
    assert fresh(blocked) == "v"


def test_the_api_without_an_sdk_changes_nothing() -> None:
    code = """
import asyncio, opentelemetry.trace, opentelemetry.metrics, locus_store
c = locus_store.MemoryCheckpointer(state_type=dict)
async def main():
    await c.save({"n": 1}, "t")
    print(await c.load("t"))
asyncio.run(main())
"""
    assert fresh(code) == "{'n': 1}"


def test_a_provider_that_is_set_after_the_first_call_is_told() -> None:
    code = """
import asyncio, opentelemetry.trace, opentelemetry.metrics, locus_store
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
c = locus_store.MemoryCheckpointer(state_type=dict)
exporter = InMemorySpanExporter()
async def main():
    await c.save({"n": 1}, "t")
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    opentelemetry.trace.set_tracer_provider(provider)
    await c.load("t")
    print([it.name for it in exporter.get_finished_spans()])
asyncio.run(main())
"""
    assert fresh(code) == "['locus_store.load']"


def test_a_meter_alone_is_told() -> None:
    code = """
import asyncio, opentelemetry.metrics, locus_store
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
c = locus_store.MemoryCheckpointer(state_type=dict)
reader = InMemoryMetricReader()
async def main():
    await c.save({"n": 1}, "t")
    opentelemetry.metrics.set_meter_provider(MeterProvider([reader]))
    await c.load("t")
    scopes = reader.get_metrics_data().resource_metrics[0].scope_metrics
    print("db.client.operation.duration" in [it.name for scope in scopes for it in scope.metrics])
asyncio.run(main())
"""
    assert fresh(code) == "True"


def test_a_provider_that_the_environment_names_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_PYTHON_TRACER_PROVIDER", "sdk_tracer_provider")
    code = """
import asyncio, sys, opentelemetry.trace, locus_store
asyncio.run(locus_store.MemoryCheckpointer(state_type=dict).save({"n": 1}, "t"))
print("opentelemetry.sdk.trace" in sys.modules)
"""
    assert fresh(code) == "True"


@pytest.mark.full
def test_the_example_prints_spans_and_metrics(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", ROOT / "examples" / "telemetry.py"],
        capture_output=True,
        text=True,
        check=True,
        cwd=tmp_path,
    )
    assert done.stderr == ""
    for name in ("locus_store.save", "locus_store.load", "db.client.operation.duration"):
        assert f'"name": "{name}"' in done.stdout


def test_every_metric_and_attribute_is_in_the_page(telemetry: Telemetry) -> None:
    asyncio.run(everything(MemoryCheckpointer(state_type=dict)))
    page = (ROOT / "docs" / "operations.md").read_text("utf-8")
    ours = {"name", "kind", "status", "events", "parent", "id"}
    named = {key for span in telemetry.spans() for key in span.keys() - ours}
    assert len(named) > 8
    metrics = {name for name, _ in telemetry._points()} | {"locus_store.group.size"}
    assert {it for it in named | metrics if f"`{it}`" not in page} == set()


def test_an_api_that_is_too_old_is_left_alone() -> None:
    code = """
import asyncio, sys, types
import opentelemetry.metrics
def old(name, unit="", description=""): raise AssertionError
opentelemetry.metrics.get_meter = lambda *a, **k: types.SimpleNamespace(create_histogram=old)
import locus_store
print(asyncio.run(locus_store.MemoryCheckpointer(state_type=dict).save({}, "t", "v")))
"""
    assert fresh(code) == "v"
