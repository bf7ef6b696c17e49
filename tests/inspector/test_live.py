from __future__ import annotations

from typing import Any

from services import parts

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
        assert "v3" in await page.inner_text("h1")
