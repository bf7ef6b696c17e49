"""Checks of options that the backends of servers share."""

from __future__ import annotations

from typing import Final

from locus_store.errors import InvalidArgumentError
from locus_store.types.arguments import MAX_COUNT

DAY: Final = 86_400


def require_one(**given: object) -> None:
    """Refuse more than one of several alternative options.

    Raises:
        InvalidArgumentError: Names them.
    """
    names = [name for name, value in given.items() if value is not None]
    if len(names) > 1:
        raise InvalidArgumentError(f"give {' or '.join(names)}, not both")


def refuse_ours(**options: tuple[object, object]) -> None:
    """Refuse options of connections that the caller creates; each with its default.

    Raises:
        InvalidArgumentError: Names those that were given.
    """
    given = [name for name, (value, default) in options.items() if value != default]
    if given:
        raise InvalidArgumentError(
            f"{', '.join(given)}: the connections of an engine or a pool are its owner's; set it "
            "there, or leave the engine or pool out"
        )


def check_seconds(name: str, value: object) -> float | None:
    """Return a time above 0 and at most a day; ``None`` is allowed.

    Raises:
        InvalidArgumentError: It is none.
    """
    if value is None:
        return None
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value <= DAY:
        raise InvalidArgumentError(
            f"{name}_seconds={value!r} must be a number above 0 and at most {DAY}"
        )
    return value


def check_count(name: str, value: object, *, least: int) -> int:
    """Return the option if it is a whole number.

    Raises:
        InvalidArgumentError: It is none, or less than ``least``.
    """
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= MAX_COUNT:
        raise InvalidArgumentError(f"{name}={value!r} must be a whole number of at least {least}")
    return value
