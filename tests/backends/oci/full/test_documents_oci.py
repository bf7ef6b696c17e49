"""The contracts on a bucket of the double, through Oracle's SDK."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from lost_answers import LostAnswersContract

from locus_store.backends.documents.protocol import StaleTagError
from locus_store.backends.oci.backend import BucketDocuments
from locus_store.testing.documents import WriteFaultsContract

if TYPE_CHECKING:
    from buckets import DoubleBucket


class TestBucketDocuments(LostAnswersContract):
    @pytest.fixture
    def reopen(self, bucket: DoubleBucket) -> Any:
        return lambda: BucketDocuments(bucket.objects(), "p/")


class TestFaultsOnBucket(WriteFaultsContract):
    @pytest.fixture
    def opened(self, bucket: DoubleBucket) -> Any:
        return bucket.backend


def test_a_refused_put_is_no_lost_answer(bucket: DoubleBucket) -> None:
    objects = bucket.objects()
    old = objects.put("p/t", b"one", tag=None)
    new = objects.put("p/t", b"two", tag=old)
    for tag in (None, old):
        with pytest.raises(StaleTagError):
            objects.put("p/t", b"three", tag=tag)
    assert objects.put("p/t", b"three", tag=new) != new
