"""The double of OCI's API itself, driven by Oracle's SDK with signed requests."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from threading import Barrier
from typing import TYPE_CHECKING, Any

import pytest
from lazily import TESTS_RUN
from oci_double import NAMESPACE, Fault
from tiers import ALL

from locus_store.backends.oci.client import make_factory

if TESTS_RUN:
    import oci

if TYPE_CHECKING:
    from collections.abc import Callable

    from buckets import DoubleBucket

RACES = 200 if ALL else 20
RACERS = 8


@pytest.fixture
def client(bucket: DoubleBucket) -> Any:
    return make_factory(bucket.access())()


@pytest.fixture
def put(client: Any, bucket: DoubleBucket) -> Callable[..., str]:
    def put(name: str, content: bytes = b"x", **condition: str) -> str:
        answer = client.put_object(NAMESPACE, bucket.name, name, content, **condition)
        return str(answer.headers["etag"])

    return put


def status(call: Callable[..., Any], *args: Any, **kwargs: Any) -> int:
    """The status that a call is refused with."""
    with pytest.raises(oci.exceptions.ServiceError) as caught:
        call(*args, **kwargs)
    return int(caught.value.status)


def test_a_put_is_done_on_its_condition(put: Callable[..., str]) -> None:
    first = put("a", if_none_match="*")
    assert status(put, "a", if_none_match="*") == 412
    assert status(put, "a", if_match="another") == 412
    second = put("a", if_match=first)
    assert second != first
    assert status(put, "a", if_match=first) == 412
    assert status(put, "missing", if_match=first) == 412


def test_a_body_without_its_checksum_is_refused(put: Callable[..., str]) -> None:
    checksum = "CY9rzUYh03PK3k6DJie09g=="
    put("a", b"test", content_md5=checksum)
    assert status(put, "a", b"", content_md5=checksum) == 400


def test_a_get_answers_304_and_ranges(client: Any, put: Any, bucket: DoubleBucket) -> None:
    where, tag = (NAMESPACE, bucket.name, "a"), put("a", b"abcdef")
    assert client.get_object(*where).data.content == b"abcdef"
    assert status(client.get_object, *where, if_none_match=tag) == 304
    part = client.get_object(*where, range="bytes=1-3")
    assert (part.status, part.data.content) == (206, b"bcd")
    assert part.headers["content-range"] == "bytes 1-3/6"
    assert status(client.get_object, *where, range="bytes=9-") == 416


def test_a_deletion_is_done_on_its_condition(client: Any, put: Any, bucket: DoubleBucket) -> None:
    where, tag = (NAMESPACE, bucket.name, "a"), put("a")
    assert status(client.delete_object, *where, if_match="another") == 412
    assert client.delete_object(*where, if_match=tag).status == 204
    assert status(client.delete_object, *where) == 404


def test_lists_have_pages_delimiters_and_starts(
    client: Any, put: Any, bucket: DoubleBucket
) -> None:
    for name in ("p/a/1", "p/a/2", "p/b", "p/c/1", "q", "p/日本"):
        put(name)

    def listed(**options: Any) -> tuple[list[str], list[str], str | None]:
        data = client.list_objects(NAMESPACE, bucket.name, **options).data
        return [it.name for it in data.objects], data.prefixes, data.next_start_with

    assert listed(prefix="p/", limit=2) == (["p/a/1", "p/a/2"], [], "p/b")
    assert listed(prefix="p/", start="p/b") == (["p/b", "p/c/1", "p/日本"], [], None)
    assert listed(prefix="p/", start_after="p/b") == (["p/c/1", "p/日本"], [], None)
    assert listed(prefix="p/", delimiter="/") == (["p/b", "p/日本"], ["p/a/", "p/c/"], None)
    assert listed(prefix="p/", delimiter="/", limit=1) == ([], ["p/a/"], "p/b")


def test_an_overwrite_changes_the_time_of_the_last_update_only(
    client: Any, put: Any, bucket: DoubleBucket
) -> None:
    put("a")
    bucket.double.age(60)
    put("a")
    fields = "name,timeCreated,timeModified"
    (found,) = client.list_objects(NAMESPACE, bucket.name, fields=fields).data.objects
    assert found.time_modified - found.time_created >= timedelta(seconds=60)


def test_a_lifecycle_policy_is_replaced_whole(client: Any, bucket: DoubleBucket) -> None:
    models, where = oci.object_storage.models, (NAMESPACE, bucket.name)
    assert status(client.get_object_lifecycle_policy, *where) == 404
    for name in ("a", "b"):
        rule = models.ObjectLifecycleRule(
            name=name, action="DELETE", time_amount=9, time_unit="DAYS", is_enabled=True
        )
        details = models.PutObjectLifecyclePolicyDetails(items=[rule])
        client.put_object_lifecycle_policy(*where, details)
    found = client.get_object_lifecycle_policy(*where)
    assert [it.name for it in found.data.items] == ["b"]
    assert status(client.put_object_lifecycle_policy, *where, details, if_match="another") == 412


def test_a_bucket_is_created_once(client: Any, bucket: DoubleBucket) -> None:
    details = oci.object_storage.models.CreateBucketDetails(name="new", compartment_id="c")
    assert client.create_bucket(NAMESPACE, details).status == 200
    assert status(client.create_bucket, NAMESPACE, details) == 409
    assert status(client.get_bucket, NAMESPACE, "missing") == 404


def test_a_wrong_signature_and_a_skewed_clock_are_refused(put: Any, bucket: DoubleBucket) -> None:
    bucket.double.offset = timedelta(minutes=6)
    assert status(put, "a") == 401
    bucket.double.offset = timedelta(0)
    other = oci.object_storage.ObjectStorageClient(
        {**bucket.double.config(), "key_content": another_key()},
        service_endpoint=bucket.double.url,
        retry_strategy=oci.retry.NoneRetryStrategy(),
    )
    assert status(other.put_object, NAMESPACE, bucket.name, "a", b"x") == 401


def another_key() -> str:
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import rsa

    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    kinds = serialization
    return key.private_bytes(
        kinds.Encoding.PEM, kinds.PrivateFormat.PKCS8, kinds.NoEncryption()
    ).decode()


@pytest.mark.parametrize("kind", ["429", "503", "reset"])
@pytest.mark.parametrize("is_done", [True, False], ids=["done", "not done"])
def test_faults_are_injected(kind: str, is_done: bool, put: Any, bucket: DoubleBucket) -> None:
    bucket.double.fault = lambda *_: Fault(kind, is_done)
    with pytest.raises((oci.exceptions.ServiceError, oci.exceptions.RequestException)) as caught:
        put("a")
    assert getattr(caught.value, "status", None) in {None, 429, 503}
    assert ("a" in bucket.stored.objects) == is_done


def test_the_sdks_own_retry_makes_a_lost_reply_a_conflict(bucket: DoubleBucket) -> None:
    """The reason why the client of this library retries by itself."""
    client = make_factory(bucket.access())()
    lost = [Fault("reset", is_done=True)]
    bucket.double.fault = lambda *_: lost.pop() if lost else None
    retrying = oci.retry.DEFAULT_RETRY_STRATEGY
    refused = status(
        client.put_object,
        *(NAMESPACE, bucket.name, "a", b"x"),
        if_none_match="*",
        retry_strategy=retrying,
    )
    assert refused == 412


def raced(bucket: DoubleBucket, condition: Callable[[Any, str], dict[str, str]]) -> list[int]:
    """The winners of each race."""
    clients, wins = [make_factory(bucket.access())() for _ in range(RACERS)], []

    def race(client: Any, name: str, told: dict[str, str], barrier: Barrier) -> bool:
        barrier.wait()
        try:
            client.put_object(NAMESPACE, bucket.name, name, b"x", **told)
        except oci.exceptions.ServiceError as exc:
            return exc.status != 412
        return True

    with ThreadPoolExecutor(RACERS) as pool:
        for n in range(RACES):
            barrier, told = Barrier(RACERS), condition(clients[0], f"race-{n}")
            each = [pool.submit(race, it, f"race-{n}", told, barrier) for it in clients]
            wins.append(sum(it.result() for it in each))
    return wins


def test_of_racing_creators_one_wins(bucket: DoubleBucket) -> None:
    assert raced(bucket, lambda _client, _name: {"if_none_match": "*"}) == [1] * RACES


def test_of_racing_replacers_one_wins(bucket: DoubleBucket) -> None:
    def replacing(client: Any, name: str) -> dict[str, str]:
        answer = client.put_object(NAMESPACE, bucket.name, name, b"old")
        return {"if_match": answer.headers["etag"]}

    assert raced(bucket, replacing) == [1] * RACES
