"""A bucket of OCI: its place, credentials and errors, and five primitives, which block."""

from __future__ import annotations

import configparser
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import Any, Final, TypeVar

from locus_store.backends.documents.objects import ListedObject, Objects, compute_content_md5
from locus_store.backends.documents.protocol import ChangedError, Found, StaleTagError, Tag
from locus_store.backends.documents.workers import BlockingClient
from locus_store.backends.oci.options import OCIOptions
from locus_store.errors import (
    BackendError,
    ConnectionFailedError,
    InvalidArgumentError,
    LocusStoreError,
    MissingExtraError,
    make_install_command,
)
from locus_store.runtime import observe
from locus_store.runtime.retries import Pauses, parse_date
from locus_store.types.arguments import make_absolute

UNCHANGED: Final = 304
UNAUTHENTICATED: Final = 401
FORBIDDEN: Final = 403
MISSING: Final = 404
NO_BATCH: Final = frozenset({400, FORBIDDEN, MISSING, 405, 501})
"""The service has no deletion of several objects, or its policies refuse one of them."""

CONFLICTS: Final = frozenset({409, 412})
_GONE: Final = CONFLICTS | {MISSING}
TRANSIENT: Final = frozenset({408, 429, 500, 502, 503, 504})
SKEW: Final = timedelta(minutes=5)
"""The service refuses requests whose clock differs by more."""


def get_status(exc: BaseException) -> int | None:
    """Return the HTTP status of an error; ``None`` if the service did not answer."""
    status = getattr(exc, "status", None)
    return status if isinstance(status, int) else None


def is_transient(exc: BaseException, driver_errors: tuple[type[BaseException], ...]) -> bool:
    """Return whether a later attempt may succeed."""
    status = get_status(exc)
    return isinstance(exc, driver_errors) if status is None else status in TRANSIENT


def get_driver_errors() -> tuple[type[BaseException], ...]:
    """Return the errors of a call that the service did not answer, or not to its end."""
    import oci  # noqa: PLC0415  (of an extra, and slow to import)
    from circuitbreaker import CircuitBreakerError  # noqa: PLC0415  (of the SDK)
    from requests.exceptions import RequestException  # noqa: PLC0415
    from urllib3.exceptions import HTTPError  # noqa: PLC0415

    theirs = oci.exceptions
    of_the_sdk = theirs.RequestException, theirs.ConnectTimeout, CircuitBreakerError
    return (*of_the_sdk, RequestException, HTTPError, OSError)


def translate_error(exc: BaseException, place: object, what: str) -> LocusStoreError:
    """Return the error for a call that failed for good."""
    status = get_status(exc)
    if status is None:
        return ConnectionFailedError(f"{what}: {place} cannot be reached: {_describe_error(exc)}")
    if status == UNAUTHENTICATED:
        return _translate_unauthenticated(exc, place)
    if status in {FORBIDDEN, MISSING}:
        return ConnectionFailedError(
            f"{what}: {place} does not exist, or its policies refuse the call (HTTP {status}); "
            "create the bucket, pass compartment_id= to have it created, or see the policies on "
            "the page about OCI"
        )
    return BackendError(f"{what}: {place} answered HTTP {status}: {_describe_error(exc)}")


def _translate_unauthenticated(exc: BaseException, place: object) -> LocusStoreError:
    at = parse_date((getattr(exc, "headers", None) or {}).get("date"))
    skew = abs(at - datetime.now(UTC)) if at else timedelta(0)
    if skew > SKEW:
        message = (
            f"the clock of this host differs from the service's by {skew.total_seconds():.0f} s"
        )
        return ConnectionFailedError(f"{place} refused the request: {message}; set the clock")
    return ConnectionFailedError(
        f"{place} refused the credentials (HTTP {UNAUTHENTICATED}); a session token has expired "
        "(run `oci session refresh`), or the key is not the user's"
    )


def _describe_error(exc: BaseException) -> str:
    text = str(getattr(exc, "message", None) or exc)
    return f"{type(exc).__name__}: {text:.300}"


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketPlace:
    """A bucket."""

    namespace: str
    bucket: str

    def __str__(self) -> str:
        return f"oci://{self.namespace}/{self.bucket}"


def require(place: BucketPlace, access: OCIOptions) -> None:
    """Refuse options that are not valid, before anything is opened.

    Raises:
        InvalidArgumentError: An option is not valid.
        MissingExtraError: Oracle's SDK is not installed.
    """
    if access["client"] is None and find_spec("oci") is None:
        raise MissingExtraError(
            f"OCI Object Storage needs Oracle's SDK: {make_install_command('oci')}"
        )
    for name, value in (("bucket_name", place.bucket), ("namespace", place.namespace)):
        if not isinstance(value, str) or not value.strip() or "/" in value:
            raise InvalidArgumentError(f"{name}={value!r} must be a name without a slash")
    if access["client"] is not None and not hasattr(access["client"], "base_client"):
        raise InvalidArgumentError("client must be an oci.object_storage.ObjectStorageClient")


def make_factory(access: OCIOptions) -> Callable[[], Any]:
    """Return a function that creates clients; the credentials are read once.

    The clients have neither retries nor a circuit breaker: one open circuit would refuse the calls
    of other clients of the process.

    Raises:
        InvalidArgumentError: The profile or its key cannot be used.
        ConnectionFailedError: The service gives this host no credentials.
    """
    import oci  # noqa: PLC0415  (of an extra, and slow to import)

    try:
        config, signer = _read_credentials(access)
    except oci.exceptions.ServiceError as exc:
        raise ConnectionFailedError(
            f"the credentials for OCI were refused (auth_type={access['auth_type']!r}): HTTP "
            f"{exc.status}; is this host in a dynamic group with a policy?"
        ) from exc
    except (oci.exceptions.ClientError, configparser.Error, OSError, ValueError) as exc:
        raise InvalidArgumentError(
            f"the credentials for OCI cannot be used (auth_type={access['auth_type']!r}, profile "
            f"{access['profile_name']!r} of {access['config_file']}): {exc}"
        ) from exc
    options: dict[str, Any] = {
        "retry_strategy": oci.retry.NoneRetryStrategy(),
        "circuit_breaker_strategy": oci.circuit_breaker.NoCircuitBreakerStrategy(),
        "timeout": (access["connect_timeout_seconds"], access["timeout_seconds"]),
        "enable_strict_url_encoding": True,
    }
    if signer is not None:
        options["signer"] = signer
    if access["endpoint"] is not None:
        options["service_endpoint"] = access["endpoint"]
    return lambda: oci.object_storage.ObjectStorageClient(config, **options)


def _read_credentials(access: OCIOptions) -> tuple[dict[str, Any], Any]:
    """Return the SDK's configuration, and its signer."""
    import oci  # noqa: PLC0415  (of an extra, and slow to import)

    signers, region = oci.auth.signers, access["region"]
    own = {"region": region} if region else {}
    if access["auth_type"] == "instance_principal":
        return own, signers.InstancePrincipalsSecurityTokenSigner()
    if access["auth_type"] == "resource_principal":
        return own, signers.get_resource_principals_signer()
    file = make_absolute("config_file", access["config_file"])
    config: dict[str, Any] = {**oci.config.from_file(file, access["profile_name"]), **own}
    if access["auth_type"] == "security_token":
        return config, _make_token_signer(config)
    return config, oci.signer.Signer.from_config({"key_file": None, **config})


def _make_token_signer(config: dict[str, Any]) -> Any:
    """Return the signer of a session token, as ``oci session authenticate`` writes it."""
    import oci  # noqa: PLC0415  (of an extra, and slow to import)

    file = config.get("security_token_file")
    if not file:
        raise ValueError("the profile has no security_token_file; run `oci session authenticate`")
    if not config.get("key_file"):
        raise ValueError("the profile has no key_file; run `oci session authenticate`")
    token = Path(make_absolute("security_token_file", file)).read_text("utf-8").strip()
    if not token or len(token.split()) > 1:
        raise ValueError(f"{file} contains no token; run `oci session authenticate`")
    key = oci.signer.load_private_key_from_file(config.get("key_file"), config.get("pass_phrase"))
    return oci.auth.signers.SecurityTokenSigner(token, key)


T = TypeVar("T")

PAGE: Final = 1000
"""Objects in one list, and in one deletion."""


class BucketObjects(BlockingClient, Objects):
    """The objects of a bucket.

    Calls run in a bounded pool of threads, and several reads of one call in another one. Each call
    has a client of its own, because a client that is refused a condition replaces its session.

    Args:
        place: The bucket.
        access: Credentials and limits.
    """

    def __init__(self, place: BucketPlace, access: OCIOptions) -> None:
        self.place = place
        self.access = access
        self._bucket = {"namespace_name": place.namespace, "bucket_name": place.bucket}
        super().__init__("oci", access["pool_size"])

    def _start(self) -> None:
        super()._start()
        self._make: Callable[[], Any] | None = None
        self._idle: list[Any] = []

    def __repr__(self) -> str:
        return f"BucketObjects({str(self.place)!r})"

    def close(self) -> None:
        """Release threads and connections; later calls open them again."""
        self._workers.close()
        with self._lock:
            clients, self._idle = self._idle, []
        for client in clients:
            _release(client)

    @contextmanager
    def _lease_client(self) -> Iterator[Any]:
        if self.access["client"] is not None:
            yield self.access["client"]
            return
        with self._lock:
            client = self._idle.pop() if self._idle else None
            self._make = make = self._make or make_factory(self.access)
        client = client or make()
        try:
            yield client
        finally:
            with self._lock:
                # Else the call outlived ``close``, or its credentials.
                is_kept = self._workers.is_open and self._make is make
                if is_kept:
                    self._idle.append(client)
            if not is_kept:
                _release(client)

    def call(
        self,
        what: str,
        work: Callable[[Any], T],
        *,
        statuses: Collection[int] = (),
        refusals: Collection[int] = (),
    ) -> T | int:
        """Return what a call returns, or the status that it failed with if that is in ``statuses``.

        Transient failures are retried for ``retry_seconds``.

        Raises:
            StaleTagError: It failed with a status of ``refusals``.
            ChangedError: So did an attempt after a lost reply, which it may have refused.
            LocusStoreError: The call failed for good.
        """
        errors = get_driver_errors()
        refusal: type[ChangedError] = StaleTagError
        pauses, is_refreshed = Pauses(0.05, 2.0, self.access["retry_seconds"]), False
        while True:
            try:
                with self._lease_client() as client:
                    return work(client)
            except LocusStoreError:
                raise
            except Exception as exc:
                status = get_status(exc)
                self._follow_answer(getattr(exc, "headers", None))
                if status is not None and status in statuses:
                    return status
                if status in refusals:
                    raise refusal from exc
                if status is None and not isinstance(exc, errors):
                    raise
                if status == UNAUTHENTICATED and not is_refreshed and self._forget():
                    is_refreshed = True
                    continue  # a session token may have been refreshed since it was read
                pause = pauses.get_next()
                if pause is None or not is_transient(exc, errors):
                    raise translate_error(exc, self.place, what) from exc
                observe.report_retry(f"{what}: {status or 'no answer'}", exc)
                refusal = ChangedError
                time.sleep(pause)

    def _forget(self) -> bool:
        """Forget the credentials, unless the caller gave a client."""
        with self._lock:
            self._idle, self._make = [], None
        return self.access["client"] is None

    def _follow_answer(self, headers: Any) -> None:
        self._follow_clock((headers or {}).get("date"))

    def get(self, name: str, *, known: Tag | None = None) -> Found | None:
        condition = {} if known is None else {"if_none_match": known}

        def get(client: Any) -> Found:
            answer = client.get_object(**self._bucket, object_name=name, **condition)
            self._follow_answer(answer.headers)
            return Found(answer.headers["etag"], answer.data.content)

        seen = (MISSING, UNCHANGED)
        found = self.call(f"get {name!r}", get, statuses=seen)
        if isinstance(found, int):
            return Found(known, None) if found == UNCHANGED else None
        return found

    def put(self, name: str, content: bytes, *, tag: Tag | None) -> Tag:
        if tag is None:
            return self._put(name, content, CONFLICTS, if_none_match="*")
        return self._put(name, content, _GONE, if_match=tag)

    def _put(
        self, name: str, content: bytes, refusals: Collection[int] = (), **condition: object
    ) -> str:
        """Put an object; create a missing bucket, unless ``refusals`` has that status."""
        options = {"content_md5": compute_content_md5(content), **condition}

        def put(client: Any) -> str:
            answer = client.put_object(
                **self._bucket, object_name=name, put_object_body=content, **options
            )
            self._follow_answer(answer.headers)
            return str(answer.headers["etag"])

        what = f"put {name!r}"
        found = self.call(what, put, refusals=refusals, statuses={MISSING}.difference(refusals))
        if isinstance(found, int):
            self.create_bucket()
            return str(self.call(what, put, refusals=refusals))
        return found

    def store(self, name: str, content: bytes) -> None:
        self._put(name, content)

    def delete(self, name: str, *, tag: Tag) -> None:
        def delete(client: Any) -> None:
            client.delete_object(**self._bucket, object_name=name, if_match=tag)

        self.call(f"delete {name!r}", delete, refusals=_GONE)

    def discard(self, names: Collection[str]) -> None:
        rest, left, count = iter(names), list[LocusStoreError](), 0
        while some := list(islice(rest, PAGE)):
            left += [it for it in self.run_each(self._delete_alone, self._discard(some)) if it]
            count += len(some)
        if left:
            raise BackendError(
                f"{len(left)} of {count} objects were not deleted and stay in {self.place}; allow "
                f"OBJECT_DELETE: {left[0]}"
            ) from left[0]

    def _discard(self, names: list[str]) -> list[str]:
        """Delete objects in one request; return the names of those that may be left."""

        def delete(client: Any) -> list[str]:
            import oci  # noqa: PLC0415  (of an extra, and slow to import)

            models = oci.object_storage.models
            wanted = [models.BatchDeleteObjectIdentifier(object_name=it) for it in names]
            details = models.BatchDeleteObjectsDetails(objects=wanted, is_skip_deleted_result=True)
            answer = client.batch_delete_objects(
                **self._bucket, batch_delete_objects_details=details
            )
            return [it.object_name for it in answer.data.failed or ()]

        found = self.call(f"delete {len(names)} objects", delete, statuses=NO_BATCH)
        return names if isinstance(found, int) else found

    def _delete_alone(self, name: str) -> LocusStoreError | None:
        """Delete an object by a request of its own; return the error if it stays."""

        def delete(client: Any) -> None:
            client.delete_object(**self._bucket, object_name=name)

        def look(client: Any) -> None:
            client.head_object(**self._bucket, object_name=name)

        seen = (MISSING,)
        try:
            if self.call(f"delete {name!r}", delete, statuses=seen) is None:
                return None
            # The service answers 404 also to a deletion that its policies refuse.
            if self.call(f"look at {name!r}", look, statuses=seen) == MISSING:
                return None
        except LocusStoreError as exc:
            return exc
        return BackendError(f"{self.locate(name)}: HTTP {MISSING}, but it exists")

    def list(self, prefix: str, after: str = "") -> Iterator[ListedObject]:
        begin: dict[str, Any] = {"start_after": after} if after else {}
        while True:
            found = self.list_page(prefix, PAGE, **begin)
            for listed in found.objects:
                yield ListedObject(listed.name, listed.time_modified, listed.etag)
            if not found.next_start_with:
                return
            begin = {"start": found.next_start_with}

    def list_page(self, prefix: str, limit: int, **begin: Any) -> Any:
        """Return one page of a list; a missing bucket is created if it may be."""

        def read_page(client: Any) -> Any:
            answer = client.list_objects(
                **self._bucket, prefix=prefix, limit=limit, fields="name,timeModified,etag", **begin
            )
            self._follow_answer(answer.headers)
            return answer.data

        found = self.call(f"list {prefix!r}", read_page, statuses=(MISSING,))
        if isinstance(found, int):
            self.create_bucket()
            found = self.call(f"list {prefix!r}", read_page)
        return found

    def create_bucket(self) -> None:
        """Create the bucket, which another process may have created meanwhile.

        Raises:
            ConnectionFailedError: It does not exist, and there is no ``compartment_id``.
        """

        def create(client: Any) -> None:
            if self.access["compartment_id"] is None:
                client.get_bucket(**self._bucket)  # raises, or it exists by now
                return
            import oci  # noqa: PLC0415  (of an extra, and slow to import)

            details = oci.object_storage.models.CreateBucketDetails(
                name=self.place.bucket,
                compartment_id=self.access["compartment_id"],
                public_access_type="NoPublicAccess",
            )
            client.create_bucket(self.place.namespace, details)

        self.call("open the bucket", create, statuses=CONFLICTS)

    def locate(self, name: str) -> str:
        return f"object {name!r} of {self.place}"


def _release(client: Any) -> None:
    client.base_client.session.close()
