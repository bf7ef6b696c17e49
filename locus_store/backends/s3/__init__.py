"""Any S3 service: threads, message logs and a store in a bucket."""

from locus_store.backends.s3.backend import S3Backend, S3MessageLog, S3Store, s3_checkpointer

__all__ = ["S3Backend", "S3MessageLog", "S3Store", "s3_checkpointer"]
