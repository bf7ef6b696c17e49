from __future__ import annotations

import io

import pytest
from lazily import TESTS_RUN
from services import parts
from test_changes import client, grow

from locus_store import MemoryBackend
from locus_store.transfer.archive import export_threads, import_threads

if TESTS_RUN:
    from locus_store.inspector import app

pytestmark = pytest.mark.anyio


async def test_an_export_is_that_of_the_command_line_and_can_be_imported() -> None:
    backend, store, _ = parts()
    await grow(backend)
    async with client(app(backend, store)) as asking:
        answer = await asking.get("export?thread=trip")
        assert 'attachment; filename="trip.jsonl"' in answer.headers["content-disposition"]
        assert (await asking.get("export?thread=no")).status_code == 404
    written = io.BytesIO()
    await export_threads(backend, ["trip"], written)
    assert answer.content == written.getvalue()
    other = MemoryBackend()
    await import_threads(other, io.BytesIO(answer.content))
    assert await other.read_thread("trip") == await backend.read_thread("trip")


async def test_a_report_is_a_page_its_json_and_a_download() -> None:
    backend, store, _ = parts()
    await backend.write_state("t", {"secret": "Basel"}, checkpoint_id="v1")
    async with client(app(backend, store)) as asking:
        pages = [await asking.get(it) for it in ("report?thread=t", "report-file?thread=t")]
        found = (await asking.get("report?thread=t&format=json")).json()
        assert (await asking.get("report?thread=no")).status_code == 404
    assert [it.status_code for it in pages] == [200, 200]
    assert not any("Basel" in it.text for it in pages)
    assert found.keys() == pages[1].json().keys()
