"""Checks of arguments: the same everywhere, and before anything is written."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from fnmatch import translate
from math import inf, nan
from pathlib import Path
from sys import float_info
from typing import Any, Final, TypeVar, get_args
from urllib.parse import unquote

from locus_store.errors import InvalidArgumentError, SerializationError
from locus_store.types import PendingWrite
from locus_store.values.canonical import canonicalize
from locus_store.values.encoding import MAX_INT
from locus_store.values.surrogates import SURROGATE

T = TypeVar("T")

MAX_ID_CHARACTERS = 255
_MAX_ID_BITS = 4 * MAX_ID_CHARACTERS
"""More than ``MAX_ID_CHARACTERS`` digits have; Python writes numbers of no more than 4,300."""

MAX_TENANT_CHARACTERS = 64
MAX_PATH_CHARACTERS = 100_000
MAX_COUNT = 2**31 - 1
MAX_DAYS = 365_000
"""Nothing is older; more would not fit every database's intervals."""

MAX_TTL_SECONDS = 100 * 366 * 86_400
"""A hundred years."""


def make_absolute(name: str, path: str | os.PathLike[str]) -> str:
    """Return the absolute path of a file or directory of this host.

    Raises:
        InvalidArgumentError: No path, or below a home or working directory that does not exist.
    """
    if not isinstance(path, str | os.PathLike) or not str(path) or "\0" in str(path):
        raise InvalidArgumentError(f"{name} must be a path, not {path!r}")
    try:
        return str(Path(path).expanduser().absolute())
    except (RuntimeError, FileNotFoundError) as exc:
        what = f"{name} {str(path)!r}: there is no such home or working directory"
        raise InvalidArgumentError(what) from exc


def check_text(
    name: str,
    value: T,
    *,
    minimum: int = 1,
    maximum: int = MAX_ID_CHARACTERS,
    optional: bool = False,
) -> T:
    """Return a string, if every backend stores it unchanged.

    ``optional``: ``None`` is valid, too, here and in other checks.

    Raises:
        InvalidArgumentError: Not a ``str``, too short or long, NUL or a lone surrogate in it.
    """
    if not isinstance(value, str):
        if optional and value is None:
            return value
        raise InvalidArgumentError(f"{name} must be a str, not {type(value).__name__}")
    if not minimum <= len(value) <= maximum:
        raise InvalidArgumentError(
            f"{name} must have {minimum} to {maximum} characters, not {len(value)}"
        )
    if not value.isprintable() and ("\0" in value or SURROGATE.search(value)):
        raise InvalidArgumentError(f"{name} {value!r} has a NUL or a lone surrogate in it")
    return value


def check_id(name: str, value: object) -> str:
    """Return an id as text: a string, or the digits of a whole number.

    Raises:
        InvalidArgumentError: It is neither, or not valid; see ``check_text``.
    """
    if type(value) is int and value.bit_length() > _MAX_ID_BITS:
        raise InvalidArgumentError(f"{name} must have at most {MAX_ID_CHARACTERS} digits")
    text = str(value) if type(value) is int else value
    return str(check_text(name, text))


def check_tenant(tenant: object) -> None:
    """Refuse an invalid name of a tenant, as ``check_text`` does."""
    check_text("tenant", tenant, maximum=MAX_TENANT_CHARACTERS)


def check_names(thread_id: object, namespace: object, *checkpoint_ids: object) -> None:
    """Refuse invalid names of a line or version; a checkpoint id may be ``None``."""
    check_text("thread_id", thread_id)
    if namespace != "":
        check_text("namespace", namespace, minimum=0)
    for checkpoint_id in checkpoint_ids:
        check_text("checkpoint_id", checkpoint_id, optional=True)


def check_task(task_id: object, task_path: object) -> None:
    """Refuse an invalid name or path of a task."""
    check_text("task_id", task_id)
    check_text("task_path", task_path, minimum=0, maximum=MAX_PATH_CHARACTERS)


def check_writes(writes: Sequence[PendingWrite]) -> None:
    """Refuse pending writes that no backend could store.

    Raises:
        InvalidArgumentError: A name that is none, a place beyond 31 bits, or no bytes.
    """
    for write in writes:
        check_task(write.task_id, write.task_path)
        check_text("channel", write.channel)
        check_text("type", write.type, minimum=0)
        if type(write.idx) is not int or not -MAX_COUNT <= write.idx <= MAX_COUNT:
            raise InvalidArgumentError(f"idx must be a whole number of 31 bits, not {write.idx!r}")
        if not isinstance(write.payload, bytes):
            kind = type(write.payload).__name__
            raise InvalidArgumentError(f"the payload of a write must be bytes, not {kind}")


def check_limit(
    limit: T,
    name: str = "limit",
    *,
    minimum: int = 0,
    maximum: int = MAX_COUNT,
    optional: bool = False,
) -> T:
    """Return a whole number, if it is in these bounds.

    Raises:
        InvalidArgumentError: It is not an ``int``, or not in the bounds.
    """
    is_whole = isinstance(limit, int) and not isinstance(limit, bool)
    is_left_out = optional and limit is None
    if not (is_left_out or (is_whole and minimum <= limit <= maximum)):  # type: ignore[operator]
        is_long = is_whole and abs(limit) > MAX_INT  # type: ignore[arg-type]
        got = "" if is_long else f", not {limit!r:.80}"
        raise InvalidArgumentError(
            f"{name} must be a whole number from {minimum} to {maximum}{got}"
        )
    return limit


def check_number(
    name: str,
    number: T,
    *,
    minimum: float | None = None,
    maximum: float = float_info.max,
    optional: bool = False,
) -> T:
    """Return a number, if it is in these bounds; ``minimum=None``: above 0.

    Raises:
        InvalidArgumentError: It is neither ``int`` nor ``float``, or not in the bounds.
    """
    is_number = isinstance(number, (int, float)) and not isinstance(number, bool)
    given: Any = number if is_number else nan
    is_enough = given > 0 if minimum is None else given >= minimum
    if not (optional and number is None) and not (is_enough and given <= maximum):
        least = "above 0" if minimum is None else f"of at least {minimum}"
        most = f", at most {maximum}" if maximum < float_info.max else ""
        got = "" if abs(given) > MAX_INT else f", not {number!r:.80}"  # or too long to write
        raise InvalidArgumentError(f"{name} must be a number {least}{most}{got}")
    return number


def check_scan(limit: object, after: object) -> None:
    """Refuse an invalid page: its limit, or the thread that it starts after."""
    check_limit(limit)
    check_text("after", after, optional=True)


def check_time(name: str, value: object) -> None:
    """Refuse a time that is neither ``None`` nor a ``datetime`` with a time zone."""
    if value is not None and (not isinstance(value, datetime) or value.utcoffset() is None):
        raise InvalidArgumentError(f"{name} must be a datetime with a time zone, not {value!r}")


def check_days(days: float) -> float:
    """Refuse an age that is negative or not a number, and limit it to ``MAX_DAYS``."""
    return min(check_number("older_than_days", days, minimum=0, maximum=inf), MAX_DAYS)


def compile_thread_pattern(pattern: str) -> re.Pattern[str]:
    """Return the shell-style pattern of ``list_threads`` as a regular expression."""
    check_text("pattern", pattern, minimum=0)
    return re.compile(translate(pattern))


def check_max_state_bytes(max_state_bytes: int) -> int:
    """Return the option; refuse what is not an ``int`` of at least 1."""
    return check_limit(max_state_bytes, "max_state_bytes", minimum=1, maximum=MAX_INT)


def check_choice(name: str, value: T, choices: object) -> T:
    """Return an argument if it is one of the strings of a ``Literal``; refuse any other."""
    known = get_args(choices)
    if not isinstance(value, str) or value not in known:
        raise InvalidArgumentError(f"{name}={value!r} must be one of {', '.join(known)}")
    return value


def check_keep_last(keep_last: int | None) -> int | None:
    """Return the option; refuse one that is not valid."""
    return check_limit(keep_last, "keep_last", minimum=1, optional=True)


def check_ttl(ttl_seconds: float | None) -> float | None:
    """Return the option; refuse one that is not valid."""
    if ttl_seconds is not None:
        check_number("ttl_seconds", ttl_seconds, maximum=MAX_TTL_SECONDS)
    return ttl_seconds


def check_list(name: str, values: object) -> list[Any]:
    """Return an argument as a list; refuse a string, and what is not iterable."""
    if type(values) is not list and (isinstance(values, str) or not isinstance(values, Iterable)):
        raise InvalidArgumentError(f"{name} must be a list, not {type(values).__name__}")
    return list(values)


def check_pairs(name: str, values: object) -> list[Any]:
    """Return an argument as a list of tuples or lists of two; refuse any other."""
    pairs = check_list(name, values)
    if not all(isinstance(it, tuple | list) and len(it) == 2 for it in pairs):  # noqa: PLR2004
        raise InvalidArgumentError(f"{name} must be a list of pairs")
    return pairs


def check_mapping(name: str, value: Any) -> Mapping[str, Any]:
    """Return an argument that is a mapping; refuse any other."""
    if type(value) is not dict and not isinstance(value, Mapping):
        raise InvalidArgumentError(f"{name} must be a dict, not {type(value).__name__}")
    return value


def copy_json_object(name: str, value: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return a private copy of metadata or labels; ``{}`` for ``None``.

    Raises:
        SerializationError: It is not a JSON object.
    """
    if value is None or (type(value) is dict and not value):
        return {}
    if type(value) is not dict and not isinstance(value, Mapping):
        raise SerializationError(f"{name} must be a JSON object, not {type(value).__name__}")
    return canonicalize(dict(value), name)  # type: ignore[return-value]  # of a dict


KEYWORDS: Final = re.compile(r"\s*\w+\s*=")
"""Matches the start of libpq's ``host=… dbname=…``."""


def check_url(url: str) -> None:
    """Refuse a path, and escapes that are not UTF-8: they would name another file or password."""
    if not set(url) & set("@:?=;") and (Path(url).suffix or "/" in url):
        meant = f"file:{url}" if Path(url).is_dir() else f"sqlite:///{url}"
        raise InvalidArgumentError(f"{url!r} is not a URL; did you mean {meant}?")
    try:
        unquote("" if KEYWORDS.match(url) else url, errors="strict")
    except UnicodeDecodeError:  # it repeats the text, which may hold a password
        raise InvalidArgumentError("%-escapes in the URL are not UTF-8; write %25 for %") from None


def did_you_mean(word: str, choices: Iterable[str]) -> str:
    """Return `` (did you mean 'x'?)`` for the most similar of the known words, or ""."""
    from difflib import get_close_matches  # noqa: PLC0415  (of errors only)

    found = get_close_matches(word, list(choices), 1)
    return f" (did you mean {found[0]!r}?)" if found else ""


def choose_backend(
    backend: Any, kind: type[Any], *place: object, defaults: Sequence[object] = (), **options: Any
) -> Any:
    """Return the backend that a store or a message log is given, or a new one.

    Args:
        backend: The caller's; ``None``: a new one is made of the other arguments.
        kind: The class of the backend.
        place: The first arguments of that class; ``None`` or ``""`` is one that is left out.
        defaults: Further values that stand for arguments that are left out.
        options: Its options; those of these values are left out, too.

    Raises:
        InvalidArgumentError: ``backend`` is of another class, or is given with other arguments.
    """
    if backend is None:
        return kind(*place, **options)
    if not isinstance(backend, kind):
        raise InvalidArgumentError(f"backend must be of class {kind.__name__}, not {backend!r}")
    left_out = [None, "", *defaults]
    if not all(it in left_out for it in (*place, *options.values())):
        raise InvalidArgumentError(
            "give backend= alone: the place and the options are those that it was made with"
        )
    return backend
