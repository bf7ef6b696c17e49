"""What is sent to Oracle, call by call: statements, parameters and their types, round trips.

The files in ``golden/oracle`` were read by people; ``LOCUS_UPDATE_GOLDEN=1`` writes them anew.
"""

from __future__ import annotations

import inspect
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import oracle_grammar as grammars
import pytest
from oracle_methods import SAME, SCENARIOS, Opened, prepare
from test_contract_oracle import PLACE, twin

from locus_store import OracleBackend, OracleCheckpointSaver, OracleStore
from locus_store.types import PendingWrite

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from oracle_twin import Call, TwinServer

__all__ = ["twin"]

GOLDEN = Path(__file__).parent / "golden"
UPDATES = os.environ.get("LOCUS_UPDATE_GOLDEN") == "1"
FIRST = re.compile(r"^select sys_context|local_transaction_id|^SELECT 1\.1 FROM", re.IGNORECASE)

UNRECORDED = ("close", "open", "setup")

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
async def opened(twin: TwinServer) -> AsyncIterator[Opened]:
    backend = OracleBackend(**PLACE)
    saver = OracleCheckpointSaver(**PLACE)
    store = OracleStore(backend=backend, dimension=3)
    made = Opened(backend, saver, store)
    await prepare(made)
    twin.calls.clear()
    yield made
    await saver.close()
    await backend.close()


def shown(calls: list[Call]) -> str:
    """As a golden file has it."""
    calls = [it for it in calls if not FIRST.search(it.statement.strip())]
    return f"{len(calls)} calls of the driver\n\n" + "\n".join(map(_shown, calls))


def _shown(call: Call) -> str:
    head = call.kind + (", commits" if call.is_autocommit and call.statement else "")
    if not call.statement:
        return f"-- {head}\n"
    rows = call.parameters if isinstance(call.parameters, list) else [call.parameters]
    told = "".join(
        f"--   {name}: {_kind([row[name] for row in rows])}{_size(call, name)}\n"
        for name in (rows[0] if rows else {})
    )
    return f"-- {head}\n{told}{_tidy(call.statement)}\n"


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
    found = shown(twin.calls)
    path = GOLDEN / f"{name.replace('/', '.')}.sql"
    if UPDATES:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(found)
    assert found == path.read_text()


def test_every_public_method_is_recorded() -> None:
    kinds = {"backend": OracleBackend, "saver": OracleCheckpointSaver, "store": OracleStore}
    recorded = {it.partition("/")[0] for it in SCENARIOS}
    recorded |= {f"{kind}.{name}" for kind, names in SAME.items() for name in names}
    for kind, cls in kinds.items():
        methods = inspect.getmembers(cls, inspect.iscoroutinefunction)
        public = {f"{kind}.{name}" for name, _ in methods if name[0] != "_"}
        assert public - recorded <= {f"{kind}.{name}" for name in UNRECORDED}


def test_every_golden_file_is_of_a_call() -> None:
    assert {it.stem for it in GOLDEN.glob("*.sql")} == {it.replace("/", ".") for it in SCENARIOS}


# --- long values


@pytest.mark.parametrize(
    ("size", "kind"), [(4_001, "RAW"), (32_768, "RAW"), (80_000, "BLOB"), (1_000_000, "BLOB")]
)
async def test_a_payload_of_any_size_is_one_block(
    size: int, kind: str, opened: Opened, twin: TwinServer
) -> None:
    text = os.urandom(size).hex()[:size]
    await opened.backend.save("long", {"text": text})
    call = twin.calls[-1]
    payload = call.parameters["its_payload"]
    assert (len(payload) > 32_767) == (kind == "BLOB")  # the state is compressed
    assert call.sizes["its_payload"].name == f"DB_TYPE_{kind}"
    assert await opened.backend.load("long") == {"text": text}


@pytest.mark.parametrize("idx", [9, -1])
@pytest.mark.parametrize("size", [100, 4_001, 32_768, 1_000_000])
async def test_a_pending_write_of_any_size_is_bound_as_bytes(
    size: int, idx: int, opened: Opened, twin: TwinServer
) -> None:
    """Not in a ``MERGE`` where it is long: Oracle may refuse it there."""
    write = PendingWrite("task", idx, "channel", "json", os.urandom(size))
    for _ in range(2):
        twin.calls.clear()
        assert await opened.backend.put_writes("t", "v3", [write])
        verb = "MERGE" if size == 100 else "INSERT INTO locus_writes"
        for call in (it for it in twin.calls if it.statement.startswith(verb)):
            assert call.sizes["payload"].name == "DB_TYPE_RAW"  # the driver makes LONG RAW of it
        assert write in await opened.backend.get_writes("t", "v3")
    has_merge = any(it.statement.startswith("MERGE") for it in twin.calls)
    assert has_merge == (size == 100 and idx < 0)


@pytest.mark.parametrize("size", [4_001, 32_768, 1_000_000])
async def test_metadata_of_any_size_is_bound_as_json(
    size: int, opened: Opened, twin: TwinServer
) -> None:
    metadata = {"text": "x" * size, "float": 1.0, "least": 5e-324}
    await opened.backend.save("long", {"n": 1}, metadata=metadata)
    (call,) = twin.calls
    assert call.sizes["its_metadata"].name == "DB_TYPE_JSON"
    version = await opened.backend.version("long")
    assert version is not None
    assert sorted(map(repr, version.metadata.items())) == sorted(map(repr, metadata.items()))


# --- the grammars


def statements() -> list[str]:
    found = []
    for path in sorted(GOLDEN.glob("*.sql")):
        parts = re.split(r"^-- .*\n", path.read_text(), flags=re.MULTILINE)
        found += [it.strip() for it in parts[1:] if it.strip()]
    return list(dict.fromkeys(found))


UNASKED = ("JSON_EXISTS(", "INDEXTYPE IS", "FETCH APPROX")
"""What neither grammar knows, and nothing else that is sent has."""


def test_every_recorded_statement_is_oracles(oracle_grammar: grammars.Grammar) -> None:
    asked = {"first": 0, "second": 0, "neither": 0}
    for statement in statements():
        it = re.sub(r"^ *LOCK TABLE .*;\n", "", statement, flags=re.MULTILINE)  # within a block
        knows = [not grammars.unknown(it, grammars.UNKNOWN)]
        is_block = it.startswith("DECLARE")  # "(CASE" is unknown in indexes only
        knows += [is_block or not grammars.unknown(it, grammars.SECOND_UNKNOWN)]
        if knows[0]:
            assert oracle_grammar.errors(it) == [], it
        if knows[1]:
            assert grammars.second_errors(it) == [], it
        if not any(knows):
            assert any(word in it for word in UNASKED), it
        asked["first"] += knows[0]
        asked["second"] += knows[1]
        asked["neither"] += not any(knows)
    assert asked == {"first": 157, "second": 149, "neither": 13}


def test_no_recorded_statement_ends_with_a_semicolon_but_a_block() -> None:
    for it in statements():
        assert it.endswith(";") == it.startswith("DECLARE"), it
