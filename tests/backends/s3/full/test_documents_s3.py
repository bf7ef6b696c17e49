"""The contracts of documents on a real S3 service."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from locus_store.backends.documents.objects import ObjectDocuments
from locus_store.testing.documents import DocumentsContract

if TYPE_CHECKING:
    from s3_servers import S3Place


class TestS3Documents(DocumentsContract):
    @pytest.fixture
    def reopen(self, s3_place: S3Place) -> Any:
        return lambda: ObjectDocuments(s3_place.objects(), s3_place.prefix)
