"""Errors of boto3 by their codes, and the errors of this library."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from locus_store.backends.documents.protocol import ChangedError
from locus_store.errors import BackendError, ConnectionFailedError

if TYPE_CHECKING:
    from locus_store.backends.s3.access import S3Access

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
    from botocore.exceptions import (  # noqa: PLC0415  (of an extra, and slow to import)
        BotoCoreError,
        ClientError,
    )

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
