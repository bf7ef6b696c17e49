"""The options of the S3 backend, for type checkers; a test holds them to the signatures."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypedDict

if TYPE_CHECKING:
    from locus_store.backends.s3.access import AddressingStyle


class S3Options(TypedDict, total=False):
    """Of ``S3Backend``, beside ``bucket_name``."""

    prefix: str
    endpoint_url: str | None
    region: str | None
    profile: str | None
    addressing_style: AddressingStyle
    client: Any
    pool_size: int
    max_attempts: int
    timeout_seconds: float
    connect_timeout_seconds: float
    max_state_bytes: int
