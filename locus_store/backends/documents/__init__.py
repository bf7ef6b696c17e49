"""Whole threads as documents behind a conditional put."""

from locus_store.backends.documents.backend import DocumentBackend
from locus_store.backends.documents.protocol import (
    Body,
    ChangedError,
    Documents,
    Found,
    StaleTagError,
    Tag,
)

__all__ = ["Body", "ChangedError", "DocumentBackend", "Documents", "Found", "StaleTagError", "Tag"]
