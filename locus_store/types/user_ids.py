"""Types of users' ids: text, or numbers of 32 or 64 bits."""

from __future__ import annotations

from typing import Final, Literal, get_args

from locus_store.errors import InvalidArgumentError
from locus_store.types.arguments import check_text

UserIdType = Literal["string", "int", "bigint"]

_BITS: Final = {"int": 31, "bigint": 63}
_MOST_DIGITS: Final = 20


def checked_user_id_type(name: object) -> UserIdType:
    """Return the option if it is valid.

    Raises:
        InvalidArgumentError: It is not.
    """
    if name not in get_args(UserIdType):
        raise InvalidArgumentError(
            f"user_id_type={name!r} must be one of {', '.join(get_args(UserIdType))}"
        )
    return name  # type: ignore[return-value]


def is_user_id(text: str, users: UserIdType) -> bool:
    """Return whether a column of the type holds the id, and gives back the same text."""
    if users == "string":
        return True
    return _is_number(text) and str(int(text)) == text and _fits(int(text), users)


def require_user_id(text: str | None, users: UserIdType) -> None:
    """Refuse an id that the column for users' ids cannot hold.

    Raises:
        InvalidArgumentError: It is not such a number.
    """
    if text is not None and not is_user_id(text, users):
        raise InvalidArgumentError(
            f"user_id {text!r:.80} is not a number of the type {users}, which is the type of the "
            "database's users; nothing was written"
        )


def user_name(user_id: object, users: UserIdType) -> str | None:
    """Return a user's id as text.

    Raises:
        InvalidArgumentError: It is not of the type.
    """
    if user_id is None:
        return None
    if users == "string":
        check_text("user_id", user_id)
        return str(user_id)
    number = int(user_id) if isinstance(user_id, str) and _is_number(user_id) else user_id
    if type(number) is not int:
        raise InvalidArgumentError(f"user_id must be of the type {users}, not {user_id!r:.80}")
    if not _fits(number, users):  # too long to write, perhaps
        raise InvalidArgumentError(
            f"user_id must be a number of the type {users}, not a larger one"
        )
    return str(number)


def user_of(text: str | None, users: UserIdType) -> str | int | None:
    """Return an id of ``user_name`` as the caller's type."""
    if text is None or users == "string" or not _is_number(text):
        return text
    return int(text)


def _fits(number: int, users: UserIdType) -> bool:
    return bool(-(2 ** _BITS[users]) <= number < 2 ** _BITS[users])


def _is_number(text: str) -> bool:
    digits = text.removeprefix("-")
    return digits.isascii() and digits.isdecimal() and len(digits) <= _MOST_DIGITS
