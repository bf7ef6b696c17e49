"""Deletions that the service refuses, or does in part."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import pytest
from oci_double import Fault
from tiers import first_of

from locus_store import BackendError, open_checkpointer
from locus_store.backends.documents import segmented
from locus_store.backends.documents.objects import digest
from locus_store.backends.oci.options import DEFAULT_PREFIX

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from buckets import DoubleBucket

    from locus_store.backends.oci import BucketBackend

pytestmark = pytest.mark.anyio
SEGMENTS = f"{DEFAULT_PREFIX}v1/segments/"


@pytest.fixture
async def backend(
    bucket: DoubleBucket, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[BucketBackend]:
    """A backend whose versions are all in segments, with two users' threads."""
    monkeypatch.setattr(segmented, "TAIL_BYTES", 1)
    made = bucket.backend(retry_seconds=0.2)
    for name, user in (("a", "alice"), ("b", "alice"), ("c", "bob")):
        for n in range(3):
            await made.write_state(
                name, {"n": n}, checkpoint_id=f"v{n}", metadata={"user_id": user}
            )
    assert len(segments(bucket)) == 9
    yield made
    bucket.double.fault, bucket.double.refusal = lambda *_: None, lambda _: None
    await made.close()


def segments(bucket: DoubleBucket) -> list[str]:
    return sorted(it for it in bucket.stored.objects if it.startswith(SEGMENTS))


def refuse(bucket: DoubleBucket, *some: str, status: int = 403) -> None:
    """Refuse the deletion of some of the segments of today."""
    names = set(some or segments(bucket))
    bucket.double.refusal = lambda name: status if name in names else None


@pytest.mark.parametrize("status", [403, 404, 409, 503])
async def test_a_deletion_that_leaves_data_is_an_error(
    status: int, backend: BucketBackend, bucket: DoubleBucket
) -> None:
    refuse(bucket, status=status)
    with pytest.raises(BackendError, match="3 of 3 objects were not deleted and stay") as told:
        await backend.remove("a")
    assert f"HTTP {status}" in str(told.value)
    assert "threads vacuum" in str(told.value)
    assert len(segments(bucket)) == 9
    assert await backend.load("a") is None


@pytest.mark.parametrize("status", first_of(501, 400, 403, 404, 405))
async def test_a_service_without_batches_deletes_one_by_one(
    status: int, backend: BucketBackend, bucket: DoubleBucket
) -> None:
    fault = Fault(str(status))
    bucket.double.fault = lambda kind, _: fault if kind == "batch" else None
    assert (await backend.remove_thread("a")).versions == 3
    assert len(segments(bucket)) == 6
    assert await backend.damage() == []


@pytest.mark.usefixtures("backend")
async def test_a_part_that_fails_is_repeated(bucket: DoubleBucket) -> None:
    statuses = iter([503, 429])
    bucket.double.refusal = lambda _: next(statuses, None)
    async with bucket.backend(retry_seconds=30) as patient:
        assert (await patient.remove_thread("a")).versions == 3
    assert len(segments(bucket)) == 6


async def test_a_segment_that_is_missing_is_deleted(
    backend: BucketBackend, bucket: DoubleBucket
) -> None:
    gone = segments(bucket)[0]
    refuse(bucket, gone, status=404)
    del bucket.stored.objects[gone]
    bucket.stored.names = None
    for name in ("a", "b", "c"):
        await backend.remove_thread(name)
    assert segments(bucket) == []


async def test_verify_and_vacuum_find_what_no_head_names(
    backend: BucketBackend, bucket: DoubleBucket
) -> None:
    assert await backend.damage() == []
    refuse(bucket)
    with pytest.raises(BackendError):
        await backend.remove("a")
    [told] = await backend.damage()
    assert "3 versions or segments is named by no thread" in told
    bucket.double.age(86_401)
    with pytest.raises(BackendError, match="stay"):
        await backend.vacuum()
    bucket.double.refusal = lambda _: None
    await backend.vacuum()
    assert len(segments(bucket)) == 6
    assert await backend.damage() == []


async def test_what_a_user_leaves_is_an_error_after_the_others_are_removed(
    backend: BucketBackend, bucket: DoubleBucket
) -> None:
    refuse(bucket, *(it for it in segments(bucket) if digest("a") in it))
    with pytest.raises(BackendError, match=r"1 threads of user 'alice' .* and 1 are"):
        await backend.forget_user("alice")
    assert await backend.list_threads() == ["c"]
    assert len(segments(bucket)) == 6


async def test_versions_that_stay_are_an_error(
    backend: BucketBackend, bucket: DoubleBucket
) -> None:
    refuse(bucket)
    with pytest.raises(BackendError, match="stay"):
        await backend.remove("a", ["v0"])
    assert [it.checkpoint_id for it in await backend.history("a")] == ["v2", "v1"]


async def test_a_save_whose_old_segments_stay_is_done_and_logged(
    backend: BucketBackend, bucket: DoubleBucket, caplog: pytest.LogCaptureFixture
) -> None:
    refuse(bucket)
    with caplog.at_level(logging.WARNING, "locus_store"):
        for n in range(3, 6):  # four segments become one
            await backend.write_state("a", {"n": n}, checkpoint_id=f"v{n}")
    assert "thread 'a': old data stays until a vacuum" in caplog.text
    other: Any = open_checkpointer(bucket.url(DEFAULT_PREFIX), state_type=dict)
    assert await other.load("a") == {"n": 5}
    await other.close()
