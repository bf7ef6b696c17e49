"""The pages of storages that encrypt, record calls, or keep tenants apart by themselves."""

from __future__ import annotations

import json
from base64 import b64encode
from typing import TYPE_CHECKING, Any

import pytest
from pages_reader import Site
from storages.postgresql import secure
from test_pages_in_chromium import grow

from locus_store import open_storage
from locus_store.inspector import app

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.anyio


def encrypt(folder: Path) -> str:
    keys = {
        "keys": {"k": b64encode(bytes(32)).decode()},
        "current": "k",
        "data_keys": f"sqlite:///{folder}/data-keys.db",
    }
    (folder / "keys.json").write_text(json.dumps(keys))
    return f"sqlite:///{folder}/sealed.db?encryption={folder}/keys.json"


@pytest.mark.parametrize("kind", ["encrypted", "audited", "secured"])
async def test_each_page_is_shown_and_every_filter_finds(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    urls: dict[str, Any] = {
        "encrypted": lambda: encrypt(tmp_path),
        "audited": lambda: f"sqlite:///{tmp_path}/x.db?audit=worker&audit_reads=true",
        "secured": lambda: secure(request.getfixturevalue("secured_database")),
    }
    async with open_storage(urls[kind]()) as storage:
        backend, store = storage.backend, storage.store()
        await grow(backend, store)
        await backend.write_state("trip", {"city": "Chur"}, metadata={"step": 1})
        site = Site(backend, app(backend, store, allow_write=True))
        assert len(await site.crawled("http://localhost/threads", most=60)) == 60
        shown = {
            "threads": {"metadata": "step=1", "kind": "agent"},
            "version": {"thread": "trip", "version": "v3", "origins": "1"},
            "messages": {"thread": "trip", "q": "Line 7", "role": "user"},
            "items": {"segments": "[]", "value": "name=Basel"},
        }
        texts = {page: (await site.page(page, **query)).text for page, query in shown.items()}
        assert "'Chur'" in texts["threads"]
        assert "I am in Bern" in texts["version"]
        assert texts["messages"].count("Line 7") == 1
        assert "Basel" in texts["items"]
