from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from lazily import TESTS_RUN
from services import parts
from test_changes import client

if TESTS_RUN:
    from starlette.testclient import TestClient

    from locus_store.inspector import app
    from locus_store.inspector.bounds import ROWS
    from locus_store.server.options import ServeOptions
    from locus_store.server.serving import make_application
    from locus_store.service.application import Parts

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.anyio
STRANGE = ("a/b", "ü", "%2F", " ", "\u202e")


async def test_an_item_shows_its_version_expiry_and_nearest_items_with_scores() -> None:
    backend, store, _ = parts(dimension=2)
    await store.put_with_embedding(STRANGE, "one", {"n": 1}, [1.0, 0.0], {"kind": "note"})
    await store.put_with_embedding(STRANGE, "one", {"n": 2}, [1.0, 0.0], {"kind": "note"})
    await store.put_with_embedding(("x",), "two", "second", [0.6, 0.8], ttl_seconds=60)
    await store.put(("x",), "three", [1])
    async with client(app(backend, store)) as asking:
        found = (await asking.get("store?format=json")).json()
        assert sorted(map(tuple, found["namespaces"])) == sorted([STRANGE, ("x",)])
        page = await asking.get("store")
        assert page.text.count('href="items?') == 2
        params = {"segments": '["a/b","ü","%2F"," ","\u202e"]', "key": "one"}
        found = (await asking.get("item", params={**params, "format": "json"})).json()
        assert found["item"]["version"] == 2
        assert [(it["key"], round(it["score"], 4)) for it in found["nearest"]] == [("two", 0.6)]
        page = await asking.get("item", params=params)
        assert "0.6000" in page.text
        items = (await asking.get("items", params={"segments": '["x"]', "format": "json"})).json()
        assert [it["key"] for it in items["items"]] == ["three", "two"]
        assert items["items"][1]["expires_at"]
        assert ">in a minute</time>" in (await asking.get("items?segments=[%22x%22]")).text
        assert (await asking.get("value", params=params)).json() == {"n": 2}
        params = {"segments": '["x"]', "key": "three"}
        assert "This item has no embedding." in (await asking.get("item", params=params)).text


async def test_items_are_searched_in_and_below_a_namespace() -> None:
    backend, store, _ = parts()
    await store.put(("a",), "one", {"text": "By train to Bern"})
    await store.put(("a", "b"), "two", {"text": "Bern again"})
    await store.put(("c",), "three", {"text": "Bern"})
    async with client(app(backend, store)) as asking:
        for segments, keys in (("[]", {"one", "two", "three"}), ('["a"]', {"one", "two"})):
            params = {"segments": segments, "q": "bern"}
            found = (await asking.get("items", params={**params, "format": "json"})).json()
            assert {it["key"] for it in found["items"]} == keys
            page = (await asking.get("items", params=params)).text
            assert page.count("<mark>Bern</mark>") == len(keys)


async def test_items_are_filtered_and_sorted_by_the_last_put_page_after_page() -> None:
    backend, store, _ = parts()
    for number in range(ROWS + 5):
        await store.put(("n",), f"k{number:03}", {"odd": number % 2}, metadata={"by": "chat"})
    await store.put(("n",), "k000", {"odd": 0})
    async with client(app(backend, store)) as asking:

        async def ask(**params: Any) -> Any:
            params |= {"segments": '["n"]', "format": "json"}
            answer = await asking.get("items", params=params)
            return answer.status_code, answer.json()

        _, first = await ask(sort="put")
        _, rest = await ask(**first["next"])
        assert [it["key"] for it in first["items"]][:2] == ["k000", f"k{ROWS + 4:03}"]
        assert [it["key"] for it in rest["items"]] == ["k005", "k004", "k003", "k002", "k001"]
        assert rest["next"] is None
        _, odd = await ask(value="odd=1", metadata="by=chat")
        assert len(odd["items"]) == (ROWS + 5) // 2
        assert (await ask(metadata="by=no"))[1]["items"] == []
        assert (await ask(value="odd"))[0] == 422


@pytest.mark.parametrize("segments", ["", "x", "[1]", '{"a": 1}', "[[]]"])
async def test_a_namespace_that_is_no_list_of_strings_is_refused(segments: str) -> None:
    backend, store, _ = parts()
    async with client(app(backend, store)) as asking:
        answer = await asking.get("item", params={"segments": segments, "key": "k"})
        assert answer.status_code in {404, 422}


async def test_more_items_than_a_page_are_linked() -> None:
    backend, store, _ = parts()
    await store.put_batch([(("n",), f"k{number:03}", number) for number in range(401)])
    seen: list[str] = []
    async with client(app(backend, store)) as asking:
        after = ""
        while True:
            params = {"segments": '["n"]', "after": after, "format": "json"}
            found = (await asking.get("items", params=params)).json()
            seen += [it["key"] for it in found["items"]]
            after = (found["next"] or {}).get("after")
            if not after:
                break
    assert seen == [f"k{number:03}" for number in range(401)]


async def test_without_a_store_there_are_no_pages_of_one() -> None:
    backend, _, _ = parts()
    async with client(app(backend)) as asking:
        assert "Store" not in (await asking.get("threads")).text
        answer = await asking.get("store")
        assert (answer.status_code, "without a store" in answer.text) == (501, True)


async def test_a_store_with_embeddings_is_inspected_with_them(tmp_path: Path) -> None:
    """Their number of dimensions is read from the storage: no URL has it."""
    backend, store, _ = parts(tmp_path / "x.db", dimension=2)
    async with store:
        await store.put_with_embedding(("x",), "one", 1, [1.0, 0.0])
        await store.put_with_embedding(("x",), "two", 2, [0.6, 0.8])
    params = {"segments": '["x"]', "key": "one", "format": "json"}
    backend, store, _ = parts(tmp_path / "x.db")
    async with client(app(backend, store)) as asking:
        found = (await asking.get("item", params=params)).json()
        assert "open it with dimension=2" in found["without"]
    backend, store, _ = parts(tmp_path / "x.db")
    async with Parts(backend, store, None).open(), client(app(backend, store)) as asking:
        found = (await asking.get("item", params=params)).json()
        assert [it["key"] for it in found["nearest"]] == ["two"]
    served = make_application(f"sqlite:///{tmp_path}/x.db", ServeOptions(inspector=True))
    browser = {"base_url": "http://127.0.0.1", "client": ("127.0.0.1", 1)}
    with TestClient(served, **browser) as asked:
        found = asked.get("/inspector/item", params=params).json()
        assert [it["key"] for it in found["nearest"]] == ["two"]
        assert asked.get("/v1").json()["dimension"] == 2
