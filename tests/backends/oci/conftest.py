"""The double of OCI's API: one for each test session, a bucket for each test."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from buckets import DoubleBucket
from oci_double import running

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from oci_double import OciDouble


@pytest.fixture(scope="session")
def oci_service() -> Iterator[OciDouble]:
    with running() as double:
        yield double


@pytest.fixture
def bucket(oci_service: OciDouble, tmp_path: Path) -> Iterator[DoubleBucket]:
    made = DoubleBucket(oci_service, tmp_path)
    oci_service.requests.clear()
    oci_service.log.clear()
    yield made
    oci_service.fault = lambda _kind, _name: None
    oci_service.buckets.clear()
