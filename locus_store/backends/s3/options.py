"""The options of S3."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal
from urllib.parse import unquote, urlsplit

from locus_store.errors import InvalidArgumentError
from locus_store.types.options import (
    IN_PYTHON,
    Bounds,
    CheckpointOptions,
    Option,
    Seconds,
    StateOptions,
)

DEFAULT_PREFIX: Final = "locus/"

Text = Annotated[str, Bounds(min_length=1)]


class S3Options(StateOptions, total=False):
    """Of ``S3Backend``, beside the bucket."""

    prefix: Annotated[
        str,
        Option(
            DEFAULT_PREFIX, "prefix of the names of all objects; each prefix is a separate store"
        ),
    ]
    endpoint_url: Annotated[
        Annotated[str, Bounds(pattern=r"^https?://[^\s/?#@]+(/[^\s?#]*)?$")] | None,
        Option(None, "the URL of another service than Amazon's, as `https://host`"),
    ]
    region: Annotated[Text | None, Option(None, "instead of the region of boto3's configuration")]
    profile: Annotated[Text | None, Option(None, "a profile of boto3's configuration")]
    addressing_style: Annotated[
        Literal["auto", "virtual", "path"],
        Option("auto", 'or `"path"`, for services without a host name for each bucket'),
    ]
    client: Annotated[
        Any, Option(None, "a client of boto3 instead of the credentials, left open"), IN_PYTHON
    ]
    pool_size: Annotated[
        Annotated[int, Bounds(ge=1, le=256)],
        Option(16, "calls at once; a call that reads several objects has as many threads again"),
    ]
    max_attempts: Annotated[
        Annotated[int, Bounds(ge=1, le=100)],
        Option(8, "attempts of a call that meets 429, 5xx, a timeout or a lost connection"),
    ]
    timeout_seconds: Annotated[Seconds, Option(60.0, "time limit of each answer")]
    connect_timeout_seconds: Annotated[Seconds, Option(10.0, "time limit of each connection")]


class S3CheckpointerOptions(S3Options, CheckpointOptions, total=False):
    """Of ``s3_checkpointer``, beside the bucket and ``state_type``."""


URL_OPTIONS = S3Options


def parse_place(url: str) -> tuple[dict[str, str], str]:
    """Return the bucket in a URL, and its query string; the prefix is there if it has one.

    Raises:
        InvalidArgumentError: The URL names no bucket.
    """
    parts = urlsplit(url)
    prefix = unquote(parts.path).strip("/")
    if not parts.netloc or parts.fragment:
        raise InvalidArgumentError("an s3:// URL names a bucket: s3://bucket/prefix, and %23 is #")
    found = {"bucket_name": unquote(parts.netloc)}
    return {**found, **({"prefix": f"{prefix}/"} if prefix else {})}, parts.query
