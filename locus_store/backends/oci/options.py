"""The options of OCI Object Storage."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal
from urllib.parse import unquote, urlsplit

from locus_store.errors import InvalidArgumentError
from locus_store.types.options import (
    IN_PYTHON,
    Bounds,
    CheckpointOptions,
    Option,
    Patience,
    Seconds,
    StateOptions,
)

DEFAULT_PREFIX: Final = "locus/checkpoints/"
"""The Locus SDK's default prefix."""

Text = Annotated[str, Bounds(min_length=1)]


class OCIOptions(StateOptions, total=False):
    """Of ``OCIBucketBackend``, beside the bucket and its namespace."""

    compartment_id: Annotated[
        str | None,
        Option(
            None, "the compartment in which a missing bucket is created; `None`: it is an error"
        ),
    ]
    prefix: Annotated[
        str,
        Option(
            DEFAULT_PREFIX, "prefix of the names of all objects; each prefix is a separate store"
        ),
    ]
    profile_name: Annotated[Text, Option("DEFAULT", "the profile in `config_file`")]
    auth_type: Annotated[
        Literal["api_key", "security_token", "instance_principal", "resource_principal"],
        Option("api_key", 'or `"security_token"`, `"instance_principal"`, `"resource_principal"`'),
    ]
    region: Annotated[
        Annotated[str, Bounds(pattern="^[A-Za-z0-9-]+$")] | None,
        Option(None, "a region instead of the profile's, as `us-ashburn-1`"),
    ]
    config_file: Annotated[
        Text, Option("~/.oci/config", "the SDK's configuration file; `~` is expanded")
    ]
    endpoint: Annotated[
        Annotated[str, Bounds(pattern="^https?://[A-Za-z0-9._-]+(:[0-9]+)?/?$")] | None,
        Option(None, "the URL of the service, `https://host`, where it is not the region's"),
    ]
    client: Annotated[
        Any,
        Option(None, "an `ObjectStorageClient` instead of the credentials, left open"),
        IN_PYTHON,
    ]
    pool_size: Annotated[
        Annotated[int, Bounds(ge=1, le=256)],
        Option(16, "calls at once; a call that reads several objects has as many threads again"),
    ]
    retry_seconds: Annotated[
        Patience,
        Option(30.0, "how long a call is retried after 429, 5xx, a timeout or a lost connection"),
    ]
    timeout_seconds: Annotated[Seconds, Option(60.0, "time limit of each answer")]
    connect_timeout_seconds: Annotated[Seconds, Option(10.0, "time limit of each connection")]


class OCICheckpointerOptions(OCIOptions, CheckpointOptions, total=False):
    """Of ``OCIBucketBackend``, beside the place and ``state_type``."""


URL_OPTIONS = OCIOptions


def parse_place(url: str) -> tuple[dict[str, str], str]:
    """Return the bucket in a URL, and its query string; the prefix is there if it has one.

    Raises:
        InvalidArgumentError: The URL names no bucket.
    """
    parts = urlsplit(url)
    bucket, _, prefix = unquote(parts.path).removeprefix("/").partition("/")
    if not parts.netloc or not bucket or parts.fragment:
        raise InvalidArgumentError(
            "an oci:// URL names a bucket: oci://namespace/bucket/prefix, and %23 is #"
        )
    found = {"namespace": parts.netloc, "bucket_name": bucket}
    return {**found, **({"prefix": prefix.rstrip("/") + "/"} if prefix else {})}, parts.query
