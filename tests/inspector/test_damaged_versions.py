"""A damaged version does not close its thread."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING

import pytest
from lazily import TESTS_RUN
from pages_reader import Seen, Site

from locus_store import open_checkpointer

if TESTS_RUN:
    from locus_store.inspector import app

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.anyio
SAME = {"sec-fetch-site": "same-origin"}


def damage(path: Path, name: str) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute(
            "update locus_checkpoints set metadata = '{not json' where checkpoint_id = ?", [name]
        )


async def test_a_thread_with_a_damaged_version_is_shown_around_it_and_can_be_deleted(
    tmp_path: Path,
) -> None:
    path = tmp_path / "a.db"
    async with open_checkpointer(f"sqlite:///{path}").backend as backend:
        for at in range(6):
            await backend.write_state("t", {"n": at}, checkpoint_id=f"v{at}", metadata={"k": at})
        damage(path, "v2")
        site = Site(backend, app(backend, allow_write=True))
        page = await site.json("timeline", thread="t")
        assert [it["version"]["checkpoint_id"] for it in page["rows"]] == ["v5", "v4", "v3"]
        assert page["is_damaged"]
        shown = await site.page("timeline", thread="t")
        assert "is damaged and cannot be shown" in shown.text
        older = await site.page("timeline", thread="t", at_version="v1")
        assert "v1" in older.text
        assert "v0" in older.text
        for name in ("v5", "v3", "v1"):
            await site.page("version", thread="t", version=name)
        live = await site.json("live", thread="t", after=3)
        assert [it["checkpoint_id"] for it in live["versions"]] == ["v3", "v4", "v5"]
        page = (await site.get("live", thread="t", after=3)).text
        assert all(name in page for name in ("v3", "v4", "v5"))
        await site.page("rewind", thread="t", version="v1")
        damage(path, "v5")
        form = (await site.page("delete", thread="t")).forms[-1]
        answer = await site.client.post(
            form.action, data=form.fields | {"typed": "t"}, headers=SAME
        )
        assert answer.status_code == 303
        assert Seen(await site.get("threads")).text.count("There are no such threads.") == 1
        assert (await site.get("live", thread="t", after=3)).status_code == 404
