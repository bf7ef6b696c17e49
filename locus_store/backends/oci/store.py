"""A store in a bucket of OCI Object Storage, beside the threads or alone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from locus_store.backends.documents.store import DocumentStore
from locus_store.backends.oci.backend import BucketBackend, OCIBucketBackend
from locus_store.errors import InvalidArgumentError

if TYPE_CHECKING:
    from locus_store.store import Embed
    from locus_store.values.vectors import Metric


class OCIBucketStore(DocumentStore):
    """Keeps items in a bucket of OCI Object Storage; see ``DocumentStore``.

    Args:
        bucket_name: The bucket.
        namespace: The Object Storage namespace of the tenancy.
        dimension: See ``BaseStore``, as the next two options.
        metric: How embeddings are compared.
        embed: Computes the embeddings of strings.
        backend: A backend whose bucket and prefix are used instead of the other options, for
            example ``checkpointer.backend``. It is left open.
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
        dimension: int | None = None,
        metric: Metric = "cosine",
        embed: Embed | None = None,
        backend: BucketBackend | None = None,
        **options: Any,
    ) -> None:
        if backend is not None and (bucket_name or namespace or options):
            raise InvalidArgumentError("give a bucket and its options, or backend=, not both")
        owned = None
        if backend is None:
            made = OCIBucketBackend[Any](bucket_name, namespace, **options)
            backend = owned = cast("BucketBackend", made.backend)
        super().__init__(
            backend.item_documents(),
            owned=owned,
            dimension=dimension,
            metric=metric,
            embed=embed,
            max_state_bytes=backend.max_state_bytes,
        )
