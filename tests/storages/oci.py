"""A bucket of a double of OCI's API, through Oracle's SDK."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from locus_store import OCIBucketMessageLog, OCIBucketStore
from locus_store.blocking import BlockingCheckpointer
from storages import Storage
from storages.blocking import Unblocked

if TYPE_CHECKING:
    from buckets import DoubleBucket
    from shelf import ObjectsProbe


class OnBucket(Storage):
    def __init__(self, request: Any) -> None:
        super().__init__(request)
        self.bucket: DoubleBucket = self.fixture("bucket")
        self.backends: list[Any] = []

    def checkpointer(self, **options: Any) -> Any:
        return self.bucket.checkpointer(**options)

    def backend(self) -> Any:
        self.backends.append(self.bucket.backend())
        return self.backends[-1]

    def store(self, **options: Any) -> Any:
        return OCIBucketStore(**self.bucket.options(), **{"dimension": 3, **options})

    def log(self, **options: Any) -> Any:
        return OCIBucketMessageLog(**self.bucket.options(**options))

    async def close(self) -> None:
        for it in self.backends:
            it.bucket.close()

    def probe(self) -> ObjectsProbe:
        return self.bucket.probe()


class Blocking(OnBucket):
    def checkpointer(self, **options: Any) -> Any:
        return Unblocked(BlockingCheckpointer(super().checkpointer(**options)))
