"""Statements sent to Oracle, call by call, with their parameters and types, and the round trips.

``golden/statements`` has each statement once, ``golden/calls`` the names of those that a call
sends, in order. They were read by people; ``LOCUS_UPDATE_GOLDEN=1`` writes them again.
"""

from __future__ import annotations

import asyncio
import inspect
import os
import re
import time
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

import oracle_grammar as grammars
import pytest
from oracle_methods import SAME, SCENARIOS, Opened, prepare
from storages.oracle import PLACE

from locus_store import (
    NewMessage,
    OracleBackend,
    OracleCheckpointSaver,
    OracleMessageLog,
    OracleStore,
)
from locus_store.errors import InvalidArgumentError
from locus_store.types import PendingWrite

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from oracle_twin import Call, TwinServer


CALLS = Path(__file__).parents[1] / "golden" / "calls"
STATEMENTS = Path(__file__).parents[1] / "golden" / "statements"
SECONDS = 10
"""A call takes no longer."""

UPDATES = os.environ.get("LOCUS_UPDATE_GOLDEN") == "1"
FIRST = re.compile(r"^select sys_context|local_transaction_id|^SELECT 1\.1 FROM", re.IGNORECASE)

UNRECORDED = (
    *("close", "open", "require_user_id_type", "setup"),
    # Of the audit and of new keys: without a golden file so far; their statements are portable.
    *("list_audited", "list_entries", "list_seals", "read_audited", "read_last_seal"),
    "record_alone",
    *("record_refusal", "refuse_call", "seal_entries", "rewrite_thread"),
    "run_limited",  # of every call that stores
    *("find_prunable", "prune_entries", "replace_thread"),
)

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
async def opened(twin: TwinServer) -> AsyncIterator[Opened]:
    if (left := 60 - time.time() % 60) < SECONDS:  # a save in another minute updates its thread
        await asyncio.sleep(left)
    backend = OracleBackend(**PLACE)
    saver = OracleCheckpointSaver(**PLACE)
    store = OracleStore(backend=backend, dimension=3)
    made = Opened(backend, saver, store, OracleMessageLog(backend=backend))
    await prepare(made)
    twin.calls.clear()
    yield made
    await saver.close()
    await backend.close()


def recorded(calls: list[Call]) -> tuple[str, dict[str, str]]:
    """The list of a call, and the statements that it names."""
    calls = [it for it in calls if not FIRST.search(it.statement.strip())]
    lines, statements = [f"{len(calls)} calls of the driver"], dict[str, str]()
    for call in calls:
        if not call.statement:
            lines.append(call.kind)
            continue
        shown = _shown(call)
        name = _name(call.statement, shown)
        lines.append(f"{call.kind}{', commits' if call.is_autocommit else ''}: {name}")
        statements[name] = shown
    return "\n".join(lines) + "\n", statements


def _shown(call: Call) -> str:
    """A statement, its parameters with their types above it."""
    rows = call.parameters if isinstance(call.parameters, list) else [call.parameters]
    told = "".join(
        f"-- {name}: {_kind([row[name] for row in rows])}{_size(call, name)}\n"
        for name in (rows[0] if rows else {})
    )
    return f"{told}{_tidy(call.statement)}\n"


def _name(statement: str, shown: str) -> str:
    """Verb, first table and a digest, so that another statement has another name."""
    verb, noun, *_ = re.findall(r"\w+", statement.lower())
    table = re.search(r"\blocus_(\w+)", statement)
    digest = sha256(shown.encode()).hexdigest()[:6]
    return f"{verb}-{table[1] if table else noun}-{digest}"


def _kind(values: list[Any]) -> str:
    kinds = sorted({"NULL" if it is None else type(it).__name__ for it in values})
    return " or ".join(kinds)


def _size(call: Call, name: str) -> str:
    size = call.sizes.get(name)
    return "" if size is None else f" as {getattr(size, 'name', None) or size.__name__}"


def _tidy(statement: str) -> str:
    return "\n".join(it.rstrip() for it in statement.strip().splitlines())


@pytest.mark.parametrize("name", SCENARIOS)
async def test_a_call_sends_what_was_reviewed(name: str, opened: Opened, twin: TwinServer) -> None:
    await SCENARIOS[name](opened)
    found, statements = recorded(twin.calls)
    if UPDATES:
        _of(name).write_text(found)
        for statement, shown in statements.items():
            _statement(statement).write_text(shown)
    assert found == _of(name).read_text()
    assert statements == {it: _statement(it).read_text() for it in statements}


def _of(name: str) -> Path:
    return CALLS / f"{name.replace('/', '.')}.txt"


def _statement(name: str) -> Path:
    return STATEMENTS / f"{name}.sql"


def test_every_public_method_is_recorded() -> None:
    kinds = {
        "backend": OracleBackend,
        "saver": OracleCheckpointSaver,
        "store": OracleStore,
        "log": OracleMessageLog,
    }
    recorded = {it.partition("/")[0] for it in SCENARIOS}
    recorded |= {f"{kind}.{name}" for kind, names in SAME.items() for name in names}
    for kind, cls in kinds.items():
        methods = inspect.getmembers(cls, inspect.iscoroutinefunction)
        public = {f"{kind}.{name}" for name, _ in methods if name[0] != "_"}
        assert public - recorded <= {f"{kind}.{name}" for name in UNRECORDED}


def test_every_golden_file_is_of_a_call() -> None:
    named = set(re.findall(r": (\S+)$", "".join(map(_text, CALLS.iterdir())), re.MULTILINE))
    for stale in set(STATEMENTS.iterdir()) - set(map(_statement, named)) if UPDATES else ():
        stale.unlink()
    assert set(CALLS.iterdir()) == set(map(_of, SCENARIOS))
    assert set(STATEMENTS.iterdir()) == set(map(_statement, named))


def _text(path: Path) -> str:
    return path.read_text()


# --- long values


@pytest.mark.parametrize("idx", [9, -1])
@pytest.mark.parametrize("size", [100, 4_001, 32_768, 1_000_000])
async def test_a_pending_write_of_any_size_is_bound_as_bytes_or_a_lob(
    size: int, idx: int, opened: Opened, twin: TwinServer
) -> None:
    write = PendingWrite("task", idx, "channel", "json", os.urandom(size))
    for _ in range(2):
        twin.calls.clear()
        assert await opened.backend.put_writes("t", "v3", [write])
        for call in (it for it in twin.calls if it.statement.startswith("INSERT")):
            kind = "RAW" if size == 100 else "BLOB"  # of which the driver makes a temporary LOB
            assert call.sizes["payload"].name == f"DB_TYPE_{kind}"
        assert write in await opened.backend.get_writes("t", "v3")
    assert any(it.statement.startswith("INSERT") for it in twin.calls) == (idx < 0)


@pytest.mark.parametrize(("text", "kind"), [("p" * 4_000, "NVARCHAR"), ("€" * 1_334, "CLOB")])
async def test_a_long_path_of_a_task_is_bound_as_a_lob(
    text: str, kind: str, opened: Opened, twin: TwinServer
) -> None:
    write = PendingWrite("task", 9, "channel", "json", b"{}", task_path=text)
    twin.calls.clear()
    assert await opened.backend.put_writes("t", "v3", [write])
    (call,) = (it for it in twin.calls if it.statement.startswith("INSERT INTO locus_writes"))
    assert call.sizes["task_path"].name == f"DB_TYPE_{kind}"
    assert write in await opened.backend.get_writes("t", "v3")


async def test_no_long_value_of_any_call_is_bound_without_a_lob(
    opened: Opened, twin: TwinServer
) -> None:
    long = os.urandom(3_000).hex()
    backend, saver = opened.backend, opened.saver
    await backend.create_search_index()
    twin.calls.clear()
    await backend.write_state("first", {"text": long}, metadata={"text": long})
    await backend.write_state("first", {"text": long, "n": 1}, keep_last=1)
    await backend.put_thread("first", metadata={"text": long})
    await backend.copy_thread("first", "copy")
    await saver.put(thread_id="s", checkpoint_id="v", checkpoint_data={"text": long})
    await saver.put_writes(thread_id="s", checkpoint_id="v", task_id="t", writes=[("c", long)])
    await opened.store.put(("ns",), "k", {"text": long}, metadata={"text": long})
    await opened.log.append("log", [NewMessage({"text": long}, role="user", text=long)])
    await backend.query("text", long)
    for call in twin.calls:
        rows = call.parameters if isinstance(call.parameters, list) else [call.parameters or {}]
        for name, value in ((name, it) for row in rows for name, it in dict(row).items()):
            if isinstance(value, str | bytes) and len(value) > 4_000 and name != "its_payload":
                assert call.sizes[name].name in {"DB_TYPE_BLOB", "DB_TYPE_CLOB"}, call.statement


async def test_a_name_longer_than_its_column_is_refused_unsent(
    opened: Opened, twin: TwinServer
) -> None:
    """The column takes 4,000 bytes, which are 1,000 characters of four bytes each."""
    await opened.backend.put_thread("t", name="\U0001f600" * 1000)
    twin.calls.clear()
    with pytest.raises(InvalidArgumentError, match="1000"):
        await opened.backend.put_thread("t", name="\U0001f600" * 1001)
    assert twin.calls == []
    facts = await opened.backend.thread_facts("t")
    assert facts is not None
    assert facts.name == "\U0001f600" * 1000


@pytest.mark.parametrize("size", [4_001, 32_768, 1_000_000])
async def test_metadata_of_any_size_is_bound_as_json(
    size: int, opened: Opened, twin: TwinServer
) -> None:
    metadata = {"text": "x" * size, "float": 1.0, "least": 5e-324}
    await opened.backend.save("long", {"n": 1}, metadata=metadata)
    sizes = [it.sizes["metadata"] for it in twin.calls if "metadata" in it.sizes]
    assert [it.name for it in sizes] == ["DB_TYPE_JSON"]
    version = await opened.backend.version("long")
    assert version is not None
    assert sorted(map(repr, version.metadata.items())) == sorted(map(repr, metadata.items()))


# --- the grammars


def statements() -> list[str]:
    """Each statement once, without the types of its parameters."""
    texts = (
        re.sub(r"^-- .*\n", "", _text(it), flags=re.MULTILINE)
        for it in sorted(STATEMENTS.iterdir())
    )
    return list(dict.fromkeys(it.strip() for it in texts))


UNASKED = ("JSON_EXISTS(", "INDEXTYPE IS", "FETCH APPROX")
"""The words that neither grammar knows, and that no other statement has."""


def test_every_recorded_statement_is_oracles(oracle_grammar: grammars.Grammar) -> None:
    asked = {"first": 0, "second": 0, "neither": 0}
    for it in statements():
        knows = [not grammars.unknown(it, grammars.UNKNOWN)]
        knows += [not grammars.unknown(it, grammars.SECOND_UNKNOWN)]
        if knows[0]:
            assert oracle_grammar.errors(it) == [], it
        if knows[1]:
            assert grammars.second_errors(it) == [], it
        if not any(knows):
            assert any(word in it for word in UNASKED), it
        asked["first"] += knows[0]
        asked["second"] += knows[1]
        asked["neither"] += not any(knows)
    assert asked == {"first": 244, "second": 218, "neither": 15}


def test_no_recorded_statement_ends_with_a_semicolon() -> None:
    for it in statements():
        assert not it.endswith(";"), it
