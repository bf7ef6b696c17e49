"""A bucket of a real S3 service."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from locus_store import S3MessageLog
from storages import Storage

if TYPE_CHECKING:
    from s3_servers import S3Place
    from shelf import ObjectsProbe


class OnService(Storage):
    def __init__(self, request: Any) -> None:
        super().__init__(request)
        self.place: S3Place = self.fixture("s3_place")
        self.backends: list[Any] = []

    def checkpointer(self, **options: Any) -> Any:
        return self.place.checkpointer(**options)

    def backend(self) -> Any:
        self.backends.append(self.place.backend())
        return self.backends[-1]

    def store(self, **options: Any) -> Any:
        return self.place.store(**{"dimension": 3, **options})

    def log(self, **options: Any) -> Any:
        return S3MessageLog(**self.place.options(**options))

    async def close(self) -> None:
        for it in self.backends:
            await it.close()

    def probe(self) -> ObjectsProbe:
        return self.place.probe()
