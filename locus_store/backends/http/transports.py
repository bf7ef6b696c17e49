"""The contract of a transport, which sends one request and reads its answer."""

from __future__ import annotations

from base64 import b64encode
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Protocol
from urllib.request import getproxies, proxy_bypass

from locus_store.errors import BackendError, InvalidArgumentError

if TYPE_CHECKING:
    from collections.abc import AsyncIterable, Mapping

TIMEOUT_SECONDS: Final = 30.0
POOL_SIZE: Final = 64
ANSWER_BYTES: Final = 64 * 1024 * 1024
"""The room of an answer beside twice the largest state."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TransportOptions:
    """The options of a transport; see ``HTTPBackend``."""

    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    timeout: float = TIMEOUT_SECONDS
    pool_size: int = POOL_SIZE
    max_answer: int = ANSWER_BYTES
    """The longest body of an answer, decompressed."""


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer, whatever its status."""

    status: int
    headers: Mapping[str, str]
    """Their names are found in any case."""

    body: bytes

    @property
    def is_success(self) -> bool:
        """True for a status from 200 to 299."""
        return 200 <= self.status <= 299  # noqa: PLR2004  (RFC 9110)

    @property
    def media_type(self) -> str:
        """The type of the body."""
        return self.headers.get("content-type", "")


class NoAnswerError(Exception):
    """A request that has no answer.

    Args:
        message: Says why.
        is_unsent: The service cannot have acted on the request.
    """

    def __init__(self, message: str, *, is_unsent: bool) -> None:
        super().__init__(message)
        self.is_unsent = is_unsent


class Transport(Protocol):
    """The connections of one event loop to a service."""

    async def send(self, method: str, path: str, body: bytes, headers: Mapping[str, str]) -> Answer:
        """Send a request once; a redirect is an answer.

        Args:
            method: The method.
            path: Below the base URL, percent-encoded; it is sent as it is.
            body: The body.
            headers: Beside those of the options.

        Raises:
            NoAnswerError: There is no answer.
            BackendError: The answer is too long.
        """

    async def close(self) -> None:
        """Release the connections."""


async def limited(parts: AsyncIterable[bytes], most: int) -> bytes:
    """Return a body that is read part by part.

    Raises:
        BackendError: It is too long; the rest is not read.
    """
    found: list[bytes] = []
    size = 0
    async for part in parts:
        size += len(part)
        if size > most:
            raise BackendError(
                f"the service gave an answer of more than {most:,} bytes; pass a larger "
                "max_state_bytes to read it"
            )
        found.append(part)
    return found[0] if len(found) == 1 else b"".join(found)


def basic(pair: tuple[str, str]) -> str:
    """Return the header of basic authentication for a user and a password.

    Raises:
        InvalidArgumentError: They are no pair of strings.
    """
    if [*map(type, pair)] != [str, str]:
        raise InvalidArgumentError("auth must be a pair (user, password) or an httpx.Auth")
    return f"Basic {b64encode(':'.join(pair).encode()).decode()}"


def proxy_of(scheme: str, host: str, port: int) -> str | None:
    """Return the URL of the proxy that the environment names for a service."""
    if proxy_bypass(f"{host}:{port}"):
        return None
    named = getproxies()
    found = named.get(scheme) or named.get("all")
    return found if not found or "://" in found else f"http://{found}"
