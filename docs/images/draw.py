"""Draws the documentation's pictures: ``python docs/images/draw.py``.

``layout.svg`` shows how a thread is stored; ``growth.svg`` the figures of
benchmarks/results/growth.md. Each has a background of its own, light or dark as the reader's system
is.
"""

from __future__ import annotations

import re
from pathlib import Path

from locus_store.sql.schema.tables import DEFAULT_PREFIX, make_tables as defined

HERE = Path(__file__).parent
STYLE = """
  <style>
    text { font: 14px system-ui, sans-serif; fill: #1f2328 }
    .tiny { font-size: 12px } .small { font-size: 12px; fill: #59636e }
    .back { fill: #ffffff; stroke: #d1d9e0 }
    .whole { fill: #0969da } .frames { fill: #b6d7ff }
    .on { fill: #ffffff } .dark { fill: #1f2328 }
    .line { stroke: #59636e; fill: none; stroke-width: 1.5 } .tip { fill: #59636e }
    .ours { stroke: #0969da; fill: none; stroke-width: 3 } .theirs { stroke: #bc4c00; fill: none; stroke-width: 3 }
    .grid { stroke: #d1d9e0 }
    @media (prefers-color-scheme: dark) {
      text { fill: #f0f6fc } .small { fill: #9198a1 }
      .back { fill: #0d1117; stroke: #3d444d }
      .whole { fill: #1f6feb } .frames { fill: #9ecbff }
      .line { stroke: #9198a1 } .tip { fill: #9198a1 }
      .ours { stroke: #4493f8 } .theirs { stroke: #f0883e } .grid { stroke: #3d444d }
      text.on { fill: #ffffff } text.dark { fill: #1f2328 }
    }
  </style>
  <defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" markerHeight="8" orient="auto">
    <path class="tip" d="M0 0 8 4 0 8z"/></marker></defs>"""  # noqa: E501  (one rule, one line)


def picture(width: int, height: int, title: str, parts: list[str]) -> str:
    """An SVG with a title, a background and its parts."""
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" '
        f'height="{height}" role="img">\n  <title>{title}</title>{STYLE}\n'
        f'  <rect class="back" x=".5" y=".5" width="{width - 1}" height="{height - 1}" rx="8"/>\n  '
        + "\n  ".join(parts)
        + "\n</svg>\n"
    )


def text(x: float, y: float, words: str, style: str = "", anchor: str = "start") -> str:
    """Words at a place."""
    return f'<text x="{x:g}" y="{y:g}" class="{style}" text-anchor="{anchor}">{words}</text>'


def arrow(x1: float, y1: float, x2: float, y2: float) -> str:
    """From the first point to the second."""
    return f'<path class="line" marker-end="url(#tip)" d="M{x1:g} {y1:g}L{x2:g} {y2:g}"/>'


def record(x: float, y: float, kind: str, name: str, what: str) -> list[str]:
    """A record of a chain: its version's name, and what it holds."""
    ink = "on" if kind == "whole" else "dark"
    return [
        f'<rect class="{kind}" x="{x:g}" y="{y:g}" width="112" height="52" rx="6"/>',
        text(x + 56, y + 22, name, ink, "middle"),
        text(x + 56, y + 41, what, f"{ink} tiny", "middle"),
    ]


def layout() -> str:
    """Two chains of a thread: what was said, and a fork."""
    title = "A thread stored as two chains of records, the second one begun by a fork from v2"
    parts = [
        text(24, 32, "thread “order-7”"),
        text(24, 68, "chain 1", "small"),
        text(24, 188, "chain 2", "small"),
        *record(90, 76, "whole", "v1", "whole state"),
        *record(232, 76, "frames", "v2", "+ 1 message"),
        *record(374, 76, "frames", "v3", "+ 1 message"),
        *record(516, 76, "frames", "v4", "1 value edited"),
        *record(374, 196, "whole", "fork", "whole state"),
        *record(516, 196, "frames", "v5", "+ 1 message"),
        *(arrow(x, 102, x - 28, 102) for x in (231, 373, 515)),
        arrow(515, 222, 487, 222),
        '<path class="line" marker-end="url(#tip)" d="M373 222C310 222 288 200 288 130"/>',
        text(650, 227, "head: load() gives this", "small"),
        text(650, 107, "loaded by its id", "small"),
        text(90, 282, "An arrow leads to a version's parent. A load folds a chain", "small"),
        text(90, 300, "up to its version and checks the digest.", "small"),
    ]  # fmt: skip
    return picture(830, 320, title, parts)


def rows(page: str, heading: str) -> dict[str, list[str]]:
    """The rows of the table behind a text of the page, by their first cell."""
    table = page.partition(heading)[2].partition("\n\n|")[2].partition("\n\n")[0]
    cells = [[it.strip() for it in row.strip("|").split("|")] for row in table.splitlines()]
    return {row[0]: row[1:] for row in cells}


def number(cell: str) -> float:
    """The number that a cell begins with."""
    found = re.search(r"[\d.]+", cell.replace(",", ""))
    assert found, cell  # noqa: S101  (a script)
    return float(found[0])


def curve(style: str, points: list[tuple[float, float]]) -> list[str]:
    """A line through measured points."""
    path = "L".join(f"{x:g} {y:g}" for x, y in points)
    dots = [f'<circle class="{style}" cx="{x:g}" cy="{y:g}" r="3"/>' for x, y in points[1:]]
    return [f'<path class="{style}" d="M{path}"/>', *dots]


def growth() -> str:
    """Bytes on disk after 500 and 1,000 turns, as benchmarks/results/growth.md has them."""
    page = (HERE.parents[1] / "benchmarks" / "results" / "growth.md").read_text("utf-8")
    whole = rows(page, "for words; `locus`")["chat"]
    ratio = rows(page, "2 is linear, 4 quadratic")["chat"]
    ours, theirs = number(whole[1]), number(whole[3])
    by_turns = {
        "ours": [0.0, ours / number(ratio[0]), ours],
        "theirs": [0.0, theirs / number(ratio[2]), theirs],
    }
    x, y = (70, 300, 530), lambda size: 260 - 200 * size / theirs
    marks = zip(x, ("0", "500 turns", "1,000 turns"), strict=True)
    parts = [
        text(24, 30, f"MB on disk, every version kept; the last state alone is {whole[0]}"),
        *(f'<path class="grid" d="M70 {y(it):g}H530"/>' for it in (0, theirs / 2, theirs)),
        *(text(62, y(it) + 4, f"{it:,.0f}", "small", "end") for it in (0, theirs / 2, theirs)),
        *(text(at, 280, words, "small", "middle") for at, words in marks),
        *curve("theirs", [(at, y(it)) for at, it in zip(x, by_turns["theirs"], strict=True)]),
        *curve("ours", [(at, y(it)) for at, it in zip(x, by_turns["ours"], strict=True)]),
        text(542, y(theirs) + 5, f"langgraph {theirs:,.0f} MB"),
        text(542, y(0) - 2, f"locus-store {ours:,.2f} MB"),
    ]  # fmt: skip
    title = "Bytes on disk over turns: locus-store stays at the size of the text, langgraph grows with its square"  # noqa: E501
    return picture(760, 300, title, parts)


STEP = 56
"""Height of a step with the arrow behind it."""


def way(title: str, steps: list[tuple[str, str]]) -> str:
    """Steps below each other: what is done, and the module that does it."""
    parts = []
    for at, (done, module) in enumerate(steps):
        y = 16 + at * STEP
        parts += [
            f'<rect class="back" x="24" y="{y}" width="712" height="38" rx="6"/>',
            text(40, y + 24, done),
            text(720, y + 24, module, "small", "end"),
        ]
        parts += [arrow(380, y + 38, 380, y + STEP)] if at + 1 < len(steps) else []
    return picture(760, 14 + len(steps) * STEP, title, parts)


def save() -> str:
    """The way of a save, from the call to the row."""
    return way(
        "The way of a save from the call to the row",
        [
            ("save(state, thread_id)", "checkpointer.py"),
            ("the state becomes JSON; it carries the mark of its load", "types/codec.py"),
            ("the difference from the version that this object knows", "values/frames/diffing.py"),
            ("one Save: the change, its basis, the expected head", "backend.py"),
            ("a group: saves that wait share one transaction", "backends/…/"),
            ("append at the head; else refuse, or branch off", "versions/saving.py"),
            (
                "one row of a chain; the head moves",
                "at the head: backends/…/appends.py, statements.py; else sql/threads/repository.py",
            ),
            ("commit; then each caller gets its checkpoint id", "backends/…/"),
        ],
    )


def load() -> str:
    """The way of a load, from the call to the state."""
    return way(
        "The way of a load from the call to the state",
        [
            ("load(thread_id)", "checkpointer.py"),
            ("the version that this object knows of the thread, if any", "versions/caches.py"),
            ("one read: the head, and the records of its chain", "sql/threads/reads.py"),
            ("no records where the head is the known one", "backend.py"),
            ("fold the records; compare the digest", "versions/reading.py"),
            ("the class that was saved, with the mark of this load", "types/codec.py"),
        ],
    )


def tables() -> str:
    """The tables of the schema with their columns, as the models define them."""
    metadata = defined(DEFAULT_PREFIX).metadata
    lead = {
        ("locus_lines", "tenant"): "→ locus_threads",
        ("locus_lines", "thread_id"): "→ locus_threads",
        ("locus_logs", "thread"): "→ locus_threads",
        ("locus_messages", "thread"): "→ locus_logs",
        ("locus_messages", "namespace"): "→ locus_logs",
        ("locus_checkpoints", "line"): "→ locus_lines",
        ("locus_writes", "line"): "→ locus_lines",
    }
    parts, y = [], [16, 16, 16]
    for table in sorted(metadata.sorted_tables, key=lambda it: -len(it.columns)):
        column = y.index(min(y))
        x, top, height = 16 + column * 250, y[column], 46 + 18 * len(table.columns)
        parts.append(f'<rect class="back" x="{x}" y="{top}" width="234" height="{height}" rx="6"/>')
        parts.append(text(x + 14, top + 24, table.name))
        keys = {it.name for it in table.primary_key.columns}
        for at, it in enumerate(table.columns):
            place = top + 46 + 18 * at
            parts.append(text(x + 14, place, ("• " if it.name in keys else "") + it.name, "tiny"))
            kind = lead.get((table.name, it.name)) or type(it.type).__name__.lower().strip("_")
            parts.append(text(x + 220, place, kind, "small", "end"))
        y[column] = top + height + 16
    return picture(766, max(y), "The tables, with the columns of their primary keys marked", parts)


PICTURES = {
    "layout.svg": layout,
    "growth.svg": growth,
    "save.svg": save,
    "load.svg": load,
    "tables.svg": tables,
}

if __name__ == "__main__":
    for name, draw in PICTURES.items():
        (HERE / name).write_text(draw(), "utf-8")
