"""Content that attacks the page that shows it, in each place that content has."""

from __future__ import annotations

import json
import os
from typing import Any
from urllib.parse import quote

import pytest
from payloads import MARKUP, payloads
from services import parts

from locus_store import NewMessage
from locus_store.inspector.escapes import escape
from locus_store.open import Storage
from locus_store.types import PendingWrite

NUMBER = 500 if os.environ.get("LOCUS_TEST_LONG") else len(MARKUP)
GROUP = 50


async def _grow(backend: Any, store: Any, group: list[str]) -> None:
    messages = [
        {
            "role": "user" if at % 2 else "assistant",
            "id": f"m{at}",
            "name": text,
            "content": [{"type": "text", "text": text}] if at % 3 else text,
            "tool_calls": [{"id": text, "name": text, "args": {text: text}}],
        }
        for at, text in enumerate(group)
    ]
    state = {"messages": messages, "error": group, "tree": {text: text for text in group}}
    for text in group:
        await backend.write_state(text, {"n": 1}, checkpoint_id="v")
        await backend.write_state("t", {}, checkpoint_id=text, metadata={text: text, "a": text})
        await backend.write_state("t", {}, checkpoint_id="v", namespace=text)
        await store.put((text, "n"), text, text, {text: text})
        await store.put(("n",), text, {text: text}, {"a": text})
    await backend.write_state("t", state, checkpoint_id="last")
    writes = [
        PendingWrite(text, at, text, "text", text.encode(), f"~__pregel_pull, {text}")
        for at, text in enumerate(group)
    ]
    writes += [
        PendingWrite(f"task {at}", -1, "__error__", "text", text.encode(), "")
        for at, text in enumerate(group)
    ]
    await backend.put_writes("t", "last", writes)
    said = [NewMessage({"text": it, it: it}, role=it, metadata={it: it}) for it in group]
    await Storage(backend).messages().append("t", said, namespace=group[0])


def _pages(group: list[str]) -> dict[str, list[str]]:
    """The pages, and the texts that each must show."""
    odd = quote(group[0], safe="")
    return {
        "threads": group,
        "timeline?thread=t": group,
        "version?thread=t&version=last": group,
        "version?thread=t&version=last&view=json": group,
        "version?thread=t&version=last&path=tree": group,
        "diff?thread=t&version=last": [json.dumps(group[0], ensure_ascii=False)[1:-1]],
        "writes?thread=t&version=last": group,
        "messages?thread=t": group,
        f"messages?thread=t&log={odd}&q={odd}": [],
        "store": group,
        "items?segments=[%22n%22]": group,
        f"item?segments=[%22n%22]&key={odd}": group[:1],
        f"version?thread={odd}": group[:1],
        f"timeline?thread=t&namespace={odd}": group[:1],
        f"bisect?thread=t&path={odd}&test=contains&value={odd}": [],
        f"version?thread=t&version={odd}": group[:1],
        f"version?thread={odd}no": [repr(f"{group[0]}no")[1:-1]],
        f"threads?id={odd}&user={odd}": [],
        f"threads?text={odd}": [],
        f"{odd}": [],
        "rewind?thread=t&version=last": [],
        f"delete?thread={odd}": group[:1],
    }


@pytest.mark.parametrize("bypass_csp", [False, True])
async def test_content_is_shown_and_does_nothing(
    chromium: Any, visit: Any, bypass_csp: Any
) -> None:
    found = payloads(NUMBER)
    for start in range(0, len(found), GROUP):
        group = found[start : start + GROUP]
        backend, store, _ = parts()
        site = visit(backend, store, allow_write=True)
        await _grow(backend, store, group)
        async with chromium.tab(site, bypass_csp=bypass_csp) as tab:
            tab.may_fail = True
            for address, texts in _pages(group).items():
                await tab.goto(address)
                assert tab.page.url.startswith(site.home), address
                assert await tab.page.evaluate("() => window.hit") is None, address
                shown = await tab.page.evaluate("() => document.body.textContent")
                missing = [it for it in texts if escape(it)[:200] not in shown]
                assert missing == [], address


async def test_a_long_text_and_deep_and_odd_values_are_shown_within_the_bounds(
    chromium: Any, visit: Any
) -> None:
    deep: Any = "bottom"
    for _ in range(150):
        deep = [deep]
    state = {"long": "<b>" * 3_500_000, "deep": deep, "keys": {"": 1, " ": 2, ".": 3, "[0]": 4}}
    backend, store, _ = parts()
    site = visit(backend, store)
    await backend.write_state("t", state, checkpoint_id="v")
    path = "deep" + "[0]" * 150
    async with chromium.tab(site) as tab:
        with site.counting() as sent:
            await tab.goto("version?thread=t")
            assert "10,500,000 characters" in await tab.page.inner_text("main")
            await tab.goto(f"version?thread=t&path={path}")
            assert "bottom" in await tab.page.inner_text("main")
            await tab.goto("version?thread=t&path=long")
        assert sum(sent) < 100_000
