"""Options of storages: a ``TypedDict`` for each technology is the one table of its options.

A field has the option's name and type; beside the type stand its default, its bounds and its
meaning. Signatures, checks, query strings and the tables of the documentation come from it.
Pydantic checks the values that are given, and is imported for them only.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Annotated, Any, Final, NamedTuple, TypeVar, cast, get_type_hints
from urllib.parse import parse_qsl

from typing_extensions import TypedDict

from locus_store.errors import InvalidArgumentError
from locus_store.types.arguments import MAX_COUNT, MAX_TTL_SECONDS, did_you_mean
from locus_store.types.records import OnConflict
from locus_store.values.encoding import MAX_STATE_BYTES

if TYPE_CHECKING:
    from pydantic import TypeAdapter, ValidationError

T = TypeVar("T")

DAY: Final = 86_400
IN_PYTHON: Final = "not in a URL"
"""Beside the field of an option whose value is an object."""


class Bounds:
    """Arguments of pydantic's ``Field``, beside a type."""

    def __init__(self, **given: Any) -> None:
        self._given = given

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> Any:
        """Return pydantic's schema of the type with these bounds."""
        field = import_module("pydantic").Field(**self._given)
        return handler.generate_schema(Annotated[source, field])


class Option(NamedTuple):
    """Beside a type: the default and the meaning of an option."""

    default: Any
    description: str
    metadata: tuple[Any, ...] = ()
    """The annotations of its type."""


Seconds = Annotated[float, Bounds(gt=0, le=DAY)]
"""A time limit."""
Patience = Annotated[float, Bounds(ge=0, le=DAY)]
"""A time limit that may be 0."""
Count = Annotated[int, Bounds(ge=1, le=MAX_COUNT)]
"""A number of things, at least one."""


class StateOptions(TypedDict, total=False):
    """Of all backends."""

    max_state_bytes: Annotated[
        Annotated[int, Bounds(ge=1)],
        Option(
            MAX_STATE_BYTES,
            "the largest state that is saved or loaded, as compact JSON: see"
            " [concepts](concepts.md#the-size-of-a-state)",
        ),
    ]


class SavingOptions(TypedDict, total=False):
    """Of checkpointers and savers, beside ``ttl_seconds``."""

    on_conflict: Annotated[
        OnConflict, Option("raise", 'or `"branch"`, `"overwrite"`: what a save does on a conflict')
    ]
    keep_last: Annotated[Count | None, Option(None, "versions to keep per thread")]
    refresh_on_read: Annotated[bool, Option(False, "loads renew the time to live (`ttl_seconds`)")]


class CheckpointOptions(SavingOptions, total=False):
    """Of checkpointers and savers."""

    ttl_seconds: Annotated[
        Annotated[float, Bounds(gt=0, le=MAX_TTL_SECONDS)] | None,
        Option(None, "a thread expires this long after its last save"),
    ]


class EncryptionOptions(TypedDict, total=False):
    """Of the functions that open a URL."""

    encryption: Annotated[
        Any,
        Option(
            None,
            "an `Encryption`, or the name of its file or `env:NAME`: see"
            " [encryption](encryption.md)",
        ),
    ]


URL_EXTRAS: Final = (CheckpointOptions, EncryptionOptions)
"""The options of every URL, beside those of its technology."""


@cache
def read_options(kind: type) -> Mapping[str, Option]:
    """Return the options of a class by their names, in its order."""
    hints = get_type_hints(kind, include_extras=True)
    found = {name: hint.__metadata__ for name, hint in hints.items()}
    return {
        name: next(it for it in given if isinstance(it, Option))._replace(metadata=given)
        for name, given in found.items()
    }


@cache
def _make_adapter(kind: type) -> TypeAdapter[Any]:
    pydantic = import_module("pydantic")
    settings = pydantic.ConfigDict(strict=True, arbitrary_types_allowed=True)
    kind.__pydantic_config__ = settings  # type: ignore[attr-defined]  # pydantic's way
    made: TypeAdapter[Any] = pydantic.TypeAdapter(kind)
    return made


def suggest_option(name: str, names: Iterable[str]) -> str:
    """Return the end of an error for an option that a storage does not have."""
    if name in {"audit", "audit_reads"}:
        return "; SQLite, PostgreSQL and Oracle record calls"
    return did_you_mean(name, names)


def fill_defaults(kind: type[T], options: Mapping[str, object], by: str) -> T:
    """Return options with their defaults.

    Args:
        kind: The class of the options.
        options: Some of them.
        by: The name of the function that takes them.

    Raises:
        InvalidArgumentError: A value is not valid.
        TypeError: There is no such option.
    """
    known = read_options(cast("type", kind))
    for name in options.keys() - known.keys():
        similar = suggest_option(name, {*known, *read_options(CheckpointOptions)} - {name})
        raise TypeError(f"{by}() got an unexpected keyword argument {name!r}{similar}")
    defaults = {name: it.default for name, it in known.items()}
    return cast("T", {**defaults, **_check(cast("type", kind), options)} if options else defaults)


def _check(kind: type, options: Mapping[str, object], *, is_text: bool = False) -> dict[str, Any]:
    """Return the values of options that are given, or of their text."""
    adapter = _make_adapter(kind)
    try:
        if is_text:
            return cast("dict[str, Any]", adapter.validate_strings(options, strict=False))
        return cast("dict[str, Any]", adapter.validate_python(options))
    except import_module("pydantic").ValidationError as exc:
        raise _make_refusal(kind, exc, options, is_text=is_text) from None


def split_options(kind: type, options: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the options of a class, and the others."""
    own = {name: value for name, value in options.items() if name in read_options(kind)}
    return own, {name: value for name, value in options.items() if name not in own}


def read_query(kinds: tuple[type, ...], query: str) -> dict[str, Any]:
    """Return the options in a query string.

    Args:
        kinds: The classes of the options that it may hold.
        query: What follows the ``?`` of a URL.

    Raises:
        InvalidArgumentError: An option is not known, or its value is not valid.
    """
    try:
        listed = parse_qsl(query, keep_blank_values=True, strict_parsing=bool(query))
    except ValueError:
        raise InvalidArgumentError(
            "what follows ? in the URL is not name=value&name=value"
        ) from None
    known = {name: field for kind in kinds for name, field in read_options(kind).items()}
    pairs = dict(listed)
    for name, text in listed:
        if pairs[name] != text:
            raise InvalidArgumentError(f"{name}= is twice in the URL: leave one out")
        if name not in known:
            there = ", ".join(sorted(it for it in known if IN_PYTHON not in known[it].metadata))
            similar = suggest_option(name, known)
            raise InvalidArgumentError(
                f"no option {name!r} for this URL{similar}; known options: {there}"
            )
        if IN_PYTHON in known[name].metadata:
            raise InvalidArgumentError(f"{name}= cannot be in a URL; pass it as an argument")
    found: dict[str, Any] = {}
    for kind in kinds:
        texts = {name: text for name, text in pairs.items() if name in read_options(kind)}
        if texts:
            found |= _check(kind, texts, is_text=True)
    return found


def split_url(url: str, ours: type) -> tuple[str, str]:
    """Return a URL without the options of a class and of checkpoints, and those options."""
    place, _, query = url.partition("?")
    fields = {name: it for kind in (ours, *URL_EXTRAS) for name, it in read_options(kind).items()}
    known = {name for name, it in fields.items() if IN_PYTHON not in it.metadata}
    pairs = query.split("&") if query else []
    own = [it for it in pairs if it.partition("=")[0] in known]
    rest = "&".join(it for it in pairs if it not in own)
    return f"{place}?{rest}" if rest else place, "&".join(own)


def _make_refusal(
    table: type, exc: ValidationError, options: Mapping[str, object], *, is_text: bool
) -> InvalidArgumentError:
    """Return the error for an option; a string may be a secret, unless the option is none."""
    errors = exc.errors(include_url=False)
    name = errors[0]["loc"][0]
    value = options[str(name)]
    kind = errors[0]["type"]
    is_other = kind == "literal_error" or (is_text and not kind.startswith("string_"))
    is_shown = is_other or value is None or isinstance(value, int | float)
    shown = repr(value) if is_shown else type(value).__name__
    message = " or ".join(it["msg"] for it in errors if it["loc"][0] == name)
    if kind == "string_pattern_mismatch":
        message = f"it must be {read_options(table)[str(name)].description}"
    return InvalidArgumentError(f"{name}={shown}: {message.replace('Input should', 'it must')}")
