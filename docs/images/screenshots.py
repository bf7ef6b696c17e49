"""Screenshots of docs/inspector.md, by a real Chromium, on the thread of that page.

    python docs/images/screenshots.py

Needs the development environment and Chromium. Writes inspector-*.png beside this file.
"""

from __future__ import annotations

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
    "timeline": "timeline?thread=trip",
    "origin": "version?thread=trip&path=city",
    "changes": "diff?thread=trip&version=guess",
}
"""Pages by the name of their picture."""

SIZE: Final = {"width": 1000, "height": 560}


def fill(folder: Path) -> None:
    """Save the thread of the page in a folder, by the page's own program."""
    page = (HERE.parent / "inspector.md").read_text("utf-8")
    found = re.search(r"```python\n# trip\.py\n(.*?)```", page, re.DOTALL)
    if found is None:
        raise SystemExit("docs/inspector.md has no trip.py")
    with chdir(folder):
        Path("trip.py").write_text(found[1], "utf-8")
        runpy.run_path("trip.py", run_name="__main__")


async def shoot(chromium: Any, site: Any) -> None:
    """Write a picture of each page."""
    async with chromium.tab(site, viewport=SIZE) as tab:
        for name, address in SHOTS.items():
            await tab.goto(address)
            await tab.page.screenshot(path=HERE / f"inspector-{name}.png")


def main() -> None:
    """Take the pictures."""
    sys.path[:0] = [str(TESTS), str(TESTS / "inspector")]
    from browsers import Chromium, Site, executable  # noqa: PLC0415  (of the tests)

    from locus_store import SQLiteBackend  # noqa: PLC0415

    path = executable()
    if path is None:
        raise SystemExit("install Chromium first: .ci/servers")
    with tempfile.TemporaryDirectory() as folder:
        fill(Path(folder))
        site = Site(SQLiteBackend(Path(folder) / "agents.db"))
        chromium = Chromium(path)
        try:
            chromium.run(shoot(chromium, site))
        finally:
            chromium.stop()
            site.stop()


if __name__ == "__main__":
    main()
