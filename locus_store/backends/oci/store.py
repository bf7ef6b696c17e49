"""A store in a bucket of OCI Object Storage, beside the threads or alone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from locus_store.backends.documents.store import DocumentStore
from locus_store.backends.oci.backend import BucketBackend
from locus_store.types.arguments import check_backend

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
        if backend is not None:
            is_alone = (bucket_name, namespace, options) == ("", "", {})
            check_backend(backend, BucketBackend, is_alone=is_alone)
        made = backend or BucketBackend(bucket_name, namespace, **options)
        super().__init__(
            made.make_item_documents(),
            owned=None if backend else made,
            dimension=dimension,
            metric=metric,
            embed=embed,
            max_state_bytes=made.max_state_bytes,
        )
