"""The contracts on a bucket of the double, through Oracle's SDK."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from test_contract import LocusStates, Unblocked

from locus_store.backends.oci.backend import BucketDocuments
from locus_store.blocking import BlockingCheckpointer
from locus_store.testing import CheckpointerContract, StorageBackendContract
from locus_store.testing.documents import DocumentsContract
from locus_store.testing.write_faults import WriteFaultsContract

if TYPE_CHECKING:
    from collections.abc import Iterator

    from buckets import DoubleBucket
    from shelf import ObjectsProbe

    from locus_store.backends.oci import BucketBackend


class OnBucket(CheckpointerContract):
    @pytest.fixture
    def reopen(self, bucket: DoubleBucket) -> Any:
        return bucket.reopen(self.state_type)

    @pytest.fixture
    def checkpointer(self, reopen: Any) -> Any:
        return reopen()

    @pytest.fixture
    def storage(self, bucket: DoubleBucket) -> ObjectsProbe:
        return bucket.probe()


@pytest.mark.variant
class TestBucket(OnBucket):
    pass


@pytest.mark.variant
class TestBucketBackend(StorageBackendContract):
    @pytest.fixture
    def backend(self, bucket: DoubleBucket) -> Iterator[BucketBackend]:
        made = bucket.backend()
        yield made
        made.bucket.close()


class TestBucketDocuments(DocumentsContract):
    @pytest.fixture
    def reopen(self, bucket: DoubleBucket) -> Any:
        return lambda: BucketDocuments(bucket.objects(), "p/")


class TestFaultsOnBucket(WriteFaultsContract):
    @pytest.fixture
    def opened(self, bucket: DoubleBucket) -> Any:
        return bucket.backend


@pytest.mark.variant
class TestLocusStateOnBucket(LocusStates, OnBucket):
    pass


@pytest.mark.variant
class TestBlockingOnBucket(OnBucket):
    """Through the blocking facade."""

    @pytest.fixture
    def reopen(self, bucket: DoubleBucket) -> Any:
        make = bucket.reopen(self.state_type)
        return lambda **options: Unblocked(BlockingCheckpointer(make(**options)))
