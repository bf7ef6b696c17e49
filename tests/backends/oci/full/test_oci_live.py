"""The suites on a real bucket of OCI: ``make test-oci``. Not part of ``make test``.

``LOCUS_TEST_OCI_BUCKET``, ``LOCUS_TEST_OCI_NAMESPACE`` and ``LOCUS_TEST_OCI_PROFILE`` name it. The
objects below ``locus-store-test/`` are removed by each test.
"""

from __future__ import annotations

import os
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from lost_answers import LostAnswersContract
from shelf import ObjectsProbe

from locus_store import oci_bucket_checkpointer
from locus_store.backends.documents.protocol import ChangedError
from locus_store.backends.oci.backend import BucketBackend, BucketDocuments
from locus_store.backends.oci.client import BucketObjects, BucketPlace
from locus_store.backends.oci.options import OCIOptions
from locus_store.testing import CheckpointerContract, StorageBackendContract
from locus_store.types.options import fill_defaults

if TYPE_CHECKING:
    from collections.abc import Iterator

BUCKET = os.environ.get("LOCUS_TEST_OCI_BUCKET", "")
NAMESPACE = os.environ.get("LOCUS_TEST_OCI_NAMESPACE", "")
PROFILE = os.environ.get("LOCUS_TEST_OCI_PROFILE", "DEFAULT")
PREFIX = "locus-store-test/"
RACERS = 8

if not BUCKET:
    pytest.skip("no LOCUS_TEST_OCI_BUCKET: see make test-oci", allow_module_level=True)

PLACE = BucketPlace(namespace=NAMESPACE, bucket=BUCKET)
ACCESS = fill_defaults(OCIOptions, {"profile_name": PROFILE, "prefix": PREFIX}, "access")


@pytest.fixture
def objects() -> Iterator[BucketObjects]:
    made = BucketObjects(PLACE, ACCESS)
    made.discard([it.name for it in made.list(PREFIX)])
    yield made
    made.discard([it.name for it in made.list(PREFIX)])
    made.close()


def test_what_the_documentation_leaves_open(objects: BucketObjects) -> None:
    """Measures and prints; what the library needs is asserted."""
    name, where = PREFIX + "open", (NAMESPACE, BUCKET)
    tag = objects.put(name, b"1", tag=None)
    assert [it.name for it in objects.list(PREFIX)] == [name], "a list is not current after a put"
    with objects._lease_client() as client:
        first = client.list_objects(*where, prefix=name, fields="name,timeCreated,timeModified")
        time.sleep(2)
        tag = objects.put(name, b"2", tag=tag)
        second = client.list_objects(*where, prefix=name, fields="name,timeCreated,timeModified")
    was, now = first.data.objects[0], second.data.objects[0]
    assert now.time_modified > was.time_modified
    print(f"\nan overwrite keeps timeCreated: {now.time_created == was.time_created}")
    statuses: list[int] = []

    def create(n: int) -> int:
        def put(client: Any) -> int:
            answer = client.put_object(*where, f"{PREFIX}race-{n}", b"x", if_none_match="*")
            return int(answer.status)

        return int(objects.call("race", put, statuses=(409, 412)))

    with ThreadPoolExecutor(RACERS) as pool:
        for n in range(20):
            answers = list(pool.map(create, [n] * RACERS))
            assert answers.count(200) == 1, answers
            statuses += answers
    losers = sorted(set(statuses) - {200})
    print(f"racing creators that lose are answered: {losers}")
    assert objects.get(name, known=tag).content is None, "a known object is sent again"
    with pytest.raises(ChangedError):
        objects.put(name, b"3", tag="another")


class TestDocumentsOnOci(LostAnswersContract):
    @pytest.fixture
    def reopen(self, objects: BucketObjects) -> Any:
        return lambda: BucketDocuments(objects, PREFIX)


class TestOci(CheckpointerContract):
    @pytest.fixture
    def reopen(self, objects: BucketObjects) -> Any:
        where = {"bucket_name": BUCKET, "namespace": NAMESPACE, "profile_name": PROFILE}
        make = partial(oci_bucket_checkpointer, **where, prefix=PREFIX)
        return partial(make, state_type=self.state_type)

    @pytest.fixture
    def checkpointer(self, reopen: Any) -> Any:
        return reopen()

    @pytest.fixture
    def storage(self, objects: BucketObjects) -> ObjectsProbe:
        return ObjectsProbe(objects, PREFIX)


class TestOciBackend(StorageBackendContract):
    @pytest.fixture
    def backend(self, objects: BucketObjects) -> BucketBackend:
        return BucketBackend(BUCKET, NAMESPACE, **ACCESS)
