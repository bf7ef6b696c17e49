"""The recording of ``make demo`` as an animated picture: ``make screenshots``.

    python docs/images/recording.py

Needs the development environment. Writes demo.svg beside this file: each line appears when it was
printed, without a script. All lines are shown at once to readers who prefer reduced motion.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from html import escape
from itertools import pairwise
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Final

from rich.color import ColorType
from rich.console import Console
from rich.terminal_theme import MONOKAI
from rich.text import Text

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.style import Style

HERE: Final = Path(__file__).parent
DEMO: Final = HERE.parents[1] / "examples" / "conversation.py"
COLUMNS: Final = 84
LONGEST: Final = 1.5
"""Seconds that a line waits for at most: the start of a process takes longer."""

LINE, CHARACTER, EDGE = 18, 8.4, 16
CSS: Final = """
text { font: 14px ui-monospace, Menlo, Consolas, "DejaVu Sans Mono", monospace; fill: #d9d9d9;
  white-space: pre; animation: show .01s both; }
@keyframes show { from { opacity: 0; } }
@media (prefers-reduced-motion: reduce) { text { animation: none; } }
"""


def record() -> Iterator[tuple[float, str]]:
    """Yield the lines of the demo, each with its second."""
    colors = {"FORCE_COLOR": "1", "COLUMNS": str(COLUMNS), "TERM": "xterm-256color"}
    command = [sys.executable, str(DEMO), "--url", "sqlite:///conversation.db"]
    with tempfile.TemporaryDirectory() as folder:
        running = subprocess.Popen(  # noqa: S603  (our own program)
            command, cwd=folder, env=os.environ | colors, stdout=subprocess.PIPE, text=True
        )
        assert running.stdout is not None  # noqa: S101  (a pipe)
        for line in running.stdout:
            yield monotonic(), line.rstrip()
        if running.wait():
            raise SystemExit("the demo failed")


def make_style(style: Style | None) -> str:
    """Return a style of the terminal as attributes."""
    if style is None:
        return ""
    found = ' font-weight="bold"' if style.bold else ""
    if style.dim:
        found += ' opacity=".65"'
    if style.color is not None and style.color.type is not ColorType.DEFAULT:
        found += f' fill="{style.color.get_truecolor(MONOKAI).hex}"'
    return found


def draw(lines: list[tuple[float, str]]) -> str:
    """Return the picture."""
    console = Console(color_system="truecolor")
    waits = [min(after - before, LONGEST) for (before, _), (after, _) in pairwise(lines)]
    width, height = COLUMNS * CHARACTER + 2 * EDGE, len(lines) * LINE + 2 * EDGE
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height}" role="img">',
        f"<title>A run of make demo in a terminal</title><style>{CSS}</style>",
        f'<rect width="{width:.0f}" height="{height}" rx="8" fill="#16181d"/>',
    ]
    at = 0.5
    for number, ((_, line), wait) in enumerate(zip(lines, [*waits, 0.0], strict=True), start=1):
        spans = "".join(
            f"<tspan{make_style(it.style)}>{escape(it.text)}</tspan>"
            for it in Text.from_ansi(line).render(console)
            if it.text.strip("\n")
        )
        y = EDGE + number * LINE - 5
        parts.append(f'<text x="{EDGE}" y="{y}" style="animation-delay:{at:.2f}s">{spans}</text>')
        at += wait
    return "\n".join([*parts, "</svg>\n"])


if __name__ == "__main__":
    printed = list(record())
    prompt = (printed[0][0] - LONGEST, "\x1b[1m$ make demo\x1b[0m")
    (HERE / "demo.svg").write_text(draw([prompt, *printed]), "utf-8")
