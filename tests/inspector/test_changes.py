"""The forms that change a thread, in a real browser and against requests of others."""

from __future__ import annotations

import html
import logging
import re
from typing import TYPE_CHECKING, Any

import pytest
from lazily import TESTS_RUN
from services import parts
from tiers import first_of

if TESTS_RUN:
    from locus_store.inspector import Caller, app

if TYPE_CHECKING:
    import httpx

WRITES = [
    "rewind?thread=trip&version=v1",
    "fork?thread=trip&version=v1",
    "fork?thread=trip",
    "delete?thread=trip&version=v2",
    "delete?thread=trip",
]


async def grow(backend: Any, thread: str = "trip") -> None:
    for name in ("v1", "v2", "v3"):
        await backend.write_state(thread, {"city": name}, checkpoint_id=name)


async def choose(page: Any, name: str) -> None:
    """Choose an entry of the menu of a version."""
    await page.click("summary:has-text('Actions')")
    await page.click(f"text={name}")


def _reader(request: Any) -> Caller:
    return Caller("reader", None, frozenset({"read"}))


@pytest.mark.parametrize("options", first_of({}, {"java_script_enabled": False}))
async def test_a_rewind_a_fork_and_deletions_in_a_browser(
    chromium: Any, visit: Any, place: Any, options: Any, caplog: pytest.LogCaptureFixture
) -> None:
    backend, store, _ = parts(place)
    site = visit(backend, store, prefix="/tools", allow_write=True)
    await grow(backend)
    caplog.set_level(logging.INFO, "locus_store.inspector")
    async with chromium.tab(site, **options) as tab:
        page = tab.page
        await tab.goto("version?thread=trip&version=v1")
        await choose(page, "Rewind to this version")
        assert "2 versions" in await page.inner_text("main")
        await page.click("button:text-is('Rewind')")
        head = await backend.version("trip")
        assert (head.parent_id, (await backend.load("trip"))) == ("v1", {"city": "v1"})
        assert await page.inner_text("[role=status]") == "Rewound to v1"
        assert "Rewound to v1" in await page.text_content("#versions li[aria-current]")

        await choose(page, "Fork here")
        await page.fill("input[name=new_thread]", "copy ü/?&\u202e")
        await page.click("button:text-is('Fork')")
        assert [it.checkpoint_id for it in await backend.history("copy ü/?&\u202e")] == [
            head.checkpoint_id,
            "v1",
        ]
        await choose(page, "Delete the thread")
        await page.fill("input[name=typed]", "copy")
        tab.may_fail = True
        await page.click("button:text-is('Delete')")
        assert "nothing was deleted" in await page.inner_text("main")
        await page.go_back()
        await page.fill("input[name=typed]", "copy ü/?&\\u202e")
        await page.click("button:text-is('Delete')")
        assert not await backend.exists("copy ü/?&\u202e")

        await tab.goto("version?thread=trip&version=v2")
        await choose(page, "Delete this version")
        await page.click("button:text-is('Delete')")
        assert await page.inner_text("h1") == "Timeline"
        assert [it.checkpoint_id for it in await backend.history("trip")][1:] == ["v3", "v1"]
    copy = "copy 'copy ü/?&\\u202e'"
    told = [it.message for it in caplog.records if it.levelno == logging.INFO]
    assert told == [
        "rewound thread 'trip': caller '', namespace '', version 'v1'",
        f"forked thread 'trip': caller '', namespace '', version {head.checkpoint_id!r}, {copy}",
        "deleted thread 'copy ü/?&\\u202e': caller '', namespace ''",
        "deleted a version of thread 'trip': caller '', namespace '', version 'v2'",
    ]


async def test_a_head_that_moved_is_a_409_page_and_nothing_is_changed(
    chromium: Any, visit: Any, place: Any
) -> None:
    backend, store, _ = parts(place)
    site = visit(backend, store, allow_write=True)
    await grow(backend)
    async with chromium.tab(site) as tab:
        tab.may_fail = True
        for number, address in enumerate(WRITES):
            await tab.goto(address)
            await backend.write_state("trip", {"n": number}, checkpoint_id=f"n{number}")
            before = await backend.history("trip")
            for field in await tab.page.locator("main input:not([type=hidden])").all():
                await field.fill("trip")
            async with tab.page.expect_response(lambda it: it.request.method == "POST") as found:
                await tab.page.click("main form button")
            assert (await found.value).status == 409
            assert "nothing was changed" in await tab.page.inner_text("main")
            assert await backend.history("trip") == before


def client(application: Any) -> httpx.AsyncClient:
    import httpx

    transport = httpx.ASGITransport(application, client=("127.0.0.1", 1))
    return httpx.AsyncClient(transport=transport, base_url="http://localhost")


@pytest.mark.anyio
@pytest.mark.parametrize("address", WRITES)
@pytest.mark.parametrize("options", [{}, {"allow_write": True, "authorize": _reader}])
async def test_without_the_option_or_the_right_there_are_no_writing_routes(
    address: str, options: Any
) -> None:
    backend, store, _ = parts()
    await grow(backend)
    async with client(app(backend, store, **options)) as asking:
        for method in ("GET", "POST"):
            answer = await asking.request(
                method, address, headers={"sec-fetch-site": "same-origin"}
            )
            assert answer.status_code == 404
    assert len(await backend.history("trip")) == 3


@pytest.mark.anyio
@pytest.mark.parametrize("address", WRITES)
async def test_a_form_of_another_site_or_without_the_token_of_the_session_changes_nothing(
    address: str,
) -> None:
    backend, store, _ = parts()
    await grow(backend)
    fields = {"head": "v3", "sequence": "3", "typed": "trip", "new_thread": "new"}
    async with client(app(backend, store, allow_write=True)) as asking:
        page = await asking.get(address)
        token = page.text.partition('name="form_token" value="')[2].partition('"')[0]
        for headers, sent in (
            ({}, token),
            ({"sec-fetch-site": "cross-site"}, token),
            ({"sec-fetch-site": "same-site"}, token),
            ({"origin": "http://evil.example"}, token),
            ({"sec-fetch-site": "same-origin"}, ""),
            ({"sec-fetch-site": "same-origin"}, "0" * 64),
        ):
            form = fields | {"form_token": sent}
            answer = await asking.post(address, data=form, headers=headers)
            assert answer.status_code == 403, headers
        assert len(await backend.history("trip")) == 3
        same = {"sec-fetch-site": "same-origin"}
        answer = await asking.post(address, data=fields | {"form_token": token}, headers=same)
        assert answer.status_code == 303


@pytest.mark.anyio
async def test_the_form_of_a_rewind_names_finished_functions_that_run_again() -> None:
    pytest.importorskip("langgraph")
    from langgraph.func import entrypoint, task
    from langgraph.types import Command, interrupt

    from locus_store.adapters.langgraph import LangGraphSaver

    backend, store, _ = parts()
    ran: list[str] = []

    @task
    async def fetch(word: str) -> str:
        ran.append(word)
        return word

    @entrypoint(checkpointer=LangGraphSaver(backend))
    async def travel(word: str) -> Any:
        return [await fetch(word), interrupt("city?")]

    config: Any = {"configurable": {"thread_id": "t"}}
    await travel.ainvoke("a", config)
    for names in ("", "other, fetch"):
        head = await backend.version("t")
        async with client(app(backend, store, allow_write=True)) as asking:
            address = f"rewind?thread=t&version={head.checkpoint_id}"
            page = await asking.get(address)
            assert "although they are finished: call 1 of &#39;travel&#39;." in page.text
            fields = re.findall(r'name="(\w+)" value="([^"]*)"', page.text)
            hidden = {name: html.unescape(it) for name, it in fields}
            form = hidden | {"names": names}
            same = {"sec-fetch-site": "same-origin"}
            answer = await asking.post("rewind", data=form, headers=same)
            assert answer.status_code == 303
        ran.clear()
        assert await travel.ainvoke(Command(resume="Bern"), config) == ["a", "Bern"]
        assert ran == ([] if names else ["a"])
        await backend.remove_thread("t")
        await travel.ainvoke("a", config)


@pytest.mark.anyio
async def test_a_version_that_is_saved_at_the_moment_of_a_deletion_stays(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    backend, store, _ = parts()
    await grow(backend)
    remove = backend.remove_thread

    async def late(*args: Any, **options: Any) -> Any:
        await backend.write_state("trip", {"city": "v4"}, checkpoint_id="v4")
        return await remove(*args, **options)

    monkeypatch.setattr(backend, "remove_thread", late)
    async with client(app(backend, store, allow_write=True)) as asking:
        page = await asking.get("delete?thread=trip")
        fields = re.findall(r'name="(\w+)" value="([^"]*)"', page.text)
        form = {name: html.unescape(it) for name, it in fields} | {"typed": "trip"}
        same = {"sec-fetch-site": "same-origin"}
        assert (await asking.post("delete", data=form, headers=same)).status_code == 409
    assert (await backend.version("trip")).checkpoint_id == "v4"
