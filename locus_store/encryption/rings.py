"""Key rings, which wrap data keys: a key management service, or keys of the process."""

from __future__ import annotations

import asyncio
import base64
import json
import math
import os
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final, Protocol

from locus_store.errors import EncryptionError, InvalidArgumentError, require_extra
from locus_store.runtime.forks import make_lock
from locus_store.types.arguments import did_you_mean, make_absolute
from locus_store.values.sealing import KEY_BYTES, decrypt, encrypt, get_cipher

RING_SECONDS: Final = 30.0
"""A key ring has to answer a question within this time."""

REREAD_SECONDS: Final = 1.0
"""A ring that was read from a file is read again at most this often."""

_IV_BYTES: Final = 12
_ENVIRONMENT: Final = "env:"
_FIELDS: Final = ("current", "keys", "data_keys", "clear", "hashed", "required")


def require_cryptography() -> None:
    """Refuse encryption if its library is not installed."""
    with require_extra("encryption needs cryptography", "encryption"):
        get_cipher()


class KeyRing(Protocol):
    """Wraps data keys: a key management service, a file, the environment.

    It is asked when a tenant's keys are first used and when they are refreshed, never for a record.
    A question that takes longer than ``RING_SECONDS`` fails with an ``EncryptionError``, as one
    that raises does.
    """

    async def wrap(self, key: bytes, context: str) -> bytes:
        """Return a data key encrypted with the current key of the ring.

        ``context`` names the tenant and the number of the key, and has to be authenticated with it.
        """

    async def unwrap(self, blob: bytes, context: str) -> bytes:
        """Return the data key of ``wrap``.

        Raises:
            EncryptionError: The ring does not have its key, or it was changed.
        """


class LocalKeyRing:
    """A key ring of keys that this process has.

    A data key is wrapped with AES-256-GCM and a random initialization vector. There are few of
    them, far below the 2**32 that a key may wrap (NIST SP 800-38D, 8.3).

    Args:
        keys: Keys of 32 bytes by their names.
        current: The name of the key that wraps from now on; the others only unwrap.

    Raises:
        InvalidArgumentError: A key has another length, or there is no current one.
        MissingExtraError: ``cryptography`` is not installed.
    """

    reread: Callable[[], LocalKeyRing] | None = None
    """Returns the ring as it is now, before a key wraps and before a data key is refused."""

    def __init__(self, keys: Mapping[str, bytes], current: str) -> None:
        require_cryptography()
        for name, key in keys.items():
            if not name or "\0" in name:
                raise InvalidArgumentError("the name of a key is empty, or has a NUL character")
            if len(key) != KEY_BYTES:
                raise InvalidArgumentError(
                    f"key {name!r} has {len(key)} bytes, not {KEY_BYTES}; make one with: "
                    "openssl rand -base64 32"
                )
        if current not in keys:
            raise InvalidArgumentError(
                f"current={current!r} is not the name of a key{did_you_mean(current, keys)}"
            )
        self._ring = dict(keys), current  # replaced as a whole: other threads use it
        self._reread_at, self._lock = -math.inf, make_lock()
        self._hint = "restart this process if the key is newer than it, or "

    def __repr__(self) -> str:
        keys, current = self._ring
        return f"LocalKeyRing(names={sorted(keys)}, current={current!r})"

    @property
    def current(self) -> str:
        """The name of the key that wraps."""
        return self._ring[1]

    async def wrap(self, key: bytes, context: str) -> bytes:
        self._renew()
        (keys, current), iv = self._ring, os.urandom(_IV_BYTES)
        sealed = encrypt(keys[current], iv, key, context.encode())
        return b"".join((current.encode(), b"\0", iv, sealed))

    async def unwrap(self, blob: bytes, context: str) -> bytes:
        found = self._decrypt(blob, context)
        if found is None:
            self._renew()
            found = self._decrypt(blob, context)
        if found is not None:
            return found
        name = blob.partition(b"\0")[0].decode(errors="replace")
        if name in self._ring[0]:
            raise EncryptionError(
                f"a data key does not open with the key {name!r} of the ring: the key has another "
                "value now, or the data key was changed or moved"
            )
        raise EncryptionError(
            f"a data key is wrapped with the key {name!r}, which the key ring does not have; "
            f"{self._hint}put the key back, and retire it only when `locus-store db keys status` "
            "counts no data key of it"
        )

    def _decrypt(self, blob: bytes, context: str) -> bytes | None:
        name, _, rest = blob.partition(b"\0")
        key = self._ring[0].get(name.decode(errors="replace"))
        return key and decrypt(key, rest[:_IV_BYTES], rest[_IV_BYTES:], context.encode())

    def _renew(self) -> None:
        """Read the ring again; if that fails, keep the former one."""
        with self._lock:
            if self.reread is None or time.monotonic() - self._reread_at < REREAD_SECONDS:
                return
            self._reread_at = time.monotonic()
            try:
                self._ring, self._hint = self.reread()._ring, ""  # noqa: SLF001
            except InvalidArgumentError as exc:
                self._hint = f"the ring was not read again, because {exc}; repair that, or "


async def ask_ring(ring: KeyRing, method: str, data: bytes, context: str) -> Any:
    """Return the answer of the key ring.

    Raises:
        EncryptionError: It failed, or took too long.
    """
    try:
        async with asyncio.timeout(RING_SECONDS) as limit:
            return await getattr(ring, method)(data, context)
    except EncryptionError:
        raise
    except Exception as exc:
        what = f"failed with {type(exc).__name__}"
        if limit.expired():
            what = f"did not answer within {RING_SECONDS:g} s"
        raise EncryptionError(
            f"{method} of the key ring {what}; nothing was sealed or opened with it"
        ) from exc


def read_ring(source: str) -> tuple[LocalKeyRing, dict[str, Any]]:
    """Return the key ring and all fields of ``Encryption.read``; a file is read again."""
    path = None if source.startswith(_ENVIRONMENT) else Path(make_absolute("source", source))
    ring, fields = _read_ring(source, path)
    if path:
        ring.reread = lambda: _read_ring(source, path)[0]
    return ring, fields


def _read_ring(source: str, path: Path | None) -> tuple[LocalKeyRing, dict[str, Any]]:
    text, where = _read_source(source, path)
    try:
        fields = json.loads(text)
        unknown = sorted(fields.keys() - set(_FIELDS))
        decode = partial(base64.b64decode, validate=True)
        keys = {name: decode(it) for name, it in fields["keys"].items()}
        current, _ = str(fields["current"]), fields["data_keys"]
    except (ValueError, LookupError, AttributeError, TypeError):
        raise InvalidArgumentError(
            f"{where} must be a JSON object with keys (names to 32 bytes in base64), current "
            "(a name) and data_keys (a URL)"
        ) from None
    if not isinstance(fields.get("required", True), bool):
        raise InvalidArgumentError(f"{where}: required must be true or false")
    if unknown:
        hint = did_you_mean(unknown[0], _FIELDS)
        raise InvalidArgumentError(f"{where}: no field {unknown[0]!r}{hint}")
    return LocalKeyRing(keys, current), fields


def _read_source(source: str, path: Path | None) -> tuple[str, str]:
    if path is None:
        name = source.removeprefix(_ENVIRONMENT)
        if name not in os.environ:
            raise InvalidArgumentError(f"encryption={source!r}: the environment has no {name}")
        return os.environ[name], f"the environment variable {name}"
    try:
        return path.read_text(encoding="utf-8"), f"the file {source}"
    except (OSError, ValueError) as exc:
        why = exc.strerror if isinstance(exc, OSError) else "it is not UTF-8"
        is_name = "." in source and "{" not in source  # else it may be a key itself
        raise InvalidArgumentError(
            f"encryption={repr(source) if is_name else '…'} cannot be read: {why}; pass the name of"
            " a file, or env:NAME"
        ) from None
