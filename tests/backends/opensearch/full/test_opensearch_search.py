"""Documents of versions: written beside the head, mended by ``vacuum``, and searched."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import opensearchpy
import pytest

from locus_store import ConflictError, InvalidArgumentError, SchemaError, opensearch_checkpointer
from locus_store.backends.documents import deriving
from locus_store.backends.documents.objects import digest
from locus_store.backends.opensearch import bulk, versions
from locus_store.backends.opensearch.documents import get_decided, make_version_name
from locus_store.backends.opensearch.search import iterate_versions

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from indexes import TestIndex

pytestmark = pytest.mark.anyio


def stored(index: TestIndex) -> dict[int, dict[str, Any]]:
    """The documents of versions by their sequences."""
    index.refresh()
    query = {"size": 1000, "query": {"exists": {"field": "sequence"}}}
    hits = index.ask("POST", f"/{index.name}/_search", query)["hits"]["hits"]
    return {it["_source"]["sequence"]: it["_source"] for it in hits}


class KilledError(Exception):
    """The end of a writer."""


class Bulks:
    """A client whose requests may be changed before they are sent."""

    def __init__(self, index: TestIndex) -> None:
        self.real = index.server.client()
        self.transport = self
        self.asked: list[str] = []
        self.changes: list[Callable[[bytes], bytes]] = []
        """Of the next writes."""
        self.answered: Callable[[Any], None] | None = None
        """Called with the answer to the next write that is changed."""
        self.dies = False
        """The writer ends after the next request."""

    def perform_request(self, method: str, url: str, *, body: Any = None, **options: Any) -> Any:
        self.asked.append(url.rsplit("/", maxsplit=1)[-1] if "_doc" not in url else "_doc")
        is_changed = bool(self.changes) and url.endswith("_bulk")
        if is_changed:
            body = self.changes.pop(0)(body)
        answer = self.real.transport.perform_request(method, url, body=body, **options)
        if is_changed and self.answered:
            answered, self.answered = self.answered, None
            answered(answer)
        if self.dies:
            self.dies = False
            raise KilledError
        return answer


@pytest.fixture
def bulks(index: TestIndex) -> Iterator[Bulks]:
    made = Bulks(index)
    yield made
    made.real.close()


def over(index: TestIndex, bulks: Bulks, **options: Any) -> Any:
    return opensearch_checkpointer(
        client=bulks, index_name=index.name, state_type=dict, refresh="wait", **options
    )


def without_the_last(body: bytes) -> bytes:
    """The request without its last document, as if the server had refused that."""
    return b"".join(it + b"\n" for it in body.splitlines()[:-2])


def with_a_bad_last(body: bytes) -> bytes:
    """The request with a field in its last document that the mapping refuses."""
    *lines, last = body.splitlines()
    return b"".join(
        it + b"\n" for it in [*lines, json.dumps({**json.loads(last), "x": 1}).encode()]
    )


async def test_a_version_has_a_document_without_its_state(index: TestIndex) -> None:
    async with index.checkpointer(state_type=dict) as checkpointer:
        await checkpointer.save({"said": "Zwei Brötchen", "n": 7}, "t", "v1", {"k": 7, "o": ["x"]})
    (it,) = stored(index).values()
    assert (it["thread"], it["namespace"], it["sequence"]) == ("t", "", 1)
    assert it["words"] == "zwei brotchen"
    assert it["metadata"] == ["k=7", 'o=["x"]', "o[]", 'o="x"']
    assert len(it["content"]) == 16  # a digest


async def test_a_refused_version_leaves_the_save_and_is_written_by_the_next_one(
    index: TestIndex, bulks: Bulks
) -> None:
    async with over(index, bulks) as checkpointer:
        await checkpointer.save({"said": "alpha"}, "t", "v1")
        bulks.changes = [with_a_bad_last, with_a_bad_last]
        await checkpointer.save({"said": "beta"}, "t", "v2")
        assert await checkpointer.load("t") == {"said": "beta"}
        assert set(stored(index)) == {1}
        await checkpointer.save({"said": "gamma"}, "t", "v3")
        assert set(stored(index)) == {1, 2, 3}
        assert [it["thread_id"] for it in await checkpointer.search("beta")] == ["t"]


@pytest.mark.parametrize("mends", ["save", "vacuum"])
async def test_a_version_that_a_killed_writer_did_not_write_is_written(
    mends: str, index: TestIndex, bulks: Bulks
) -> None:
    async with over(index, bulks) as killed, index.checkpointer(state_type=dict) as other:
        await killed.save({"said": "alpha"}, "t", "v1")
        bulks.changes, bulks.dies = [without_the_last], True
        with pytest.raises(KilledError):
            await killed.save({"said": "beta"}, "t", "v2")
        assert set(stored(index)) == {1}
        if mends == "save":
            await other.save({"said": "gamma"}, "t", "v3")
        else:
            await other.backend.vacuum_report()
        assert {1, 2} <= set(stored(index))
        assert [it["checkpoint_id"] for it in await other.search("beta")] == ["v2"]


async def test_a_refused_head_leaves_no_document_of_a_version(index: TestIndex) -> None:
    async with index.backend() as one, index.backend() as two:
        await one.write_state("t", {"n": 1}, checkpoint_id="v1")
        await two.read_state("t")
        await one.write_state("t", {"said": "mine"}, checkpoint_id="v2")
        await two.write_state("t", {"said": "theirs"}, checkpoint_id="v3")
        found = stored(index)
        assert {at: it.get("words") for at, it in found.items()} == {
            1: None,
            2: "mine",
            3: "theirs",
        }


def refused(_body: bytes) -> bytes:
    raise opensearchpy.exceptions.RequestError(400, "refused", {})


async def test_documents_of_a_later_request_may_be_refused(
    index: TestIndex, bulks: Bulks, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bulk, "MOST_WRITES", 1)
    async with over(index, bulks) as checkpointer:
        for n in range(3):
            await checkpointer.save({"said": f"w{n}"}, "t", f"v{n}")

        bulks.changes = [bytes, refused]
        assert await checkpointer.copy_thread("t", "copy") is True
        assert len(await checkpointer.list_checkpoints("copy")) == 3
        assert [it["thread_id"] for it in await checkpointer.search("w2")] == ["t"]
        await checkpointer.save({"said": "w3"}, "copy")
        assert {it["thread_id"] for it in await checkpointer.search("w2")} == {"t", "copy"}


async def test_documents_that_a_deletion_leaves_are_removed_by_it_again(
    index: TestIndex, bulks: Bulks
) -> None:
    async with over(index, bulks) as checkpointer:
        await checkpointer.save({"said": "alpha"}, "t", "v1")
        bulks.changes = [bytes, refused]
        assert await checkpointer.delete("t") is True
        assert await checkpointer.search("alpha") == []
        assert set(stored(index)) == set()


async def test_documents_that_no_head_names_are_removed(index: TestIndex) -> None:
    async with index.backend() as backend:
        await backend.write_state("t", {"said": "alpha"}, checkpoint_id="v1")
        await backend.write_state("u", {"said": "alpha"}, checkpoint_id="v1")
        objects = backend.index
        name = make_version_name("gone", 1, 9)
        fields = {"thread": "gone", "namespace": "", "line": 1, "sequence": 9, "words": "alpha"}
        objects.bulk([objects.make_write(name, "create", fields)])
        assert len(await backend.search("alpha")) == 2
        await backend.vacuum_report()
        assert 9 not in stored(index)
        assert len(await backend.search("alpha")) == 2


async def test_a_refused_save_changes_no_document_of_another_save(index: TestIndex) -> None:
    said = ["zebra", *(f"filler{n} " * 20 for n in range(20))]
    async with (
        index.checkpointer(state_type=dict) as one,
        index.checkpointer(state_type=dict) as stale,
        index.checkpointer(state_type=dict) as other,
    ):
        await one.save({"messages": said}, "t", "v1")
        await one.save({"messages": [*said, "apple"]}, "t", "v2")
        await stale.load("t")
        await other.load("t")
        await other.delete("t", "v1")
        await other.save({"messages": [*said, "apple", "pear"]}, "t", "v3")
        before = stored(index)
        with pytest.raises(ConflictError):
            await stale.save({"messages": [*said, "apple", "plum"]}, "t", "v4")
        assert stored(index) == before
        assert [it["checkpoint_id"] for it in await other.search("zebra")] == ["v2"]


async def test_a_late_write_of_a_document_does_not_replace_a_newer_one(index: TestIndex) -> None:
    async with index.backend() as backend:
        for n in range(3):
            await backend.write_state("t", {"said": f"w{n}"}, checkpoint_id=f"v{n}")
        documents = backend._documents
        thread = backend._threads.read("t")
        (history,) = thread.histories.values()
        row = deriving.Derived(
            "", history.line.line, history.get_row(2), is_new=False, is_changed=True
        )
        for revision, kept in ((5, 5), (4, 5), (6, 6)):
            late = deriving.Changes("t", revision, {("", 2): row}, [])
            documents.settle("t", late, [])
            assert late.written == {}
            path = bulk.make_path(make_version_name("t", history.line.line, 2))
            found = index.ask("GET", f"/{index.name}/{path}?routing={digest('t')}")
            assert found["_version"] == get_decided(kept)


async def test_a_document_that_differs_is_written_again_by_vacuum(index: TestIndex) -> None:
    async with index.backend() as backend:
        await backend.write_state("t", {"said": "zebra"}, checkpoint_id="v1")
        script = {"script": "ctx._source.words = 'fox'; ctx._source.content = 'AAAA'"}
        query = {"query": {"exists": {"field": "sequence"}}, **script}
        index.ask("POST", f"/{index.name}/_update_by_query?refresh=true", query)
        assert await backend.search("zebra") == []
        await backend.vacuum_report()
        assert await backend.search("zebra") == ["t"]


async def test_vacuum_writes_nothing_where_all_documents_are_right(
    index: TestIndex, bulks: Bulks
) -> None:
    async with over(index, bulks) as checkpointer:
        for n in range(4):
            state = {"said": [f"Häuser {it}" for it in range(n)], "agent_id": "a"}
            await checkpointer.save(state, "t", f"v{n}", {"n": 1.0, "b": {"y": 1, "x": [2]}})
        await checkpointer.delete("t", "v1")
    async with over(index, bulks) as checkpointer:
        bulks.asked.clear()
        await checkpointer.backend.vacuum_report()
        assert not [it for it in bulks.asked if "bulk" in it]


async def test_documents_that_name_no_version_are_ignored_and_removed(index: TestIndex) -> None:
    async with index.backend() as backend:
        await backend.write_state("t", {"said": "alpha"}, checkpoint_id="v1", metadata={"k": 1})
        (made,) = stored(index).values()
        name = f"{index.name}/_doc"
        index.ask("PUT", f"/{name}/copy?refresh=true", made)
        index.ask("PUT", f"/{name}/empty?refresh=true", {**made, "thread": ""})
        index.ask(
            "PUT",
            f"/{name}/none?refresh=true",
            {"words": "alpha", "metadata": "k=1"} | {"sequence": 1},
        )
        assert [it.checkpoint_id for it in await backend.query("k", 1, 10)] == ["v1"]
        assert len(await backend.tagged("k", 1)) == 1
        assert len(await backend.search("alpha")) == 1
        await backend.vacuum_report()
        index.refresh()
        assert [it.id for it in iterate_versions(backend.index) if len(it.id) < 10] == []
        assert len(await backend.search("alpha")) == 1


async def test_a_list_of_many_values_is_found(index: TestIndex) -> None:
    many = list(range(1200))
    async with index.backend() as backend:
        await backend.write_state("t", {}, checkpoint_id="v1", metadata={"k": many})
        await backend.write_state("u", {}, checkpoint_id="v1", metadata={"k": many[:-1]})
        assert [it.thread_id for it in await backend.query("k", many, 10)] == ["t"]


def nested(depth: int, leaf: Any, beside: int = 0) -> dict[str, Any]:
    """Objects inside each other, with other values beside each."""
    made = {"leaf": leaf}
    for _ in range(depth):
        made = {"in": made, **{f"k{n}": n for n in range(beside)}}
    return made


def test_each_value_of_nested_metadata_becomes_json_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    real = versions._canonicalize
    monkeypatch.setattr(versions, "_canonicalize", lambda it: asked.append(it) or real(it))
    found = versions.make_tokens(nested(100, "x", beside=20))
    assert len(found) == 100 * 21 + 1
    assert len(asked) <= 2 * len(found)  # keys and values


async def test_nested_metadata_with_long_values_is_found(index: TestIndex) -> None:
    async with index.checkpointer(state_type=dict) as checkpointer:
        long = "x" * 1_000_000
        await checkpointer.save({}, "t", metadata=nested(100, long, beside=3))
        await checkpointer.save({}, "u", metadata=nested(100, "short", beside=3))
        await checkpointer.save({}, "v", metadata=nested(3, long))
        path = ".".join(["in"] * 100)
        with pytest.raises(OverflowError):
            versions.make_tokens(nested(100, long, beside=3))
        for key, value, threads in (
            (f"{path}.leaf", long, ["t"]),
            (f"{path}.leaf", "short", ["u"]),
            (f"{path}", {"leaf": long}, ["t"]),
            ("in.in.k2", 2, ["u", "t"]),
            ("in", nested(99, "short", beside=3), ["u"]),
            ("in.in.in.leaf", long, ["v"]),
        ):
            found = await checkpointer.query_by_metadata(key, value)
            assert [it["thread_id"] for it in found] == threads


async def test_a_busy_server_is_asked_again_for_a_document(index: TestIndex, bulks: Bulks) -> None:
    def busy(answer: Any) -> None:
        error = {"type": "rejected_execution_exception", "reason": "queue"}
        answer["items"].append({"create": {"status": 429, "error": error}})

    async with over(index, bulks) as checkpointer:
        await checkpointer.save({"said": "alpha"}, "t", "v1")
        bulks.changes, bulks.answered = [without_the_last], busy
        await checkpointer.save({"said": "beta"}, "t", "v2")
        assert [it["checkpoint_id"] for it in await checkpointer.search("beta")] == ["v2"]


async def test_a_lost_reply_leaves_the_document_of_a_stored_save(
    index: TestIndex, bulks: Bulks
) -> None:
    def lost(_answer: Any) -> None:
        raise opensearchpy.exceptions.ConnectionError("N/A", "lost", OSError("lost"))

    async with over(index, bulks) as checkpointer:
        await checkpointer.save({"said": "alpha"}, "t", "v1")
        bulks.changes, bulks.answered = [without_the_last], lost
        await checkpointer.save({"said": "beta"}, "t", "v2")
        assert len(await checkpointer.list_checkpoints("t")) == 2
        assert [it["checkpoint_id"] for it in await checkpointer.search("beta")] == ["v2"]


async def test_removed_versions_lose_their_documents(index: TestIndex) -> None:
    async with index.backend() as backend:
        for n in range(3):
            await backend.write_state("t", {"said": f"w{n}"}, checkpoint_id=f"v{n}")
        await backend.remove("t", ["v1"])
        assert set(stored(index)) == {1, 3}
        await backend.remove("t")
        assert stored(index) == {}


# --- a language


async def test_with_a_language_other_forms_of_the_words_are_found(index: TestIndex) -> None:
    name, text = (
        f"{index.name}-german",
        "Wir sahen die alten Häuser <em>am</em> Hafen. " + "x " * 300,
    )
    try:
        async with index.checkpointer(
            index_name=name, language="german", state_type=dict
        ) as checkpointer:
            await checkpointer.save({"said": text}, "forms", "v1", {"k": 1})
            await checkpointer.save({"said": "Das Haus am Hafen"}, "words", "v1")
            await checkpointer.save({"said": "Das Haus"}, "one word", "v1")
            first, second = await checkpointer.search("haus hafen")
            assert (first["thread_id"], second["thread_id"]) == ("words", "forms")
            assert 0 < second["score"] < 1 <= first["score"]
            assert second["metadata"] == {"k": 1}
            assert "alten Häuser <em>am</em>" in second["snippet"]
            assert len(second["snippet"]) <= 160
            assert [it["thread_id"] for it in await checkpointer.search("haus hafen", 1)] == [
                "words"
            ]
            for query in ("haus AND schiff", "häuser schiffe", "x" * 2000, "und"):
                found = {it["thread_id"] for it in await checkpointer.search(query)}
                assert "forms" not in found, query
            await checkpointer.delete("forms", "v1")
            assert [it["thread_id"] for it in await checkpointer.search("haus hafen")] == ["words"]
        async with index.checkpointer(index_name=name, state_type=dict) as checkpointer:
            with pytest.raises(SchemaError, match="language='german'"):
                await checkpointer.load("words")
    finally:
        index.ask("DELETE", f"/{name}-000001")


def test_a_language_that_opensearch_does_not_know_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="language='klingon': it must be 'arabic'"):
        opensearch_checkpointer("h", language="klingon")
