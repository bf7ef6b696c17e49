"""The bounds of a block of calls on how old the answers of replicas may be."""

from __future__ import annotations

from contextlib import contextmanager
from contextvars import ContextVar
from math import inf
from typing import TYPE_CHECKING, NamedTuple

from locus_store.errors import InvalidArgumentError

if TYPE_CHECKING:
    from collections.abc import Iterator


class Position(NamedTuple):
    """A position in the write-ahead log of a cluster."""

    system: int
    timeline: int
    number: int

    def is_comparable(self, other: Position) -> bool:
        """Return whether both are in the same log."""
        return self[:2] == other[:2]

    def to_token(self) -> str:
        """Return the position as a string for other processes."""
        return "-".join(map(str, self))

    @classmethod
    def from_token(cls, token: str) -> Position | None:
        """Return the position in a token; ``None``: of a storage whose reads are current.

        Raises:
            InvalidArgumentError: It is not a token.
        """
        if not token:
            return None
        try:
            system, timeline, number = map(int, token.split("-"))
        except (ValueError, AttributeError):
            raise InvalidArgumentError(
                f"at_least={token!r:.80} is not a token; pass what backend.read_token() returned"
            ) from None
        return cls(system, timeline, number)


class Bounds(NamedTuple):
    """The limits of reads from replicas."""

    seconds: float = inf
    """An answer may be so old; lists of threads and searches then may lack own writes."""

    position: Position | None = None
    """All that was committed before."""

    def raise_position(self, position: Position) -> Position | None:
        """Return the later of the two positions; ``None``: they are in different logs."""
        if self.position is None:
            return position
        return max(self.position, position) if position.is_comparable(self.position) else None


_bounds: ContextVar[Bounds] = ContextVar("locus_store_staleness", default=Bounds())  # noqa: B039  (a tuple)
get_bounds = _bounds.get


@contextmanager
def limit_staleness(
    max_staleness_seconds: float | None = None, *, at_least: str | None = None
) -> Iterator[None]:
    """Limit how old the answers of replicas are in a block; the primary answers otherwise.

    It holds for calls on any object, in this thread or task. Storages whose reads are current, and
    services, ignore it.

    Args:
        max_staleness_seconds: As the option of the same name, which may be lower: lists of threads
            and searches may lack own writes.
        at_least: A token of ``StorageBackend.read_token``, which may come from another process:
            reads see all that was committed before.

    Raises:
        InvalidArgumentError: A value is not valid.
    """
    seconds = inf if max_staleness_seconds is None else max_staleness_seconds
    if isinstance(seconds, bool) or not isinstance(seconds, (int, float)) or not seconds > 0:
        raise InvalidArgumentError(f"max_staleness_seconds={seconds!r} must be above 0")
    token = _bounds.set(Bounds(seconds, Position.from_token(at_least or "")))
    try:
        yield
    finally:
        _bounds.reset(token)
