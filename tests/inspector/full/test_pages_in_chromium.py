"""Each page in a real browser: with and without scripts, under a prefix, small, light and dark."""

from __future__ import annotations

from typing import Any

import pytest
from services import parts

from locus_store import NewMessage
from locus_store.open import Storage
from locus_store.types import PendingWrite
from locus_store.versions.sizes import INTERRUPT

PAGES = [
    "threads",
    "threads?id=none&user=u&since=2026-01-31T12:00",
    "version?thread=trip",
    "version?thread=trip&origins=1",
    "version?thread=trip&version=v1&view=json",
    "version?thread=trip&version=v2&path=city",
    "diff?thread=trip&version=v2",
    "report?thread=trip",
    "timeline?thread=trip",
    "bisect?thread=trip&path=city",
    "bisect?thread=trip&test=contains&path=city&value=Bern",
    "writes?thread=trip",
    "messages?thread=trip",
    "messages?thread=trip&q=line",
    "live?thread=trip&after=1",
    "store",
    'items?segments=["facts"]',
    'item?segments=["facts"]&key=city',
]
FORMS = ["rewind?thread=trip&version=v1", "fork?thread=trip", "delete?thread=trip"]


async def grow(backend: Any, store: Any) -> None:
    """A trip of three versions, of which the second has a wrong city."""
    for name, city in zip(("v1", "v2", "v3"), ("Basel", "Bern", "Bern"), strict=True):
        asks = {"id": "c", "function": {"name": "weather", "arguments": f'{{"city": "{city}"}}'}}
        messages = [
            {"role": "user", "content": f"I am in {city}"},
            {"role": "assistant", "content": "", "tool_calls": [asks]},
            {"role": "tool", "tool_call_id": "c", "content": "Rain"},
        ]
        await backend.write_state(
            "trip", {"messages": messages, "city": city}, checkpoint_id=name, metadata={"step": 1}
        )
    said = [NewMessage({"content": [{"text": f"Line {n}"}]}, role="user") for n in range(60)]
    await Storage(backend).messages().append("trip", said)
    await store.put(("facts",), "city", {"name": "Basel"})


@pytest.mark.parametrize("options", [{}, {"java_script_enabled": False}])
async def test_each_page_is_shown_under_any_prefix(
    chromium: Any, visit: Any, any_place: Any, options: Any
) -> None:
    prefix = "/tools/inspector" if options or any_place is None else ""
    backend, store, _ = parts(any_place)
    site = visit(backend, store, prefix=prefix)
    await grow(backend, store)
    async with chromium.tab(site, **options) as tab:
        for address in PAGES:
            answer = await tab.goto(address)
            assert answer.status == 200, address
            assert await tab.page.locator("h1").count() == 1


@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_axe_finds_no_violation_and_no_page_is_wider_than_320_px(
    chromium: Any, visit: Any, scheme: Any
) -> None:
    backend, store, _ = parts()
    site = visit(backend, store, allow_write=True)
    await grow(backend, store)
    small = {"width": 320, "height": 800}
    async with chromium.tab(site, color_scheme=scheme, viewport=small, bypass_csp=True) as tab:
        faults = []
        for address in (*PAGES, *FORMS):
            await tab.goto(address)
            faults += [(address, it) for it in await tab.violations()]
            faults += [(address, "wide")] * await tab.is_wide()
        assert faults == []


async def test_paper_has_the_lists_their_times_and_no_forms(chromium: Any, visit: Any) -> None:
    backend, store, _ = parts()
    site = visit(backend, store)
    await grow(backend, store)
    async with chromium.tab(site, viewport={"width": 720, "height": 1_000}) as tab:
        await tab.page.emulate_media(media="print")
        for address in ("threads", "timeline?thread=trip", 'items?segments=["facts"]'):
            await tab.goto(address)
            assert not await tab.is_wide(), address
            assert await tab.page.is_visible("table tbody td")
            assert not await tab.page.is_visible("input")
            shown = "getComputedStyle(document.querySelector('td time'), '::after').content"
            assert "UTC" in await tab.page.evaluate(shown), address


async def test_a_phone_shows_the_date_of_each_field_of_a_time(chromium: Any, visit: Any) -> None:
    backend, store, _ = parts()
    site = visit(backend, store)
    await grow(backend, store)
    async with chromium.tab(site, viewport={"width": 390, "height": 844}) as tab:
        for address in ("threads?user=alex", "timeline?thread=trip"):
            await tab.goto(address)
            for field in await tab.page.locator("[type=datetime-local]").all():
                assert (await field.bounding_box())["width"] > 180, address


async def test_a_phone_shows_all_columns_of_the_tables_without_scrolling_sideways(
    chromium: Any, visit: Any
) -> None:
    backend, store, _ = parts()
    site = visit(backend, store)
    await grow(backend, store)
    async with chromium.tab(site, viewport={"width": 400, "height": 844}) as tab:
        for address, part in (
            ("timeline?thread=trip", "td .cell ins"),
            ("timeline?thread=trip", "[name=encoded-version]"),
            ("bisect?thread=trip&test=contains&path=city&value=Bern", "td .about dd"),
            ('items?segments=["facts"]', "td.amount"),
        ):
            await tab.goto(address)
            box = await tab.page.locator(part).first.bounding_box()
            assert box["x"] + box["width"] <= 400, (address, part)
            inside = "it => it.scrollWidth <= it.clientWidth"
            assert await tab.page.locator(".scroll").evaluate(inside), address


async def test_a_phone_shows_twelve_versions_at_once(chromium: Any, visit: Any) -> None:
    backend, store, _ = parts()
    site = visit(backend, store)
    for at in range(30):
        about = {"node": "guess"}
        await backend.write_state("t", {"n": at}, checkpoint_id=f"v{at}", metadata=about)
    phone = {"width": 390, "height": 844}
    async with chromium.tab(site, viewport=phone, is_mobile=True, has_touch=True) as tab:
        await tab.goto("version?thread=t")
        rows = await tab.page.locator("#versions li").all()
        boxes = [await it.bounding_box() for it in rows]
        assert sum(it["y"] + it["height"] <= phone["height"] for it in boxes) >= 12


async def test_a_phone_steps_from_change_to_change(chromium: Any, visit: Any) -> None:
    backend, store, _ = parts()
    site = visit(backend, store)
    for name in ("v0", "v1"):
        state = {f"key{at:02}": name for at in range(30)}
        await backend.write_state("t", state, checkpoint_id=name)
    phone = {"width": 390, "height": 844}
    async with chromium.tab(site, viewport=phone, is_mobile=True, has_touch=True) as tab:
        for address in ("version?thread=t", "diff?thread=t&version=v1&from=v0"):
            await tab.goto(address)
            following, focused = tab.page.get_by_text("Next change"), tab.page.locator(":focus")
            for at in (0, 1, 2):
                await following.tap()
                assert f"key{at:02}" in await focused.inner_text(), address
                box = await focused.bounding_box()
                assert box["y"] + box["height"] <= (await following.bounding_box())["y"], address
            await tab.page.get_by_text("Previous change").tap()
            assert "key01" in await focused.inner_text()


async def test_a_row_of_a_version_cuts_its_time_and_the_old_value_first(
    chromium: Any, visit: Any
) -> None:
    backend, store, _ = parts()
    site = visit(backend, store)
    for at, name in enumerate(("v0", "1f1ea1bc-cc41-67a4-8037-e079bba8f884", "v1")):
        said = [{"role": "user", "content": f"Answer {it}: rather Zurich"} for it in range(at)]
        state = {"messages": said, "budget": -258 - 30 * at}
        about = {"node": "tool_of_prices"}
        await backend.write_state(
            "t", state, checkpoint_id=name, parent_id="v0" if at else None, metadata=about
        )
    interrupt = PendingWrite("task", -3, INTERRUPT, "json", b"1")
    await backend.put_writes("t", "1f1ea1bc-cc41-67a4-8037-e079bba8f884", [interrupt])
    async with chromium.tab(site, viewport={"width": 1_280, "height": 800}) as tab:
        await tab.goto("version?thread=t")
        row = tab.page.locator("#versions li").nth(1)
        assert "side" in await row.inner_text()
        assert "interrupted" in await row.inner_text()
        assert (await row.locator(".id").bounding_box())["height"] < 22
        for part in (row.locator(".id"), row.locator(".badge").last, row.locator("ins").last):
            assert await part.evaluate("it => it.scrollWidth <= it.clientWidth || !it.clientWidth")
            box, whole = await part.bounding_box(), await row.bounding_box()
            assert box["x"] + box["width"] <= whole["x"] + whole["width"]


async def test_another_version_is_shown_without_another_page(chromium: Any, visit: Any) -> None:
    backend, store, _ = parts()
    site = visit(backend, store)
    for at in range(60):
        await backend.write_state("t", {"n": at}, checkpoint_id=f"v{at}")
    async with chromium.tab(site) as tab:
        page = tab.page
        await tab.goto("version?thread=t")
        await page.evaluate("() => { window.here = true; }")
        await page.evaluate("() => { document.getElementById('versions').scrollTop = 900; }")
        await page.click("#versions li:nth-child(25) a")
        await page.wait_for_url("**version=v35#state")
        assert "v35" in await page.inner_text("h1")
        assert "35" in await page.inner_text("#changes ins")
        assert await page.title() == "v35 of t - locus-store"
        assert await page.evaluate("() => window.here")
        assert await page.evaluate("() => document.getElementById('versions').scrollTop") == 900
        assert await page.locator("#versions [aria-current]").count() == 1
        await page.go_back()
        await page.wait_for_selector("h1:has-text('v59')")
