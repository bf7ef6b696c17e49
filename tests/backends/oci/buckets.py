"""Buckets of the double, and what is below them."""

from __future__ import annotations

from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Any

from oci_double import NAMESPACE, Bucket, OciDouble
from shelf import ObjectsProbe

from locus_store import oci_bucket_checkpointer
from locus_store.backends.oci.backend import BucketBackend
from locus_store.backends.oci.client import BucketObjects, BucketPlace
from locus_store.backends.oci.options import DEFAULT_PREFIX, OCIOptions
from locus_store.types.options import fill_defaults

if TYPE_CHECKING:
    from pathlib import Path

_numbers = count()


class DoubleBucket:
    """An empty bucket of a double, with the options that open it."""

    def __init__(self, double: OciDouble, directory: Path) -> None:
        self.double = double
        self.name = f"bucket-{next(_numbers)}"
        self.stored = double.buckets[self.name] = Bucket()
        self.config_file = directory / "config"
        key = directory / "key.pem"
        told = {**double.config(), "key_file": str(key)}
        key.write_text(told.pop("key_content"), "ascii")
        lines = [f"{name}={value}" for name, value in told.items()]
        self.config_file.write_text("\n".join(["[DEFAULT]", *lines, ""]), "utf-8")
        self.config_file.chmod(0o600)
        key.chmod(0o600)

    def options(self, **others: Any) -> dict[str, Any]:
        told = {"config_file": str(self.config_file), "endpoint": self.double.url}
        return {"bucket_name": self.name, "namespace": NAMESPACE, **told, **others}

    def checkpointer(self, **options: Any) -> Any:
        return oci_bucket_checkpointer(**self.options(**options))

    def access(self, **options: Any) -> OCIOptions:
        told = {"config_file": str(self.config_file), "endpoint": self.double.url}
        return fill_defaults(OCIOptions, {**told, **options}, "access")

    def place(self) -> BucketPlace:
        return BucketPlace(namespace=NAMESPACE, bucket=self.name)

    def backend(self, prefix: str = DEFAULT_PREFIX, **options: Any) -> BucketBackend:
        return BucketBackend(self.name, NAMESPACE, **{**self.access(**options), "prefix": prefix})

    def objects(self, **options: Any) -> BucketObjects:
        return BucketObjects(self.place(), self.access(**options))

    def probe(self) -> ObjectsProbe:
        return ObjectsProbe(self.objects(), DEFAULT_PREFIX)

    def url(self, prefix: str = "") -> str:
        query = f"config_file={self.config_file}&endpoint={self.double.url}"
        return f"oci://{NAMESPACE}/{self.name}/{prefix}?{query}"

    def reopen(self, state_type: Any) -> Any:
        return partial(self.checkpointer, state_type=state_type)
