"""The options of OpenSearch."""

from __future__ import annotations

from typing import Annotated, Any, Literal
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

Language = Literal[
    "arabic", "armenian", "basque", "bengali", "brazilian", "bulgarian", "catalan", "cjk",
    "czech", "danish", "dutch", "english", "estonian", "finnish", "french", "galician", "german",
    "greek", "hindi", "hungarian", "indonesian", "irish", "italian", "latvian", "lithuanian",
    "norwegian", "persian", "portuguese", "romanian", "russian", "sorani", "spanish", "swedish",
    "thai", "turkish",
]  # fmt: skip
"""The analyzers of languages that OpenSearch has without a plugin."""


class OpenSearchOptions(StateOptions, total=False):
    """Of ``OpenSearchBackend``, beside ``hosts``, ``index_name`` and ``use_ssl``."""

    username: Annotated[str | None, Option(None, "with `password`; `None`: no credentials")]
    password: Annotated[str | None, Option(None, "the password of `username`")]
    verify_certs: Annotated[bool, Option(True, "refuse certificates that are not valid")]
    ca_certs: Annotated[
        str | None, Option(None, "a file of certificates to trust; `None`: those of certifi")
    ]
    client: Annotated[
        Any, Option(None, "an `opensearchpy.OpenSearch` instead of `hosts`, left open"), IN_PYTHON
    ]
    language: Annotated[
        Language | None,
        Option(
            None,
            "searches also find other forms of a word in this language, as `german`; it belongs to"
            " the index: see [below](#searches)",
        ),
    ]
    refresh: Annotated[
        Literal["interval", "wait"],
        Option(
            "interval",
            "lists and searches follow a save within the refresh interval of the index; `wait`: a"
            " save returns when they show it",
        ),
    ]
    pool_size: Annotated[
        Annotated[int, Bounds(ge=1, le=256)],
        Option(16, "calls at once; a call that reads several documents has as many threads again"),
    ]
    retry_seconds: Annotated[
        Patience,
        Option(
            30.0,
            "how long a call is retried after 408, 429, 502 to 504, a timeout or a lost connection",
        ),
    ]
    # Less than retry_seconds: a call that one host does not answer asks another one.
    timeout_seconds: Annotated[
        Seconds,
        Option(
            10.0,
            "time limit of each connection and of each answer; then another host is asked, so keep"
            " it below half of `retry_seconds`",
        ),
    ]


class OpenSearchCheckpointerOptions(OpenSearchOptions, CheckpointOptions, total=False):
    """Of ``OpenSearchCheckpointer``, beside the place and ``state_type``."""


URL_OPTIONS = OpenSearchOptions


def parse_place(url: str) -> tuple[dict[str, Any], str]:
    """Return hosts, credentials and index of a URL, and its query string.

    Raises:
        InvalidArgumentError: The URL names no host.
    """
    parts = urlsplit(url)
    credentials, _, hosts = parts.netloc.rpartition("@")
    if not hosts or parts.fragment:
        raise InvalidArgumentError(
            "an opensearch:// URL names a host: opensearch://host:9200/index, and %23 is #"
        )
    is_secure = parts.scheme == "opensearch+https"
    found: dict[str, Any] = {"hosts": hosts.split(","), "use_ssl": is_secure}
    if credentials:
        username, _, password = credentials.partition(":")
        found |= {"username": unquote(username), "password": unquote(password)}
    index = unquote(parts.path).strip("/")
    return {**found, **({"index_name": index} if index else {})}, parts.query
