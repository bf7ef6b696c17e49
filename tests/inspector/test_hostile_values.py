"""Hostile content in every place is shown exactly, and never as markup; large content is cut."""

from __future__ import annotations

import html
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import pytest
from lazily import TESTS_RUN
from pages_reader import ATTRIBUTES, Site
from tiers import full

from locus_store import MemoryBackend
from locus_store.types import PendingWrite
from locus_store.values import frames

if TESTS_RUN:
    from locus_store.inspector.escapes import escape

pytestmark = pytest.mark.anyio

PAYLOADS = [  # one of each kind, then the others
    "<script>alert(1)</script>",
    '"><iframe src=//example.com>',
    "javascript:alert(1)",
    "a\u202eb\u2066c\u200e\ufeff\u00ad",
    "\x1b[31mred\x07\x08\x7f\x9b0m",
    "..",
    "a/b?c=d&e=f#g%2F%00+ h",
    "<img src=x onerror=alert(1)>",
    "<svg/onload=alert(1)>",
    "' autofocus onfocus=alert(1) x='",
    "{{ 7 * 7 }}{% for a in b %}${7*7}#{7*7}",
    "</title></textarea></style></pre><base href=//example.com>",
    "<style>*{display:none}</style>",
    "<meta http-equiv=refresh content=0;url=//example.com>",
    "&lt;b&gt;&amp;amp;&#60;",
    "line\r\nend\nof\tit\u2028\u2029\x85",
    "../../etc/passwd",
    ".",
    "[0]",
    "a.b['c']\\",
    "\u0645\u0631\u062d\u0628\u0627 \U0001f468\u200d\U0001f469 \ud7ff\U000e0041",
    "-",
    "*[a]?",
]

TAGS = frozenset(
    """
    html head meta title link script body a b header p strong nav form input button main h1 h2
    h3 table thead tr th tbody td time br small bdi span dl div dt dd label select option section
    ul li datalist details summary ol pre code svg path circle rect ins del footer kbd mark
    """.split()  # noqa: SIM905
)


async def hostile(backend: Any, text: str) -> None:
    """Save a thread with a text in each place."""
    message = {"role": text, "name": text, "id": text, "content": [{"type": text, "x": text}, text]}
    call = {"id": text, "name": text, "arguments": {text: text}}
    state = {
        "messages": [message, {"role": "assistant", "tool_calls": [call]}],
        text: {text: [text, {text: text}]},
    }
    for name in ("", text):
        where = {"namespace": name, "metadata": {text: text}}
        await backend.write_state(text, state, checkpoint_id="v0", **where)
        await backend.write_state(text, state | {"n": text}, checkpoint_id=text, **where)
    payload = frames.encode_value({text: text}, 10**6)
    writes = [PendingWrite(text, 0, text, "json", payload, text), PendingWrite(text, 1, text, "msgpack", b"", text)]  # fmt: skip  # noqa: E501
    await backend.put_writes(text, text, writes)


@pytest.mark.parametrize("text", [*PAYLOADS[:7], *full(*PAYLOADS[7:])], ids=PAYLOADS.index)
async def test_hostile_content_is_text_on_every_page(text: str) -> None:
    backend = MemoryBackend()
    await hostile(backend, text)
    found = await Site(backend).crawled("/threads", most=35)
    assert len(found) > 20
    shown = escape(text).split("\n")[0].replace("\r", "\\r")
    for page in found:
        assert set(page.tags) <= TAGS, page.response.url
        assert set(page.attributes) <= ATTRIBUTES, page.response.url
        assert not any(it.startswith("javascript") for it in page.links)
        assert all(it.startswith("http://localhost/") for it in page.links)
        assert shown in page.text


async def test_the_same_text_in_a_script_and_css_is_not_there() -> None:
    backend = MemoryBackend()
    await hostile(backend, "</script><!--")
    for page in await Site(backend).crawled("/threads", most=20):
        assert "</script><!--" not in page.response.text


async def test_every_id_leads_back_through_a_form() -> None:
    """The field ``at`` of a form, sent as browsers do, names the thread exactly."""
    for text in PAYLOADS:
        backend = MemoryBackend()
        await hostile(backend, text)
        site = Site(backend)
        query = {"thread": text, "namespace": text, "version": text}
        page = await site.page("bisect", **query)
        fields = next(it for it in page.forms if "at" in it.fields).fields
        assert fields["at"].isascii()
        assert fields["at"].isprintable()
        sent = html.unescape(fields["at"])
        answer = await site.json("bisect", at=sent, test="text", value="no such")
        assert (answer["thread_id"], answer["namespace"]) == (text, text)
        assert answer["answer"]["version"]["checkpoint_id"] == text


# --- bounds


async def test_a_large_text_is_shown_in_pieces() -> None:
    backend = MemoryBackend()
    await backend.write_state("t", {"text": "x" * 10_000_000, "more": ["y" * 5_000] * 300})
    site = Site(backend)
    page = await site.page("version", thread="t")
    assert len(page.response.content) < 300_000
    assert "10,000,000 characters" in page.text
    part = await site.page("version", thread="t", path="text", start=9_999_000)
    assert "x" * 1_000 in part.text
    assert "x" * 1_001 not in part.text


async def test_a_deep_state_is_shown_in_parts() -> None:
    backend = MemoryBackend()
    value: Any = "bottom"
    for _ in range(75):
        value = {"a": [value]} if isinstance(value, dict) else {"a": value}
    await backend.write_state("t", {"deep": value})
    site = Site(backend)
    link, page = "", await site.page("version", thread="t")
    for _ in range(60):
        if "bottom" in page.text:
            break
        link = max((it for it in page.links if "path=" in it), key=len)
        page = await site.page(link)
    assert "bottom" in page.text


async def test_many_messages_and_parts_are_pages() -> None:
    backend = MemoryBackend()
    messages = [{"role": "user", "content": f"message {at}."} for at in range(20_000)]
    await backend.write_state("t", {"messages": messages, "parts": list(range(1_000))})
    site = Site(backend)
    page = await site.page("version", thread="t")
    assert len(page.response.content) < 300_000
    assert "message 19999." in page.text
    assert "message 19949." not in page.text
    earlier = await site.page(next(it for it in page.links if "start=19900" in it))
    assert "message 19949." in earlier.text
    rest = next(it for it in page.links if "path=parts" in it and "start=200" in it)
    shown = (await site.json("version", **dict(parse_qsl(urlsplit(rest).query))))["tree"]
    assert shown["parts"][0]["path"] == "parts[200]"


def test_escapes_are_those_of_characters_that_cannot_be_seen() -> None:
    assert escape("a\u202eb\x1b\n\tc\u200d") == "a\\u202eb\\x1b\n\tc\u200d"


@pytest.mark.parametrize("text", ["a\u202eb", "\u3164", "a\u2800", "\x1b\\\\u202e\\", "a\\b", ""])
async def test_a_field_asks_the_same_question_again(text: str) -> None:
    backend = MemoryBackend()
    await backend.write_state("t", {"text": text})
    site = Site(backend)
    page = await site.page("bisect", thread="t", test="equals", path="text", value=text)
    if text:
        assert text not in page.response.text or text == "a\\b"
    form = next(it for it in page.forms if "path" in it.fields)
    answer = await site.json("bisect", **form.fields, test="equals")
    assert answer["value"] == text
    assert answer["answer"]["first"]
