"""A bucket of an S3 service: its place and errors, and five primitives over boto3, which block."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache, partial
from importlib.util import find_spec
from itertools import islice
from typing import Any, Final
from uuid import uuid4

from locus_store.backends.documents.objects import ListedObject, Objects, compute_content_md5
from locus_store.backends.documents.protocol import ChangedError, Found, StaleTagError, Tag
from locus_store.backends.documents.workers import SECOND, BlockingClient
from locus_store.backends.s3.options import S3Options
from locus_store.errors import (
    BackendError,
    ConnectionFailedError,
    IntegrityError,
    InvalidArgumentError,
    MissingExtraError,
    UnsupportedError,
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
        answer = getattr(exc, "response", {}).get("ResponseMetadata", {})
        return StaleTagError() if answer.get("RetryAttempts") == 0 else ChangedError()
    if status in {_MISSING, _UNCHANGED}:
        return MissingError() if status == _MISSING else UnchangedError()
    if status is None:
        return ConnectionFailedError(f"{message} cannot be reached: {code}: {exc!s:.300}")
    return BackendError(f"{message} answered HTTP {status}: {code}: {exc!s:.300}")


PAGE: Final = 1000
"""Objects in one deletion."""

_TOKEN_BYTES: Final = 16
_WRONG: Final = {"IfMatch": f'"{0:032x}"'}
"""The tag of no object."""

_conditional_deletions: dict[tuple[str | None, str], bool] = {}
"""By URL and bucket: the service keeps the conditions of deletions."""


class S3Objects(BlockingClient, Objects):
    """The objects of a bucket.

    A tag is a digest of the content, so each content begins with random bytes of its put. An object
    without further content is deleted: a service does not tell a deletion that it did from one of
    an object that another client has deleted, so a deletion is a conditional put first.

    Args:
        access: The bucket.
        prefix: The names of all objects begin with it.
    """

    time_step = SECOND

    def __init__(self, access: S3Access, prefix: str) -> None:
        self.access = access
        self.prefix = prefix
        super().__init__("s3", access.options["pool_size"])

    def _start(self) -> None:
        super()._start()
        self._made: Any = None

    def close(self) -> None:
        """Release threads and connections; later calls open them again."""
        with self._lock:
            made, self._made = self._made, None
        self._workers.close()
        if made is not None:
            made.close()

    @contextmanager
    def _translate_client(self, what: str) -> Iterator[Any]:
        """Yield the client for a call, whose errors are translated."""
        try:
            yield self.access.options["client"] or self._get_client()
        except get_client_errors() as exc:
            raise translate_error(exc, self.access, what) from exc

    def _get_client(self) -> Any:
        with self._lock:
            if self._made is None:
                self._made = self.access.make_client()
            return self._made

    def _follow_answer(self, answer: Any) -> Any:
        """Follow the service's clock; return the answer."""
        self._follow_clock(answer["ResponseMetadata"]["HTTPHeaders"].get("date"))
        return answer

    def get(self, name: str, *, known: Tag | None = None) -> Found | None:
        try:
            found = self._get(name, known)
        except MissingError:
            return None
        except UnchangedError:
            return Found(known, None)
        return found if found.content else None

    def _get(self, name: str, tag: Tag | None = None) -> Found:
        condition = {} if tag is None else {"IfNoneMatch": tag}
        with self._translate_client(f"get {name!r}") as client:
            answer = client.get_object(Bucket=self.access.bucket, Key=name, **condition)
            content = self._follow_answer(answer)["Body"].read()
        if len(content) < _TOKEN_BYTES:
            raise IntegrityError(
                f"{self.locate(name)} has {len(content)} bytes, fewer than any that is written: "
                "restore it from an older version or a backup"
            )
        return Found(answer["ETag"], content[_TOKEN_BYTES:])

    def put(self, name: str, content: bytes, *, tag: Tag | None) -> Tag:
        self.require_conditions()
        if tag is not None:
            return self._put(name, content, IfMatch=tag)
        try:
            return self._put(name, content, IfNoneMatch="*")
        except ChangedError:
            found = self._get(name)
            if found.content:
                raise
            return self._put(name, content, IfMatch=found.tag)

    def _put(self, name: str, content: bytes, **condition: Any) -> str:
        body = uuid4().bytes + content
        checksum = compute_content_md5(body)
        with self._translate_client(f"put {name!r}") as client:
            answer = client.put_object(
                Bucket=self.access.bucket, Key=name, Body=body, ContentMD5=checksum, **condition
            )
        return str(self._follow_answer(answer)["ETag"])

    def store(self, name: str, content: bytes) -> None:
        self._put(name, content)

    def delete(self, name: str, *, tag: Tag) -> None:
        deleted = self._put(name, b"", IfMatch=tag)
        if self.require_conditions():
            with suppress(ChangedError):  # another client has put it again
                self._delete(name, IfMatch=deleted)

    def _delete(self, name: str, **condition: Any) -> None:
        with self._translate_client(f"delete {name!r}") as client:
            client.delete_object(Bucket=self.access.bucket, Key=name, **condition)

    def discard(self, names: Collection[str]) -> None:
        rest, left = iter(names), list[Any]()
        while some := list(islice(rest, PAGE)):
            wanted = {"Objects": [{"Key": it} for it in some], "Quiet": True}
            with self._translate_client(f"delete {len(some)} objects") as client:
                answer = client.delete_objects(Bucket=self.access.bucket, Delete=wanted)
            left += answer.get("Errors", ())
        if left:
            raise BackendError(
                f"{len(left)} of {len(names)} objects were not deleted and stay in {self.access}; "
                f"allow s3:DeleteObject: {left[0].get('Code')}"
            )

    def list(self, prefix: str, after: str = "") -> Iterator[ListedObject]:
        begin = {"StartAfter": after} if after else {}
        while begin is not None:
            with self._translate_client(f"list {prefix!r}") as client:
                page = self._follow_answer(
                    client.list_objects_v2(Bucket=self.access.bucket, Prefix=prefix, **begin)
                )
            for entry in page.get("Contents", ()):
                yield ListedObject(entry["Key"], entry["LastModified"], entry["ETag"])
            if not page["IsTruncated"]:
                return
            begin = {"ContinuationToken": page["NextContinuationToken"]}

    def require_conditions(self) -> bool:
        """Require that the service keeps the conditions of puts; return whether of deletions, too.

        The service is asked once in each process, by an object for it.

        Raises:
            UnsupportedError: The service ignores conditions, so two writers would lose saves.
        """
        place = self.access.options["endpoint_url"], self.access.bucket
        if place not in _conditional_deletions:
            name = f"{self.prefix}v1/conditions-{uuid4().hex}"
            self._put(name, b"x", IfNoneMatch="*")
            are_kept = [
                _is_refused(partial(self._put, name, b"x", **condition))
                for condition in ({"IfNoneMatch": "*"}, _WRONG)
            ]
            deletes = _is_refused(partial(self._delete, name, **_WRONG))
            self.discard([name])
            if not all(are_kept):
                raise UnsupportedError(
                    f"{self.access} ignores the conditions of puts, so two writers would lose "
                    "saves; use a service with conditional writes"
                )
            _conditional_deletions[place] = deletes
        return _conditional_deletions[place]

    def locate(self, name: str) -> str:
        return f"object {name!r} of {self.access}"


def _is_refused(call: Callable[[], object]) -> bool:
    try:
        call()
    except ChangedError:
        return True
    return False
