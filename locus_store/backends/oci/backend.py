"""OCI Object Storage backend: each thread is a head and segments in a bucket."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from locus_store.backends.documents.backend import DocumentBackend
from locus_store.backends.documents.message_log import DocumentMessageLog
from locus_store.backends.documents.object_documents import ITEMS, LAYOUT, ObjectDocuments
from locus_store.backends.documents.objects import MAX_NAME_BYTES
from locus_store.backends.documents.segmented import SegmentedForm
from locus_store.backends.oci.access import (
    CONNECT_TIMEOUT_SECONDS,
    POOL_SIZE,
    RETRY_SECONDS,
    TIMEOUT_SECONDS,
    AuthType,
    BucketAccess,
    BucketPlace,
    require,
)
from locus_store.backends.oci.client import BucketObjects
from locus_store.backends.oci.lifecycle import facts
from locus_store.checkpointer import S, StorageBackendAdapter
from locus_store.errors import SchemaError
from locus_store.runtime.extras import factory
from locus_store.types.arguments import check_backend
from locus_store.values.encoding import MAX_STATE_BYTES

if TYPE_CHECKING:
    from locus_store.backends.documents.protocol import Found, Tag
    from locus_store.types import OnConflict
    from locus_store.types.facts import Fact

DEFAULT_PREFIX: Final = "locus/checkpoints/"
"""The Locus SDK's default prefix."""

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
        """List the SDK's pointer; that also tells a missing object from a missing bucket."""
        pointer = self.prefix + key + SDK_POINTER
        if not key or len(pointer.encode()) > MAX_NAME_BYTES:
            pointer = self.prefix + LAYOUT
        page = self.objects.page(pointer, 1)
        if any(it.name == self.prefix + key + SDK_POINTER for it in page.objects):
            raise SchemaError(
                f"{self.objects.place} has objects of the Locus SDK for thread {key!r} below "
                f"{self.prefix!r}; choose another prefix=, and import them with `locus-store "
                "import locus`"
            )


class BucketBackend(DocumentBackend):
    """Keeps threads in a bucket of OCI Object Storage. Options as ``OCIBucketBackend``."""

    factory = "oci_bucket_checkpointer"

    def __init__(
        self,
        place: BucketPlace,
        access: BucketAccess,
        prefix: str = DEFAULT_PREFIX,
        *,
        max_state_bytes: int = MAX_STATE_BYTES,
    ) -> None:
        require(place, access)
        self.bucket = BucketObjects(place, access)
        self.documents = BucketDocuments(self.bucket, prefix)
        form = SegmentedForm(self.documents)
        super().__init__(self.documents, form=form, max_state_bytes=max_state_bytes)

    def __repr__(self) -> str:
        return f"BucketBackend({str(self.bucket.place)!r}, prefix={self.documents.prefix!r})"

    def item_documents(self) -> ObjectDocuments:
        """Return the documents of a store beside the threads."""
        return ObjectDocuments(self.bucket, self.documents.prefix, heads=ITEMS)

    async def facts(self) -> list[Fact]:
        """See ``StorageBackend``, also for the following method."""
        of_bucket = await self._look(facts, self.bucket, self.documents.prefix)
        return [*await super().facts(), *of_bucket]

    async def close(self) -> None:
        """Release threads and connections; later calls open them again."""
        await super().close()
        self.bucket.close()


class OCIBucketBackend(StorageBackendAdapter[S]):
    """A checkpointer over a bucket of OCI Object Storage.

    A save is one conditional put of the thread's head; see docs/oci.md. It was tested
    against a double of the API only.

    Args:
        bucket_name: The bucket.
        namespace: The Object Storage namespace of the tenancy.
        compartment_id: The compartment in which a missing bucket is created; ``None``: none is
            created.
        prefix: Prefix of the names of all objects.
        profile_name: The profile in ``config_file``.
        auth_type: ``api_key``, ``security_token``, ``instance_principal`` or
            ``resource_principal``.
        region: Overrides the region of the profile.
        config_file: The SDK's configuration file; ``~`` is expanded.
        endpoint: The URL of the service, where it is not the region's.
        client: An ``ObjectStorageClient`` used instead of the credentials, and left open.
        pool_size: Most calls at once.
        retry_seconds: How long a call is retried after 429, 5xx, a timeout or a lost connection.
        timeout_seconds: Time limit of each answer.
        connect_timeout_seconds: Time limit of each connection.
        max_state_bytes: The largest state that is saved or read, as compact JSON.
        state_type: See ``StorageBackendAdapter``, as the other options.
        on_conflict: What a save does on a conflict.
        keep_last: Versions to keep per thread.
        ttl_seconds: A thread's time to live after its last save.
        refresh_on_read: A load renews that time.

    Raises:
        InvalidArgumentError: An option is not valid.
        MissingExtraError: Oracle's SDK is not installed.
    """

    def __init__(
        self,
        bucket_name: str,
        namespace: str,
        *,
        compartment_id: str | None = None,
        prefix: str = DEFAULT_PREFIX,
        profile_name: str = "DEFAULT",
        auth_type: AuthType = "api_key",
        region: str | None = None,
        config_file: str = "~/.oci/config",
        endpoint: str | None = None,
        client: Any = None,
        pool_size: int = POOL_SIZE,
        retry_seconds: float = RETRY_SECONDS,
        timeout_seconds: float = TIMEOUT_SECONDS,
        connect_timeout_seconds: float = CONNECT_TIMEOUT_SECONDS,
        max_state_bytes: int = MAX_STATE_BYTES,
        state_type: type[S] | None = None,
        on_conflict: OnConflict = "raise",
        keep_last: int | None = None,
        ttl_seconds: float | None = None,
        refresh_on_read: bool = False,
    ) -> None:
        place = BucketPlace(namespace=namespace, bucket=bucket_name, compartment_id=compartment_id)
        access = BucketAccess(
            profile_name=profile_name,
            auth_type=auth_type,
            region=region,
            config_file=config_file,
            endpoint=endpoint,
            client=client,
            pool_size=pool_size,
            retry_seconds=retry_seconds,
            timeout_seconds=timeout_seconds,
            connect_timeout_seconds=connect_timeout_seconds,
        )
        super().__init__(
            BucketBackend(place, access, prefix, max_state_bytes=max_state_bytes),
            state_type=state_type,
            on_conflict=on_conflict,
            keep_last=keep_last,
            ttl_seconds=ttl_seconds,
            refresh_on_read=refresh_on_read,
        )


class OCIBucketMessageLog(DocumentMessageLog):
    """Keeps message logs in a bucket of OCI Object Storage.

    Args:
        bucket_name: See ``OCIBucketBackend``, as ``namespace``, ``prefix`` and ``options``.
        namespace: The Object Storage namespace of the tenancy.
        prefix: Prefix of the names of all objects.
        ttl_seconds: See ``BaseMessageLog``.
        backend: The backend whose threads have the logs, instead of a bucket and options.
        options: Of ``OCIBucketBackend``.

    Raises:
        InvalidArgumentError: An option is not valid.
        MissingExtraError: Oracle's SDK is not installed.
    """

    def __init__(
        self,
        bucket_name: str = "",
        namespace: str = "",
        *,
        prefix: str = DEFAULT_PREFIX,
        ttl_seconds: float | None = None,
        backend: BucketBackend | None = None,
        **options: Any,
    ) -> None:
        if backend is not None:
            given = (bucket_name, namespace, prefix, options)
            check_backend(backend, BucketBackend, is_alone=given == ("", "", DEFAULT_PREFIX, {}))
        made = backend or bucket_backend(bucket_name, namespace, prefix, **options)
        super().__init__(made, owns=backend is None, ttl_seconds=ttl_seconds)


def bucket_backend(
    bucket_name: str,
    namespace: str,
    prefix: str = DEFAULT_PREFIX,
    *,
    compartment_id: str | None = None,
    max_state_bytes: int = MAX_STATE_BYTES,
    **access: Any,
) -> BucketBackend:
    """Return a backend; the options are those of ``OCIBucketBackend``."""
    place = BucketPlace(namespace=namespace, bucket=bucket_name, compartment_id=compartment_id)
    return BucketBackend(place, BucketAccess(**access), prefix, max_state_bytes=max_state_bytes)


oci_bucket_checkpointer = factory(
    OCIBucketBackend,
    "oci_bucket_checkpointer",
    "Return a checkpointer over a bucket of OCI; options as ``OCIBucketBackend``.",
)
