"""Access to a bucket of an S3 service: its place, clients of boto3, and their errors."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from typing import Any, Final

from locus_store.backends.documents.protocol import ChangedError
from locus_store.backends.s3.options import S3Options
from locus_store.errors import (
    BackendError,
    ConnectionFailedError,
    InvalidArgumentError,
    MissingExtraError,
    make_install_command,
)

_BUCKET: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/-]{1,255}")
"""A name, or the ARN of an access point."""

_DIRECTORY: Final = "--x-s3"


@dataclass(frozen=True, slots=True)
class S3Access:
    """A bucket, and the options of its clients."""

    bucket: str
    options: S3Options

    def __str__(self) -> str:
        url = self.options["endpoint_url"]
        return f"s3://{self.bucket}" + (f" at {url}" if url else "")

    def require(self) -> None:
        """Refuse what is not valid, before anything is opened.

        Raises:
            InvalidArgumentError: The bucket's name is not valid.
            MissingExtraError: boto3 is not installed.
        """
        if self.options["client"] is None and find_spec("boto3") is None:
            raise MissingExtraError(f"S3 needs boto3: {make_install_command('s3')}")
        if not isinstance(self.bucket, str) or not _BUCKET.fullmatch(self.bucket):
            raise InvalidArgumentError(f"bucket_name={self.bucket!r} must be the name of a bucket")
        if self.bucket.endswith(_DIRECTORY):
            raise InvalidArgumentError(
                f"bucket_name={self.bucket!r} is a directory bucket, whose lists have no order; "
                "use a general purpose bucket"
            )

    def make_client(self) -> Any:
        """Return a client of boto3, which finds the credentials by its own rules.

        Raises:
            BotoCoreError: The profile or the region is not valid.
        """
        import boto3  # noqa: PLC0415  (of an extra, and slow to import)
        import botocore.session  # noqa: PLC0415
        from botocore.config import Config  # noqa: PLC0415

        given = self.options
        # Not every service reads the checksums that newer clients add.
        config = Config(
            max_pool_connections=2 * given["pool_size"],
            connect_timeout=given["connect_timeout_seconds"],
            read_timeout=given["timeout_seconds"],
            retries={"mode": "standard", "total_max_attempts": given["max_attempts"]},
            s3={"addressing_style": given["addressing_style"]},
            request_checksum_calculation="when_required",
            response_checksum_validation="when_required",
        )
        own = botocore.session.get_session()
        own.register_component("data_loader", _make_loader())
        session = boto3.session.Session(
            botocore_session=own, profile_name=given["profile"], region_name=given["region"]
        )
        return session.client("s3", endpoint_url=given["endpoint_url"], config=config)


@cache
def _make_loader() -> Any:
    """Return the descriptions of the services; to read them takes most of the time of a client."""
    from botocore.loaders import create_loader  # noqa: PLC0415  (of an extra)

    return create_loader()


_MISSING: Final = 404
_UNCHANGED: Final = 304
_REFUSED_CONDITIONS: Final = frozenset({
    "PreconditionFailed", "ConditionalRequestConflict", "OperationAborted", "412", "409",
})  # fmt: skip
_CREDENTIALS: Final = "refused the credentials; renew the session, or look at the key"
_NO_CREDENTIALS: Final = (
    "has no credentials; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or profile="
)
_REGION: Final = "is in another region; set region="
_FORBIDDEN: Final = (
    "does not allow the call; allow s3:ListBucket on the bucket, and s3:GetObject, s3:PutObject "
    "and s3:DeleteObject on its objects"
)
_REMEDIES: Final = {
    "NoSuchBucket": "does not exist; create the bucket, or look at endpoint_url= and region=",
    "RequestTimeTooSkewed": "refused the request because of the clock of this host; set the clock",
    **dict.fromkeys(("AccessDenied", "403"), _FORBIDDEN),
    **dict.fromkeys(("PermanentRedirect", "AuthorizationHeaderMalformed", "301"), _REGION),
    **dict.fromkeys(("InvalidAccessKeyId", "SignatureDoesNotMatch"), _CREDENTIALS),
    **dict.fromkeys(("ExpiredToken", "InvalidToken", "TokenRefreshRequired"), _CREDENTIALS),
    **dict.fromkeys(("NoCredentialsError", "PartialCredentialsError"), _NO_CREDENTIALS),
    **dict.fromkeys(("ProfileNotFound", "CredentialRetrievalError"), _NO_CREDENTIALS),
    **dict.fromkeys(("TokenRetrievalError", "UnauthorizedSSOTokenError"), _NO_CREDENTIALS),
}
"""The service's or the client's code of an error to its remedy."""


class MissingError(ChangedError):
    """There is no such object."""


class UnchangedError(Exception):
    """The object has the tag that is known."""


def get_client_errors() -> tuple[type[BaseException], ...]:
    """Return the errors of a client."""
    from botocore.exceptions import BotoCoreError, ClientError  # noqa: PLC0415  (of an extra, and slow to import)

    return BotoCoreError, ClientError


def get_status(exc: Any) -> int | None:
    """Return the HTTP status of an answer; ``None`` if there was none."""
    answer = getattr(exc, "response", None) or {}
    status: int | None = answer.get("ResponseMetadata", {}).get("HTTPStatusCode")
    return status


def get_code(exc: Any) -> str:
    """Return the service's code of an error, or the name of the client's own error."""
    answer = getattr(exc, "response", None)
    return str(answer["Error"].get("Code")) if answer else type(exc).__name__


def translate_error(exc: BaseException, place: S3Access, what: str) -> Exception:
    """Return the error for a call that failed for good."""
    code, status = get_code(exc), get_status(exc)
    message = f"{what}: {place}"
    if code in _REMEDIES:
        return ConnectionFailedError(f"{message} {_REMEDIES[code]} ({code})")
    if code in _REFUSED_CONDITIONS:
        return ChangedError()
    if status in {_MISSING, _UNCHANGED}:
        return MissingError() if status == _MISSING else UnchangedError()
    if status is None:
        return ConnectionFailedError(f"{message} cannot be reached: {code}: {exc!s:.300}")
    return BackendError(f"{message} answered HTTP {status}: {code}: {exc!s:.300}")
