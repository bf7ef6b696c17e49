from __future__ import annotations

import json
import re
from base64 import b64encode
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from secrets import token_hex
from typing import TYPE_CHECKING, Any
from unittest.mock import AsyncMock

import pytest
from services import Service, parts
from tiers import first_of

from locus_store import InvalidArgumentError, NewMessage, UnsupportedError, open_checkpointer
from locus_store.open import Storage
from locus_store.timeline.changes import describe_record
from locus_store.timeline.graph import Cursor, find_steps, list_statuses, measure_stored, read_graph
from locus_store.timeline.rewind import rewind
from locus_store.transfer.building import fork
from locus_store.types import Expected, PendingWrite
from locus_store.types.messages import decode_message
from locus_store.versions.sizes import INTERRUPT, RECORD_BYTES, StatusesWanted, ThreadStatus

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

pytestmark = pytest.mark.anyio


@pytest.fixture(
    params=["memory", *first_of("sqlite", "http", "file", "sharded", "postgresql", "redis")]
)
async def backend(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Any]:
    urls = {
        "memory": lambda: "memory://",
        "file": lambda: f"file://{tmp_path}/files",
        "sharded": lambda: f"sharded:sqlite:///{tmp_path}/a.db sqlite:///{tmp_path}/b.db",
        "sqlite": lambda: f"sqlite:///{tmp_path}/store.db",
        "postgresql": lambda: request.getfixturevalue("migrated_database"),
        "redis": lambda: request.getfixturevalue("redis_url"),
        "encrypted": lambda: f"sqlite:///{tmp_path}/sealed.db?encryption={write_keys(tmp_path)}",
    }
    with ExitStack() as stack:
        if request.param == "http":
            served, _, log = parts(tmp_path / "store.db")
            service = Service(served, messages=log)
            stack.callback(service.stop)
            urls["http"] = lambda: service.url
        async with open_checkpointer(urls[request.param](), state_type=dict) as checkpointer:
            await checkpointer.backend.open()
            yield checkpointer.backend


def write_keys(folder: Path) -> Path:
    """Write a file of keys, which leaves no metadata in clear; return its path."""
    key, data_keys = b64encode(bytes(32)).decode(), f"sqlite:///{folder}/data-keys.db"
    keys = {"keys": {"k": key}, "current": "k", "data_keys": data_keys}
    (folder / "keys.json").write_text(json.dumps(keys))
    return folder / "keys.json"


async def grow(backend: Any) -> None:
    """a - b - c - d, and e - f off b, which is the head's line."""
    for name, parent in zip("abcdef", [None, "a", "b", "c", "b", "e"], strict=True):
        await backend.write_state(
            "t", {"n": name * 100}, checkpoint_id=name, parent_id=parent, is_root=parent is None
        )


async def test_versions_are_marked_by_their_place_page_after_page(backend: Any) -> None:
    await grow(backend)
    expected = [(*"fh",), (*"em",), (*"ds",), (*"cs",), (*"bm",), (*"am",)]
    for limit in (1, 2, 4, 6, 100):
        found, cursor, heads = [], None, set()
        while page := await read_graph(backend, "t", limit=limit, cursor=cursor):
            heads.add(page.head.checkpoint_id)
            found += [(it.version.checkpoint_id, (it.place or "?")[0]) for it in page.nodes]
            cursor = page.next
            if cursor is None:
                break
        assert (found, heads) == (expected, {"f"})
    assert await read_graph(backend, "unknown") is None


async def test_the_main_line_is_not_known_behind_a_version_that_somebody_names(
    backend: Any,
) -> None:
    await grow(backend)
    page = await read_graph(backend, "t", cursor=Cursor("e", None))
    assert page is not None
    assert {it.place for it in page.nodes} == {None}


async def test_sizes_are_those_of_the_stored_payloads(backend: Any) -> None:
    await grow(backend)
    page = await read_graph(backend, "t", limit=4)
    assert page is not None
    records = await backend.records("t", first=1, last=6)
    sizes = {sequence: len(payload) for sequence, _, payload in records if sequence > 2}
    assert await measure_stored(backend, page.nodes) == sizes
    assert await measure_stored(backend, []) == {}


async def find(backend: Any, *thread_ids: str, **wanted: Any) -> dict[str, ThreadStatus]:
    """Return the wanted threads by their ids."""
    which = StatusesWanted(limit=100, thread_ids=thread_ids or None, **wanted)
    return {it.thread_id: it for it in await list_statuses(backend, which)}


async def test_versions_of_several_threads_are_counted_without_hidden_ones(backend: Any) -> None:
    for at in range(5):
        await backend.write_state("t", {"n": at})
        await backend.write_state("t", {"n": at}, namespace="sub")
        await backend.write_state("short", {"n": at}, keep_last=2)
    found = await find(backend, "t", "short", "none")
    assert {name: it.versions for name, it in found.items()} == {"t": 10, "short": 2}
    assert (found["t"].stored_bytes or 0) > (found["short"].stored_bytes or 0) > 0


async def test_interrupted_threads_and_logs_are_marked(backend: Any) -> None:
    waits = PendingWrite("task", -3, INTERRUPT, "json", b"1")
    for thread in ("both", "later", "plain"):
        await backend.write_state(thread, {}, checkpoint_id="v")
        await backend.put_writes(thread, "v", [waits][thread == "plain" :])
    await backend.write_state("later", {"answered": True})
    log, said = Storage(backend).messages(), [NewMessage("Hi.")]
    await log.append("both", said)
    await log.append("chat", said, also={("chat", "b"): said})
    found = await find(backend, "both", "chat", "later", "plain", "none")
    assert {name: (str(it), it.kind) for name, it in found.items()} == {
        "both": ("interrupted, 1 message", "agent"),
        "chat": ("2 messages", "log"),
        "later": ("", "agent"),
        "plain": ("", "agent"),
    }
    assert (await find(backend, badge="interrupted")).keys() == {"both"}
    assert (await find(backend, kind="log")).keys() == {"chat"}


async def test_a_log_shows_its_newest_message_and_its_bytes(backend: Any) -> None:
    log = Storage(backend).messages()
    await log.append("chat", [NewMessage(f"{n} é'\x00", role="user") for n in range(3)])
    await log.append("chat", [NewMessage({"n": 3}, role="tool", text="four")], namespace="b")
    await log.append("long", [NewMessage(token_hex(RECORD_BYTES * 2))])
    await log.append("edited", [NewMessage("shown"), NewMessage("gone", message_id="m")])
    await log.append("edited", [NewMessage("later")], namespace="b")
    await log.remove("edited", ["m"])
    await log.append("empty", [NewMessage("gone", message_id="m")])
    await log.remove("empty", ["m"])
    found = await find(backend)
    said = {name: it.message for name, it in found.items()}
    assert said["chat"] is not None
    assert decode_message(said["chat"], 1_000) == (await log.load("chat", namespace="b"))[-1]
    assert said["edited"] is not None
    assert decode_message(said["edited"], 1_000).content == "shown"
    assert (said["long"], said["empty"]) == (None, None)
    assert (found["long"].stored_bytes or 0) > (found["chat"].stored_bytes or 0) > 0


async def test_a_thread_has_a_conflict_while_the_side_branch_is_a_leaf(backend: Any) -> None:
    async def save(name: str, text: str, **how: Any) -> Any:
        return await backend.write_state("t", {"n": text}, checkpoint_id=name, **how)

    first = await save("a", "first")
    await save("b", "won")
    expected = Expected(made_from=first.mark, head=first.mark)
    lost = await save("c", "lost", expected=expected, on_conflict="branch")
    assert lost.outcome == "side"
    await save("d", "more")
    await backend.write_state("fork", {"n": 1}, checkpoint_id="a")
    await backend.write_state("fork", {"n": 2})
    await backend.write_state("fork", {"n": 3}, parent_id="a")
    assert (await find(backend, badge="conflict")).keys() == {"t"}
    assert await fork(backend, "t", "copy", "c")  # its head has the label
    assert (await find(backend, badge="conflict")).keys() == {"t"}
    await rewind(backend, "t", "c")
    head, won = await backend.version("t"), await backend.version("t", "b")
    assert (head.parent_id, head.labels) == ("c", won.labels)
    assert await find(backend, badge="conflict") == {}


async def test_threads_have_their_user_their_expiry_and_what_the_newest_save_changed(
    backend: Any,
) -> None:
    said = [{"role": "user", "content": "Bern"}]
    await backend.write_state("t", {"messages": said}, metadata={"source": "loop", "step": 1})
    more = {"messages": [*said, {"role": "user", "content": "Zurich then"}]}
    about = {"source": "loop", "step": 2}
    await backend.write_state("t", more, metadata=about, ttl_seconds=3_600)
    await backend.write_state("long", {"text": "".join(map(chr, range(20_000, 50_000)))})
    await backend.write_state("t", {}, namespace="sub")
    log = Storage(backend).messages()
    await log.append("chat", [NewMessage("Hi.")], user_id="alex")
    found = await find(backend)
    changes = str(describe_record(found["t"].record or b"", 10_000))
    assert re.fullmatch(r"messages (= |\+ 1: )'Zurich then'", changes)
    assert (found["t"].metadata, found["t"].kind) == (about, "graph")
    assert (found["t"].expires_at is not None, found["t"].badges) == (True, ["expires"])
    assert (found["long"].record, found["long"].metadata) == (None, {})
    assert (found["chat"].user_id, found["chat"].kind) == ("alex", "session")


@pytest.mark.parametrize("backend", ["sqlite"], indirect=True)
async def test_a_backend_without_such_lists_is_asked_for_each_thread(
    backend: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    refuses = AsyncMock(side_effect=UnsupportedError("no such lists"))
    monkeypatch.setattr(backend, "find_statuses", refuses)
    said = [{"role": "user", "content": "Bern"}]
    first = await backend.write_state("lost", {"messages": said}, checkpoint_id="a")
    more = {"messages": [*said, {"role": "user", "content": "Zurich then"}]}
    await backend.write_state("lost", more)
    expected = Expected(made_from=first.mark, head=first.mark)
    await backend.write_state("lost", {"n": 1}, expected=expected, on_conflict="branch")
    await backend.write_state("waits", {}, checkpoint_id="v", metadata={"user_id": "alex"})
    waits = PendingWrite("task", -3, INTERRUPT, "json", b"1")
    await backend.put_writes("waits", "v", [waits])
    log = Storage(backend).messages()
    await log.append("chat", [NewMessage("Hi.")], user_id="alex")
    found = await find(backend)
    assert {name: (it.kind, [*it.badges]) for name, it in found.items()} == {
        "chat": ("session", []),
        "waits": ("agent", ["interrupted"]),
        "lost": ("agent", ["conflict"]),
    }
    changes = str(describe_record(found["lost"].record or b"", 10_000))
    assert re.fullmatch(r"messages (= |\+ 1: )'Zurich then'", changes)
    assert (await find(backend, user_id="alex")).keys() == {"chat", "waits"}
    assert (await find(backend, "waits", "chat", badge="interrupted")).keys() == {"waits"}
    assert (await find(backend, text="bern then")).keys() == {"lost"}
    assert (await find(backend, text="bern", badge="interrupted")).keys() == set()
    assert (await find(backend, "lost", "chat", text="bern")).keys() == {"lost"}
    wanted = StatusesWanted(limit=1, place="chat", user_id="alex")
    assert [it.thread_id for it in await list_statuses(backend, wanted)] == ["waits"]


async def test_threads_meet_all_conditions_of_a_list(backend: Any) -> None:
    log, now = Storage(backend).messages(), datetime.now(UTC)
    await backend.write_state("a", {"n": "Bern"}, metadata={"user_id": "alex", "step": 1})
    await backend.write_state("b", {"n": "Zug"}, labels={"user_id": "alex", "tags": ["x"]})
    await backend.write_state("b", {"n": "bern"}, labels={"user_id": "alex", "tags": ["x"]})
    await backend.write_state("c", {"n": "Bern"}, metadata={"source": "loop", "step": 1})
    await backend.write_state("c", {"n": "Bern"}, namespace="sub")
    await log.append("d", [NewMessage("Hi.")], user_id="alex")
    await backend.write_state("b%", {}, metadata={"step": {"n": [1, 2]}})
    conditions: list[tuple[dict[str, Any], str]] = [
        ({"user_id": "alex"}, "dba"),
        ({"user_id": "alex", "kind": "agent"}, "ba"),
        ({"user_id": "al%'\"\\:"}, ""),
        ({"metadata": ("'%\"\\.x", "'\0x")}, ""),
        ({"pattern": "'%_\"\\:*"}, ""),
        ({"metadata": ("step", 1)}, "ca"),
        ({"metadata": ("step.n", 2), "pattern": "b*"}, "b%"),
        ({"metadata": ("tags", "x")}, "b"),
        ({"kind": "graph"}, "c"),
        ({"kind": "session"}, "d"),
        ({"kind": "log"}, ""),
        ({"badge": "turn"}, ""),
        ({"text": "BERN"}, "cba"),
        ({"text": "zug bern"}, "b"),
        ({"text": "bern", "user_id": "alex"}, "ba"),
        ({"text": "bern", "metadata": ("step", 1), "kind": "agent"}, "a"),
        ({"text": "bern", "badge": "turn"}, ""),
        ({"text": "hi"}, ""),
        ({"since": now - timedelta(hours=1), "pattern": "[ab]"}, "ba"),
        ({"since": now + timedelta(hours=1)}, ""),
        ({"until": now - timedelta(hours=1)}, ""),
        ({"until": now + timedelta(hours=1), "kind": "graph"}, "c"),
    ]
    for wanted, expected in conditions:
        assert "".join(await find(backend, **wanted)) == expected, wanted
    assert "".join(await find(backend, *"abd")) == "dba"
    assert "".join(await find(backend, *"abd", text="bern")) == "ba"
    assert {it.found for it in (await find(backend)).values()} == {None}
    [found] = (await find(backend, text="zug")).values()
    history = await backend.history("b")
    assert found.found == (history[-1].checkpoint_id, "Zug")
    for wrong in ({"text": "%"}, {"user_id": "a\0b"}, {"pattern": "\0"}, {"metadata": ("", 1)}):
        with pytest.raises(InvalidArgumentError):
            await find(backend, **wrong)


@pytest.mark.parametrize("backend", ["encrypted"], indirect=True)
async def test_a_list_opens_what_is_encrypted(backend: Any) -> None:
    await test_threads_meet_all_conditions_of_a_list(backend)
    for thread in await backend.scan():
        await backend.delete(thread)
        await Storage(backend).messages().delete(thread)
    await test_threads_have_their_user_their_expiry_and_what_the_newest_save_changed(backend)
    await test_a_log_shows_its_newest_message_and_its_bytes(backend)


async def test_pages_of_a_list_keep_their_place_when_threads_go_or_become_active(
    backend: Any,
) -> None:
    for at in range(9):
        await backend.write_state(f"t{at}", {"n": 1}, metadata={"odd": at % 2})

    async def page(after: str | None, limit: int) -> list[ThreadStatus]:
        wanted = StatusesWanted(limit=limit, place=after, metadata=("odd", 0))
        return await list_statuses(backend, wanted)

    first = await page(None, 2)
    await backend.delete("t6")
    await backend.write_state("t2", {"n": 2}, metadata={"odd": 0})
    rest = await page(first[-1].place, 5)
    assert [it.thread_id for it in first + rest] == ["t8", "t6", "t4", "t0"]
    for wrong in ("x", "2026-01-31T12:00/t", "/", "0001-01-01T00:00+14:00/t"):
        with pytest.raises(InvalidArgumentError, match="does not name a place"):
            await page(wrong, 1)


@pytest.mark.parametrize("backend", ["sqlite"], indirect=True)
async def test_interrupted_versions_and_the_nodes_that_made_each_are_known(backend: Any) -> None:
    for at, name in enumerate("abc"):
        about = {"source": "loop", "step": at}
        await backend.write_state("g", {"n": at}, checkpoint_id=name, metadata=about)
    price = PendingWrite("task", 0, "n", "json", b"1", "~__pregel_pull, price")
    await backend.put_writes("g", "b", [price, PendingWrite("task", -3, INTERRUPT, "json", b"1")])
    again = await rewind(backend, "g", "b")
    writers, stopped = await find_steps(backend, await backend.history("g"))
    assert {name: [it.node for it in some] for name, some in writers.items()} == {
        "c": ["price"],
        "b": [],
    }
    assert stopped == {"b", again}
