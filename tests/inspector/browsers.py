"""A real Chromium, and the inspector as a site for it.

Playwright runs in a thread with an event loop of its own, as its loop must not be that of a test.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import threading
from contextlib import asynccontextmanager
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from playwright.async_api import async_playwright
from services import Running
from starlette.applications import Starlette
from starlette.routing import Mount

from locus_store.inspector import app

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Coroutine

AXE = files("axe_playwright_python").joinpath("axe.min.js").read_text("utf-8")
SECONDS = 3_600 if os.environ.get("LOCUS_TEST_LONG") else 120
"""The most that one test may take."""

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")


def executable() -> str | None:
    """Return the path of a Chromium; ``None`` if there is none."""
    named = os.environ.get("LOCUS_TEST_CHROMIUM")
    return named or next(filter(None, map(shutil.which, NAMES)), None)


class Chromium:
    """One browser for all tests of a process."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self.run(self._start())

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        """Return the result of a coroutine that uses the browser."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(SECONDS)

    async def _start(self) -> None:
        self._playwright = await async_playwright().start()
        self._browser = await self._playwright.chromium.launch(
            executable_path=self._path,
            chromium_sandbox=False,  # root has none
            args=[
                *("--disable-gpu", "--disable-dev-shm-usage", "--no-proxy-server"),
                "--host-resolver-rules=MAP rebound.example 127.0.0.1",
            ],
        )

    async def _stop(self) -> None:
        await self._browser.close()
        await self._playwright.stop()

    def stop(self) -> None:
        self.run(self._stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(20)
        self._loop.close()

    @asynccontextmanager
    async def tab(self, site: Site, **options: Any) -> AsyncIterator[Tab]:
        """Open a tab with a profile of its own.

        Args:
            site: What is visited.
            options: Of Playwright's ``new_context``.
        """
        context = await self._browser.new_context(**options)
        context.set_default_timeout(20_000)
        try:
            tab = Tab(await context.new_page(), site)
            yield tab
            assert not tab.faults, tab.faults
        finally:
            await context.close()


class Site(Running):
    """A running inspector.

    Args:
        backend: What it is over.
        store: A long-term store.
        prefix: The folder that it is mounted in.
        options: Of ``locus_store.inspector.app``.
    """

    def __init__(
        self, backend: Any, store: Any = None, *, prefix: str = "", **options: Any
    ) -> None:
        self.inspector = app(backend, store, **options)
        mounted = Starlette(routes=[Mount(prefix, self.inspector)]) if prefix else self.inspector
        super().__init__(mounted, [backend, store])
        self.home = f"{self.url}{prefix}/"


class Tab:
    """A tab of a browser that notes each fault of its pages.

    A fault is a dialog, an error in the console (a violation of the CSP among them), an exception
    of a script, and a request to anything but the site.
    """

    def __init__(self, page: Any, site: Site) -> None:
        self.page = page
        self.site = site
        self.faults: list[str] = []
        self.may_fail = False
        """Answers with an error status are no fault."""
        page.on("dialog", self._dialog)
        page.on("console", self._console)
        page.on("pageerror", lambda it: self.faults.append(f"exception: {it}"))
        page.on("request", self._request)

    async def _dialog(self, dialog: Any) -> None:
        self.faults.append(f"dialog: {dialog.message}")
        await dialog.dismiss()

    def _console(self, message: Any) -> None:
        is_icon = str(message.location["url"]).endswith("/favicon.ico")
        is_status = "Failed to load resource" in message.text and (self.may_fail or is_icon)
        if message.type in {"error", "warning"} and not is_status:
            self.faults.append(f"console: {message.text}")

    def _request(self, request: Any) -> None:
        if not request.url.startswith(self.site.url + "/"):
            self.faults.append(f"request: {request.url[:100]}")

    async def goto(self, address: str) -> Any:
        """Open a page of the site."""
        return await self.page.goto(self.site.home + address)

    async def violations(self) -> list[str]:
        """Return what axe finds wrong in the page."""
        await self.page.evaluate(AXE)
        rules = {"target-size": {"enabled": True}}  # of WCAG 2.2 AA; axe leaves it out by itself
        found = await self.page.evaluate("rules => axe.run({rules})", rules)
        return [
            f"{it['id']}: {node['html'][:200]}"
            for it in found["violations"]
            for node in it["nodes"]
        ]

    async def is_wide(self) -> bool:
        """Return whether the page is wider than the window."""
        return bool(
            await self.page.evaluate(
                "() => document.documentElement.scrollWidth > document.documentElement.clientWidth"
            )
        )
