"""The backend on a real OpenSearch: its index, lost replies, refusals and requests."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import opensearchpy
import pytest
from servers import Proxy
from tiers import LONG
from watched import Watched

from locus_store import (
    BackendError,
    ConflictError,
    ConnectionFailedError,
    InvalidArgumentError,
    MissingExtraError,
    SchemaError,
    open_checkpointer,
    open_saver,
    opensearch_checkpointer,
)
from locus_store.backends.documents.objects import CUT, HEADS, IDENTITY, SEGMENTS, digest
from locus_store.backends.opensearch import OpenSearchBackend, access, bulk, client, documents
from locus_store.backends.opensearch.index import NEWEST
from locus_store.backends.opensearch.search import iterate_versions

if TYPE_CHECKING:
    from collections.abc import Iterator

    from indexes import TestIndex

pytestmark = pytest.mark.anyio

LOST = 1000 if LONG else 40
SAVES = 500 if LONG else 20
ROOT = Path(__file__).parents[4]


def closed_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


@pytest.fixture
def watched(index: TestIndex) -> Iterator[Watched]:
    made = Watched(index)
    yield made
    made.real.close()


def over(index: TestIndex, watched: Watched, **options: Any) -> Any:
    return opensearch_checkpointer(
        client=watched, index_name=index.name, state_type=dict, **options
    )


# --- the index


async def test_the_first_save_creates_the_index_behind_an_alias(index: TestIndex) -> None:
    index.remove()
    checkpointer = index.checkpointer(state_type=dict)
    assert await checkpointer.load("t") is None
    assert await checkpointer.list_threads() == []
    assert index.ask("GET", f"/{index.name}")["status"] == 404
    await checkpointer.save({"n": 1}, "t")
    (name, made), *others = index.ask("GET", f"/{index.name}").items()
    assert (name, others) == (f"{index.name}-000001", [])
    assert made["mappings"]["_meta"] == {"locus_store": 3}
    assert made["settings"]["index"]["sort"]["field"] == [*NEWEST]
    assert made["mappings"]["dynamic"] == "strict"
    await checkpointer.close()


async def test_writers_that_create_the_index_at_once_share_it(index: TestIndex) -> None:
    index.remove()
    several = [index.checkpointer(state_type=dict) for _ in range(4)]
    await asyncio.gather(*(it.save({"n": n}, f"t{n}") for n, it in enumerate(several)))
    assert sorted(await several[0].list_threads()) == ["t0", "t1", "t2", "t3"]
    for it in several:
        await it.close()


async def test_an_index_that_was_deleted_meanwhile_is_created_again(index: TestIndex) -> None:
    async with index.checkpointer(state_type=dict) as checkpointer:
        await checkpointer.save({"n": 1}, "t")
        index.remove()
        assert await checkpointer.load("t") is None
        await checkpointer.save({"n": 2}, "u")
        assert await checkpointer.load("u") == {"n": 2}


async def test_a_save_in_an_index_that_was_created_again_is_not_lost(index: TestIndex) -> None:
    async with (
        index.checkpointer(state_type=dict) as stale,
        index.checkpointer(state_type=dict) as other,
    ):
        index.remove()
        await stale.save({"said": "one"}, "t")
        index.remove()
        kept = await other.save({"said": "two"}, "t")
        assert await stale.load("t") == {"said": "two"}
        await stale.save({"said": "three"}, "t")
        assert kept in await other.list_checkpoints("t")


@pytest.mark.parametrize("is_loaded", [True, False])
async def test_a_stale_save_keeps_the_versions_of_an_index_that_was_created_again(
    is_loaded: bool, index: TestIndex
) -> None:
    async with (
        index.checkpointer(state_type=dict) as stale,
        index.checkpointer(state_type=dict) as other,
    ):
        index.remove()
        await stale.save({"said": "one"}, "t")
        index.remove()
        kept = await other.save({"said": "two"}, "t")
        if is_loaded:
            assert await stale.load("u") is None
        await stale.save({"said": "three"}, "t")
        assert kept in await other.list_checkpoints("t")


async def test_an_index_that_is_created_again_has_an_identity(index: TestIndex) -> None:
    async with index.backend() as backend:
        index.remove()
        await backend.write_state("t", {"n": 1}, checkpoint_id="v1")
        index.remove()
        await backend.write_state("u", {"n": 1}, checkpoint_id="v1")
        assert backend.index.get(IDENTITY)


async def test_an_index_without_its_alias_is_named(index: TestIndex) -> None:
    async with index.checkpointer(state_type=dict) as checkpointer:
        await checkpointer.save({"n": 1}, "t")
        index.ask("DELETE", f"/{index.name}-000001/_alias/{index.name}")
        try:
            for call in (checkpointer.load("t"), checkpointer.save({"n": 2}, "u")):
                with pytest.raises(SchemaError, match="exists without its alias"):
                    await call
        finally:
            index.remove()


@pytest.mark.parametrize(
    ("mappings", "told"),
    [
        ({"properties": {"state": {"type": "object"}}}, "was not created by locus-store"),
        ({"_meta": {"locus_store": 99}}, "has version 99"),
    ],
)
async def test_an_index_that_is_not_ours_is_refused(
    mappings: Any, told: str, index: TestIndex
) -> None:
    alias = f"{index.name}-other"
    index.ask("PUT", f"/{alias}-000001", {"aliases": {alias: {}}, "mappings": mappings})
    try:
        async with index.checkpointer(index_name=alias, state_type=dict) as checkpointer:
            for call in (checkpointer.load("t"), checkpointer.save({"n": 1}, "t")):
                with pytest.raises(SchemaError, match=told):
                    await call
    finally:
        index.ask("DELETE", f"/{alias}-000001")


async def test_an_index_of_that_name_without_an_alias_is_refused(index: TestIndex) -> None:
    name = f"{index.name}-plain"
    index.ask("PUT", f"/{name}", {"mappings": {"_meta": {"locus_store": 2}}})
    try:
        async with index.checkpointer(index_name=name, state_type=dict) as checkpointer:
            with pytest.raises(SchemaError, match="was not created by locus-store"):
                await checkpointer.save({"n": 1}, "t")
    finally:
        index.ask("DELETE", f"/{name}")


@pytest.mark.parametrize(
    ("template", "told"),
    [
        ({"mappings": {"_source": {"enabled": False}}}, "does not keep all fields"),
        ({"mappings": {"_source": {"excludes": ["content"]}}}, "does not keep all fields"),
        (
            {"settings": {"analysis": {"analyzer": {"whitespace": {"type": "simple"}}}}},
            "replace the analyzer 'whitespace'",
        ),
    ],
)
async def test_a_template_that_would_lose_documents_is_refused(
    template: Any, told: str, index: TestIndex
) -> None:
    """Before anything is saved."""
    alias = f"{index.name}-templated"
    body = {"index_patterns": [f"{alias}-*"], "priority": 500, "template": template}
    index.ask("PUT", f"/_index_template/{alias}", body)
    try:
        async with index.checkpointer(index_name=alias, state_type=dict) as checkpointer:
            for _ in range(2):
                with pytest.raises(SchemaError, match=told):
                    await checkpointer.save({"n": 1}, "t")
    finally:
        index.ask("DELETE", f"/_index_template/{alias}")
        index.ask("DELETE", f"/{alias}-000001")


@pytest.mark.parametrize("option", [{"filter": {"term": {"name": "x"}}}, {"routing": "x"}])
async def test_an_alias_that_hides_documents_is_refused(option: Any, index: TestIndex) -> None:
    """Otherwise ``vacuum`` would remove the segments of heads that it does not see."""
    async with index.checkpointer(state_type=dict) as checkpointer:
        await checkpointer.save({"n": 1}, "t")
    hiding = {"index": f"{index.name}-000001", "alias": index.name, **option}
    index.ask("POST", "/_aliases", {"actions": [{"add": hiding}]})
    try:
        async with index.checkpointer(state_type=dict) as checkpointer:
            with pytest.raises(SchemaError, match="which hides documents"):
                await checkpointer.vacuum(0)
    finally:
        index.remove()


def test_a_head_and_its_segments_share_a_shard() -> None:
    long = "é" * 600
    for thread in ("t", "a b", long):
        cut = f"{long[:400]}{CUT}{digest(long)}" if thread is long else thread.replace(" ", " ~")
        assert bulk.make_routing(HEADS + cut) == digest(thread)
        assert bulk.make_routing(f"{SEGMENTS}{digest(thread)}/x") == digest(thread)


# --- requests


async def test_a_save_is_one_request_and_a_load_is_one(index: TestIndex, watched: Watched) -> None:
    async with over(index, watched) as checkpointer:
        await checkpointer.save({"n": 1}, "t")
        watched.counted()
        await checkpointer.save({"n": 2}, "t")
        assert watched.counted() == ["POST _bulk"]
        assert await checkpointer.load("t") == {"n": 2}
        assert watched.counted() == ["GET _doc"]
        assert await checkpointer.delete("t") is True
        assert watched.counted() == ["GET _doc", "POST _bulk", "POST _bulk"]


async def test_a_list_of_threads_reads_the_newest_heads_together(
    index: TestIndex, watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with over(index, watched) as checkpointer:
        for n in range(120):
            await checkpointer.save({"n": n}, f"t{n}")
    index.refresh()
    newest = [f"t{n}" for n in reversed(range(120))]
    async with over(index, watched) as checkpointer:
        watched.counted()
        assert await checkpointer.list_threads(limit=10) == newest[:10]
        asked = watched.counted()
        assert asked.count("POST _search") == 1
        assert 1 <= asked.count("POST _mget") <= 3  # all were saved within the slack of clocks
        assert "GET _doc" not in asked
        monkeypatch.setattr(client, "PAGE", 50)
        monkeypatch.setattr(documents, "PAGE", 50)
        assert await checkpointer.list_threads(limit=200) == newest


async def test_a_list_repeats_a_read_that_a_shard_did_not_answer(
    index: TestIndex, watched: Watched
) -> None:
    async with index.checkpointer() as checkpointer:
        await checkpointer.save({"n": 1}, "t")
    async with over(index, watched) as checkpointer:
        watched.unanswered = 1
        assert await checkpointer.list_threads() == ["t"]
        assert watched.unanswered == 0
    async with over(index, watched, retry_seconds=0) as checkpointer:
        watched.unanswered = 1
        with pytest.raises(BackendError, match="lost"):
            await checkpointer.list_threads()


async def test_own_saves_are_read_at_once_without_a_wait(index: TestIndex) -> None:
    async with index.checkpointer(state_type=dict, refresh="interval") as checkpointer:
        for n in range(20):
            await checkpointer.save({"n": n}, "t")
            async with index.checkpointer(state_type=dict) as other:
                assert await other.load("t") == {"n": n}


# --- lost replies, and two writers


async def test_a_save_whose_reply_is_lost_makes_one_version(
    index: TestIndex, watched: Watched
) -> None:
    async with over(index, watched) as checkpointer:
        for n in range(LOST):
            watched.loses = {"POST"}
            await checkpointer.save({"n": n}, "t")
            assert not watched.loses
        assert len(await checkpointer.list_checkpoints("t", limit=LOST + 1)) == LOST
        watched.loses = {"POST"}
        assert await checkpointer.delete("t") is True


async def test_two_writers_lose_no_acknowledged_save(index: TestIndex) -> None:
    writers = [index.backend(refresh="interval") for _ in range(2)]
    saved: list[str] = []

    async def write(number: int) -> None:
        for n in range(SAVES):
            name = f"w{number}-{n}"
            await writers[number].write_state("t", {"n": n}, checkpoint_id=name)
            saved.append(name)

    await asyncio.gather(write(0), write(1))
    kept = {it.checkpoint_id for it in await writers[0].history("t", limit=2 * SAVES + 1)}
    assert kept == set(saved)
    assert len(saved) == 2 * SAVES
    index.refresh()
    await writers[0].vacuum_report()
    index.refresh()
    documents = [it.place.sequence for it in iterate_versions(writers[0].index) if it.place]
    assert sorted(documents) == list(range(1, 1 + 2 * SAVES))
    for it in writers:
        await it.close()


async def test_a_writer_that_did_not_read_the_head_is_refused(index: TestIndex) -> None:
    async with (
        index.checkpointer(state_type=dict) as one,
        index.checkpointer(state_type=dict) as two,
    ):
        await one.save({"n": 1}, "t")
        first, second = await one.load("t"), await two.load("t")
        await one.save({**first, "one": 1}, "t")
        with pytest.raises(ConflictError):
            await two.save({**second, "two": 2}, "t")


# --- refusals


async def test_a_host_that_does_not_answer_is_left_out(index: TestIndex) -> None:
    hosts = [f"http://127.0.0.1:{closed_port()}", index.server.url]
    async with index.checkpointer(hosts=hosts, state_type=dict) as checkpointer:
        for n in range(4):
            await checkpointer.save({"n": n}, "t")
        assert await checkpointer.load("t") == {"n": 3}


async def test_a_host_that_falls_silent_is_left_out(index: TestIndex) -> None:
    """A proxy passes requests on, and no answers; the saves that it passed on are repeated."""
    node = urlsplit(index.server.url)
    assert node.hostname
    assert node.port
    with closing(Proxy(node.port, node.hostname)) as proxy:
        hosts = [f"{node.scheme}://127.0.0.1:{proxy.port}", index.server.url]
        given = {"hosts": hosts, "timeout_seconds": 0.5, "retry_seconds": 60}
        async with index.checkpointer(state_type=dict, **given) as checkpointer:
            for n in range(8):
                if n == 4:
                    proxy.swallow_replies()
                await checkpointer.save({"n": n}, "t")
            assert len(await checkpointer.list_checkpoints("t", limit=20)) == 8


async def test_a_host_that_does_not_answer_leaves_time_for_the_others() -> None:
    given = OpenSearchBackend("h").index.access
    assert 2 * given["timeout_seconds"] < given["retry_seconds"]


async def test_copies_that_are_missing_are_told(index: TestIndex) -> None:
    """The server answers before the client's time limit ends."""
    wanted = "index.write.wait_for_active_shards"
    async with (
        index.checkpointer(state_type=dict) as checkpointer,
        index.checkpointer(state_type=dict, timeout_seconds=3, retry_seconds=0) as other,
    ):
        await checkpointer.save({"n": 1}, "t")
        index.ask("PUT", f"/{index.name}/_settings", {"index.number_of_replicas": 1, wanted: 2})
        try:
            with pytest.raises(BackendError, match="Not enough active copies"):
                await other.save({"n": 2}, "t")
            assert await checkpointer.load("t") == {"n": 1}
        finally:
            index.remove()


async def test_a_cluster_that_does_not_answer_raises(index: TestIndex) -> None:
    port = closed_port()
    options = {"hosts": f"http://127.0.0.1:{port}", "retry_seconds": 0.1}
    async with opensearch_checkpointer(**options, state_type=dict) as checkpointer:
        with pytest.raises(ConnectionFailedError, match=f"127.0.0.1:{port} cannot be") as caught:
            await checkpointer.save({"n": 1}, "t")
    assert str(caught.value).count("refused") == 1


async def test_a_full_disk_is_told_at_once_and_loses_nothing(index: TestIndex) -> None:
    block = "index.blocks.read_only_allow_delete"
    async with index.checkpointer(state_type=dict) as checkpointer:
        await checkpointer.save({"n": 1}, "t")
        index.ask("PUT", f"/{index.name}/_settings", {block: True})
        try:
            with pytest.raises(BackendError, match=r"a block refuses writes .* free disk space"):
                await checkpointer.save({"n": 2}, "t")
            assert await checkpointer.load("t") == {"n": 1}
        finally:
            index.ask("PUT", f"/{index.name}/_settings", {block: None})
        await checkpointer.save({"n": 3}, "t")
        assert await checkpointer.load("t") == {"n": 3}


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({}, "hosts= or client="),
        ({"hosts": []}, "hosts= is empty"),
        ({"hosts": "http://me:secret@h"}, "pass username="),
        ({"hosts": "ftp://h"}, "must have the form host:9200"),
        ({"hosts": "h:port"}, "'h:port' is not valid"),
        ({"hosts": "[::1"}, "is not valid"),
        ({"hosts": "http://:9200"}, "must have a name"),
        ({"hosts": "h:0"}, "must have a name"),
        ({"hosts": "h?x=y"}, "may have a port and a path"),
        ({"hosts": "h/p#f"}, "may have a port and a path"),
        ({"hosts": 5}, "hosts=int must be"),
        ({"hosts": {"host": "h", "port": 9200}}, "hosts=dict must be"),
        ({"hosts": "h", "language": []}, r"language=\[\]: it must be 'arabic'"),
        ({"hosts": "h", "username": 5, "password": "x"}, "username=5: it must be a valid string"),
        ({"hosts": "h", "verify_certs": "no"}, "verify_certs=str: it must be a valid boolean"),
        ({"hosts": "h", "index_name": "Upper"}, "index_name='Upper'"),
        ({"hosts": "h", "index_name": "_all"}, "index_name='_all'"),
        ({"hosts": "h", "refresh": "true"}, "refresh='true': it must be 'interval' or 'wait'"),
        ({"hosts": "h", "username": "me"}, "belong together"),
        ({"hosts": "h", "retry_seconds": -1}, "retry_seconds=-1"),
        ({"hosts": "h", "timeout_seconds": 0}, "timeout_seconds=0: it must be greater than 0"),
        ({"hosts": "h", "pool_size": 0}, "pool_size=0"),
        ({"client": object()}, "opensearchpy.OpenSearch"),
        ({"client": opensearchpy.AsyncOpenSearch("h")}, "which is not async"),
    ],
)
def test_options_that_are_not_valid_are_refused(options: dict[str, Any], told: str) -> None:
    with pytest.raises(InvalidArgumentError, match=told) as caught:
        opensearch_checkpointer(**options)
    assert "secret" not in str(caught.value)


def test_without_the_driver_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(access, "find_spec", lambda _name: None)
    with pytest.raises(MissingExtraError, match=r"pip install .*\[opensearch\]"):
        opensearch_checkpointer("h")


def test_credentials_are_not_shown() -> None:
    backend = OpenSearchBackend("h", username="me", password="secret")  # noqa: S106
    assert "secret" not in f"{backend!r} {backend.index!r}"


async def test_credentials_are_sent(index: TestIndex, monkeypatch: pytest.MonkeyPatch) -> None:
    backend = OpenSearchBackend(index.server.url, username="me", password="pass")  # noqa: S106
    made = access.open_client(backend.index.place, backend.index.access)
    (sent,) = (it.headers["authorization"] for it in made.transport.connection_pool.connections)
    assert sent == "Basic bWU6cGFzcw=="


async def test_credentials_that_expire_are_reported_at_once(
    index: TestIndex, watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fake of the refusal: the server of the tests has no security plugin."""
    expired = opensearchpy.exceptions.AuthenticationException(401, "Unauthorized", "")

    def refuse(*_given: Any, **_options: Any) -> Any:
        raise expired

    async with over(index, watched, retry_seconds=600) as checkpointer:
        await checkpointer.save({"n": 1}, "t")
        with monkeypatch.context() as patched:
            patched.setattr(watched, "perform_request", refuse)
            for call in (checkpointer.load("t"), checkpointer.save({"n": 2}, "t")):
                with pytest.raises(ConnectionFailedError, match="refused the credentials"):
                    await call
        assert await checkpointer.load("t") == {"n": 1}


def test_hosts_without_a_scheme_are_asked_by_https() -> None:
    def hosts(*given: str, **options: Any) -> tuple[str, ...]:
        return OpenSearchBackend(list(given), **options).index.place.hosts

    assert hosts("h", "i:1", "http://j/p/") == ("https://h:9200", "https://i:1", "http://j:9200/p")
    assert hosts("h", "[::1]:9", use_ssl=False) == ("http://h:9200", "http://[::1]:9")


async def test_a_client_of_the_caller_is_left_open(index: TestIndex, watched: Watched) -> None:
    async with over(index, watched) as checkpointer:
        await checkpointer.save({"n": 1}, "t")
    assert watched.real.ping()


# --- by URL, and the command


async def test_a_url_names_hosts_credentials_and_the_index(index: TestIndex) -> None:
    place = index.server.url.partition("://")[2]
    twice = index.url().replace(place, f"{place},{place}")
    async with open_checkpointer(twice, state_type=dict) as checkpointer:
        await checkpointer.save({"n": 1}, "t")
        assert await checkpointer.list_threads() == ["t"]
    async with open_saver(index.url()) as saver:
        assert len(await saver.list_checkpoints(thread_id="t")) == 1


def test_a_url_may_have_credentials_and_options() -> None:
    url = "opensearch+https://me:p%40ss@a:1,b/agents?verify_certs=false&pool_size=2"
    backend: Any = open_checkpointer(url).backend
    assert backend.index.place == access.IndexPlace(
        hosts=("https://a:1", "https://b:9200"), name="agents"
    )
    given = {"username": "me", "password": "p@ss", "verify_certs": False, "pool_size": 2}
    assert given.items() <= backend.index.access.items()


def test_a_url_without_a_host_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="names a host"):
        open_checkpointer("opensearch:///agents")


async def test_doctor_shows_the_server_and_the_index(index: TestIndex) -> None:
    async with index.backend() as backend:
        told = {it.name: it for it in await backend.facts()}
        assert told["server"].value.startswith("opensearch ")
        await backend.write_state("t", {"n": 1}, checkpoint_id="v1")
        told = {it.name: it for it in await backend.facts()}
        assert told["threads"].value == "1 (a head each; 0 segments)"
        assert (told["index"].value, told["index"].verdict) == ("green", "ok")
        index.remove()
        told = {it.name: it for it in await backend.facts()}
        assert told["index"].value.startswith("there is none yet")


@pytest.mark.parametrize(("status", "verdict"), [("yellow", "warn"), ("red", "fail")])
async def test_doctor_tells_of_missing_copies(
    status: str, verdict: str, index: TestIndex, watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with over(index, watched) as checkpointer:
        await checkpointer.save({"n": 1}, "t")
        real = client.IndexObjects.call

        def call(self: Any, method: str, path: str, *given: Any, **options: Any) -> Any:
            answer = real(self, method, path, *given, **options)
            return {**answer, "status": status} if "health" in path else answer

        monkeypatch.setattr(client.IndexObjects, "call", call)
        (fact,) = (it for it in await checkpointer.backend.facts() if it.name == "index")
        assert (fact.value, fact.verdict) == (status, verdict)
        assert fact.remedy


def test_a_storm_of_processes_loses_no_acknowledged_save(index: TestIndex) -> None:
    url = index.url()
    options = ["--processes", "4", "--seed", "7", "--url", url, "--saves", "400" if LONG else "120"]
    command = [sys.executable, "-W", "error", "-m", "benchmarks.storms.storm", *options]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert "violations: 0" in done.stdout, done.stdout + done.stderr
    assert (done.returncode, done.stderr) == (0, "")
