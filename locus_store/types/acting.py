"""The person or program that a block acts for; the audit trail names it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from locus_store.types.arguments import check_text

_actor: ContextVar[str | None] = ContextVar("locus_store_actor", default=None)


def get_actor() -> str | None:
    """Return the name that ``acting_as`` was given; ``None`` outside of its blocks."""
    return _actor.get()


@contextmanager
def acting_as(who: str) -> Iterator[None]:
    """Name the person or program that the calls of a block are made for.

    A storage that was opened with ``audit=`` records the name. Tasks that the block starts have it
    too.

    Args:
        who: 1 to 255 characters: an account, a key's name, never a secret.

    Raises:
        InvalidArgumentError: ``who`` is not such a text.
    """
    check_text("who", who)
    token = _actor.set(who)
    try:
        yield
    finally:
        _actor.reset(token)
