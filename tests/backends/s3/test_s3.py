"""S3 without a service: options, URLs, and what errors say."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from lazily import TESTS_RUN

from locus_store import (
    BackendError,
    ConnectionFailedError,
    InvalidArgumentError,
    MissingExtraError,
    S3Backend,
    S3MessageLog,
    S3Store,
    open_checkpointer,
    open_message_log,
    open_store,
)
from locus_store.backends.s3 import client

if TYPE_CHECKING:
    from collections.abc import Callable

if TESTS_RUN:
    from botocore.exceptions import (
        ClientError,
        EndpointConnectionError,
        NoCredentialsError,
        ProfileNotFound,
    )

pytestmark = pytest.mark.anyio

URL = "s3://agents/prod?endpoint_url=http://127.0.0.1:9&addressing_style=path&max_attempts=1"


@pytest.mark.parametrize(
    "wrong",
    [
        {"bucket_name": ""}, {"bucket_name": "a b"}, {"bucket_name": None},
        {"bucket_name": "agents--use1-az4--x-s3"}, {"endpoint_url": "db.example.com"},
        {"endpoint_url": "https://key:secret@db.example.com"}, {"addressing_style": "host"},
        {"pool_size": 0}, {"pool_size": 257}, {"pool_size": 1.5}, {"max_attempts": 0},
        {"timeout_seconds": "1"}, {"connect_timeout_seconds": -1}, {"prefix": "a\nb"},
        {"prefix": "x" * 513},
    ],
)  # fmt: skip
def test_an_option_that_makes_no_sense_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgumentError, match=r"^(?!.*secret)"):
        S3Backend(**{"bucket_name": "agents", **wrong})


def test_an_option_of_another_form_is_refused_with_its_meaning() -> None:
    with pytest.raises(
        InvalidArgumentError, match=r"endpoint_url=str: it must be .*`https://host`"
    ):
        S3Backend("agents", endpoint_url="127.0.0.1:9")


def test_without_boto3_the_command_to_install_it_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "find_spec", lambda _: None)
    with pytest.raises(MissingExtraError, match=r"pip install .*s3"):
        S3Backend("agents")


async def test_urls_name_a_bucket_and_a_prefix() -> None:
    opened = open_checkpointer(URL, state_type=dict)
    assert isinstance(opened.backend, S3Backend)
    assert opened.backend.objects.prefix == "prod/"
    assert opened.backend.objects.access.options["max_attempts"] == 1
    assert open_checkpointer("s3://agents").backend.objects.prefix == "locus/"  # type: ignore[attr-defined]
    assert isinstance(open_store(URL + "&keep_last=3", dimension=3), S3Store)
    assert isinstance(open_message_log(URL), S3MessageLog)
    with pytest.raises(InvalidArgumentError, match="names a bucket"):
        open_checkpointer("s3://")


async def test_a_service_that_cannot_be_reached_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_REGION"):
        monkeypatch.setenv(name, "x")
    with pytest.raises(ConnectionFailedError, match=r"s3://agents at http://127\.0\.0\.1:9.*reach"):
        await open_checkpointer(URL, state_type=dict).load("t")


def refused(code: str, status: int) -> Callable[[], Exception]:
    answer = {"Error": {"Code": code}, "ResponseMetadata": {"HTTPStatusCode": status}}
    return lambda: ClientError(answer, "GetObject")  # type: ignore[arg-type]


class Refusing:
    """A double of boto3's client that answers every call with one error."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    def __getattr__(self, name: str) -> Any:
        def call(**_: Any) -> None:
            raise self._error

        return call


@pytest.mark.parametrize(
    ("error", "kind", "remedy"),
    [
        (refused("NoSuchBucket", 404), ConnectionFailedError, "create the bucket"),
        (refused("AccessDenied", 403), ConnectionFailedError, "allow s3:ListBucket"),
        (refused("InvalidAccessKeyId", 403), ConnectionFailedError, "look at the key"),
        (refused("ExpiredToken", 400), ConnectionFailedError, "renew the session"),
        (refused("PermanentRedirect", 301), ConnectionFailedError, "set region="),
        (refused("RequestTimeTooSkewed", 403), ConnectionFailedError, "set the clock"),
        (refused("SlowDown", 503), BackendError, "HTTP 503: SlowDown"),
        (lambda: NoCredentialsError(), ConnectionFailedError, "AWS_ACCESS_KEY_ID"),  # noqa: PLW0108  (imported later)
        (lambda: ProfileNotFound(profile="x"), ConnectionFailedError, "profile="),
        (lambda: EndpointConnectionError(endpoint_url="x"), ConnectionFailedError, "reached"),
    ],
)
async def test_an_error_says_what_to_do(error: Any, kind: Any, remedy: str) -> None:
    backend = S3Backend("agents", client=Refusing(error()))
    with pytest.raises(kind, match=f"(?s)s3://agents.*{remedy}"):
        await backend.load("t")
    await backend.close()


async def test_a_missing_object_is_no_error() -> None:
    backend = S3Backend("agents", client=Refusing(refused("NoSuchKey", 404)()))
    assert await backend.load("t") is None
    await backend.close()
