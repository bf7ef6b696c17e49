"""Access to a bucket of an S3 service: its place, and clients of boto3."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from typing import Any, Final, Literal, TypeAlias, get_args

from locus_store.errors import InvalidArgumentError, MissingExtraError, pip_install
from locus_store.types.arguments import check_number

AddressingStyle: TypeAlias = Literal["auto", "virtual", "path"]

POOL_SIZE: Final = 16
MAX_ATTEMPTS: Final = 8
TIMEOUT_SECONDS: Final = 60.0
CONNECT_TIMEOUT_SECONDS: Final = 10.0
_MOST_SECONDS: Final = 86_400.0
_MOST_THREADS: Final = 256
_MOST_ATTEMPTS: Final = 100
_BUCKET: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/-]{1,255}")
"""A name, or the ARN of an access point."""

_ENDPOINT: Final = re.compile(r"https?://[^\s/?#@]+(/[^\s?#]*)?")


@dataclass(frozen=True, slots=True, kw_only=True)
class S3Access:
    """A bucket, the service that has it, and limits of calls."""

    bucket: str
    endpoint_url: str | None = None
    region: str | None = None
    profile: str | None = None
    addressing_style: AddressingStyle = "auto"
    client: Any = None
    pool_size: int = POOL_SIZE
    max_attempts: int = MAX_ATTEMPTS
    timeout_seconds: float = TIMEOUT_SECONDS
    connect_timeout_seconds: float = CONNECT_TIMEOUT_SECONDS

    def __str__(self) -> str:
        at = f" at {self.endpoint_url}" if self.endpoint_url else ""
        return f"s3://{self.bucket}{at}"

    def require(self) -> None:
        """Refuse options that are not valid, before anything is opened.

        Raises:
            InvalidArgumentError: An option is not valid.
            MissingExtraError: boto3 is not installed.
        """
        if self.client is None and find_spec("boto3") is None:
            raise MissingExtraError(f"S3 needs boto3: {pip_install('s3')}")
        if not isinstance(self.bucket, str) or not _BUCKET.fullmatch(self.bucket):
            raise InvalidArgumentError(f"bucket_name={self.bucket!r} must be the name of a bucket")
        if self.bucket.endswith("--x-s3"):
            raise InvalidArgumentError(
                f"bucket_name={self.bucket!r} is a directory bucket, whose lists have no order; "
                "use a general purpose bucket"
            )
        if self.endpoint_url is not None and not (
            isinstance(self.endpoint_url, str) and _ENDPOINT.fullmatch(self.endpoint_url)
        ):
            raise InvalidArgumentError(
                "endpoint_url must have the form https://host, without credentials, or be None"
            )
        if self.addressing_style not in get_args(AddressingStyle):
            known = ", ".join(get_args(AddressingStyle))
            raise InvalidArgumentError(
                f"addressing_style={self.addressing_style!r} must be one of: {known}"
            )
        for name, most in (("pool_size", _MOST_THREADS), ("max_attempts", _MOST_ATTEMPTS)):
            value = getattr(self, name)
            if not isinstance(value, int) or not 1 <= value <= most:
                raise InvalidArgumentError(f"{name}={value!r} must be an integer from 1 to {most}")
        for name in ("timeout_seconds", "connect_timeout_seconds"):
            check_number(name, getattr(self, name), _MOST_SECONDS)

    def make_client(self) -> Any:
        """Return a client of boto3, which finds the credentials by its own rules.

        Raises:
            BotoCoreError: The profile or the region is not valid.
        """
        import boto3  # noqa: PLC0415  (of an extra, and slow to import)
        import botocore.session  # noqa: PLC0415
        from botocore.config import Config  # noqa: PLC0415

        # Not every service reads the checksums that newer clients add.
        config = Config(
            max_pool_connections=2 * self.pool_size,
            connect_timeout=self.connect_timeout_seconds,
            read_timeout=self.timeout_seconds,
            retries={"mode": "standard", "total_max_attempts": self.max_attempts},
            s3={"addressing_style": self.addressing_style},
            request_checksum_calculation="when_required",
            response_checksum_validation="when_required",
        )
        own = botocore.session.get_session()
        own.register_component("data_loader", _loader())
        session = boto3.session.Session(
            botocore_session=own, profile_name=self.profile, region_name=self.region
        )
        return session.client("s3", endpoint_url=self.endpoint_url, config=config)


@cache
def _loader() -> Any:
    """Return the descriptions of the services; to read them takes most of the time of a client."""
    from botocore.loaders import create_loader  # noqa: PLC0415  (of an extra)

    return create_loader()
