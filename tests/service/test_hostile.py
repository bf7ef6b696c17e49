"""Requests of a caller that is not trusted: none crashes the service or shows what it stands on."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from lazily import TESTS_RUN

from locus_store import InMemoryMessageLog, InMemoryStore
from locus_store.backends import FileBackend
from locus_store.backends.memory.backend import MemoryBackend

if TESTS_RUN:
    import httpx

    from locus_store.service import app

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.anyio

NESTED = "[" * 900 + "]" * 900
OBJECTS = '{"a":' * 900 + "1" + "}" * 900


@pytest.fixture
def client() -> httpx.AsyncClient:
    backend = MemoryBackend()
    made = app(
        backend,
        store=InMemoryStore(dimension=3),
        messages=InMemoryMessageLog(backend=backend),
        max_body=100_000,
    )
    return httpx.AsyncClient(transport=httpx.ASGITransport(made), base_url="http://service")


@pytest.mark.parametrize("deep", [NESTED, OBJECTS])
async def test_deep_json_is_refused(client: httpx.AsyncClient, deep: str) -> None:
    wanted = '"prefix": [], "metadata_filter": {}, "limit": 1'
    requests = {
        "/v1/query": f'{{"key": "k", "value": {deep}}}',
        "/v1/forget_where": f'{{"key": "k", "value": {deep}}}',
        "/v1/fetch": f'{{"thread_id": {deep}}}',
        "/v1/store/recent": f'{{"wanted": {{{wanted}, "filter": {{"a": {deep}}}}}}}',
        "/v1/store/apply": f'{{"changes": [{{"namespace": [], "key": "k", "metadata": {deep}}}]}}',
        "/threads/t/checkpoints": f'{{"state": {{"a": {deep}}}, "metadata": {deep}}}',
    }
    for path, body in requests.items():
        answer = await client.post(path, content=body, headers={"content-type": "application/json"})
        assert answer.status_code == 422, (path, answer.text)


async def test_a_long_body_is_refused_before_it_is_read(client: httpx.AsyncClient) -> None:
    async def endless() -> Any:
        while True:
            yield b"x" * 10_000

    headers = {"content-type": "application/json"}
    for body in (b"x" * 200_000, endless()):
        answer = await client.post("/v1/fetch", content=body, headers=headers)
        assert answer.status_code == 413
        assert answer.headers["connection"] == "close"


@pytest.mark.parametrize("value", ["", "Bearer", "Bearer x", "Basic eA==", "Bearer " + "x" * 5000])
async def test_a_token_that_is_none_is_refused(tmp_path: Path, value: str) -> None:
    from locus_store.service.access import TokenFile

    TokenFile(tmp_path / "t.json").add("a", None, ["read"])
    made = app(MemoryBackend(), token_file=tmp_path / "t.json")
    transport = httpx.ASGITransport(made)
    async with httpx.AsyncClient(transport=transport, base_url="http://service") as client:
        for path in ("/v1", "/metrics", "/threads/t/checkpoints"):
            answer = await client.get(path, headers={"authorization": value})
            assert answer.status_code == 401
            assert answer.headers["www-authenticate"] == "Bearer"
        answer = await client.post("/v1/fetch", headers={"authorization": value})
        assert answer.status_code == 401


async def test_a_failure_of_the_storage_shows_no_path(tmp_path: Path) -> None:
    backend = FileBackend(tmp_path / "files")
    await backend.save("t", {"n": 1})
    for it in (tmp_path / "files").rglob("*"):
        if it.is_file():
            it.write_bytes(b"damaged")
    transport = httpx.ASGITransport(app(backend))
    async with httpx.AsyncClient(transport=transport, base_url="http://service") as client:
        for path, body in (("/v1/fetch", {"thread_id": "t"}), ("/v1/recent", {})):
            answer = await client.post(path, json=body)
            assert answer.status_code in {422, 503}
            assert str(tmp_path) not in answer.text
            assert "Traceback" not in answer.text


async def test_a_damaged_archive_is_named_to_its_sender_and_not_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    backend = MemoryBackend()
    await backend.save("t", {"n": 1})
    transport = httpx.ASGITransport(app(backend))
    async with httpx.AsyncClient(transport=transport, base_url="http://service") as client:
        thread = (await client.post("/v1/read_thread", json={"thread_id": "t"})).json()
        thread["thread_id"] = "copy"
        thread["lines"][0]["records"][0]["digest"] = "A" * 22 + "=="
        answer = await client.post("/v1/restore", json={"thread": thread})
    assert answer.status_code == 422
    assert answer.json()["error"] == "IntegrityError"
    assert "stored data" not in answer.text
    assert not caplog.records
    assert not await backend.exists("copy")


@pytest.mark.parametrize(
    "field",
    [{"sha256": "short"}, {"sha256": 7}, {"rights": None}, {"rights": ["all"]}, {"tenant": 7}],
    ids=repr,
)
def test_a_token_file_with_a_wrong_field_lets_nobody_in(
    tmp_path: Path, field: dict[str, Any]
) -> None:
    from locus_store import BackendError
    from locus_store.service.access import TokenFile

    path = tmp_path / "t.json"
    TokenFile(path).add("a", None, ["read"])
    told = json.loads(path.read_text())
    told["tokens"][0] |= field
    path.write_text(json.dumps(told))
    with pytest.raises(BackendError, match="cannot be read"):
        TokenFile(path).read_tokens()


async def test_a_long_list_of_wrong_values_is_refused_at_the_first(
    client: httpx.AsyncClient,
) -> None:
    body = b'{"thread_id":"t","namespace":"","checkpoint_ids":[' + b"0," * 40_000 + b"0]}"
    headers = {"content-type": "application/json"}
    answer = await client.post("/v1/writes_of", content=body, headers=headers)
    assert answer.status_code == 422
    assert "checkpoint_ids.0" in answer.json()["message"]
