"""The contracts on a bucket of the double, through Oracle's SDK."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from locus_store.backends.oci.backend import BucketDocuments
from locus_store.testing.documents import DocumentsContract, WriteFaultsContract

if TYPE_CHECKING:
    from buckets import DoubleBucket


class TestBucketDocuments(DocumentsContract):
    @pytest.fixture
    def reopen(self, bucket: DoubleBucket) -> Any:
        return lambda: BucketDocuments(bucket.objects(), "p/")


class TestFaultsOnBucket(WriteFaultsContract):
    @pytest.fixture
    def opened(self, bucket: DoubleBucket) -> Any:
        return bucket.backend
