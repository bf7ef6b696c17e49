"""Types as schemas of pydantic-core, which validate JSON.

``service/openapi.py`` makes JSON Schemas of them.

Nothing is converted: a number is not taken for a string, nor ``true`` for 1. A name has the same
bounds wherever a field has its name, those of ``types.arguments``.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import datetime
from functools import partial
from types import NoneType, UnionType
from typing import Any, Final, Literal, Union, get_args, get_origin, get_type_hints

from pydantic_core import CoreSchema, SchemaValidator, ValidationError, core_schema

from locus_store.errors import InvalidArgumentError, LocusStoreError
from locus_store.types import ArchivedMessage
from locus_store.types.arguments import (
    MAX_COUNT,
    MAX_ID_CHARACTERS,
    MAX_PATH_CHARACTERS,
    copy_json_object,
)
from locus_store.types.items import Name, Namespace, check_namespace
from locus_store.types.thread_info import MAX_NAME_CHARACTERS, PutThread
from locus_store.values.canonical import canonicalize
from locus_store.values.filters import Filter
from locus_store.wire.records import SentChange

MAX_INT: Final = 2**63 - 1
DIGEST_BYTES: Final = 16

COUNTS: Final = frozenset({"limit", "offset", "keep_last", "position"})
"""Fields that are counts."""

CHARACTERS: Final = {
    **dict.fromkeys(
        (
            *("thread_id", "source_thread_id", "dest_thread_id", "checkpoint_id", "checkpoint_ids"),
            *("message_id", "message_ids", "parent_id", "writer", "run", "user_id", "run_id"),
            *("task_id", "channel", "role", "after", "before", "store", "owner", "turn_key"),
        ),
        (1, MAX_ID_CHARACTERS),
    ),
    **dict.fromkeys(("namespace", "prefix", "pattern", "type"), (0, MAX_ID_CHARACTERS)),
    "name": (0, MAX_NAME_CHARACTERS),
    "task_path": (0, MAX_PATH_CHARACTERS),
}
"""The least and the greatest length of a string by its field."""

FREE: Final = frozenset({"key", "needle", "query", "text", "words"})
"""Strings that may have a NUL."""

NO_NUL: Final = "^[^\\x00]*$"

_LOCALS: Final[dict[str, Any]] = {
    "ArchivedMessage": ArchivedMessage,
    "Change": SentChange,
    "Filter": Filter,
    "Mapping": Mapping,
    "Namespace": Namespace,
    "PutThread": PutThread,
    "Sequence": Sequence,
    "datetime": datetime,
}
"""Names that the modules of the records import for type checkers only."""


class Validator:
    """Validates the value of a head.

    Args:
        schema: Of the value.
        subject: Begins the message of an error.
    """

    def __init__(self, schema: CoreSchema, subject: str = "") -> None:
        self.schema = schema
        self._validator = SchemaValidator(schema)
        self._subject = subject

    def read(self, value: Any, payloads: Any) -> Any:
        """Return the record that a head and its payloads give.

        Raises:
            InvalidArgumentError: They give none.
            LocusStoreError: A rule of ``types`` refuses a field.
        """
        try:
            found = self._validator.validate_python(value, context=payloads)
        except ValidationError as exc:
            raise self._make_refusal(exc) from exc
        if not payloads.are_taken:
            raise InvalidArgumentError(f"{self._subject}a payload belongs to no field")
        return found

    def _make_refusal(self, exc: ValidationError) -> LocusStoreError:
        first = exc.errors(include_url=False, include_input=False)[0]
        cause = first.get("ctx", {}).get("error")
        if isinstance(cause, LocusStoreError):
            return cause
        place = ".".join(map(str, first["loc"])) or "the body"
        said = f"{place}: {first['msg']}".replace(": Input should", " must")
        return InvalidArgumentError(self._subject + said.replace(": String should", " must"))


class Forms:
    """The schemas of types.

    Args:
        is_strict: Refuse unknown fields, and check free JSON as a state is checked; else ignore
            the fields, which a later version may have.
    """

    def __init__(self, *, is_strict: bool) -> None:
        self._is_strict = is_strict
        self._records: dict[type[Any], CoreSchema] = {}

    def build(self, kind: Any, field: str = "") -> CoreSchema:
        """Return the schema of a type, as a field of this name."""
        if kind == Namespace and field in {"namespace", "prefix", "suffix"}:
            return _make_namespace()
        if kind in _SCALARS:
            return _SCALARS[kind](field)
        if kind == Name:
            parts = [_make_namespace(), _make_text("thread_id")]
            return core_schema.tuple_schema(parts, strict=False)
        return self._build_any(field) if kind is Any else self._build_composed(kind, field)

    def _build_composed(self, kind: Any, field: str) -> CoreSchema:
        origin, kinds = get_origin(kind), get_args(kind)
        if origin in {Union, UnionType}:
            [kind] = [it for it in kinds if it is not NoneType]
            return core_schema.nullable_schema(self.build(kind, field))
        if origin is Literal:
            return core_schema.literal_schema([*kinds])
        return self._define(kind) if origin is None else self._build_container(origin, kinds, field)

    def _build_any(self, field: str) -> CoreSchema:
        if not self._is_strict:
            return core_schema.any_schema()
        return _make_checked(lambda it: canonicalize(it, field), {})

    def _build_container(self, origin: Any, kinds: tuple[Any, ...], field: str) -> CoreSchema:
        if origin in {dict, Mapping}:
            _, value = kinds
            if value is Any and self._is_strict:
                return _make_checked(partial(_check_object, field), {"type": "object"})
            return core_schema.dict_schema(core_schema.str_schema(), self.build(value), strict=True)
        if origin is tuple and kinds[-1] is not Ellipsis:
            return core_schema.tuple_schema([self.build(it) for it in kinds], strict=False)
        item = self.build(kinds[0], field)
        if origin is tuple:
            return _make_array(item)
        if origin is Collection:
            return core_schema.set_schema(item, strict=False, fail_fast=True)
        return core_schema.list_schema(item, strict=True, fail_fast=True)

    def _define(self, kind: type[Any]) -> CoreSchema:
        if kind not in self._records:
            hints, needed = get_type_hints(kind, localns=_LOCALS), list_parameters(kind)
            self._records[kind] = self.build_record(
                hints, needed, lambda values: kind(**values), kind.__name__
            )
        return self._records[kind]

    def build_record(
        self,
        hints: Mapping[str, Any],
        needs: Mapping[str, bool],
        build: Callable[[Any], Any],
        name: str | None = None,
    ) -> CoreSchema:
        """Return the schema of an object.

        Args:
            hints: The types of its fields, by name; others are ignored.
            needs: Its fields, and whether each has no default.
            build: Makes the value of a dict of the fields.
            name: Of its JSON Schema; ``None``: it stands where it is used.
        """
        plain = core_schema.typed_dict_schema(
            {
                field: core_schema.typed_dict_field(self.build(hints[field], field), required=need)
                for field, need in needs.items()
            },
            extra_behavior="forbid" if self._is_strict else "ignore",
        )
        return core_schema.no_info_after_validator_function(build, plain, metadata={"name": name})


def list_parameters(call: Callable[..., Any]) -> dict[str, bool]:
    """Return the parameters of a method or of a record, and whether each has no default."""
    found = inspect.signature(call).parameters
    return {name: it.default is it.empty for name, it in found.items() if name != "self"}


def _check_object(field: str, value: object) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise InvalidArgumentError(f"{field} must be an object")
    return copy_json_object(field, value)


def _check_namespace(namespace: Namespace) -> Namespace:
    check_namespace(namespace)
    return namespace


def _make_checked(check: Callable[[Any], Any], json: dict[str, Any]) -> CoreSchema:
    """Return the schema of a value that a function makes, with its JSON Schema."""
    return core_schema.no_info_plain_validator_function(check, metadata={"json": json})


def _make_array(item: CoreSchema) -> CoreSchema:
    """Return the schema of a tuple of any length."""
    return core_schema.tuple_schema([item], variadic_item_index=0, strict=False, fail_fast=True)


def _make_namespace() -> CoreSchema:
    segments = _make_array(_make_text("thread_id"))
    return core_schema.no_info_after_validator_function(_check_namespace, segments)


def _make_text(field: str) -> CoreSchema:
    least, most = CHARACTERS.get(field, (None, None))
    pattern = None if field in FREE else NO_NUL
    return core_schema.str_schema(
        min_length=least or None, max_length=most, pattern=pattern, strict=True
    )


def _make_integer(field: str) -> CoreSchema:
    least, most = (0, MAX_COUNT) if field in COUNTS else (-MAX_INT - 1, MAX_INT)
    return core_schema.int_schema(ge=least, le=most, strict=True)


def _make_payload(field: str) -> CoreSchema:
    check = _take_digest if field.endswith("digest") else _take
    json = {"type": "string", "contentEncoding": "base64"}
    return core_schema.with_info_plain_validator_function(check, metadata={"json": json})


def _take(value: object, info: core_schema.ValidationInfo[Any]) -> bytes:
    payload: bytes = info.context.take(value)
    return payload


def _take_digest(value: object, info: core_schema.ValidationInfo[Any]) -> bytes:
    payload = _take(value, info)
    if len(payload) != DIGEST_BYTES:
        raise ValueError(f"a digest has {DIGEST_BYTES} bytes, not {len(payload)}")
    return payload


def _parse_time(value: object) -> datetime:
    if not isinstance(value, str):
        raise ValueError("a time is a string of RFC 3339")  # noqa: TRY004  (pydantic's)
    found = datetime.fromisoformat(value)
    if found.utcoffset() is None:
        raise ValueError("a time needs its zone")
    return found


def _make_filter(value: object) -> Filter:
    if not isinstance(value, dict):
        raise InvalidArgumentError("a filter is an object")
    return Filter(value)


_SCALARS: Final[dict[Any, Callable[[str], CoreSchema]]] = {
    str: _make_text,
    int: _make_integer,
    float: lambda _: core_schema.float_schema(allow_inf_nan=False, strict=True),
    bool: lambda _: core_schema.bool_schema(strict=True),
    bytes: _make_payload,
    datetime: lambda _: _make_checked(_parse_time, {"type": "string", "format": "date-time"}),
    Filter: lambda _: _make_checked(_make_filter, {"type": "object"}),
    NoneType: lambda _: core_schema.none_schema(),
    None: lambda _: core_schema.none_schema(),
}
