"""Segments on Oracle, where the payload of a record that changed nothing is NULL as well."""

from __future__ import annotations

from copy import deepcopy
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import pytest
from storages.oracle import PLACE

from locus_store import OracleBackend
from locus_store.values import frames
from locus_store.versions import segments

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from oracle_twin import TwinServer

pytestmark = pytest.mark.anyio

TEXT = "word " * 40

STATES: dict[str, dict[str, Any]] = {
    f"v{at}": {"text": TEXT, "n": n, "said": [f"word{n}"] * n}
    for at, n in enumerate([1, 1, 2, 3, 3, 3, 4, 4, 5, 6, 6, 7, 7], 1)
}
"""v2, v5, v6, v8, v11 and v13 change nothing: around the bounds of segments, within and behind."""

EMPTY = ["v2", "v5", "v6", "v8", "v11", "v13"]


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
async def backend(twin: TwinServer) -> AsyncIterator[OracleBackend]:
    made = OracleBackend(**PLACE)
    for name, state in STATES.items():
        await made.save("t", state, checkpoint_id=name)
    with patch.object(segments, "RECORDS", 3):
        await made._join("t", "")
    yield made
    await made.close()


async def of_segments(backend: OracleBackend) -> list[tuple[int, int]]:
    line = await backend.version("t")
    assert line is not None
    found = await backend._read(lambda it: it.read_all_segments(line.mark.line))
    return [(one.first, one.last) for _, one in found]


async def read(backend: OracleBackend, thread_id: str) -> dict[str, Any]:
    names = [it.checkpoint_id for it in await backend.history(thread_id, limit=100)]
    return {name: await backend.load(thread_id, name) for name in names}


async def test_records_that_changed_nothing_lie_in_and_outside_of_segments(
    backend: OracleBackend,
) -> None:
    sizes = await backend.measure_versions("t", first=1, last=len(STATES))
    assert [f"v{at}" for at, size in sizes.items() if not size] == EMPTY
    assert await of_segments(backend) == [(1, 4), (7, 10)]


async def test_every_version_is_read_as_it_was_saved(backend: OracleBackend) -> None:
    assert await read(backend, "t") == STATES
    found: dict[str, Any] = {}
    versions = await backend.history("t", limit=100)
    await backend.read_states(
        versions, lambda it, folder: found.update({it.checkpoint_id: deepcopy(folder.get_state())})
    )
    assert found == STATES


async def test_a_load_of_what_changed_since_any_version_is_one_statement(
    backend: OracleBackend, twin: TwinServer
) -> None:
    for version in await backend.history("t", limit=100):
        twin.calls.clear()
        stored = await backend.fetch_head("t", known=version.mark)
        assert len(twin.calls) == 1
        assert stored is not None
        assert stored.basis == version.mark
        known = frames.compare_states(STATES[version.checkpoint_id], None).to_payload()
        state = frames.fold([known, *stored.payloads], backend.max_state_bytes)
        assert state == STATES["v13"]


async def test_records_and_archives_have_the_payloads(backend: OracleBackend) -> None:
    folder = frames.Folder(backend.max_state_bytes)
    for sequence, _, payload in await backend.records("t", first=1, last=len(STATES)):
        folder.apply(payload)
        assert folder.get_state() == STATES[f"v{sequence}"]
    archived = await backend.read_thread("t")
    assert archived is not None
    records = await backend.records("t", first=1, last=len(STATES))
    assert [it.payload for it in archived.lines[0].records] == [it[2] for it in records]


async def test_a_search_finds_what_is_in_segments(backend: OracleBackend) -> None:
    for n in (1, 3, 5, 7):
        [hit] = await backend.find(f"word{n}")
        assert STATES[hit.checkpoint_id]["n"] == n


@pytest.mark.parametrize("name", STATES)
async def test_any_version_may_be_removed(name: str, backend: OracleBackend) -> None:
    assert await backend.copy_thread("t", "copy")
    assert await backend.remove("copy", [name]) == 1
    assert await read(backend, "copy") == {it: STATES[it] for it in STATES if it != name}
    assert await read(backend, "t") == STATES


@pytest.mark.parametrize("last", [1, 2, 3, 5, 8])
async def test_only_the_last_versions_may_be_kept(last: int, backend: OracleBackend) -> None:
    state = {**STATES["v13"], "n": 8}
    await backend.write_state("t", state, checkpoint_id="v14", keep_last=last)
    kept = {**STATES, "v14": state}
    assert await read(backend, "t") == dict(list(kept.items())[-last:])
    await backend.prune("t")
    assert await backend.load("t") == state


@pytest.mark.parametrize("size", [3_000, 60_000])
async def test_long_payloads_are_put_back_as_lobs(
    size: int, backend: OracleBackend, twin: TwinServer
) -> None:
    """In an ``UPDATE`` Oracle may refuse others."""
    states = {f"v{n}": {"text": TEXT, "n": [f"{n}" * size]} for n in range(4)}
    for name, state in states.items():
        await backend.save("long", state, checkpoint_id=name)
    with patch.object(segments, "RECORDS", 2):
        await backend._join("long", "")
    twin.calls.clear()
    await backend.remove("long", ["v1"])
    kind = "RAW" if size == 3_000 else "BLOB"
    for call in (it for it in twin.calls if it.kind == "executemany"):
        assert call.sizes["payload"].name == f"DB_TYPE_{kind}"
    assert await read(backend, "long") == {it: states[it] for it in states if it != "v1"}
