"""OpenSearch with encryption: the words of its documents, and lists that follow later."""

from __future__ import annotations

import json
import os
import random
from base64 import b64decode, b64encode
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import test_cli
import test_cli_keys
from indexes import TestIndex
from test_stored import fill as fill_thread
from test_tampered_rows import THREADS, list_reads, list_versions

from locus_store import Encryption, EncryptionError, LocalKeyRing, open_storage, open_store
from locus_store.backends.documents import bundles
from locus_store.backends.documents.objects import HEADS, SEGMENTS
from locus_store.backends.opensearch import bulk
from locus_store.backends.opensearch.documents import IndexDocuments
from locus_store.errors import LocusStoreError
from locus_store.types import PendingWrite

if TYPE_CHECKING:
    from collections.abc import Iterator

    from test_cli import Run

run = test_cli.run

pytestmark = pytest.mark.anyio

ROWS = int(os.environ.get("LOCUS_TEST_ROWS", "100"))

WORDS = {
    "state": "anna",
    "other state": "berta",
    "metadata": "clara",
    "label": "doris",
    "write": "emma",
    "text": "frida",
    "content": "gerda",
    "message": "hanna",
    "value": "ida",
    "item": "jana",
}
"""A word for each place of ``fill``."""


async def fill(storage: Any, words: dict[str, str]) -> None:
    labels = {"tags": [words["label"]]}
    backend, said = storage.backend, [words["state"]]
    await backend.write_state(
        "t", {"said": said}, checkpoint_id="v1", metadata={"who": words["metadata"]}, labels=labels
    )
    await backend.write_state("t", {"said": [*said, words["other state"]]}, checkpoint_id="v2")
    write = PendingWrite("task", 0, "c", "t", words["write"].encode())
    await backend.put_writes("t", "v2", [write])
    message = words["content"], "user", "m1", {"about": words["message"]}, words["text"]
    await storage.messages().append("t", [message])
    await storage.store().put(("n",), "k", {"x": words["value"]}, {"about": words["item"]})


def find_by_field(index: TestIndex) -> list[str]:
    """Return the fields of versions by which the server finds a word."""
    terms = {
        "words": WORDS["state"],
        "text": WORDS["state"],
        "metadata": f'who="{WORDS["metadata"]}"',
        "labels": f'tags="{WORDS["label"]}"',
    }
    queries = {field: {"query": {"term": {field: term}}} for field, term in terms.items()}
    found = {it: index.ask("POST", f"/{index.name}/_search", one) for it, one in queries.items()}
    return [field for field, answer in found.items() if answer["hits"]["hits"]]


@pytest.fixture
def english(index: TestIndex) -> Iterator[TestIndex]:
    """An index of its own, which also has the text as it was said."""
    made = TestIndex(index.server, f"{index.name}-english")
    yield made
    made.remove()
    made.ask("DELETE", f"/{made.name}-store-000001")


async def convert(url: str, encryption: Encryption, **options: Any) -> int:
    lenient = Encryption(encryption.ring, encryption.keys, required=False)
    async with open_storage(url, encryption=lenient, **options) as storage:
        threads = [it async for it in storage.backend.reencrypt()]
        return len(threads) + len([it async for it in storage.store().reencrypt()])


async def test_a_migration_leaves_no_word_in_the_index(
    encryption: Encryption, english: TestIndex
) -> None:
    url, fields = f"{english.url()}&language=english", ["words", "text", "metadata", "labels"]
    async with open_storage(url) as storage:
        await fill(storage, WORDS)
    stored = english.read_all()
    assert [name for name, word in WORDS.items() if word.encode() not in stored] == []
    assert find_by_field(english) == fields
    assert await convert(url, encryption) == 2
    stored = english.read_all()
    assert [name for name, word in WORDS.items() if word.encode() in stored] == []
    assert find_by_field(english) == []
    async with open_storage(url, encryption=encryption) as storage:
        backend = storage.backend
        assert [it.thread_id for it in await backend.find("anna berta")] == ["t"]
        assert [it.checkpoint_id for it in await backend.query("who", "clara")] == ["v1"]
        assert [it.checkpoint_id for it in await backend.query("tags", "doris")] == ["v1"]


async def test_a_vacuum_replaces_the_documents_that_a_migration_left(
    encryption: Encryption, index: TestIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_storage(index.url()) as storage:
        await fill(storage, WORDS)
    with monkeypatch.context() as patch:  # the process ends behind the head
        patch.setattr(IndexDocuments, "settle", lambda *_: None)
        await convert(index.url(), encryption)
    assert b"anna" in index.read_all()
    async with open_storage(index.url(), encryption=encryption) as storage:
        await storage.backend.vacuum()
    assert b"anna" not in index.read_all()


@pytest.fixture
def slow(index: TestIndex) -> Iterator[TestIndex]:
    """An index whose lists do not follow by themselves."""
    made = TestIndex(index.server, f"{index.name}-slow")
    template = f"/_index_template/{made.name}"
    settings = {"index.refresh_interval": "-1", "index.number_of_replicas": 0}
    of_index = {"index_patterns": [f"{made.name}-*"], "template": {"settings": settings}}
    made.ask("PUT", template, {**of_index, "priority": 9})
    yield made
    made.ask("DELETE", template)
    made.remove()
    made.ask("DELETE", f"/{made.name}-store-000001")


def get_url(index: TestIndex) -> str:
    return index.url().replace("refresh=wait", "refresh=interval")


async def test_all_is_forgotten_though_lists_follow_later(
    encryption: Encryption, slow: TestIndex
) -> None:
    async with open_storage(get_url(slow), encryption=encryption) as storage:
        await storage.backend.save("t", {"n": 1}, metadata={"user_id": "zoe"})
        await storage.store().put(("m", "zoe"), "k", {"n": 1})
        counts = await storage.backend.count_keys() + await storage.store().count_keys()
        assert counts.total() == 3
        assert (await storage.backend.forget_user("zoe"))["threads"] == 1
        assert len(await encryption.list_receipts("")) == 1
        assert await storage.store().forget_namespace(("m",)) == 1
        assert len(await encryption.list_receipts("")) == 2


async def test_all_is_sealed_again_though_lists_follow_later(
    encryption: Encryption, slow: TestIndex
) -> None:
    async with open_storage(get_url(slow)) as storage:
        await storage.backend.save("t", {"n": 1})
        await storage.store().put(("n",), "k", {"n": 1})
    assert await convert(get_url(slow), encryption) == 2


async def test_data_keys_in_an_index_need_lists_that_show_them(
    slow: TestIndex, index: TestIndex
) -> None:
    ring = LocalKeyRing({"a": bytes(32)}, "a")
    async with open_store(get_url(slow)) as keys:
        with pytest.raises(EncryptionError, match="refresh=wait"):
            await Encryption(ring, keys).load("acme")
    async with open_store(index.url()) as keys:
        encryption = Encryption(ring, keys)
        await encryption.load("acme")
        assert [it.number for it in await encryption.list_keys()] == [1]
        await encryption.add_key("acme")
        assert [it.number for it in await encryption.list_keys()] == [1, 2]
        await encryption.destroy("acme")
        assert await encryption.list_keys() == []


def test_the_commands_of_keys_work_on_an_index(run: Run, slow: TestIndex) -> None:
    clear = get_url(slow)
    url = f"{clear}&encryption=keys.json"
    test_cli_keys.fill(clear)
    test_cli_keys.write_ring("a", required=False)

    def ask(*command: str) -> Any:
        code, out, errors = run(*command, "--url", url, "--json")
        assert (code, errors.count("error")) == (0, 0)
        return json.loads(out)

    assert ask("db", "keys", "status")["values"] == {"clear": 3}
    out = run("db", "keys", "rotate", "--data", "--url", url)[1]
    assert "sealed 2 threads and 1 item again" in out
    test_cli_keys.write_ring("a")
    [key] = ask("db", "keys", "status")["keys"]
    assert ask("db", "keys", "status")["values"] == {key["key_id"]: 5}
    run("export", "--all", "--output", "file.jsonl", "--url", url)
    lines = Path("file.jsonl").read_bytes().splitlines()
    [item] = [it for it in lines if it.startswith(b'{"kind":"item"')]
    assert b'"zoe"' not in b"".join(it for it in lines if it is not item)
    assert b'"is_sealed":true,"namespace":["m","zoe"]' in item  # as it is stored
    copy = "file:copy?encryption=keys.json"
    assert run("import", "file", "file.jsonl", "--url", copy)[0] == 0
    assert run("threads", "show", "t", "--url", copy)[0] == 0
    found = ask("forget", "--user", "zoe", "--namespace", "m/zoe", "--yes")
    assert [len(it["key_ids"]) for it in found["receipts"]] == [1, 1]
    assert "forgotten" in run("threads", "show", "t", "--url", copy)[2]
    assert ask("db", "keys", "destroy", "--yes")["key_ids"] == [key["key_id"]]
    assert "destroyed" in run("threads", "show", "u", "--url", url)[2]


KINDS = {"heads": HEADS, "segments": SEGMENTS, "versions": bulk.VERSIONS}


def list_kind(documents: list[Any], kind: str) -> list[Any]:
    """Return the documents of heads, segments, versions or items."""
    if kind == "items":
        return [it for it in documents if "kept" in it["_source"]]
    return [it for it in documents if it["_source"].get("name", "").startswith(KINDS[kind])]


def forge(source: dict[str, Any], donor: dict[str, Any], rng: random.Random) -> dict[str, Any]:
    """Return what is put in a document's place; every second one names that place."""
    if rng.random() < 0.5:
        return donor
    if source.get("name", "").startswith(HEADS):
        found = bundles.unpack(b64decode(donor["content"]))
        own = bundles.unpack(b64decode(source["content"])).describe()
        facts = {**json.loads(found.facts), "thread_id": own["thread_id"]}
        packed = bundles.pack(found._replace(facts=json.dumps(facts).encode()))
        donor = {**donor, "content": b64encode(packed).decode()}
    return {**donor, **{it: source[it] for it in source.keys() & {"name", "namespace", "key"}}}


def change_bytes(source: dict[str, Any], rng: random.Random, *, cuts: bool) -> dict[str, Any]:
    """Return a document whose bytes are cut off, or have another bit."""
    within = source.get("kept", source)
    raw = bytearray(b64decode(within["content"]))
    if cuts:
        del raw[rng.randrange(len(raw)) :]
    else:
        raw[rng.randrange(len(raw))] ^= 1 << rng.randrange(8)
    changed = {**within, "content": b64encode(raw).decode()}
    return {**source, "kept": changed} if "kept" in source else changed


def change_field(source: dict[str, Any], rng: random.Random) -> dict[str, Any]:
    """Return a document without one of its fields, or with a value of another type in it."""
    name = rng.choice([*source])
    if isinstance(source[name], dict) and rng.random() < 0.8:
        return {**source, name: change_field(source[name], rng)}
    others = {key: it for key, it in source.items() if key != name}
    if rng.random() < 0.5:
        return others
    return {**others, name: rng.choice([None, 5, 0.5, "5", "x", [], ["x"], {}, {"x": 5}, True])}


def tamper_documents(
    stored: list[Any], older: list[Any], clear: list[Any], rng: random.Random
) -> tuple[str, list[tuple[Any, Any]]]:
    """Return the way, and documents with what is put in their places; see ``forge``."""
    kind = rng.choice([*KINDS, "items"])
    ways, own = ["bit", "cut", "field", "move", "swap", "clear"], list_kind(stored, kind)
    way = rng.choice(ways)
    one = rng.choice(own)
    source, others = one["_source"], [it for it in own if it is not one]
    if way in {"bit", "cut"}:
        changes = [(one, change_bytes(source, rng, cuts=way == "cut"))]
    elif way == "field":
        changes = [(one, change_field(source, rng))]
    elif way == "swap":
        other = rng.choice(others)
        pairs = (one, other), (other, one)
        changes = [(it, forge(it["_source"], by["_source"], rng)) for it, by in pairs]
    else:  # its own older one is a roll-back
        moved = others + [it for it in list_kind(older, kind) if it["_id"] != one["_id"]]
        donor = rng.choice(list_kind(clear, kind) if way == "clear" else moved)
        changes = [(one, forge(source, donor["_source"], rng))]
    return f"{kind} {way}", changes


async def fill_index(url: str, **options: Any) -> None:
    """Store two threads with segments, and items."""
    async with open_storage(url, **options) as storage:
        for thread_id in THREADS:
            for at in range(4):
                long = random.Random(f"{thread_id} {at}").randbytes(20_000).hex()
                await storage.backend.write_state(thread_id, {"long": long}, metadata={"n": at})
            await fill_thread(storage, thread_id)


async def count_tampered(
    index: TestIndex, encryption: Encryption, rows: int
) -> tuple[Counter[str], Counter[str]]:
    """Tamper with documents that many times, and read; return how often in each way, and errors.

    What is read must have been saved there: a list may be shorter, as rows can be deleted.
    """
    rng, tried, refused = random.Random(rows), Counter[str](), Counter[str]()
    await fill_index(index.url())
    clear = index.read_documents()
    index.empty()
    await fill_index(index.url(), encryption=encryption)
    older = index.read_documents()
    async with open_storage(index.url(), encryption=encryption) as storage:
        for thread_id in THREADS:
            await storage.backend.write_state(thread_id, {"n": 1}, metadata={"n": 9})
            await storage.store().put((thread_id,), "k", {"x": "new"}, {"about": "new"})
        versions = [
            (it, *rest[:2]) for it in THREADS for rest in await list_versions(storage.backend, it)
        ]
        before = [[await read() for read in list_reads(storage, it)] for it in THREADS]
    stored = index.read_documents()
    while tried.total() < rows:
        way, changes = tamper_documents(stored, older, clear, rng)
        if all(source == one["_source"] for one, source in changes):
            continue
        tried[way] += 1
        for one, source in changes:
            index.write(one, source)
        async with open_storage(index.url(), encryption=encryption) as storage:
            for at in rng.sample(range(2 * len(before[0])), 4):
                thread, number = divmod(at, len(before[0]))
                try:
                    found = await list_reads(storage, THREADS[thread])[number]()
                except LocusStoreError as exc:
                    refused[type(exc).__name__] += 1
                    continue
                known = before[thread][number]
                if isinstance(found, list):
                    assert all(it in known or it in versions for it in found), way
                else:
                    assert found in (known, None), way
        for one, _ in changes:
            index.write(one, one["_source"])
    return tried, refused


async def test_no_tampered_document_gives_another_answer(
    encryption: Encryption, index: TestIndex
) -> None:
    tried, refused = await count_tampered(index, encryption, ROWS)
    print(tried, refused)
    assert len(tried) > 12  # of 24 ways
    assert refused.total() > ROWS / 3
