"""Callers: tokens, their rights and tenants, and their rate."""

from __future__ import annotations

import logging
import re
from dataclasses import dataclass
from hmac import compare_digest
from time import monotonic
from typing import TYPE_CHECKING, Final, get_args

from locus_store.errors import (
    BackendError,
    ConnectionFailedError,
    InvalidArgumentError,
    UnsupportedError,
)
from locus_store.service.exchange import RefusalError
from locus_store.service.tokens import TokenFile, hashed
from locus_store.wire.calls import Right

if TYPE_CHECKING:
    from collections.abc import Collection
    from pathlib import Path

    from locus_store.service.tokens import Token

_PORT: Final = re.compile(r":\d*$")

log: Final = logging.getLogger("locus_store.service")

EVERYTHING: Final = frozenset[str](get_args(Right))

LOOPBACK: Final = ("localhost", "127.0.0.1", "[::1]")
"""Names in ``Host`` that mean this machine."""


@dataclass(frozen=True, slots=True)
class Caller:
    """One who asks."""

    name: str
    tenant: str | None
    rights: frozenset[str]

    def require(self, right: Right) -> None:
        """Refuse a caller without a right.

        Raises:
            RefusalError: The caller does not have it.
        """
        if right not in self.rights:
            raise RefusalError(
                403,
                UnsupportedError(
                    f"this caller does not have the right {right!r}; nothing was done"
                ),
            )


class Door:
    """Finds out who asks.

    Args:
        token_file: The tokens; ``None``: anyone may ask.
        read_only: No caller may write.
        requests_per_second: Of each caller; ``None``: any number.
        allowed_hosts: The names in ``Host`` that are answered; ``None``: any.
    """

    def __init__(
        self,
        token_file: str | Path | None,
        *,
        read_only: bool,
        requests_per_second: float | None,
        allowed_hosts: Collection[str] | None = None,
    ) -> None:
        if requests_per_second is not None and not requests_per_second > 0:
            raise InvalidArgumentError(
                f"requests_per_second={requests_per_second!r} must be above 0, or None"
            )
        self._file = None if token_file is None else TokenFile(token_file)
        if self._file is not None:
            self._file.tokens()
        self._granted: frozenset[str] = frozenset({"read"}) if read_only else EVERYTHING
        self._hosts = None if allowed_hosts is None else frozenset(allowed_hosts)
        self._rate = requests_per_second
        self._rates: dict[str, Rate] = {}
        self._failure = ""

    def require_host(self, host: str) -> None:
        """Refuse a request that names another host.

        Without tokens, a web page could reach a service on this machine by a name of its own that
        it lets point here (DNS rebinding). Its requests name that host.

        Raises:
            RefusalError: The host is not allowed.
        """
        if self._hosts is not None and _PORT.sub("", host).lower() not in self._hosts:
            raise RefusalError(
                421,
                ConnectionFailedError(
                    f"this service does not answer for the host {host[:80]!r}: start it with "
                    "--allow-host, or with tokens"
                ),
            )

    def caller(self, authorization: str) -> Caller:
        """Return who sent a header ``Authorization``.

        Raises:
            RefusalError: The token is not valid, or this caller asks too often.
        """
        caller = self._known(authorization)
        self.require_rate(caller)
        return caller

    def require_rate(self, caller: Caller) -> None:
        """Count a request of a caller.

        Raises:
            RefusalError: This caller asks too often.
        """
        if self._rate is not None:
            self._rates.setdefault(caller.name, Rate(self._rate)).require_room()

    def _known(self, authorization: str) -> Caller:
        if self._file is None:
            return Caller("", None, self._granted)
        scheme, _, secret = authorization.partition(" ")
        found = self.matching(secret.strip()) if scheme.lower() == "bearer" else None
        if found is None:
            raise RefusalError(
                401,
                ConnectionFailedError("this service needs a valid token"),
                www_authenticate="Bearer",
            )
        return self._holder(found)

    def holder(self, sha256: str) -> Caller | None:
        """Return the caller whose token has a hash; ``None`` if there is none any more."""
        found = next((it for it in self.tokens() if it.sha256 == sha256), None)
        return None if found is None else self._holder(found)

    def _holder(self, token: Token) -> Caller:
        return Caller(token.name, token.tenant, self._granted & set(token.rights))

    def tokens(self) -> list[Token]:
        """Return the tokens that are valid now; none if the service has no token file.

        Raises:
            RefusalError: The file cannot be read. The log says why, once.
        """
        try:
            found = [] if self._file is None else self._file.tokens()
        except BackendError as exc:
            if self._failure != (failure := f"{exc}: {exc.__cause__}"):
                log.warning("%s", failure)
            self._failure = failure
            told = "the service cannot read its tokens; its log says why"
            raise RefusalError(503, ConnectionFailedError(told)) from exc
        self._failure = ""
        return found

    def matching(self, secret: str) -> Token | None:
        """Return the token of a secret, in a time that does not depend on the secret."""
        wanted, found = hashed(secret), None
        for token in self.tokens():
            if compare_digest(token.sha256, wanted):
                found = token
        return found


class Rate:
    """A bucket of requests that fills up again.

    Args:
        per_second: Requests per second; so many, but at least 1, may come at once.
    """

    def __init__(self, per_second: float) -> None:
        self._per_second = per_second
        self._most = max(per_second, 1.0)
        self._left = self._most
        self._at = monotonic()

    def require_room(self) -> None:
        """Take one.

        Raises:
            RefusalError: There is none; says when there will be.
        """
        now = monotonic()
        self._left = min(self._most, self._left + (now - self._at) * self._per_second)
        self._at = now
        if self._left < 1:
            seconds = (1 - self._left) / self._per_second
            raise RefusalError(
                429,
                ConnectionFailedError("this caller asks too often"),
                retry_after=f"{max(1, round(seconds + 0.5))}",
            )
        self._left -= 1
