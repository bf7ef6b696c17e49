"""The message logs of a thread."""

from __future__ import annotations

from typing import Any

import pytest
from lazily import TESTS_RUN
from services import parts
from storages.memory import BareBackend
from test_changes import client

from locus_store import NewMessage
from locus_store.open import Storage
from locus_store.types import PendingWrite

if TESTS_RUN:
    from locus_store.inspector import app
    from locus_store.inspector.bounds import ROWS

pytestmark = pytest.mark.anyio
DEEP: list[Any] = []
for _ in range(150):
    DEEP = [DEEP]


async def test_a_thread_of_messages_alone_is_listed_and_shown(place: Any) -> None:
    backend, store, _ = parts(place)
    log = Storage(backend).messages()
    said = [NewMessage({"text": f"Line {n}"}, role="user", message_id=f"m{n}") for n in range(120)]
    await log.append("order/7", said)
    async with client(app(backend, store)) as asking:
        assert 'href="version?thread=order%2F7"' in (await asking.get("threads")).text
        for page in ("version", "timeline"):
            answer = await asking.get(f"{page}?thread=order%2F7")
            assert answer.headers["location"] == "messages?thread=order%2F7"
        found = (await asking.get("messages?thread=order/7&format=json")).json()
        assert [it["message_id"] for it in found["messages"]] == [f"m{n}" for n in range(70, 120)]
        assert (found["count"], found["previous"], found["next"]) == (120, 20, None)
        found = (await asking.get("messages?thread=order/7&start=20&format=json")).json()
        assert (found["messages"][0]["text"]["text"], found["next"]) == ("Line 20", 70)
        found = (await asking.get(f"messages?thread=order/7&start={2**31 - 1}&format=json")).json()
        assert (found["messages"], found["previous"], found["next"]) == ([], 70, None)
        answer = await asking.get("message?thread=order/7&id=m3")
        assert answer.json() == {"text": "Line 3"}
        assert (await asking.get("message?thread=order/7&id=none")).status_code == 404


async def test_messages_are_searched_and_what_was_found_is_marked(place: Any) -> None:
    backend, store, _ = parts(place)
    log = Storage(backend).messages()
    await log.append("t", [NewMessage(f"Line {n} to <Bern>") for n in range(120)])
    async with client(app(backend, store)) as asking:
        found = (await asking.get("messages?thread=t&q=line 1&format=json")).json()
        assert (len(found["messages"]), found["next"]) == (31, None)
        page = (await asking.get("messages?thread=t&q=<bern>")).text
        assert page.count("<mark>&lt;Bern&gt;</mark>") == 50
        assert "start=50&amp;q=%3Cbern%3E" in page
        assert (await asking.get("messages?thread=t&q=Basel&format=json")).json()["messages"] == []


async def test_hits_are_marked_within_markdown(place: Any) -> None:
    backend, store, _ = parts(place)
    said = NewMessage("Go **to <Bern>\u202e** now, `Bern`")
    await Storage(backend).messages().append("t", [said])
    async with client(app(backend, store)) as asking:
        asked = {"thread": "t", "q": "<bern>\u202e** now"}
        page = (await asking.get("messages", params=asked)).text
        assert '<span class="md-strong">**to </span><span class="md-strong"><mark>&lt;Bern' in page
        assert "</span><mark> now</mark>, " in page
        assert "\u202e" not in page
        page = (await asking.get("messages?thread=t&q=bern")).text
        assert (
            '<span class="md-code">`</span><span class="md-code"><mark>Bern</mark></span>' in page
        )


async def test_messages_are_filtered_and_sorted_page_after_page(place: Any) -> None:
    backend, store, _ = parts(place)
    said = [
        NewMessage(f"Line {n}", role=("user", "tool")[n % 2], metadata={"user_id": "ab"[n % 3 > 0]})
        for n in range(120)
    ]
    await Storage(backend).messages().append("t", said)
    async with client(app(backend, store)) as asking:

        async def ask(query: str) -> Any:
            return (await asking.get(f"messages?thread=t&format=json&{query}")).json()

        first = await ask("sort=newest&role=user")
        rest = await ask(f"sort=newest&role=user&start={first['next']}")
        shown = [it["text"]["text"] for it in first["messages"] + rest["messages"]]
        assert shown == [f"Line {n}" for n in range(118, -1, -2)]
        assert (rest["next"], rest["previous"]) == (None, 0)
        assert len((await ask("metadata=user_id=a"))["messages"]) == 40
        assert (await ask("since=2100-01-01"))["messages"] == []
        assert len((await ask("until=2100-01-01&role=tool"))["messages"]) == 50
        page = (await asking.get("messages?thread=t&role=user&sort=newest")).text
        assert "role=user&amp;sort=newest" in page
        assert "Earlier messages" in page
        for wrong in ("since=no", "metadata=no", "role=" + "x" * 300):
            assert (await asking.get(f"messages?thread=t&{wrong}")).status_code == 422


async def test_logs_and_interrupted_threads_are_marked_in_the_list(place: Any) -> None:
    backend, store, _ = parts(place)
    said = [NewMessage({"text": f"Line {n}"}, role="user") for n in range(3)]
    log = Storage(backend).messages()
    await log.append("chat", said, also={("chat", "a"): said[:1], ("both", ""): said[:1]})
    waits = PendingWrite("task", -3, "__interrupt__", "json", b"1")
    for thread in ("both", "later", "plain", "visit"):
        await backend.write_state(thread, {}, checkpoint_id="v")
        await backend.write_state(thread, {}, checkpoint_id="w", namespace="sub")
        await backend.put_writes(thread, "w", [waits], namespace="sub")  # a subgraph's alone
        await backend.put_writes(thread, "v", [waits][thread == "plain" :])
    await backend.write_state("later", {"answered": True})
    expected = {
        "both": (True, 1),
        "chat": (False, 4),
        "later": (False, None),
        "plain": (False, None),
        "visit": (True, None),
    }
    async with client(app(backend, store)) as asking:
        found = (await asking.get("threads?format=json")).json()["threads"]
        marks = {it["thread_id"]: ("interrupted" in it["badges"], it["messages"]) for it in found}
        assert marks == expected
        page = (await asking.get("threads")).text
        assert page.count(">interrupted</a>") == 2
        assert "1 message" in page
        assert "4 messages" in page
        assert ">interrupted</a>" in (await asking.get("threads?id=vis*")).text
        for which, ids in (("badge=interrupted", {"visit", "both"}), ("kind=log", {"chat"})):
            found = (await asking.get(f"threads?format=json&{which}")).json()
            assert {it["thread_id"] for it in found["threads"]} == ids
            assert found["next"] is None
        for wrong in (
            "badge=no",
            "kind=no",
            "metadata=no",
            "since=no",
            "since=0001-01-01T00:00%2B14:00",
            "after=no",
        ):
            assert (await asking.get(f"threads?{wrong}")).status_code == 422


async def test_the_logs_of_a_thread_are_chosen_by_their_namespaces(place: Any) -> None:
    backend, store, _ = parts(place)
    log = Storage(backend).messages()
    hello = [NewMessage({"content": "Hello"}, role="user")]
    await log.append("s", hello, namespace="agent")
    await log.append("s", [*hello, NewMessage(DEEP, role="tool")], namespace="messages/a")
    async with client(app(backend, store)) as asking:
        first = (await asking.get("messages?thread=s&format=json")).json()
        assert (first["log"], first["messages"][0]["text"]["text"]) == ("messages/a", "Hello")
        page = await asking.get("messages", params={"thread": "s", "log": "agent"})
        assert page.status_code == 200
        assert "messages/a" in page.text
        await log.append("s", hello)
        assert (await asking.get("messages?thread=s&format=json")).json()["log"] == ""
        assert (await asking.get("messages?thread=s&log=none")).status_code == 404
        assert (await asking.get("messages?thread=none")).status_code == 404
        await backend.write_state("states", {}, checkpoint_id="v")
        page = (await asking.get("messages?thread=states")).text
        assert 'an agent are in its <a href="version?thread=states">state</a>' in page


async def test_many_logs_are_listed_page_by_page(place: Any) -> None:
    backend, store, _ = parts(place)
    names = [f"n{at:03}" for at in range(ROWS + 5)]
    hello = [NewMessage({"content": "Hello"}, role="user")]
    also: Any = {("s", it): hello for it in names[1:]}
    await Storage(backend).messages().append("s", hello, namespace=names[0], also=also)
    async with client(app(backend, store)) as asking:
        first = (await asking.get("messages?thread=s&format=json")).json()
        assert "More message logs" in (await asking.get("messages?thread=s")).text
        rest = f"messages?thread=s&logs={first['logs_next']}"
        second = (await asking.get(f"{rest}&format=json")).json()
        assert [it["namespace"] for it in first["logs"] + second["logs"]] == names
        assert (second["logs_next"], second["log"]) == (None, names[ROWS])
        assert "More message logs" not in (await asking.get(rest)).text


async def test_a_backend_without_message_logs_has_no_page_of_them() -> None:
    backend = BareBackend()
    await backend.write_state("t", {}, checkpoint_id="v")
    async with client(app(backend)) as asking:
        assert "Messages</a>" not in (await asking.get("timeline?thread=t")).text
        assert (await asking.get("messages?thread=t")).status_code == 501
