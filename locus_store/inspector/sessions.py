"""Sessions of a browser: a signed cookie, and the tokens of its forms.

Nothing is stored: the workers of a service share the key.
"""

from __future__ import annotations

import hmac
import secrets
from hashlib import sha256
from time import time
from typing import Final, NamedTuple

SESSION_SECONDS: Final = 12 * 3600
_PARTS: Final = 4


class Session(NamedTuple):
    """A session that is valid."""

    subject: str
    """``OPERATOR``, or the hash of a token."""

    value: str
    """The cookie's value."""


OPERATOR: Final = "operator"


class Sessions:
    """Signs and reads the cookies of sessions.

    Args:
        key: The secret key of this service.
    """

    def __init__(self, key: bytes) -> None:
        self._key = key
        self.cookie: Final = f"locus_inspector_{sha256(key).hexdigest()[:8]}"
        """Cookies do not know ports: each service on a machine has a name of its own."""

    def begun(self, subject: str) -> str:
        """Return the cookie's value of a new session."""
        body = f"{int(time()) + SESSION_SECONDS}.{secrets.token_hex(16)}.{subject}"
        return f"{body}.{self._signed('session', body)}"

    def found(self, value: str) -> Session | None:
        """Return the session of a cookie's value; ``None`` if it is not valid any more."""
        body, _, signature = value.rpartition(".")
        if not hmac.compare_digest(self._signed("session", body).encode(), signature.encode()):
            return None
        expires, _, subject = body.split(".", _PARTS - 2)
        return Session(subject, value) if int(expires) > time() else None

    def form_token(self, identity: str) -> str:
        """Return the token that the forms of a session carry."""
        return self._signed("form", identity)

    def _signed(self, purpose: str, text: str) -> str:
        return hmac.new(self._key, f"{purpose}:{text}".encode(), sha256).hexdigest()
