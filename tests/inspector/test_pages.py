"""The pages over a story: what they show, as HTML and as JSON."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pytest
from lazily import TESTS_RUN
from pages_reader import ATTRIBUTES, Seen, Site
from test_round_trips import sqlite_statements

from locus_store import MemoryBackend, NewMessage, StorageBackendAdapter, open_checkpointer
from locus_store.open import Storage

if TESTS_RUN:
    from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
    from langgraph.graph import END, START, MessagesState, StateGraph
    from langgraph.types import interrupt
    from starlette.applications import Starlette
    from starlette.routing import Mount

    from locus_store.adapters.langgraph import LangGraphSaver
    from locus_store.inspector import app, work
    from locus_store.inspector.escapes import SECURITY, escape
    from locus_store.inspector.pages import threads
    from locus_store.inspector.rendering import split_markdown
    from locus_store.inspector.work import Jobs
    from locus_store.timeline.rewind import rewind

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.anyio

CALL = {"id": "c1", "name": "weather", "arguments": {"city": "Basel"}}
STORY: list[dict[str, Any]] = [
    {"city": "Bern", "messages": [{"role": "user", "content": "Weather?"}]},
    {"city": "Basel", "messages": [{"role": "user", "content": "Weather?"}]},
    {
        "city": "Basel",
        "messages": [
            {"role": "user", "content": "Weather?"},
            {"role": "assistant", "content": None, "tool_calls": [CALL]},
            {"role": "tool", "content": "Rain", "tool_call_id": "c1"},
        ],
    },
]


async def told(backend: Any) -> Any:
    """Save the story: v0, v1 and v2."""
    for at, state in enumerate(STORY):
        which = {"checkpoint_id": f"v{at}", "metadata": {"step": at}}
        await backend.write_state("t", state, **which)
    return backend


if TESTS_RUN:

    class City(MessagesState):
        city: str


def guess(_: City) -> dict[str, Any]:
    call = {"name": "weather", "args": {"city": "Basel"}, "id": "c1"}
    return {"city": "Basel", "messages": [AIMessage("Let me look.", id="m2", tool_calls=[call])]}


def look(_: City) -> dict[str, Any]:
    interrupt("Which day?")
    return {"messages": [ToolMessage("Rain", tool_call_id="c1")]}


async def graph_told(backend: Any) -> Any:
    """Run a graph until it is interrupted."""
    made: Any = StateGraph(City)
    made.add_node(guess).add_node(look)
    made.add_edge(START, "guess").add_edge("guess", "look").add_edge("look", END)
    graph = made.compile(checkpointer=LangGraphSaver(backend))
    first = {"messages": [HumanMessage("Weather?", id="m1")], "city": "Bern"}
    await graph.ainvoke(first, {"configurable": {"thread_id": "g"}})
    return backend


@pytest.fixture
async def site() -> Site:
    return Site(await told(MemoryBackend()))


@pytest.fixture
async def graphs() -> Site:
    return Site(await graph_told(MemoryBackend()))


# --- the state


async def test_a_call_stands_with_its_result(site: Site) -> None:
    found = (await site.json("version", thread="t"))["conversations"][0]
    assert [it["role"] for it in found["messages"]] == ["user", "assistant"]
    call = found["messages"][1]["calls"][0]
    assert (call["name"], call["arguments"]["text"]) == ("weather", '{"city": "Basel"}')
    assert call["result"]["parts"][0]["text"]["text"] == "Rain"
    assert "Call of weather" in (await site.page("version", thread="t")).text


async def test_messages_of_langchain_are_shown_without_their_wrappings(graphs: Site) -> None:
    found = (await graphs.json("version", thread="g"))["conversations"][0]
    assert [it["role"] for it in found["messages"]] == ["human", "ai"]
    assert found["messages"][1]["calls"][0]["arguments"]["text"] == '{"city": "Basel"}'
    page = await graphs.page("version", thread="g")
    assert "additional_kwargs" not in page.text
    raw = await graphs.page("version", thread="g", view="json")
    assert "additional_kwargs" in raw.text


async def test_a_value_names_the_version_and_the_node_that_it_came_with(graphs: Site) -> None:
    found = await graphs.json("version", thread="g", path="city")
    assert found["text"]["text"] == "Basel"
    assert found["blame"]["made"]["nodes"] == ["guess"]
    page = await graphs.page("version", thread="g", path='messages[id="m2"].content')
    assert "Let me look." in page.text
    assert "node guess" in page.text
    wrong = found["blame"]["made"]["version"]["checkpoint_id"]
    diff = next(it for it in page.links if "/diff?" in it and wrong in it)
    assert "Basel" in (await graphs.page(diff)).text


async def test_a_value_that_does_not_exist_is_not_found(site: Site) -> None:
    for query in ({"path": "no"}, {"version": "no"}, {"namespace": "no"}):
        assert (await site.get("version", thread="t", **query)).status_code == 404
    assert (await site.get("version", thread="no")).status_code == 404
    assert (await site.get("version")).status_code == 422


async def test_a_download_has_all_of_a_value(site: Site) -> None:
    found = await site.get("download", thread="t", version="v0")
    assert found.json() == STORY[0]
    assert found.headers["content-disposition"] == 'attachment; filename="t-v0.json"'
    assert (await site.get("download", thread="t", path="messages[0].content")).json() == "Weather?"


@pytest.mark.parametrize(
    ("address", "status"),
    [
        ("data:image/png;base64,iVBORw==", 200),
        ("data:image/svg+xml;base64,PHN2Zy8+", 404),
        ("https://example.com/a.png", 404),
    ],
)
async def test_only_images_of_four_types_are_opened(address: str, status: int) -> None:
    backend = MemoryBackend()
    await backend.write_state(
        "t", {"m": [{"role": "user", "content": [{"type": "image_url", "image_url": address}]}]}
    )
    site = Site(backend)
    found = await site.get("image", thread="t", path="m[0].content[0].image_url")
    assert found.status_code == status
    assert "<img" not in (await site.page("version", thread="t")).response.text


async def test_origins_are_a_layer_over_messages_and_keys(graphs: Site) -> None:
    found = await graphs.json("version", thread="g", origins="1")
    origins = {name: it["nodes"] for name, it in found["origins"].items()}
    assert origins == {"messages[0]": ["__start__"], "messages[1]": ["guess"], "city": ["guess"]}
    page = await graphs.page("version", thread="g", origins="1")
    assert sum("/diff?" in it for it in page.links) > 3
    assert (await graphs.json("version", thread="g"))["origins"] is None


@pytest.mark.parametrize(
    ("text", "kinds"),
    [
        ("# Plan\n\n- **two** nights\n1. `book()`", {"head", "strong", "mark", "code"}),
        ("```py\nx = 1\n```\nafter *that*", {"code", "emphasis"}),
        ("2 * 3 * 4, snake_case_name, a ** b", set()),
        ("<b>&amp;[x](javascript:alert(1))![i](//e.com/i.png)", set()),
        ("**\u202e**" + "`a`" * 1_000, {"strong", "code"}),
    ],
)
async def test_markdown_is_styled_and_no_character_is_lost(text: str, kinds: set[str]) -> None:
    parts = list(split_markdown(text))
    assert "".join(it for _, it in parts) == text
    assert {kind for kind, _ in parts} - {""} == kinds
    backend = MemoryBackend()
    await backend.write_state("t", {"messages": [{"role": "user", "content": text}]})
    page = await Site(backend).page("version", thread="t")
    assert escape(text) in page.text
    assert page.tags.count("img") == 0
    assert all(it.startswith("http://localhost/") for it in page.links)


# --- bisect, differences, timeline


async def test_bisect_suggests_keys_and_the_last_values_of_a_path() -> None:
    backend = await told(MemoryBackend())
    site = Site(backend)
    for name, city, parent in (("side", "Chur", "v1"), ("back", "Bern", "v2")):
        await backend.write_state("t", {"city": city}, checkpoint_id=name, parent_id=parent)
    found = await site.json("bisect", thread="t", path="city", suggest="1", test="text")
    assert found["keys"] == ["city"]
    values = [(it["value"]["text"], it["version"]["checkpoint_id"]) for it in found["recent"]]
    assert values == [('"Bern"', "v0"), ('"Basel"', "v1")]
    page = await site.page("bisect", thread="t", path="city")
    answer = await site.page(next(it for it in page.links if "Basel" in it))
    assert "holds first in v1" in answer.text
    link = next(it for it in answer.links if "diff?" in it and "version=v1" in it)
    change = await site.page(link)
    assert "From v0 (its parent) to v1" in change.text
    assert all(it in change.text for it in ("Bern", "Basel"))


async def test_a_difference_of_texts_is_shown_word_by_word() -> None:
    backend = MemoryBackend()
    for name, text in (("a", "Take the train to Bern today"), ("b", "Take the bus to Bern today")):
        await backend.write_state("t", {"plan": text}, checkpoint_id=name)
    [change] = (await Site(backend).json("diff", thread="t"))["changes"]
    assert [it for it in change["words"] if it[0] != "same"] == [
        ["removed", "train"],
        ["added", "bus"],
    ]
    beside = (await Site(backend).json("version", thread="t"))["difference"]
    assert beside["changes"] == [change]
    other = await Site(backend).json("version", thread="t", version="a", **{"from": "b"})
    assert other["difference"]["from"]["checkpoint_id"] == "b"


async def test_versions_have_their_node_and_their_changes_in_one_line(graphs: Site) -> None:
    for page in ("timeline", "version"):
        rows = (await graphs.json(page, thread="g"))["rows"]
        assert [it["nodes"] for it in rows] == [["guess"], ["__start__"], ["input"]]
    page = await graphs.page("version", thread="g")
    assert "messages + 1: 'Let me look.'; city 'Bern' → 'Basel'" in page.text
    assert "messages + 1: 'Weather?'; city = 'Bern'" in page.text
    assert "branch:to" not in page.text


async def test_a_rewound_version_says_so_and_one_that_was_saved_again_does_not() -> None:
    backend = await graph_told(MemoryBackend())
    start = (await backend.history("g"))[1].checkpoint_id
    made = await rewind(backend, "g", start)
    rows = (await Site(backend).json("version", thread="g"))["rows"]
    assert (rows[0]["version"]["checkpoint_id"], rows[0]["nodes"]) == (made, ["rewind"])
    assert rows[0]["rewound_to"] == {"checkpoint_id": start, "nodes": ["__start__"]}
    page = await Site(backend).page("timeline", thread="g")
    assert f"Rewound to __start__ …{start[-8:]}" in page.text
    for name, city, parent in (("a", "Bern", None), ("b", "Bern", "a"), ("c", "Chur", "a")):
        about = {"node": "ask"}
        state = {"city": city}
        await backend.write_state("t", state, checkpoint_id=name, parent_id=parent, metadata=about)
    rows = (await Site(backend).json("version", thread="t"))["rows"]
    assert [(it["nodes"], it["rewound_to"]) for it in rows] == [(["ask"], None)] * 3


async def test_a_thread_of_a_graph_is_listed_with_what_its_newest_save_changed(
    tmp_path: Path,
) -> None:
    async with open_checkpointer(f"sqlite:///{tmp_path}/a.db").backend as backend:
        site = Site(await graph_told(backend))
        [row] = (await site.json("threads"))["threads"]
        assert (row["kind"], row["badges"], row["versions"]) == ("graph", ["interrupted"], 3)
        page = (await site.page("threads")).text
        assert "interrupted" in page
        assert re.search(r"messages (\+ 1:|=) 'Let me look\.'", page)
        assert "branch:to" not in page


async def test_a_message_log_is_listed_with_its_newest_message(tmp_path: Path) -> None:
    async with open_checkpointer(f"sqlite:///{tmp_path}/a.db").backend as backend:
        log = Storage(backend).messages()
        await log.append("chat", [NewMessage("Zurich?"), NewMessage("<b>Then</b>", role="user")])
        site = Site(backend)
        [row] = (await site.json("threads"))["threads"]
        assert (row["kind"], row["role"], row["said"]) == ("log", "user", "'<b>Then</b>'")
        assert (row["messages"], row["stored_bytes"] > 0) == (2, True)
        page = (await site.page("threads")).text
        assert "user: '<b>Then</b>'" in page
        assert "2 messages, " in page


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
async def test_a_thread_whose_turn_is_held_is_marked(kind: str, tmp_path: Path) -> None:
    url = "memory://" if kind == "memory" else f"sqlite:///{tmp_path}/a.db"
    async with open_checkpointer(url, state_type=dict) as checkpointer:
        await checkpointer.save({"n": 1}, "free")
        async with checkpointer.turn("taken"):
            await checkpointer.save({"n": 1}, "taken")
            site = Site(checkpointer.backend)
            rows = (await site.json("threads"))["threads"]
            assert {it["thread_id"]: it["badges"] for it in rows} == {"free": [], "taken": ["turn"]}
            page = (await site.page("threads", badge="turn")).text
            assert page.count("running turn") == 1 + 1  # the choice of the filter
        assert (await site.json("threads", badge="turn"))["threads"] == []


async def test_lists_end_where_the_changes_of_their_versions_are_too_large(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(work, "READ_BYTES", 100)
    async with open_checkpointer(f"sqlite:///{tmp_path}/a.db").backend as backend:
        await told(backend)
        found = await Site(backend).json("version", thread="t")
        assert "stored bytes" in found["no_changes"]
        assert {it["changes"] for it in found["rows"]} == {None}


async def test_a_page_of_sixty_versions_has_less_than_100_kb() -> None:
    backend = MemoryBackend()
    said: list[dict[str, Any]] = []
    for at in range(70):
        said.append({"role": "user" if at % 2 else "assistant", "content": f"Line {at}. " * 20})
        which = {"checkpoint_id": f"{at:08}-fbf1-6dfe-8038-4552bd1f7162", "metadata": {"step": at}}
        await backend.write_state("t", {"messages": list(said), "budget": at}, **which)
    page = await Site(backend).page("version", thread="t")
    assert page.response.text.count("<li data-row") == 60
    assert len(page.response.content) < 100_000


@pytest.mark.parametrize(
    ("question", "first", "turns"),
    [
        (("equals", "city", "Basel"), "v1", ["v0", "v1"]),
        (("text", "", "Rain"), "v2", ["v0", "v2"]),
        (("longer-than", "messages", "1"), "v2", ["v0", "v2"]),
        (("filter", "city", '{"$gt": "C"}'), None, ["v0"]),
    ],
)
async def test_bisect_finds_the_first_version(
    site: Site, question: tuple[str, str, str], first: str | None, turns: list[str]
) -> None:
    query = {"thread": "t"} | dict(zip(("test", "path", "value"), question, strict=True))
    answer = (await site.json("bisect", **query))["answer"]
    assert (answer["first"] and answer["first"]["version"]["checkpoint_id"]) == first
    assert [it["version"]["checkpoint_id"] for it in answer["turns"]] == turns
    told = "holds first in" if first else "holds in none"
    assert told in (await site.page("bisect", **query)).text


@pytest.mark.parametrize(("test", "value"), [("filter", "x"), ("longer-than", "x"), ("no", "x")])
async def test_a_question_that_makes_no_sense_is_refused(site: Site, test: str, value: str) -> None:
    found = await site.get("bisect", thread="t", test=test, path="city", value=value)
    assert found.status_code == 422


async def test_a_version_is_compared_with_its_parent_or_with_any(site: Site) -> None:
    found = await site.json("diff", thread="t", version="v1")
    assert [(it["what"], it["path"]) for it in found["changes"]] == [("changed", "city")]
    found = await site.json("diff", thread="t", version="v1", **{"from": "v2"})
    assert {it["what"] for it in found["changes"]} == {"removed"}
    found = await site.json("diff", thread="t", version="v0")
    assert found["from"] is None


async def test_the_timeline_shows_forks_sizes_and_the_head() -> None:
    backend = await told(MemoryBackend())
    await backend.write_state("t", {"city": "Chur"}, checkpoint_id="v3", parent_id="v0")
    found = await Site(backend).json("timeline", thread="t")
    places = {it["version"]["checkpoint_id"]: it["place"] for it in found["rows"]}
    assert places == {"v3": "head", "v2": "side", "v1": "side", "v0": "main"}
    assert all(it["size"] > 0 for it in found["rows"])
    assert found["head_id"] == "v3"


async def test_the_timeline_is_filtered_and_goes_to_a_version_and_a_time(site: Site) -> None:
    found = await site.json("timeline", thread="t", key="step", value="1")
    assert [it["version"]["checkpoint_id"] for it in found["rows"]] == ["v1"]
    found = await site.json("timeline", thread="t", at_version="v1")
    assert [it["version"]["checkpoint_id"] for it in found["rows"]] == ["v1", "v0"]
    for time, version in (("2100-01-01T00:00", "v2"), ("2000-01-01", "v0")):
        found = await site.json("timeline", thread="t", time=time)
        assert (found["begins_at"], found["time"]) == (version, time)
        assert found["rows"][0]["version"]["checkpoint_id"] == version
    assert (await site.get("timeline", thread="t", time="noon")).status_code == 422


async def test_an_older_version_of_the_timeline_is_compared_with_the_head(site: Site) -> None:
    page = await site.page("timeline", thread="t", time="2000-01-01")
    checked = re.findall(r'name="([^"]+)" value="([^"]+)"[^>]* checked', page.response.text)
    assert checked == [("encoded-version", "v2"), ("encoded-from", "v0")]
    assert 'value="2000-01-01"' in page.response.text
    assert "Newer versions" in page.text
    newest = await site.page("timeline", thread="t", at_version="v2")
    assert "Newer versions</a>" not in newest.response.text


async def test_more_versions_than_rows_are_pages() -> None:
    backend = MemoryBackend()
    for at in range(205):
        await backend.write_state("t", {"n": at}, checkpoint_id=f"v{at}")
    first = await Site(backend).page("timeline", thread="t")
    older = await Site(backend).page(next(it for it in first.links if "before=" in it))
    assert "v204" in first.text
    assert "v4" in older.text
    assert "side" not in older.text
    assert len(first.tags) < 5_000


# --- threads, pending writes


async def test_threads_are_found_by_id_words_metadata_and_user() -> None:
    backend = await told(MemoryBackend())
    await backend.write_state("other", {"said": "Hello"}, metadata={"user_id": "alex"})
    site = Site(backend)
    for filters, ids in (
        ({"id": "o*"}, ["other"]),
        ({"text": "rain"}, ["t"]),
        ({"text": "rain", "user": "alex"}, []),
        ({"metadata": "step=2"}, ["t"]),
        ({"user": "alex", "kind": "agent", "since": "2026-01-31T12:00"}, ["other"]),
        ({"until": "2026-01-31T12:00"}, []),
        ({}, ["other", "t"]),
    ):
        found = await site.json("threads", **filters)
        assert [it["thread_id"] for it in found["threads"]] == ids, filters


async def test_a_filtered_list_says_how_many_threads_it_shows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    backend = MemoryBackend()
    for name in ("a1", "a2", "b"):
        await backend.write_state(name, {"said": "Hello"})
    site = Site(backend)
    assert "2 threads" in (await site.page("threads", id="a*")).text
    assert "3 threads" in (await site.page("threads", text="hello")).text
    assert "3 threads" in (await site.page("threads")).text
    monkeypatch.setattr(threads, "LISTED", 1)
    first = await site.page("threads", id="a*")
    assert "2 threads" in first.text
    assert "At least 1 thread" in (await site.page("threads", kind="agent")).text
    monkeypatch.setattr(threads, "FOUND", 2)
    assert "At least 2 threads" in (await site.page("threads")).text
    [more] = [it for it in first.links if "after=" in it]
    assert "1 thread" not in (await site.page(more)).text


async def test_other_filters_are_applied_to_all_threads_that_have_a_text() -> None:
    backend = MemoryBackend()
    for name in ("a", *(f"b{it}" for it in range(40))):
        await backend.write_state(name, {"said": "Hello"})
    page = await Site(backend).page("threads", text="hello", id="a")
    assert "1 thread" in page.text
    assert "Hello" in page.text
    assert any("thread=a" in it for it in page.links)


async def test_a_list_of_threads_that_have_a_text_has_further_pages(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    backend = MemoryBackend()
    names = [f"b{it:02}" for it in range(25)]
    for name in names:
        await backend.write_state(name, {"said": "Hello"})
    site = Site(backend)
    monkeypatch.setattr(threads, "LISTED", 10)
    page, found = await site.page("threads", text="hello"), list[str]()
    assert "At least 10 threads" in page.text
    while True:
        found += [it for it in names if f"version?thread={it}" in "".join(page.links)]
        more = [it for it in page.links if "after=" in it]
        if not more:
            break
        page = await site.page(more[0])
    assert found == names[15:] + names[5:15] + names[:5]
    assert (await site.get("threads", text="hello", after="x")).status_code == 422


async def test_a_graph_without_a_message_log_says_where_its_messages_are(graphs: Site) -> None:
    page = await graphs.page("messages", thread="g")
    assert "The messages of this graph are in its state" in page.text
    assert "version?thread=g" in "".join(page.links)
    assert "0 messages" not in page.text


async def test_an_interrupted_checkpoint_says_so(graphs: Site) -> None:
    found = await graphs.json("writes", thread="g")
    assert found["is_interrupted"]
    assert [it["channel"] for it in found["writes"]] == ["__interrupt__"]
    page = await graphs.page("writes", thread="g")
    assert "Interrupted" in page.text
    assert "Which day?" in page.text
    state = await graphs.page("version", thread="g")
    assert "Interrupted:" in state.text
    assert "Which day?" in state.text
    name = found["version"]["checkpoint_id"]
    assert any("writes?" in it and f"version={name}" in it for it in state.links)
    assert "Read-only: rewind" in state.text


async def test_the_effects_of_a_thread_are_listed() -> None:
    backend = await graph_told(MemoryBackend())
    checkpointer, graphs = StorageBackendAdapter(backend), Site(backend)
    await checkpointer.effect("g", "pay", lambda _: "paid")
    with pytest.raises(TimeoutError):
        await checkpointer.effect("g", "mail", _lose_reply)
    found = (await graphs.json("writes", thread="g"))["effects"]
    assert [(it["key"], it["status"]) for it in found] == [("mail", "unknown"), ("pay", "finished")]
    assert "TimeoutError: <b>no reply" in (await graphs.page("writes", thread="g")).text


def _lose_reply(_: str) -> None:
    raise TimeoutError("<b>no reply")


# --- all of them


@pytest.mark.full
async def test_every_link_of_every_page_leads_to_a_page(site: Site, graphs: Site) -> None:
    for it, start in ((site, "/"), (graphs, "/")):
        found = await it.crawled(start, most=120)
        assert len(found) > 15
        for page in found:
            check(page)


def check(page: Seen) -> None:
    """Check what every page must have, and must not have."""
    headers = page.response.headers
    assert {name: headers[name] for name in SECURITY} == SECURITY
    assert page.tags.count("h1") == 1
    assert page.tags.count("script") == 1
    assert {"header", "main"} <= set(page.tags)
    assert not {"style", "img", "iframe", "object"} & set(page.tags)
    assert set(page.attributes) <= ATTRIBUTES
    assert len(page.ids) == len(set(page.ids))


async def test_pages_work_under_any_prefix() -> None:
    backend = await told(MemoryBackend())
    outer = Starlette(routes=[Mount("/a b/c", app(backend))])
    found = await Site(backend, outer).crawled("/a%20b/c/", most=40)
    assert len(found) > 15
    assert all("/a%20b/c/" in it for page in found for it in page.links)


async def test_a_page_says_when_its_time_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Jobs.__init__, "__defaults__", (0.0,))
    site = Site(await told(MemoryBackend()))
    found = await site.page("version", thread="t", path="city")
    assert "took longer than 0 seconds" in found.text
    answer = await site.get("bisect", thread="t", test="text", value="Rain")
    assert answer.status_code == 503
    assert "took longer than 0 seconds" in answer.text


@pytest.mark.parametrize("form", ["json", ""])
async def test_an_address_with_a_surrogate_or_a_long_number_is_refused(
    site: Site, form: str
) -> None:
    wrong = [("version", {"path": "[id='\\ud800']"}), ("version", {"path": "['\\ud800']"})]
    wrong += [("bisect", {"test": "longer-than", "path": "city", "value": "9" * 5_000})]
    for page, query in wrong:
        answer = await site.get(page, thread="t", format=form, **query)
        assert answer.status_code in {404, 422}
        assert SECURITY.items() <= dict(answer.headers).items()


async def test_lists_cost_the_same_statements_whatever_is_stored(tmp_path: Path) -> None:
    pages = ("threads", "timeline?thread=t")
    counts: list[list[int]] = []
    backend = open_checkpointer(f"sqlite:///{tmp_path}/a.db").backend
    with sqlite_statements() as sent:
        async with backend:
            site = Site(backend)
            for number in (3, 40):  # a multiple of 64 would join records meanwhile
                for at in range(number):
                    await backend.write_state("t", {"n": at})
                    await backend.write_state(f"t{at}", {"n": at})
                counts.append([])
                for page in pages:
                    await site.page(page)
                    sent.clear()
                    await site.page(page)
                    counts[-1].append(len(sent))
    assert counts[0] == counts[1]
    assert all(0 < it <= 20 for it in counts[0]), (counts, sent)
