"""Images in stored content: data URIs of four types, shown on a click, each as its own answer."""

from __future__ import annotations

import re
from base64 import b64decode
from typing import Final

_DATA: Final = re.compile(r"data:(image/(?:png|jpeg|gif|webp));base64,([A-Za-z0-9+/]+={0,2})")


def image_type(address: str) -> str | None:
    """Return the type of an image in an address; ``None`` if the address holds none."""
    found = _DATA.match(address[:80])
    return found[1] if found else None


def image(address: str) -> tuple[str, bytes] | None:
    """Return the type and the bytes of an image in an address; ``None`` if it holds none."""
    found = _DATA.fullmatch(address)
    return (found[1], b64decode(found[2])) if found and len(found[2]) % 4 == 0 else None
