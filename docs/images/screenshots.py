"""Screenshots of the inspector, by a real Chromium: ``make screenshots``.

    python docs/images/screenshots.py [FOLDER]

Needs the development environment and Chromium. Writes inspector-*.png beside this file, on the
thread of docs/inspector.md; with a folder, also each page in light, dark, on a phone and on paper.
"""

from __future__ import annotations

import asyncio
import re
import runpy
import sys
import tempfile
from contextlib import chdir
from pathlib import Path
from typing import Any, Final

HERE: Final = Path(__file__).parent
TESTS: Final = HERE.parents[1] / "tests"
SHOTS: Final = {
    "thread": "version?thread=trip",
    "origin": "version?thread=trip&path=city",
    "changes": "diff?thread=trip&version=guess",
}
"""Pages of the documentation by the name of their picture."""

SIZE: Final = {"width": 1400, "height": 620}

PAGES: Final = {
    "threads": "threads",
    **SHOTS,
    "origins": "version?thread=trip&origins=1",
    "timeline": "timeline?thread=trip",
    "bisect": "bisect?thread=trip&path=city",
    "writes": "writes?thread=trip",
    "messages": "messages?thread=chat&q=bern&sort=newest",
    "rewind": "rewind?thread=trip&version=ask",
    "report": "report?thread=trip",
    "store": "store",
    "items": 'items?segments=["memory","alex"]',
    "item": 'item?segments=["memory","alex"]&key=fact-7',
}
FORMS: Final = {
    "light": {"viewport": {"width": 1440, "height": 900}},
    "dark": {"viewport": {"width": 1440, "height": 900}, "color_scheme": "dark"},
    "phone": {"viewport": {"width": 390, "height": 844}},
    "wide": {"viewport": {"width": 2560, "height": 1300}},
}


def fill(folder: Path) -> None:
    """Save the thread of the page in a folder, by the page's own program."""
    page = (HERE.parent / "inspector.md").read_text("utf-8")
    found = re.search(r"```python\n# trip\.py\n(.*?)```", page, re.DOTALL)
    if found is None:
        raise SystemExit("docs/inspector.md has no trip.py")
    with chdir(folder):
        Path("trip.py").write_text(found[1], "utf-8")
        runpy.run_path("trip.py", run_name="__main__")


async def add_others(storage: Any) -> None:
    """Save a chat and items of the store, for the pages that the thread does not have."""
    from locus_store import NewMessage  # noqa: PLC0415

    said = ["Which rooms in **Bern** are free?", "Two:\n\n- `Alpina`, 90 francs\n- `Bristol`"]
    messages = [
        NewMessage(said[n % 2], ("user", "assistant")[n % 2], metadata={"user_id": "alex"})
        for n in range(60)
    ]
    await storage.messages().append("chat", messages, user_id="alex")
    for n in range(30):
        value, ttl_seconds = {"text": f"Alex likes trains, {n}"}, None if n % 7 else 3_600
        about = {"source": "chat"}
        await storage.store().put(
            ("memory", "alex"), f"fact-{n}", value, about, ttl_seconds=ttl_seconds
        )


async def shoot(chromium: Any, site: Any, folder: Path | None) -> None:
    """Write a picture of each page."""
    async with chromium.tab(site, viewport=SIZE) as tab:
        for name, address in SHOTS.items():
            await tab.goto(address)
            await tab.page.screenshot(path=HERE / f"inspector-{name}.png")
    for form, options in FORMS.items() if folder else ():
        async with chromium.tab(site, **options) as tab:
            for name, address in PAGES.items():
                await tab.goto(address)
                await tab.page.screenshot(path=folder / f"{name}-{form}.png")
                if form == "light":
                    await tab.page.pdf(path=folder / f"{name}.pdf")


def main() -> None:
    """Take the pictures."""
    sys.path[:0] = [str(TESTS), str(TESTS / "inspector")]
    from browsers import Chromium, Site, executable  # noqa: PLC0415  (of the tests)

    from locus_store import open_storage  # noqa: PLC0415

    path = executable()
    if path is None:
        raise SystemExit("install Chromium first: .ci/servers")
    target = Path(sys.argv[1]) if len(sys.argv) > 1 else None
    if target:
        target.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        fill(Path(folder))
        storage = open_storage(f"sqlite:///{folder}/agents.db")
        asyncio.run(add_others(storage))
        site = Site(storage.backend, storage.store(), allow_write=True)
        chromium = Chromium(path)
        try:
            chromium.run(shoot(chromium, site, target))
        finally:
            chromium.stop()
            site.stop()


if __name__ == "__main__":
    main()
