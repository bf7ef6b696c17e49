"""The objects of a bucket: five primitives over boto3, whose calls block."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from itertools import islice
from typing import Any, Final
from uuid import uuid4

from locus_store.backends.documents.objects import ListedObject, Objects, compute_content_md5
from locus_store.backends.documents.protocol import ChangedError, Found, Tag
from locus_store.backends.documents.workers import SECOND, BlockingClient
from locus_store.backends.s3.access import (
    MissingError,
    S3Access,
    UnchangedError,
    get_client_errors,
    translate_error,
)
from locus_store.errors import BackendError, IntegrityError, UnsupportedError

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
