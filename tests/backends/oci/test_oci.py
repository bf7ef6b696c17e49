"""A bucket of the double: requests, faults, credentials, and what is refused."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from lazily import TESTS_RUN
from oci_double import NAMESPACE, Fault, Stored
from servers import wait_until
from shelf import Shelf, shelf_backend
from tiers import ALL, full

from locus_store import (
    BackendError,
    ConflictError,
    ConnectionFailedError,
    IntegrityError,
    InvalidArgumentError,
    SchemaError,
    oci_bucket_checkpointer,
    open_checkpointer,
    open_saver,
    open_store,
)
from locus_store.backends.documents import segmented
from locus_store.backends.documents.objects import HEADS
from locus_store.backends.oci.backend import BucketBackend
from locus_store.backends.oci.options import DEFAULT_PREFIX

if TESTS_RUN:
    import oci

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from buckets import DoubleBucket


pytestmark = pytest.mark.anyio
ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
async def backend(bucket: DoubleBucket) -> AsyncIterator[BucketBackend]:
    made = bucket.backend(retry_seconds=5)
    yield made
    await made.close()


@pytest.fixture
def requests(bucket: DoubleBucket) -> Any:
    """Clear the counts and return them."""

    def cleared() -> Any:
        bucket.double.requests.clear()
        return bucket.double.requests

    return cleared


def filled(bucket: DoubleBucket, shelf: Shelf) -> None:
    """Store what a shelf holds."""
    for name, (_, at, content) in shelf.stored.items():
        bucket.stored.objects[name] = Stored(name, at, at, content)
    bucket.stored.names = None


# --- requests


async def test_requests_of_a_thread(backend: BucketBackend, requests: Any) -> None:
    await backend.write_state("t", {"n": 0})
    there = requests()
    await backend.write_state("t", {"n": 1})
    assert there == {"put": 1}
    there = requests()
    await backend.load("t")
    assert there == {"get": 1}
    there = requests()
    await backend.remove("t")
    assert there == {"get": 1, "delete": 1}


async def test_a_known_head_is_not_sent_again(backend: BucketBackend, bucket: DoubleBucket) -> None:
    await backend.write_state("t", {"n": 0})
    bucket.double.log.clear()
    await backend.load("t")
    assert [status for _, _, status in bucket.double.log] == [304]


async def test_the_first_save_of_a_new_process_reads_the_head_once(
    backend: BucketBackend, bucket: DoubleBucket, requests: Any
) -> None:
    await backend.write_state("t", {"n": 0})
    other, there = bucket.backend(), requests()
    await other.write_state("t", {"n": 1})
    assert there == {"get": 2, "put": 1}  # the head, and once the store's identity
    await other.close()


@pytest.mark.full
async def test_lists_page_through_any_number_of_threads(
    backend: BucketBackend, bucket: DoubleBucket, requests: Any
) -> None:
    shelf = Shelf()
    source = shelf_backend(shelf, prefix=DEFAULT_PREFIX)
    for n in range(3000):
        shelf.offset = timedelta(seconds=10 * (n - 3000))
        await source.write_state(f"t{n:04}", {"n": n})
    filled(bucket, shelf)
    there = requests()
    names = await backend.scan(100)
    assert names == [f"t{n:04}" for n in range(100)]
    assert there["list"] == 1
    there = requests()
    assert await backend.list_threads(100) == [f"t{n:04}" for n in reversed(range(2900, 3000))]
    assert there["list"] == 3
    assert there["get"] <= 2 * 100


@pytest.mark.full
async def test_a_page_reads_about_its_threads_however_busy_the_bucket_is(
    backend: BucketBackend, bucket: DoubleBucket, requests: Any
) -> None:
    shelf = Shelf()
    source = shelf_backend(shelf, prefix=DEFAULT_PREFIX)
    for n in range(1100):  # within a second or two
        await source.write_state(f"t{n:04}", {"n": n})
    filled(bucket, shelf)
    after, read_ahead = None, 2 * 16 + 2
    for page in range(3):
        there = requests()
        names = await backend.list_threads(100, after=after)
        last = 1100 - 100 * page
        assert names == [f"t{n:04}" for n in reversed(range(last - 100, last))]
        assert there["get"] <= 100 + read_ahead
        after = names[-1]
    there = requests()
    await backend.list_threads(300)
    assert there["get"] <= read_ahead  # the list says which heads are unchanged


async def test_a_renewed_thread_keeps_its_place_in_a_list(
    backend: BucketBackend, bucket: DoubleBucket
) -> None:
    for name in ("a", "b", "c"):
        await backend.write_state(name, {"of": name}, ttl_seconds=60)
    assert await backend.renew("a", 120)
    assert await backend.list_threads(10) == ["c", "b", "a"]
    other = bucket.backend()
    assert await other.list_threads(10) == ["c", "b", "a"]
    await other.close()


async def test_a_thread_of_many_versions_is_listed_and_loaded(
    backend: BucketBackend, bucket: DoubleBucket, requests: Any
) -> None:
    shelf, count = Shelf(), 5_000 if ALL else 600
    source = shelf_backend(shelf, prefix=DEFAULT_PREFIX)
    for n in range(count):
        await source.write_state("t", {"n": n, "text": "x" * 100}, checkpoint_id=f"v{n}")
    filled(bucket, shelf)
    assert await backend.load("t") == {"n": count - 1, "text": "x" * 100}
    there = requests()
    found = [it.checkpoint_id for it in await backend.history("t", limit=2 * count)]
    assert found == [f"v{n}" for n in reversed(range(count))]
    assert sum(there.values()) <= 20
    assert await backend.load("t", "v7") == {"n": 7, "text": "x" * 100}


# --- faults


@pytest.mark.parametrize(
    ("kind", "at"),
    [
        *((["503", "reset"][at % 2], at) for at in range(1, 7)),
        *full(*((["reset", "503"][at % 2], at) for at in range(1, 7))),
        *full(*((kind, at) for kind in ("429", "500") for at in range(1, 7))),
    ],
)
@pytest.mark.parametrize("is_done", [True, False], ids=["done", "not done"])
async def test_a_fault_at_any_request_makes_exactly_one_version(
    kind: str, is_done: bool, at: int, bucket: DoubleBucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(segmented, "TAIL_BYTES", 1)
    numbers = iter(range(1, 1000))
    fault = Fault(kind, is_done)
    bucket.double.fault = lambda *_: fault if next(numbers) == at else None
    backend = bucket.backend(retry_seconds=5)
    for n in range(2):
        await backend.write_state("t", {"n": n}, checkpoint_id=f"v{n}")
    bucket.double.fault = lambda *_: None
    versions = await backend.history("t")
    assert [it.checkpoint_id for it in versions] == ["v1", "v0"]
    assert [await backend.load("t", it.checkpoint_id) for it in versions] == [{"n": 1}, {"n": 0}]
    assert await backend.remove("t", ["v0"]) == 1
    await backend.close()


async def test_an_object_that_a_service_emptied_is_an_error_and_no_missing_thread(
    backend: BucketBackend, bucket: DoubleBucket
) -> None:
    before = bucket.double.unchecked_puts  # other tests share the double
    await backend.write_state("t", {"n": 1})
    assert bucket.double.unchecked_puts == before
    stored = bucket.double.buckets[bucket.name].objects
    name = f"{DEFAULT_PREFIX}{HEADS}t"
    stored[name] = stored[name]._replace(content=b"", etag="emptied")
    for call in (backend.load("t"), backend.write_state("t", {"n": 2})):
        with pytest.raises(IntegrityError):
            await call


@pytest.mark.parametrize("at", [1, 2])
async def test_a_lost_reply_to_a_deletion_is_recognised(
    at: int, backend: BucketBackend, bucket: DoubleBucket
) -> None:
    await backend.write_state("t", {"n": 0})
    numbers = iter(range(1, 1000))
    fault = Fault("reset", is_done=True)
    bucket.double.fault = lambda *_: fault if next(numbers) == at else None
    assert (await backend.remove_thread("t")).existed
    assert await backend.load("t") is None


async def test_a_service_that_stays_down_is_reported(bucket: DoubleBucket) -> None:
    backend = bucket.backend(retry_seconds=0.2)
    await backend.write_state("t", {"n": 0})
    bucket.double.fault = lambda *_: Fault("503")
    with pytest.raises(BackendError, match="503"):
        await backend.load("t")
    bucket.double.fault = lambda *_: Fault("reset")
    with pytest.raises(ConnectionFailedError, match="cannot be reached"):
        await backend.write_state("t", {"n": 1})
    bucket.double.fault = lambda *_: None
    assert await backend.load("t") == {"n": 0}
    await backend.close()


async def test_a_service_that_answers_nothing_is_given_up(bucket: DoubleBucket) -> None:
    backend = bucket.backend(retry_seconds=0.1, timeout_seconds=0.2)
    bucket.double.fault = lambda *_: Fault("hang")
    with pytest.raises(ConnectionFailedError, match="cannot be reached"):
        await backend.load("t")
    await backend.close()


async def test_two_writers_conflict_or_append(bucket: DoubleBucket) -> None:
    first, second = bucket.checkpointer(state_type=dict), bucket.checkpointer(state_type=dict)
    await first.save({"n": 0}, "t")
    mine, yours = await first.load("t"), await second.load("t")
    yours["n"] = 1
    await second.save(yours, "t")
    mine["n"] = 2
    with pytest.raises(ConflictError):
        await first.save(mine, "t")
    assert await first.load("t") == {"n": 1}
    await first.close()
    await second.close()


async def test_namespaces_of_a_thread_may_be_saved_at_once(
    bucket: DoubleBucket, requests: Any
) -> None:
    """Parallel subgraphs of one thread in several objects, as LangGraph's Send makes them."""
    backends, there = [bucket.backend() for _ in range(4)], requests()

    async def saved(at: int) -> None:
        for n in range(5):
            await backends[at].write_state("t", {"n": n}, namespace=f"sub-{at}")

    await asyncio.gather(*map(saved, range(4)))
    for at in range(4):
        assert len(await backends[0].history("t", namespace=f"sub-{at}")) == 5
        await backends[at].close()
    assert there["put"] < 4 * 5 * 6


# --- credentials and places


async def test_a_missing_bucket_is_created_only_in_a_compartment(bucket: DoubleBucket) -> None:
    del bucket.double.buckets[bucket.name]
    refused = bucket.checkpointer(state_type=dict)
    elsewhere = bucket.checkpointer(state_type=dict, namespace="elsewhere")
    calls = [(it.load("t"), it.save({}, "t"), it.list_threads()) for it in (refused, elsewhere)]
    for call in (*calls[0], *calls[1]):
        with pytest.raises(ConnectionFailedError, match="does not exist"):
            await call
    allowed = bucket.checkpointer(state_type=dict, compartment_id="ocid1.compartment.oc1..c")
    assert await allowed.load("t") is None
    await allowed.save({"n": 0}, "t")
    assert await refused.load("t") == {"n": 0}
    for it in (refused, elsewhere, allowed):
        await it.close()


async def test_a_skewed_clock_is_named(backend: BucketBackend, bucket: DoubleBucket) -> None:
    bucket.double.offset = timedelta(hours=1)
    with pytest.raises(ConnectionFailedError, match="clock of this host"):
        await backend.load("t")


async def test_times_are_the_services(backend: BucketBackend, bucket: DoubleBucket) -> None:
    bucket.double.offset = timedelta(minutes=3)
    await backend.write_state("t", {"n": 0})
    (found,) = await backend.recent()
    assert abs(found.active_at - bucket.double.now()) < timedelta(minutes=1)


async def test_refused_credentials_are_named(backend: BucketBackend, bucket: DoubleBucket) -> None:
    from cryptography.hazmat.primitives.asymmetric import rsa

    key, bucket.double.key = (
        bucket.double.key,
        rsa.generate_private_key(public_exponent=65537, key_size=2048),
    )
    try:
        with pytest.raises(ConnectionFailedError, match="refused the credentials"):
            await backend.load("t")
    finally:
        bucket.double.key = key
    assert await backend.load("t") is None


async def test_a_missing_profile_is_named(bucket: DoubleBucket, tmp_path: Path) -> None:
    files = str(tmp_path / "none"), "~nobody-here/config"
    for options in ({"profile_name": "NONE"}, *({"config_file": it} for it in files)):
        checkpointer = bucket.checkpointer(**options)
        with pytest.raises(InvalidArgumentError, match="credentials for OCI"):
            await checkpointer.load("t")


@pytest.mark.parametrize("line", ["user=another", "no option"], ids=["twice", "no value"])
async def test_a_damaged_configuration_file_is_named(line: str, bucket: DoubleBucket) -> None:
    with bucket.config_file.open("a", encoding="utf-8") as file:
        file.write(line)
    with pytest.raises(InvalidArgumentError, match="credentials for OCI"):
        await bucket.checkpointer().load("t")


@pytest.mark.parametrize("token", ["", "a\nb"], ids=["empty", "two lines"])
async def test_a_damaged_session_token_is_named(
    token: str, bucket: DoubleBucket, tmp_path: Path
) -> None:
    (tmp_path / "token").write_text(token, "utf-8")
    with bucket.config_file.open("a", encoding="utf-8") as file:
        file.write(f"security_token_file={tmp_path / 'token'}\n")
    with pytest.raises(InvalidArgumentError, match="oci session"):
        await bucket.checkpointer(auth_type="security_token").load("t")


async def test_a_session_token_without_a_key_is_named(bucket: DoubleBucket, tmp_path: Path) -> None:
    (tmp_path / "token").write_text("token", "utf-8")
    text = bucket.config_file.read_text("utf-8").replace("key_file", "security_token_file")
    bucket.config_file.write_text(text, "utf-8")
    with pytest.raises(InvalidArgumentError, match="key_file"):
        await bucket.checkpointer(auth_type="security_token").load("t")


async def test_refused_credentials_of_an_instance_are_named(
    bucket: DoubleBucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse() -> None:
        raise oci.exceptions.ServiceError(403, "Forbidden", {}, "no instance")

    monkeypatch.setattr(oci.auth.signers, "InstancePrincipalsSecurityTokenSigner", refuse)
    with pytest.raises(ConnectionFailedError, match=r"credentials for OCI.*403"):
        await bucket.checkpointer(auth_type="instance_principal").load("t")


async def test_an_open_circuit_of_a_given_client_is_translated(bucket: DoubleBucket) -> None:
    options = {
        "service_endpoint": bucket.double.url,
        "retry_strategy": oci.retry.NoneRetryStrategy(),
        "circuit_breaker_strategy": oci.circuit_breaker.CircuitBreakerStrategy(failure_threshold=1),
    }
    client = oci.object_storage.ObjectStorageClient(bucket.double.config(), **options)
    given = {"client": client, "retry_seconds": 0.2}
    checkpointer = oci_bucket_checkpointer(bucket.name, NAMESPACE, **given)
    bucket.double.fault = lambda *_: Fault("503")
    for match in ("503|CircuitBreaker", "CircuitBreaker"):  # the first one may have no time for two
        with pytest.raises((BackendError, ConnectionFailedError), match=match):
            await checkpointer.load("t")
    await checkpointer.close()


async def test_a_session_token_is_read_again_when_it_was_refreshed(
    bucket: DoubleBucket, tmp_path: Path
) -> None:
    token = tmp_path / "token"
    token.write_text("first", "utf-8")
    text = bucket.config_file.read_text("utf-8")
    bucket.config_file.write_text(f"{text}security_token_file={token}\n", "utf-8")
    checkpointer = bucket.checkpointer(auth_type="security_token", state_type=dict)
    await checkpointer.save({"n": 0}, "t")
    answers = [Fault("401"), Fault("503")]  # the last of them first
    bucket.double.fault = lambda *_: answers.pop() if answers else None
    assert await checkpointer.load("t") == {"n": 0}
    await checkpointer.close()


@pytest.mark.parametrize(
    "wrong",
    [
        {"bucket_name": ""},
        {"bucket_name": "a/b"},
        {"namespace": ""},
        {"auth_type": "password"},
        {"pool_size": 0},
        {"pool_size": True},
        {"retry_seconds": -1},
        {"timeout_seconds": "1"},
        {"prefix": "p" * 600},
        {"prefix": "a\nb"},
        {"bucket_name": " "},
        {"namespace": " "},
        {"endpoint": "objectstorage.example"},
        {"endpoint": "ftp://objectstorage.example"},
        {"endpoint": "https://"},
        {"endpoint": "https://user@host"},
        {"endpoint": "https://host?query"},
        {"endpoint": 5},
        {"region": "us ashburn"},
        {"region": 5},
        {"client": 5},
        {"config_file": None},
        {"profile_name": None},
    ],
    ids=str,
)
def test_options_are_checked_first(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgumentError):
        oci_bucket_checkpointer(**{"bucket_name": "b", "namespace": "n", **wrong})


async def test_a_given_client_is_used_and_left_open(bucket: DoubleBucket) -> None:
    from locus_store.backends.oci.client import make_factory

    client = make_factory(bucket.access())()
    checkpointer = oci_bucket_checkpointer(bucket.name, NAMESPACE, client=client, state_type=dict)
    await checkpointer.save({"n": 0}, "t")
    await checkpointer.close()
    assert client.list_objects(NAMESPACE, bucket.name).status == 200


async def test_a_connection_that_a_call_uses_during_close_is_closed_after_it(
    backend: BucketBackend, bucket: DoubleBucket
) -> None:
    asked, closed, others = threading.Event(), threading.Event(), pool_threads()

    def fault(*_: str) -> None:
        asked.set()
        closed.wait(10)

    bucket.double.fault = fault
    loading = asyncio.ensure_future(backend.load("t"))
    await asyncio.to_thread(asked.wait, 10)
    await backend.close()
    closed.set()
    assert await loading is None
    assert not backend.bucket._idle
    wait_until(lambda: pool_threads() <= others, "the threads of the pool end")


def pool_threads() -> set[threading.Thread]:
    return {it for it in threading.enumerate() if it.name.startswith("locus-store-oci")}


async def test_a_list_that_outlives_close_starts_no_threads(
    backend: BucketBackend, bucket: DoubleBucket
) -> None:
    others = pool_threads()
    await asyncio.gather(*(backend.write_state(f"t{n}", {}) for n in range(60)))
    await backend.close()
    asked, closed, numbers = threading.Event(), threading.Event(), iter(range(10**6))

    def fault(kind: str, _name: str) -> None:
        if kind == "get" and next(numbers) == 10:
            asked.set()
            closed.wait(10)

    bucket.double.fault = fault
    listing = asyncio.ensure_future(backend.list_threads())
    await asyncio.to_thread(asked.wait, 10)
    await backend.close()
    closed.set()
    assert len(await listing) == 60
    wait_until(lambda: pool_threads() <= others, "the threads of the pool end")


async def test_urls_name_a_bucket_and_a_prefix(bucket: DoubleBucket) -> None:
    opened = open_checkpointer(bucket.url("agents/a"), state_type=dict)
    assert isinstance(opened.backend, BucketBackend)
    await opened.save({"n": 0}, "t")
    assert {it.partition("v1/")[0] for it in bucket.stored.objects} == {"agents/a/"}
    await opened.close()
    saver = open_saver(bucket.url("agents/a"))
    assert (await saver.get(thread_id="t"))["checkpoint"] == {"n": 0}
    await saver.close()
    for url in ("oci://", "oci://space", "oci://space/"):
        with pytest.raises(InvalidArgumentError, match="names a bucket"):
            open_checkpointer(url)
    async with open_store(bucket.url("agents/a")) as store:
        assert await store.put(("m",), "k", 1) == 1
    assert {it.partition("v1/")[0] for it in bucket.stored.objects} == {"agents/a/"}


# --- neighbours


async def test_threads_of_the_locus_sdk_are_refused(
    backend: BucketBackend, bucket: DoubleBucket
) -> None:
    with closing(bucket.objects()) as objects:
        for name in ("t/v.json", "t/v.meta.json", "t/_latest", "t/u/_latest"):
            objects.store(DEFAULT_PREFIX + name, b"v")
    for call in (backend.load("t"), backend.write_state("t/u", {}), backend.has_thread("t")):
        with pytest.raises(SchemaError, match="import locus"):
            await call
    await backend.write_state("u", {"n": 0})
    assert await backend.list_threads() == ["u"]


async def test_neighbours_of_a_thread_stay(backend: BucketBackend) -> None:
    for name in ("a", "a/b", "ab", "a%2Fb", "v1", "v1/heads/a"):
        await backend.write_state(name, {"id": name})
    assert await backend.remove("a") == 1
    for name in ("a/b", "ab", "a%2Fb", "v1", "v1/heads/a"):
        assert await backend.load(name) == {"id": name}
    assert await backend.load("a") is None


async def test_prefixes_of_a_bucket_are_separate(bucket: DoubleBucket) -> None:
    backends = {it: bucket.backend(it) for it in ("", "a", "a/", "a/b/")}
    for prefix, it in backends.items():
        await it.write_state("t", {"prefix": prefix})
    for prefix, it in backends.items():
        assert await it.load("t") == {"prefix": prefix}
        assert await it.list_threads() == ["t"]
        await it.close()


def test_importing_the_package_does_not_load_the_sdk() -> None:
    code = "import sys, locus_store, locus_store.backends.oci; sys.exit('oci' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)


def test_a_forked_child_has_connections_of_its_own(bucket: DoubleBucket) -> None:
    code = (
        "import asyncio, os, sys; from locus_store import open_checkpointer\n"
        "c = open_checkpointer(sys.argv[1], state_type=dict)\n"
        "asyncio.run(c.save({'n': 0}, 't'))\n"
        "if not os.fork():\n"
        "    asyncio.run(c.save({'n': 1}, 't', 'child')); os._exit(0)\n"
        "os.wait(); print(asyncio.run(c.load('t')))"
    )
    options = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", code, bucket.url()]
    done = subprocess.run(options, capture_output=True, text=True, check=False, cwd=ROOT)
    assert (done.stdout.strip(), done.stderr) == ("{'n': 1}", "")


def test_an_object_works_in_one_event_loop_after_another(bucket: DoubleBucket) -> None:
    checkpointer = bucket.checkpointer(state_type=dict)
    for n in range(3):
        asyncio.run(checkpointer.save({"n": n}, "t"))
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(asyncio.run, checkpointer.load("t")).result() == {"n": 2}
    asyncio.run(checkpointer.close())
