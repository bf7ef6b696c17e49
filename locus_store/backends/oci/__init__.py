"""OCI Object Storage: threads in a bucket."""

from locus_store.backends.oci.backend import (
    BucketBackend,
    OCIBucketBackend,
    OCIBucketMessageLog,
    oci_bucket_checkpointer,
)

__all__ = ["BucketBackend", "OCIBucketBackend", "OCIBucketMessageLog", "oci_bucket_checkpointer"]
