"""The story of a wrong city with the keyboard alone."""

from __future__ import annotations

from typing import Any

from services import parts
from test_pages_in_chromium import grow


async def _focused(page: Any) -> str:
    return str(await page.evaluate("() => document.activeElement.textContent.trim()"))


async def test_a_wrong_city_is_found_with_the_keyboard_alone(chromium: Any, visit: Any) -> None:
    backend, store, _ = parts()
    site = visit(backend, store, allow_write=True)
    await grow(backend, store)
    async with chromium.tab(site) as tab:
        page = tab.page
        keys = page.keyboard
        await tab.goto("threads")
        await keys.press("/")
        await keys.type("bern")
        await keys.press("Enter")
        await page.wait_for_url("**text=bern**")
        await keys.press("j")
        assert await _focused(page) == "trip"
        await keys.press("Enter")
        await page.wait_for_url("**version?**")
        await keys.press("b")
        await keys.type("city")
        await keys.press("Enter")
        await page.wait_for_selector(".origin")
        assert "v2" in await page.inner_text(".origin")
        while not await page.evaluate("() => document.activeElement.matches('.origin a')"):
            await keys.press("Tab")
        await keys.press("Enter")
        await page.wait_for_selector(".changes")
        assert "Basel" in await page.inner_text(".changes del")
        await keys.press("?")
        assert "d" in await page.inner_text("#keys")


async def test_a_key_compares_the_two_chosen_versions(chromium: Any, visit: Any) -> None:
    backend, store, _ = parts()
    site = visit(backend, store)
    await grow(backend, store)
    async with chromium.tab(site) as tab:
        await tab.goto("timeline?thread=trip")
        await tab.page.locator("[name=encoded-from]").nth(2).check()
        await tab.page.keyboard.press("d")
        await tab.page.wait_for_url("**diff?**")
        assert "From v1" in await tab.page.inner_text("main")


async def test_each_control_can_be_reached_and_shows_its_focus(chromium: Any, visit: Any) -> None:
    backend, store, _ = parts()
    site = visit(backend, store, allow_write=True)
    await grow(backend, store)
    async with chromium.tab(site) as tab:
        for address in ("threads", "version?thread=trip", "rewind?thread=trip&version=v1"):
            await tab.goto(address)
            wanted = await tab.page.evaluate(
                "() => [...document.querySelectorAll('a[href], button, input:not([type=hidden]), "
                "select, summary')].filter(it => it.checkVisibility() && it.tabIndex >= 0).length"
            )
            seen = 0
            for _ in range(2 * wanted):
                await tab.page.keyboard.press("Tab")
                found = await tab.page.evaluate(
                    "() => { const it = document.activeElement;"
                    " if (it === document.body || it.seen)"
                    " return null; it.seen = true;"
                    " return [getComputedStyle(it).outlineStyle,"
                    " it.matches('a, button, input, select, summary')]; }"
                )
                if found is not None:
                    assert found[0] != "none", address
                    seen += found[1]
            assert seen >= wanted, address


async def test_the_menu_of_actions_closes_with_escape_or_a_click_beside_it(
    chromium: Any, visit: Any
) -> None:
    backend, store, _ = parts()
    site = visit(backend, store, allow_write=True)
    await grow(backend, store)
    async with chromium.tab(site) as tab:
        await tab.goto("version?thread=trip")
        menu = tab.page.locator("details.menu")
        for close in (
            lambda: tab.page.keyboard.press("Escape"),
            lambda: tab.page.locator("h1").click(position={"x": 2, "y": 2}),
        ):
            await menu.locator("summary").click()
            assert await menu.get_attribute("open") is not None
            await close()
            assert await menu.get_attribute("open") is None


async def test_a_phone_shows_the_beginning_of_the_chosen_state(chromium: Any, visit: Any) -> None:
    backend, store, _ = parts()
    site = visit(backend, store)
    for number in range(40):
        said = [{"role": "user", "content": f"line {at}"} for at in range(2 * number)]
        await backend.write_state("trip", {"messages": said, "n": number})
    async with chromium.tab(site, viewport={"width": 400, "height": 700}) as tab:
        await tab.goto("version?thread=trip")
        before = tab.page.url
        await tab.page.locator("#versions .versions a").nth(12).click()
        await tab.page.wait_for_url(lambda it: it != before)
        top = "() => document.getElementById('state').getBoundingClientRect().top"
        assert 0 <= await tab.page.evaluate(top) < 200
