"""Pages as HTML and as JSON."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, Final

import orjson
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup
from starlette.responses import RedirectResponse, Response

from locus_store import __version__
from locus_store.inspector.bounds import MESSAGES, CutText, render_line
from locus_store.inspector.escapes import SECURITY, encode_typed, escape, has_hidden, is_hidden
from locus_store.inspector.page_requests import ESCAPED, Answer, Download, Redirect
from locus_store.values.encoding import encode

FOLDER: Final = Path(__file__).parent
_UNSAFE: Final = re.compile(r"[^A-Za-z0-9._-]+")
_NAME: Final = 80

BAR: Final = 40
"""The height of the strip of bytes."""


def show_text(text: str) -> Markup:
    """Return a text of the storage as HTML, with hidden characters as escapes."""
    if not has_hidden(text):
        return Markup.escape(text)
    characters = (_ESCAPED.format(escape(it)) if is_hidden(it) else it for it in text)
    return Markup("").join(characters)


_ESCAPED: Final = Markup('<span class="escape">{}</span>')


def format_time(time: datetime) -> str:
    """Return a time for people."""
    return f"{time.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"


def format_age(time: datetime) -> str:
    """Return how long ago a time was, or how far ahead it is; of distant ones the date."""
    seconds = (datetime.now(UTC) - time).total_seconds()
    if abs(seconds) < _MINUTE:
        return "just now" if seconds > 0 else "in a minute"
    for name, length, most in _AGES:
        if abs(seconds) < most:
            amount = f"{int(abs(seconds) // length)} {name}"
            return f"{amount} ago" if seconds > 0 else f"in {amount}"
    return f"{time.astimezone(UTC):%Y-%m-%d}"


_MINUTE: Final = 60
_AGES: Final = (("min", 60, 3_600), ("h", 3_600, 86_400), ("d", 86_400, 30 * 86_400))
"""Units of an age, their seconds, and the age that they end at."""

_ROLES: Final = {
    **dict.fromkeys(("user", "human", "HumanMessageChunk"), "user"),
    **dict.fromkeys(("assistant", "ai", "model", "AIMessageChunk"), "assistant"),
    **dict.fromkeys(("tool", "function", "function_call", "function_call_output"), "tool"),
    **dict.fromkeys(("system", "developer"), "system"),
}
"""The classes of messages' roles in the style sheet."""


def format_json(text: CutText) -> CutText:
    """Return JSON with line ends and indentation, if it is complete and longer than a line."""
    if text.is_cut or len(text.text) <= _NAME or text.text[0] not in "[{":
        return text
    try:
        indented = json.dumps(json.loads(text.text), indent=2, ensure_ascii=False)
    except (ValueError, RecursionError):
        return text
    return CutText(indented, len(indented))


_MARKDOWN: Final = re.compile(
    r"""
      (?P<code>   ^```[^\n]*\n(?s:.*?)(?:^```[^\n]*$|\Z) | `[^`\n]+` )
    | (?P<head>   ^\#{1,6}[ ][^\n]* )
    | (?P<mark>   ^[ ]*(?:[-*+>]|\d{1,4}[.)])(?=[ ]) | ^(?:---+|\*\*\*+)$ )
    | (?P<strong> \*\*[^*\n]+\*\* | (?<!\w)__[^_\n]+__(?!\w) )
    | (?P<emphasis> (?<![\w*])[*][^*\s][^*\n]*[*](?!\w) | (?<!\w)_[^_\s][^_\n]*_(?!\w) )
    """,
    re.VERBOSE | re.MULTILINE,
)


_SPANS: Final = 200
"""Parts of one text that are styled."""


def split_markdown(text: str) -> Iterator[tuple[str, str]]:
    """Yield the parts of a text with the names of their Markdown; joined they are the text.

    Nothing is left out or turned into a link, so that a page shows what is stored.
    """
    at = 0
    for found in islice(_MARKDOWN.finditer(text), _SPANS):
        if at < found.start():
            yield "", text[at : found.start()]
        yield found.lastgroup or "", found[0]
        at = found.end()
    if at < len(text):
        yield "", text[at:]


def split_hits(
    text: str, words: str, *, is_markdown: bool = False
) -> Iterator[tuple[str, bool, str]]:
    """Yield the parts of a text: their Markdown, and whether they were searched for, in any case.

    A hit that begins or ends within Markdown is cut there; joined the parts are the text.
    """
    found = islice(re.finditer(re.escape(words), text, re.IGNORECASE), _SPANS)
    ends = [end for it in found for end in ((it.start(), False), (it.end(), True))]
    hits = iter([*ends, (len(text), False)])
    at, (end, is_hit) = 0, next(hits)
    for kind, part in split_markdown(text) if is_markdown else [("", text)]:
        last = at + len(part)
        while at < last:
            while end <= at:
                end, is_hit = next(hits)
            until = min(end, last)
            yield kind, is_hit, text[at:until]
            at = until


def format_size(size: int) -> str:
    """Return a number of bytes for people."""
    for unit, bytes_ in (("MB", 1_000_000), ("kB", 1_000)):
        if size >= bytes_:
            return f"{size / bytes_:,.1f} {unit}"
    return f"{size:,} B"


_WIDTH: Final = 14
"""Of a column, in pixels."""

_HEIGHT: Final = 44
"""Of a row, as ``--row`` in tokens.css; lines of neighbouring rows meet."""

_MOST: Final = 12
"""Columns that are drawn."""


@dataclass(frozen=True, slots=True)
class _Drawn:
    """The lines of a row."""

    at: int
    """The middle of the version's dot."""

    path: str
    """In the syntax of SVG."""

    width: int


def _draw_lines(rows: list[Any]) -> list[_Drawn]:
    """Return the lines between the rows of versions, newest first."""
    versions, columns = [it["version"] for it in rows], list[str | None]()
    return [_draw_row(columns, it.checkpoint_id, it.parent_id) for it in versions]


def _draw_row(columns: list[str | None], version_id: str, parent_id: str | None) -> _Drawn:
    """Return the lines of a version; change the columns to those below it.

    A column holds the id of the version that its line ends at.
    """
    came = [at for at, it in enumerate(columns) if it == version_id]
    if not came and None not in columns:
        columns.append(None)
    at = came[0] if came else columns.index(None)
    lines = [_draw_line(it, 0, at, _HEIGHT // 2) for it in came]
    lines += [
        _draw_line(column, 0, column, _HEIGHT)
        for column, target in enumerate(columns)
        if target and column not in came
    ]
    for column in came:
        columns[column] = None
    if parent_id is not None:
        columns[at] = parent_id
        lines.append(_draw_line(at, _HEIGHT // 2, at, _HEIGHT))
    while columns and columns[-1] is None:
        columns.pop()
    width = _WIDTH * min(max([len(columns), at + 1, *(it + 1 for it in came)]), _MOST)
    drawn = " ".join(dict.fromkeys(lines))  # the last column has many
    return _Drawn(_compute_middle(at), drawn, width)


def _compute_middle(column: int) -> int:
    return _WIDTH * min(column, _MOST - 1) + _WIDTH // 2


def _draw_line(column: int, top: int, to_column: int, bottom: int) -> str:
    return f"M{_compute_middle(column)} {top}L{_compute_middle(to_column)} {bottom}"


ICONS: Final = {
    "brand": "M3 2h10v12H3zM6 6h4M6 9h4",
    "copy": "M5 5V2h9v9h-3M2 5h9v9H2z",
    "down": "M4 6l4 4 4-4",
    "graph": "M4 2v12M4 6c0 4 8 2 8 6M2 2h4M2 14h4M10 12h4",
    "agent": "M3 6h10v8H3zM8 6V2M6 9v2M10 9v2",
    "session": "M8 8a3 3 0 1 0 0-6 3 3 0 0 0 0 6zM2 14c0-6 12-6 12 0",
    "log": "M2 3h12v8H7l-3 3v-3H2z",
}
"""The paths of icons, in 16 by 16."""


def _make_environment() -> Environment:
    found = Environment(
        loader=FileSystemLoader(FOLDER / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=lambda value: escape(value) if type(value) is str else value,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    found.filters |= {
        "moment": format_time,
        "amount": format_size,
        "json_line": render_line,
        "compact": lambda value: encode(value).decode(),  # as in an address
        "typed": encode_typed,
        "field": lambda value, name: ESCAPED + name if value and has_hidden(value) else name,
        "lines": _draw_lines,
        "bar": lambda size, largest: max(1, round(BAR * size / largest)),
        "ago": format_age,
        "hits": split_hits,
        "indented": format_json,
        "markdown": split_markdown,
        "role": lambda role: _ROLES.get(role, ""),
    }
    found.globals |= {"page_messages": MESSAGES, "row_height": _HEIGHT, "bar_height": BAR}
    found.globals |= {"icons": ICONS, "release": __version__, "content": show_text}
    return found


TEMPLATES: Final = _make_environment()


def render(answer: Answer, *, as_json: bool, **context: Any) -> Response:
    """Return the answer of a page.

    Args:
        answer: Of the page.
        as_json: The caller wants JSON.
        context: For the template, beside the values of the page.
    """
    if isinstance(answer, Redirect):
        return RedirectResponse(answer.address, 303, SECURITY)
    if isinstance(answer, Download):
        name = _UNSAFE.sub("_", answer.name).strip("._")[:_NAME] or "download"
        way = "inline" if answer.is_inline else "attachment"
        headers = SECURITY | {"content-disposition": f'{way}; filename="{name}"'}
        return Response(answer.content, 200, headers, answer.media_type)
    if as_json:
        content = orjson.dumps(
            answer.values, default=lambda it: it._asdict() if hasattr(it, "_asdict") else str(it)
        )
        return Response(content, answer.status, SECURITY, "application/json")
    template = TEMPLATES.get_template(f"{answer.template}.html")
    page = {"page_values": answer.values, "title": answer.title}
    values = answer.values | page | {"current": partial(_mark_current, answer.template)} | context
    return Response(template.render(values), answer.status, SECURITY, "text/html; charset=utf-8")


def _mark_current(template: str, *pages: str) -> str:
    """Return the attribute of the link to pages, if one of them is shown."""
    return Markup(' aria-current="page"') if template in pages else ""
