from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import httpx
import pytest
from services import parts

from locus_store.inspector import app

HIDDEN = "() => Object.defineProperty(document, 'hidden', {value: true, configurable: true})"
SHOWN = "() => Object.defineProperty(document, 'hidden', {value: false, configurable: true})"


async def test_newer_versions_appear_and_a_hidden_tab_asks_for_nothing(
    chromium: Any, visit: Any, place: Any
) -> None:
    backend, store, _ = parts(place)
    site = visit(backend, store, prefix="/tools")
    await backend.write_state("t", {"n": 1}, checkpoint_id="v1")
    async with chromium.tab(site) as tab:
        page = tab.page
        await page.clock.install()
        await tab.goto("version?thread=t")
        await backend.write_state("t", {"n": "x" * 5000}, checkpoint_id="v2\u202e")
        with site.counting() as sent:
            async with page.expect_response(lambda it: "live?" in it.url):
                await page.clock.run_for(2000)
            await page.wait_for_selector("#live li")
        assert await page.inner_text("#live li") == "v2\\u202e"
        assert sum(sent) < 500
        await page.evaluate(HIDDEN)
        asked = len(site.asked)
        await page.clock.run_for(20_000)
        assert len(site.asked) == asked
        await page.evaluate(SHOWN)
        await backend.write_state("t", {"n": 3}, checkpoint_id="v3")
        async with page.expect_response(lambda it: "live?" in it.url):
            await page.clock.run_for(2000)
        await page.wait_for_selector("#live li:nth-child(2)")
        await page.click("#live li:nth-child(2) a")
        await page.wait_for_url("**version=v3")
        assert "v3" in await page.inner_text("h1")
        await backend.write_state("t", {"n": 4}, checkpoint_id="v4")
        await page.uncheck("#follow input")
        asked = len(site.asked)
        await page.clock.run_for(20_000)
        assert len(site.asked) == asked


class _Asking:
    """Viewers of one inspector in this process, and the reads of its storage."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.backend, store, _ = parts()
        transport = httpx.ASGITransport(app(self.backend, store), client=("127.0.0.1", 1))
        self.client = httpx.AsyncClient(transport=transport, base_url="http://localhost")
        self.reads: Counter[str] = Counter()
        for name in ("version", "history"):
            monkeypatch.setattr(self.backend, name, self._counted(name))

    def _counted(self, name: str) -> Any:
        read = getattr(self.backend, name)

        def counted(*args: Any, **options: Any) -> Any:
            self.reads[name] += 1
            return read(*args, **options)

        return counted

    async def seen(self, after: int, thread: str = "t") -> list[str]:
        answer = await self.client.get(f"live?thread={thread}&after={after}&format=json")
        assert answer.status_code == 200, answer.text
        return [it["checkpoint_id"] for it in answer.json()["versions"]]


@pytest.mark.anyio
async def test_fifty_viewers_of_a_thread_read_it_twice_at_most(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asking = _Asking(monkeypatch)
    async with asking.client:
        for number in range(1, 4):
            await asking.backend.write_state("t", {"n": number}, checkpoint_id=f"v{number}")
        asking.reads.clear()
        found = await asyncio.gather(*(asking.seen(it % 4) for it in range(50)))
        assert found == [[f"v{it}" for it in range(after % 4 + 1, 4)] for after in range(50)]
        assert asking.reads["version"] <= 2
        assert asking.reads["history"] <= 2


@pytest.mark.anyio
async def test_a_viewer_sees_what_was_saved_before_the_request(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asking = _Asking(monkeypatch)
    async with asking.client:
        for number in range(1, 4):
            await asking.backend.write_state("t", {"n": number}, checkpoint_id=f"v{number}")
            waiting = asyncio.ensure_future(asking.seen(number))
            assert await asking.seen(number - 1) == [f"v{number}"]
            assert await waiting == []


@pytest.mark.anyio
async def test_a_viewer_who_leaves_takes_no_answer_from_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asking = _Asking(monkeypatch)
    async with asking.client:
        await asking.backend.write_state("t", {"n": 1}, checkpoint_id="v1")
        await asking.backend.write_state("other", {"n": 1}, checkpoint_id="o1")
        await asking.seen(0)
        leaving, staying = (asyncio.ensure_future(asking.seen(0)) for _ in range(2))
        await asking.seen(0, "other")
        leaving.cancel()
        assert await staying == ["v1"]
