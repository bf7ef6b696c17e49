"""Pages of other origins in the browser of a person who is logged in."""

from __future__ import annotations

import os
from typing import Any

import pytest
from services import Running, parts
from starlette.responses import HTMLResponse
from test_changes import WRITES, grow

from locus_store.inspector.access import Codes
from locus_store.inspector.application import LOOPBACK, Inspector
from locus_store.service.application import Parts

ROUNDS = 45 if os.environ.get("LOCUS_TEST_LONG") else 1  # of 75 attempts each
READS = ["", "threads?format=json", "version?thread=trip", "download?thread=trip", "inspector.js"]
ATTACK = """
async ([home, reads, writes, fields]) => {
  const found = [];
  const body = new URLSearchParams(fields);
  const calls = reads.map(it => [it, {}]).concat(writes.map(it => [it, {method: "POST", body}]));
  for (const [address, options] of calls)
    for (const mode of ["cors", "no-cors"])
      try {
        const answer = await fetch(home + address, {...options, mode, credentials: "include"});
        if (await answer.text()) found.push(`fetch ${mode} ${address}`);
      } catch {}
  for (const address of reads.concat(writes))
    for (const [tag, name] of [["img", "src"], ["script", "src"], ["iframe", "src"],
                               ["object", "data"], ["embed", "src"]]) {
      const element = document.createElement(tag);
      const loads = await new Promise(done => {
        element.onload = () => done(true);
        element.onerror = () => done(false);
        setTimeout(done, 1000, false);
        element[name] = home + address;
        document.body.append(element);
      });
      let inside = null;
      try { inside = element.contentDocument && element.contentDocument.body.textContent; } catch {}
      if (inside || (loads && (tag === "img" || tag === "script"))) found.push(`${tag} ${address}`);
      element.remove();
    }
  for (const address of writes) {
    const frame = document.createElement("iframe");
    frame.name = "target";
    document.body.append(frame);
    const form = document.createElement("form");
    form.method = "post"; form.target = "target"; form.action = home + address;
    for (const [name, value] of Object.entries(fields)) {
      const input = document.createElement("input");
      input.name = name; input.value = value; form.append(input);
    }
    document.body.append(form);
    await new Promise(done => { frame.onload = done; setTimeout(done, 1000); form.submit(); });
    frame.remove();
  }
  return found;
}
"""


class Operated(Running):
    """The inspector of ``locus-store inspect``, which lets in by a code."""

    def __init__(self, backend: Any, store: Any) -> None:
        self.codes = Codes()
        held = Parts(backend, store, None)
        pages = Inspector(held, self.codes, allow_write=True, allowed_hosts=LOOPBACK)
        super().__init__(pages, [backend, store])
        self.home = f"{self.url}/"


async def _page(scope: Any, receive: Any, send: Any) -> None:
    await HTMLResponse("<!doctype html><title>other</title><body>")(scope, receive, send)


@pytest.fixture
def operated() -> Any:
    backend, store, _ = parts()
    site = Operated(backend, store)
    yield site, backend
    site.stop()


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "rebound.example"])
async def test_a_page_of_another_origin_reads_and_changes_nothing(
    chromium: Any, operated: Any, host: Any
) -> None:
    site, backend = operated
    await grow(backend)
    before = await backend.history("trip")
    other = Running(_page)
    try:
        async with chromium.tab(site) as tab:
            tab.may_fail = True
            await tab.goto(f"login?code={site.codes.generate_code()}")
            assert "trip" in await tab.page.inner_text("main")
            for _ in range(ROUNDS):
                await tab.page.goto(f"http://{host}:{other.port}/")
                fields = {"head": "v3", "sequence": "3", "typed": "trip", "new_thread": "new"}
                told = [site.home, READS, WRITES, fields | {"form_token": "0" * 64}]
                assert await tab.page.evaluate(ATTACK, told) == []
            tab.faults.clear()  # what the other page did
            await tab.goto("threads")
            assert "trip" in await tab.page.inner_text("main")
    finally:
        other.stop()
    assert await backend.history("trip") == before
    assert not await backend.exists("new")


async def test_a_rebound_host_name_and_a_used_link_open_nothing(
    chromium: Any, operated: Any
) -> None:
    site, backend = operated
    await grow(backend)
    code = site.codes.generate_code()
    async with chromium.tab(site) as tab:
        tab.may_fail = True
        for address in (f"login?code={code}", "threads", "version?thread=trip"):
            await tab.page.goto(f"http://rebound.example:{site.port}/{address}")
            assert "trip" not in await tab.page.inner_text("body")
        tab.faults.clear()  # requests to that name
        await tab.goto(f"login?code={code}")
        assert "trip" in await tab.page.inner_text("main")
    async with chromium.tab(site) as tab:
        tab.may_fail = True
        for address in (f"login?code={code}", "threads", "version?thread=trip"):
            await tab.goto(address)
            assert "trip" not in await tab.page.inner_text("body")
