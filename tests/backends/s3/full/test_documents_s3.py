"""The contracts of documents on a real S3 service."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from lost_answers import LostAnswersContract

from locus_store.backends.documents.objects import ObjectDocuments
from locus_store.backends.documents.protocol import StaleTagError

if TYPE_CHECKING:
    from s3_servers import S3Place


class TestS3Documents(LostAnswersContract):
    @pytest.fixture
    def reopen(self, s3_place: S3Place) -> Any:
        return lambda: ObjectDocuments(s3_place.objects(), s3_place.prefix)


def test_a_refused_put_is_no_lost_answer(s3_place: S3Place) -> None:
    objects = s3_place.objects()
    old = objects.put("p/t", b"one", tag=None)
    new = objects.put("p/t", b"two", tag=old)
    for tag in (None, old):
        with pytest.raises(StaleTagError):
            objects.put("p/t", b"three", tag=tag)
    assert objects.put("p/t", b"three", tag=new) != new
