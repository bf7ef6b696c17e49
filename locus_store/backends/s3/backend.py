"""Threads, message logs and a store in a bucket of any S3 service."""

from __future__ import annotations

from typing import Unpack

from locus_store.backends.documents.backend import DocumentBackend
from locus_store.backends.documents.message_log import DocumentMessageLog
from locus_store.backends.documents.objects import (
    HEADS,
    ITEMS,
    SEGMENTS,
    ObjectDocuments,
    check_prefix,
    describe_clock,
)
from locus_store.backends.documents.segmented import SegmentedForm
from locus_store.backends.documents.store import DocumentStore
from locus_store.backends.s3.client import S3Access, S3Objects
from locus_store.backends.s3.options import S3CheckpointerOptions, S3Options
from locus_store.checkpointer import S, StorageBackendAdapter
from locus_store.store import Embed
from locus_store.types.arguments import choose_backend
from locus_store.types.facts import Fact
from locus_store.types.options import CheckpointOptions, fill_defaults, split_options
from locus_store.values.vectors import Metric


class S3Backend(DocumentBackend):
    """Keeps threads in a bucket of an S3 service with conditional writes; see docs/s3.md.

    Args:
        bucket_name: The bucket, which must exist.
        options: See ``options.S3Options``.

    Raises:
        InvalidArgumentError: An option is not valid.
        MissingExtraError: boto3 is not installed.
    """

    factory = "s3_checkpointer"

    def __init__(self, bucket_name: str, **options: Unpack[S3Options]) -> None:
        given = fill_defaults(S3Options, options, "S3Backend")
        access = S3Access(bucket_name, given)
        access.require()
        self.objects = S3Objects(access, check_prefix(given["prefix"]))
        self.documents = ObjectDocuments(self.objects, given["prefix"])
        form = SegmentedForm(self.documents)
        super().__init__(self.documents, form=form, max_state_bytes=given["max_state_bytes"])

    def __repr__(self) -> str:
        return f"S3Backend({str(self.objects.access)!r}, prefix={self.objects.prefix!r})"

    async def facts(self) -> list[Fact]:
        return [*await super().facts(), *await self._threads.look(collect_facts, self.objects)]

    async def close(self) -> None:
        await super().close()
        self.objects.close()


def s3_checkpointer(
    bucket_name: str, *, state_type: type[S] | None = None, **options: Unpack[S3CheckpointerOptions]
) -> StorageBackendAdapter[S, S3Backend]:
    """Return a checkpointer over a bucket of an S3 service.

    Arguments and errors are those of ``S3Backend`` and ``StorageBackendAdapter``.
    """
    own, rest = split_options(CheckpointOptions, options)
    return StorageBackendAdapter(S3Backend(bucket_name, **rest), state_type=state_type, **own)


class S3MessageLog(DocumentMessageLog):
    """Keeps message logs in a bucket of an S3 service.

    Arguments and errors are those of ``S3Backend`` and ``BaseMessageLog``, or ``backend`` alone:
    the one whose threads have the logs.
    """

    def __init__(
        self,
        bucket_name: str = "",
        *,
        ttl_seconds: float | None = None,
        backend: S3Backend | None = None,
        **options: Unpack[S3Options],
    ) -> None:
        made = choose_backend(backend, S3Backend, bucket_name, **options)
        super().__init__(made, owns=backend is None, ttl_seconds=ttl_seconds)


class S3Store(DocumentStore):
    """Keeps items in a bucket of an S3 service; see ``DocumentStore``.

    Arguments and errors are those of ``S3Backend`` and ``BaseStore``. With ``backend``, its bucket
    and prefix are used instead, and it is left open.
    """

    def __init__(
        self,
        bucket_name: str = "",
        *,
        dimension: int | None = None,
        metric: Metric = "cosine",
        embed: Embed | None = None,
        backend: S3Backend | None = None,
        **options: Unpack[S3Options],
    ) -> None:
        made = choose_backend(backend, S3Backend, bucket_name, **options)
        super().__init__(
            ObjectDocuments(made.objects, made.objects.prefix, heads=ITEMS),
            own_backend=None if backend else made,
            dimension=dimension,
            metric=metric,
            embed=embed,
            max_state_bytes=made.max_state_bytes,
        )


def collect_facts(objects: S3Objects) -> list[Fact]:
    """Return the numbers of objects, and what the service does with conditions and clocks.

    An object is put and deleted to see whether the service keeps conditions.
    """
    counts = [sum(1 for _ in objects.list(objects.prefix + it)) for it in (HEADS, SEGMENTS, ITEMS)]
    text = "{:,} heads of threads, {:,} segments; {:,} of the store".format(*counts)
    clock = describe_clock(objects, "set it; services refuse requests beyond 15 minutes")
    return [Fact("objects", text), _describe_conditions(objects), clock]


def _describe_conditions(objects: S3Objects) -> Fact:
    if objects.require_conditions():
        return Fact("conditions", "of puts and deletions are kept", "ok")
    remedy = (
        "a deleted thread leaves an empty object with its id; use a service that keeps If-Match"
    )
    return Fact("conditions", "of deletions are ignored", "warn", remedy)
