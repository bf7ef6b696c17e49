"""Entrances: who may see the pages, and the login.

``inspect`` lets its operator in with a code that works once and for a minute. ``serve`` takes the
secret of a token in a form. An application that mounts the inspector decides with a function.
"""

from __future__ import annotations

import hmac
import inspect
import secrets
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from hashlib import sha256
from time import monotonic, time
from typing import Any, Final, NamedTuple, TypeAlias

from locus_store.errors import ConnectionFailedError
from locus_store.service.access import EVERYTHING, Caller, Door
from locus_store.service.exchange import LimitedRequest, RefusalError

Authorize: TypeAlias = Callable[[LimitedRequest], "Caller | Awaitable[Caller | None] | None"]

CODE_SECONDS: Final = 60
_FORWARDED: Final = (b"forwarded", b"x-forwarded-for", b"x-forwarded-host", b"x-real-ip", b"via")


@dataclass(frozen=True, slots=True)
class Viewer:
    """The caller of a page."""

    caller: Caller
    form_token: str
    """Each form carries it."""

    is_operator: bool = False
    """May choose the tenant."""

    has_session: bool = False
    """May end its session."""


class Entrance(ABC):
    """Finds out who asks, and begins sessions."""

    kind = ""
    """The login form: ``token``, ``code``, or none."""

    refusal = ""
    """For programs without a session."""

    def __init__(self, key: bytes | None = None) -> None:
        self.sessions: Final = Sessions(key or secrets.token_bytes(32))

    @abstractmethod
    async def find_viewer(self, request: LimitedRequest) -> Viewer | None:
        """Return who asks; ``None``: the login page is shown."""

    def check_secret(self, secret: str) -> str | None:
        """Return the subject of the session that a secret begins; ``None``: it begins none."""
        return None

    def _find_session(self, request: LimitedRequest) -> Session | None:
        value = request.cookies.get(self.sessions.cookie, "")
        return self.sessions.find(value) if value else None

    def _admit(self, caller: Caller, session: Session, *, is_operator: bool = False) -> Viewer:
        token = self.sessions.make_form_token(session.value)
        return Viewer(caller, token, is_operator=is_operator, has_session=True)


class Codes(Entrance):
    """Lets the person in who started the process."""

    kind = "code"
    refusal = "there is no session; open a new link of locus-store inspect"

    def __init__(self, rights: frozenset[str] = EVERYTHING) -> None:
        super().__init__()
        self._rights = rights
        self._codes: dict[str, float] = {}

    def generate_code(self) -> str:
        """Return a code that works once and for a minute."""
        code = secrets.token_urlsafe(24)
        self._codes[code] = monotonic() + CODE_SECONDS
        return code

    def check_secret(self, secret: str) -> str | None:
        """Return the operator for a valid code, which is used up."""
        for code in list(self._codes):
            if self._codes[code] < monotonic():
                del self._codes[code]
            elif hmac.compare_digest(code.encode(), secret.encode()):
                del self._codes[code]
                return _OPERATOR
        return None

    async def find_viewer(self, request: LimitedRequest) -> Viewer | None:
        """Return the operator, by the cookie."""
        session = self._find_session(request)
        if session is None or session.subject != _OPERATOR:
            return None
        return self._admit(Caller("operator", None, self._rights), session, is_operator=True)


class Tokens(Entrance):
    """Lets the tokens of a service in."""

    kind = "token"
    refusal = "there is no session; log in, or send a valid token: Authorization: Bearer TOKEN"

    def __init__(self, door: Door, key: bytes) -> None:
        super().__init__(key)
        self._door = door

    def check_secret(self, secret: str) -> str | None:
        """Return the hash of a valid secret."""
        token = self._door.find_token(secret.strip())
        return None if token is None else token.sha256

    async def find_viewer(self, request: LimitedRequest) -> Viewer | None:
        """Return the holder of a token, by the cookie or by the header ``Authorization``."""
        if authorization := request.get_header(b"authorization"):
            caller = self._door.identify(authorization)
            return Viewer(caller, self.sessions.make_form_token(caller.name))
        session = self._find_session(request)
        if session is None:
            return None
        found = self._door.find_holder(session.subject)
        return None if found is None else self._admit(found, session)


class Mounted(Entrance):
    """Lets those in whom the surrounding application names; without one, this machine only."""

    def __init__(self, authorize: Authorize | None) -> None:
        super().__init__()
        self._authorize = authorize

    async def find_viewer(self, request: LimitedRequest) -> Viewer | None:
        """Return who asks.

        Raises:
            RefusalError: The request is not from this machine, or the application refuses it.
        """
        found: Any
        if self._authorize is None:
            found = self._find_local(request)
            reason = "without authorize=, only requests from this machine that no proxy passed on"
            reason += " are answered"
        else:
            found = self._authorize(request)
            reason = "the application refused this request: its authorize() returned None"
        if inspect.isawaitable(found):
            found = await found
        if found is None:
            raise RefusalError(403, ConnectionFailedError(reason))
        return Viewer(found, self.sessions.make_form_token(f"{found.name}:{found.tenant}"))

    @staticmethod
    def _find_local(request: LimitedRequest) -> Caller | None:
        client = request.client.host if request.client else ""
        is_near = client in {"127.0.0.1", "::1"}
        is_proxied = any(map(request.get_header, _FORWARDED))
        return Caller("", None, EVERYTHING) if is_near and not is_proxied else None


def require_same_origin(request: LimitedRequest) -> None:
    """Refuse a request that a page of another site sends.

    Raises:
        RefusalError: Neither ``Sec-Fetch-Site`` nor ``Origin`` says that it is a page of ours.
    """
    site = request.get_header(b"sec-fetch-site")
    origin = request.get_header(b"origin").partition("://")[2]
    if site == "same-origin" if site else origin and origin == request.get_header(b"host"):
        return
    raise RefusalError(403, ConnectionFailedError("this request does not come from a page of ours"))


def require_form_token(viewer: Viewer, token: str) -> None:
    """Refuse a form that does not carry the token of this session."""
    if not hmac.compare_digest(viewer.form_token.encode(), token.encode()):
        message = "this form is of another session; load the page again"
        raise RefusalError(403, ConnectionFailedError(message))


SESSION_SECONDS: Final = 12 * 3600


class Session(NamedTuple):
    """A session that is valid."""

    subject: str
    """``_OPERATOR``, or the hash of a token."""

    value: str
    """The cookie's value."""


_OPERATOR: Final = "operator"


class Sessions:
    """Signs and reads the cookies of sessions.

    Args:
        key: The secret key of this service.
    """

    def __init__(self, key: bytes) -> None:
        self._key = key
        self.cookie: Final = f"locus_inspector_{sha256(key).hexdigest()[:8]}"
        """Cookies do not know ports: each service on a machine has a name of its own."""

    def begin(self, subject: str) -> str:
        """Return the cookie's value of a new session."""
        body = f"{int(time()) + SESSION_SECONDS}.{secrets.token_hex(16)}.{subject}"
        return f"{body}.{self._sign('session', body)}"

    def find(self, value: str) -> Session | None:
        """Return the session of a cookie's value; ``None`` if it is not valid any more."""
        body, _, signature = value.rpartition(".")
        if not hmac.compare_digest(self._sign("session", body).encode(), signature.encode()):
            return None
        expires, _, subject = body.split(".", 2)
        return Session(subject, value) if int(expires) > time() else None

    def make_form_token(self, identity: str) -> str:
        """Return the token that the forms of a session carry."""
        return self._sign("form", identity)

    def _sign(self, purpose: str, text: str) -> str:
        return hmac.new(self._key, f"{purpose}:{text}".encode(), sha256).hexdigest()
