"""OCI Object Storage backend: each thread is a head and segments in a bucket."""

from __future__ import annotations

from typing import Any, Final, Unpack

from locus_store.backends.documents.backend import DocumentBackend
from locus_store.backends.documents.message_log import DocumentMessageLog
from locus_store.backends.documents.objects import ITEMS, LAYOUT, MAX_NAME_BYTES, ObjectDocuments
from locus_store.backends.documents.protocol import Found, Tag
from locus_store.backends.documents.segmented import SegmentedForm
from locus_store.backends.documents.store import DocumentStore
from locus_store.backends.oci.client import BucketObjects, BucketPlace, require
from locus_store.backends.oci.lifecycle import collect_facts
from locus_store.backends.oci.options import OCICheckpointerOptions, OCIOptions
from locus_store.checkpointer import S, StorageBackendAdapter
from locus_store.errors import SchemaError
from locus_store.runtime.extras import make_factory
from locus_store.store import Embed
from locus_store.types.arguments import choose_backend
from locus_store.types.facts import Fact
from locus_store.types.options import CheckpointOptions, fill_defaults, split_options
from locus_store.values.vectors import Metric

SDK_POINTER: Final = "/_latest"
"""The end of the name of an object that the Locus SDK keeps for each thread."""


class BucketDocuments(ObjectDocuments):
    """The documents of a bucket; refuses the threads that the Locus SDK keeps there."""

    objects: BucketObjects

    def get(self, key: str, *, known: Tag | None = None) -> Found | None:
        """See ``Documents``.

        Raises:
            SchemaError: The Locus SDK keeps this thread below the prefix.
            ConnectionFailedError: The bucket does not exist.
        """
        found = super().get(key, known=known)
        if found is None:
            self._refuse_foreign(key)
        return found

    def _refuse_foreign(self, key: str) -> None:
        """List the SDK's pointer; unlike a read, that reports a missing bucket as such."""
        pointer = self.prefix + key + SDK_POINTER
        if not key or len(pointer.encode()) > MAX_NAME_BYTES:
            pointer = self.prefix + LAYOUT
        page = self.objects.list_page(pointer, 1)
        if any(it.name == self.prefix + key + SDK_POINTER for it in page.objects):
            raise SchemaError(
                f"{self.objects.place} has objects of the Locus SDK for thread {key!r} below "
                f"{self.prefix!r}; choose another prefix=, and import them with `locus-store "
                "import locus`"
            )


class BucketBackend(DocumentBackend):
    """Keeps threads in a bucket of OCI Object Storage. Options as ``OCIBucketBackend``."""

    factory = "oci_bucket_checkpointer"

    def __init__(self, bucket_name: str, namespace: str, **options: Unpack[OCIOptions]) -> None:
        given = fill_defaults(OCIOptions, options, "BucketBackend")
        place = BucketPlace(namespace=namespace, bucket=bucket_name)
        require(place, given)
        self.bucket = BucketObjects(place, given)
        self.documents = BucketDocuments(self.bucket, given["prefix"])
        form = SegmentedForm(self.documents)
        super().__init__(self.documents, form=form, max_state_bytes=given["max_state_bytes"])

    def __repr__(self) -> str:
        return f"BucketBackend({str(self.bucket.place)!r}, prefix={self.documents.prefix!r})"

    async def facts(self) -> list[Fact]:
        of_bucket = await self._threads.look(collect_facts, self.bucket, self.documents.prefix)
        return [*await super().facts(), *of_bucket]

    async def close(self) -> None:
        await super().close()
        self.bucket.close()


class OCIBucketBackend(StorageBackendAdapter[S, BucketBackend]):
    """A checkpointer over a bucket of OCI Object Storage.

    A save is one conditional put of the thread's head; see docs/oci.md. It was tested
    against a double of the API only.

    Args:
        bucket_name: The bucket.
        namespace: The Object Storage namespace of the tenancy.
        state_type: See ``StorageBackendAdapter``.
        options: See ``options.OCIOptions``, and of ``StorageBackendAdapter``.

    Raises:
        InvalidArgumentError: An option is not valid.
        MissingExtraError: Oracle's SDK is not installed.
    """

    def __init__(
        self,
        bucket_name: str,
        namespace: str,
        *,
        state_type: type[S] | None = None,
        **options: Unpack[OCICheckpointerOptions],
    ) -> None:
        own, rest = split_options(CheckpointOptions, options)
        backend = BucketBackend(bucket_name, namespace, **rest)
        super().__init__(backend, state_type=state_type, **own)


class OCIBucketMessageLog(DocumentMessageLog):
    """Keeps message logs in a bucket of OCI Object Storage.

    Arguments and errors are those of ``OCIBucketBackend`` and ``BaseMessageLog``, or ``backend``
    alone: the one whose threads have the logs.
    """

    def __init__(
        self,
        bucket_name: str = "",
        namespace: str = "",
        *,
        ttl_seconds: float | None = None,
        backend: BucketBackend | None = None,
        **options: Unpack[OCIOptions],
    ) -> None:
        made = choose_backend(backend, BucketBackend, bucket_name, namespace, **options)
        super().__init__(made, owns=backend is None, ttl_seconds=ttl_seconds)


oci_bucket_checkpointer = make_factory(
    OCIBucketBackend,
    "oci_bucket_checkpointer",
    "Return a checkpointer over a bucket of OCI; options as ``OCIBucketBackend``.",
)


class OCIBucketStore(DocumentStore):
    """Keeps items in a bucket of OCI Object Storage; see ``DocumentStore``.

    Arguments and errors are those of ``OCIBucketBackend`` and ``BaseStore``. With ``backend``, its
    bucket and prefix are used instead, and it is left open.
    """

    def __init__(
        self,
        bucket_name: str = "",
        namespace: str = "",
        *,
        dimension: int | None = None,
        metric: Metric = "cosine",
        embed: Embed | None = None,
        backend: BucketBackend | None = None,
        **options: Any,
    ) -> None:
        made = choose_backend(backend, BucketBackend, bucket_name, namespace, **options)
        super().__init__(
            ObjectDocuments(made.bucket, made.documents.prefix, heads=ITEMS),
            own_backend=None if backend else made,
            dimension=dimension,
            metric=metric,
            embed=embed,
            max_state_bytes=made.max_state_bytes,
        )
