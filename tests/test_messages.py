"""Message logs: by URL, over a backend, behind the blocking facade, and after a lost reply."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from lazily import TESTS_RUN
from test_round_trips import sqlite_statements

from locus_store import (
    ConflictError,
    ConnectionFailedError,
    FileMessageLog,
    InMemoryMessageLog,
    InvalidArgumentError,
    NewMessage,
    PostgreSQLMessageLog,
    SQLiteMessageLog,
    blocking,
    open_checkpointer,
    open_message_log,
)
from locus_store.backends import FileBackend, MemoryBackend, SQLiteBackend
from locus_store.messages import BaseMessageLog

if TESTS_RUN:
    from locus_store.backends import RedisBackend

if TYPE_CHECKING:
    from pathlib import Path

    from locus_store.types.messages import LogChange, LogChanged

pytestmark = pytest.mark.anyio


async def test_a_url_names_a_message_log(tmp_path: Path, migrated_database: str) -> None:
    kinds = {
        f"sqlite:///{tmp_path / 'a.db'}?ttl_seconds=60&keep_last=3": SQLiteMessageLog,
        migrated_database: PostgreSQLMessageLog,
        f"file:{tmp_path}?busy_timeout_seconds=3": FileMessageLog,
        "memory://": InMemoryMessageLog,
    }
    for url, kind in kinds.items():
        async with open_message_log(url) as log:
            assert type(log) is kind
            assert log.ttl_seconds == (60 if "ttl" in url else None)
            await log.append("t", [NewMessage(1)])
            assert len(await log.load("t") or ()) == 1
    assert open_message_log("memory://?ttl_seconds=60", ttl_seconds=5).ttl_seconds == 5


@pytest.mark.parametrize("url", ["nothing://x", "x.db"])
def test_a_url_without_a_message_log_is_refused(url: str) -> None:
    with pytest.raises(InvalidArgumentError):
        open_message_log(url)


def test_backends_declare_whether_they_have_message_logs(tmp_path: Path) -> None:
    backends = (MemoryBackend(), SQLiteBackend(":memory:"), FileBackend(tmp_path))
    assert [it.capabilities.messages for it in backends] == [True, True, True]
    assert RedisBackend.messages


async def test_a_log_over_a_checkpointers_backend_leaves_it_open(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'a.db'}"
    async with open_checkpointer(url, state_type=dict) as checkpointer:
        log = SQLiteMessageLog(backend=checkpointer.backend)
        await checkpointer.save({"n": 1}, "t")
        await log.append("t", [NewMessage("a")])
        await log.close()
        assert await checkpointer.load("t") == {"n": 1}
        assert await checkpointer.delete("t") is True
        assert await log.load("t") is None
        with pytest.raises(InvalidArgumentError, match="backend= alone"):
            SQLiteMessageLog("b.db", backend=checkpointer.backend)
        with pytest.raises(InvalidArgumentError, match="must be of class MemoryBackend"):
            InMemoryMessageLog(backend=checkpointer.backend)
    with pytest.raises(InvalidArgumentError, match="backend= alone"):
        InMemoryMessageLog(backend=MemoryBackend(), max_state_bytes=1000)


@pytest.mark.parametrize("kind", ["sqlite", "postgresql", "memory"])
def test_a_blocking_log_has_every_method(kind: str, request: Any, tmp_path: Path) -> None:
    urls = {"sqlite": f"sqlite:///{tmp_path / 'a.db'}", "memory": "memory://"}
    url = urls.get(kind) or request.getfixturevalue("migrated_database")
    with blocking.open_message_log(url) as log:
        log.open()
        revision = log.append("t", [NewMessage("a", message_id="a")], metadata={"k": 1})
        assert log.replace("t", 1, [("b", "user", "b"), ("c", "user", "c")]) > revision
        assert log.pop("t").message.content == "c"
        assert [it.content for it in log.load("t", newest=1)] == ["b"]
        assert log.read("t").info == log.info("t") == log.logs("t")[0] == log.heads("t")[0].info
        assert [it.message_id for it in log.page("t", search="A")] == ["a"]
        assert log.get("t", "a").metadata == {"k": 1}
        with pytest.raises(ConflictError):
            log.remove("t", ["a"], expected_revision=1)
        log.remove("t", ["a"])
        log.clear("t")
        assert log.load("t") == []
        assert log.delete("t") is True
        if kind != "memory":
            log.for_tenant("acme").append("t", [NewMessage(1)])
            assert log.load("t") is None


async def test_reading_a_log_takes_one_statement(tmp_path: Path) -> None:
    with sqlite_statements() as sent:
        log = SQLiteMessageLog(tmp_path / "a.db")
        await log.open()
        await log.append("t", [NewMessage(n, message_id=f"m{n}") for n in range(300)])
        calls: tuple[Any, ...] = (
            lambda: log.load("t"), lambda: log.load("t", newest=3), lambda: log.get("t", "m3"),
            lambda: log.page("t", after="m3"), lambda: log.info("t"), lambda: log.logs(prefix="t"),
            lambda: log.heads(prefix="t"),
        )  # fmt: skip
        for call in calls:
            sent.clear()
            await call()
            assert len([it for it in sent if it.startswith("SELECT")]) == 1
        await log.close()


class LosesReplies(BaseMessageLog):
    """A log whose first reply to each change is lost, after the change or before."""

    is_done = True

    async def change(self, change: LogChange) -> LogChanged:
        is_first, self.__dict__["seen"] = self.__dict__.get("seen") is not change, change
        if is_first and not self.is_done:
            raise ConnectionFailedError("lost before")
        changed = await super().change(change)
        if is_first:
            raise ConnectionFailedError("lost behind")
        return changed


class MemoryLosesReplies(LosesReplies, InMemoryMessageLog):
    """``LosesReplies`` in memory."""


class SQLiteLosesReplies(LosesReplies, SQLiteMessageLog):
    """``LosesReplies`` in SQLite: the transaction of all SQL databases."""


@pytest.mark.parametrize("is_done", [True, False])
@pytest.mark.parametrize("kind", [MemoryLosesReplies, SQLiteLosesReplies])
async def test_an_append_whose_reply_was_lost_doubles_nothing(
    kind: type[Any], is_done: bool, tmp_path: Path
) -> None:
    log = kind() if kind is MemoryLosesReplies else kind(tmp_path / "logs.db")
    log.is_done = is_done
    for n in range(3):
        await log.append("t", [NewMessage([n, 1]), NewMessage([n, 2], message_id=f"m{n}")])
    found = await log.load("t") or []
    await log.close()
    assert [it.content for it in found] == [[n, it] for n in range(3) for it in (1, 2)]


async def test_a_conditional_change_whose_reply_was_lost_is_told() -> None:
    log = MemoryLosesReplies()
    with pytest.raises(ConnectionFailedError):
        await log.append("t", [NewMessage(1)], expected_revision=0)
    with pytest.raises(ConflictError):  # it was written
        await InMemoryMessageLog(backend=log.backend).append(
            "t", [NewMessage(1)], expected_revision=0
        )
    calls: tuple[Any, ...] = (
        lambda: log.pop("t"),
        lambda: log.replace("t", 0, [NewMessage(2), NewMessage(3)]),
        lambda: log.remove("t", ["x"]),
    )
    for call in calls:
        with pytest.raises(ConnectionFailedError):
            await call()
    assert [it.content for it in await log.load("t") or ()] == [2, 3]


async def test_a_lost_connection_doubles_nothing_on_postgresql(
    migrated_database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with PostgreSQLMessageLog(migrated_database, pool_size=1) as log:
        await log.append("t", [NewMessage(0)])
        runner: Any = log.backend._runner
        write_once, lost = runner.write_once, []

        async def losing(body: Any, **options: Any) -> Any:
            result = await write_once(body, **options)
            if not lost:
                lost.append(result)
                raise ConnectionFailedError("the reply was lost")
            return result

        monkeypatch.setattr(runner, "write_once", losing)
        revision = await log.append("t", [NewMessage(1), NewMessage(2, message_id="m")])
        assert revision == lost[0] + 1
        assert [it.content for it in await log.load("t") or ()] == [0, 1, 2]
