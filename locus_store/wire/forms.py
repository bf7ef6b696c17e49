"""Types as validators of JSON and as JSON Schemas.

Nothing is converted: a number is not taken for a string, nor ``true`` for 1. A name has the same
bounds wherever a field has its name, those of ``types.arguments``.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields, is_dataclass
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
    json_object,
)
from locus_store.types.items import Name, Namespace, check_namespace
from locus_store.types.thread_info import MAX_NAME_CHARACTERS, PutThread
from locus_store.values.canonical import canonical
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
            *("task_id", "channel", "role", "after", "before", "store"),
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


@dataclass(frozen=True, slots=True)
class Form:
    """A type as a validator's schema and as a JSON Schema."""

    core: CoreSchema
    json: dict[str, Any]


class Validator:
    """Validates the value of a head.

    Args:
        form: Its form.
        subject: Begins the message of an error.
    """

    def __init__(self, form: Form, subject: str) -> None:
        self._validator = SchemaValidator(form.core)
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
            raise self._refusal(exc) from exc
        if not payloads.are_taken:
            raise InvalidArgumentError(f"{self._subject}: a payload belongs to no field")
        return found

    def _refusal(self, exc: ValidationError) -> LocusStoreError:
        first = exc.errors(include_url=False, include_input=False)[0]
        cause = first.get("ctx", {}).get("error")
        if isinstance(cause, LocusStoreError):
            return cause
        place = ".".join(map(str, first["loc"])) or "the body"
        return InvalidArgumentError(f"{self._subject}: {place}: {first['msg']}")


class Forms:
    """The forms of types.

    Args:
        is_strict: Refuse unknown fields, and check free JSON as a state is checked; else ignore
            the fields, which a later version may have.
    """

    def __init__(self, *, is_strict: bool) -> None:
        self._is_strict = is_strict
        self._records: dict[type[Any], Form] = {}
        self.components: dict[str, Any] = {}
        """The JSON Schemas of records by name."""

    def of(self, kind: Any, field: str = "") -> Form:
        """Return the form of a type, as a field of this name."""
        if kind == Namespace and field in {"namespace", "prefix", "suffix"}:
            return self._namespace()
        if kind in _SCALARS:
            return _SCALARS[kind](field)
        if kind == Name:
            return self._name()
        return self._any(field) if kind is Any else self._composed(kind, field)

    def _composed(self, kind: Any, field: str) -> Form:
        origin, kinds = get_origin(kind), get_args(kind)
        if origin in {Union, UnionType}:
            return self._union(kinds, field)
        if origin is Literal:
            return Form(core_schema.literal_schema([*kinds]), {"enum": [*kinds]})
        return self._named(kind) if origin is None else self._container(origin, kinds, field)

    def _any(self, field: str) -> Form:
        if not self._is_strict:
            return Form(core_schema.any_schema(), {})
        check = partial(_checked_json, field)
        return Form(core_schema.no_info_plain_validator_function(check), {})

    def _union(self, kinds: tuple[Any, ...], field: str) -> Form:
        """Return the form of one type or ``None``."""
        [kind] = [it for it in kinds if it is not NoneType]
        form = self.of(kind, field)
        return Form(
            core_schema.nullable_schema(form.core), {"anyOf": [form.json, {"type": "null"}]}
        )

    def _container(self, origin: Any, kinds: tuple[Any, ...], field: str) -> Form:
        if origin in {dict, Mapping}:
            return self._object(kinds, field)
        if origin is tuple and kinds[-1] is not Ellipsis:
            return self._tuple(kinds)
        item = self.of(kinds[0], field)
        json = {"type": "array", "items": item.json}
        if origin is tuple:
            return Form(
                core_schema.tuple_schema(
                    [item.core], variadic_item_index=0, strict=False, fail_fast=True
                ),
                json,
            )
        if origin is Collection:
            return Form(core_schema.set_schema(item.core, strict=False, fail_fast=True), json)
        return Form(core_schema.list_schema(item.core, strict=True, fail_fast=True), json)

    def _object(self, kinds: tuple[Any, ...], field: str) -> Form:
        _, value = kinds
        if value is Any and self._is_strict:
            check = partial(_checked_object, field)
            return Form(core_schema.no_info_plain_validator_function(check), {"type": "object"})
        form = self.of(value)
        return Form(
            core_schema.dict_schema(core_schema.str_schema(), form.core, strict=True),
            {"type": "object", "additionalProperties": form.json},
        )

    def _tuple(self, kinds: tuple[Any, ...]) -> Form:
        return _fixed([self.of(it) for it in kinds])

    def _namespace(self) -> Form:
        segment = _text("thread_id")
        plain = core_schema.tuple_schema(
            [segment.core], variadic_item_index=0, strict=False, fail_fast=True
        )
        checked = core_schema.no_info_after_validator_function(_checked_namespace, plain)
        return Form(checked, {"type": "array", "items": segment.json})

    def _name(self) -> Form:
        return _fixed([self._namespace(), _text("thread_id")])

    def _named(self, kind: type[Any]) -> Form:
        if kind not in self._records:
            self._records[kind] = self._record(kind)
        return self._records[kind]

    def _record(self, kind: type[Any]) -> Form:
        hints = get_type_hints(kind, localns=_LOCALS)
        needed = _needed(kind)
        form = self.record({name: hints[name] for name in needed}, needed, partial(_built, kind))
        self.components[kind.__name__] = form.json
        return Form(form.core, {"$ref": f"#/components/schemas/{kind.__name__}"})

    def record(
        self, kinds: Mapping[str, Any], needed: Mapping[str, bool], build: Callable[[Any], Any]
    ) -> Form:
        """Return the form of an object.

        Args:
            kinds: The types of its fields.
            needed: The fields that have no default.
            build: Makes the value of a dict of the fields.
        """
        forms = {name: self.of(kind, name) for name, kind in kinds.items()}
        plain = core_schema.typed_dict_schema(
            {
                name: core_schema.typed_dict_field(form.core, required=needed[name])
                for name, form in forms.items()
            },
            extra_behavior="forbid" if self._is_strict else "ignore",
        )
        json: dict[str, Any] = {
            "type": "object",
            "properties": {name: form.json for name, form in forms.items()},
            "required": [name for name in forms if needed[name]],
        }
        if self._is_strict:
            json["additionalProperties"] = False
        return Form(core_schema.no_info_after_validator_function(build, plain), json)


def _fixed(forms: Sequence[Form]) -> Form:
    """Return the form of a tuple. Few tools read ``prefixItems``, so its JSON Schema has none."""
    each = [it.json for it in forms]
    distinct = [it for at, it in enumerate(each) if it not in each[:at]]
    return Form(
        core_schema.tuple_schema([it.core for it in forms], strict=False),
        {
            "type": "array",
            "items": distinct[0] if len(distinct) == 1 else {"anyOf": distinct},
            "minItems": len(each),
            "maxItems": len(each),
        },
    )


def _needed(kind: type[Any]) -> dict[str, bool]:
    """Return the fields of a record, and whether each has no default."""
    if is_dataclass(kind):
        return {
            it.name: it.default is MISSING and it.default_factory is MISSING
            for it in fields(kind)
            if it.init
        }
    return {name: name not in kind._field_defaults for name in kind._fields}


def _built(kind: type[Any], values: dict[str, Any]) -> Any:
    return kind(**values)


def _checked_json(field: str, value: object) -> Any:
    return canonical(value, field)


def _checked_object(field: str, value: object) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise InvalidArgumentError(f"{field} must be an object")
    return json_object(field, value)


def _checked_namespace(namespace: Namespace) -> Namespace:
    check_namespace(namespace)
    return namespace


# --- scalars


def _text(field: str) -> Form:
    least, most = CHARACTERS.get(field, (0, None))
    pattern = None if field in FREE else NO_NUL
    core = core_schema.str_schema(min_length=least, max_length=most, pattern=pattern, strict=True)
    bounds = {"minLength": least, "maxLength": most, "pattern": pattern}
    return Form(core, {"type": "string"} | {name: it for name, it in bounds.items() if it})


def _integer(field: str) -> Form:
    least, most = (0, MAX_COUNT) if field in COUNTS else (-MAX_INT, MAX_INT)
    return Form(
        core_schema.int_schema(ge=least, le=most, strict=True),
        {"type": "integer", "minimum": least, "maximum": most},
    )


def _number(_: str) -> Form:
    return Form(core_schema.float_schema(allow_inf_nan=False, strict=True), {"type": "number"})


def _flag(_: str) -> Form:
    return Form(core_schema.bool_schema(strict=True), {"type": "boolean"})


def _payload(field: str) -> Form:
    check = _taken_digest if field == "digest" else _taken
    return Form(
        core_schema.with_info_plain_validator_function(check),
        {"type": "string", "contentEncoding": "base64"},
    )


def _taken(value: object, info: core_schema.ValidationInfo[Any]) -> bytes:
    payload: bytes = info.context.take(value)
    return payload


def _taken_digest(value: object, info: core_schema.ValidationInfo[Any]) -> bytes:
    payload = _taken(value, info)
    if len(payload) != DIGEST_BYTES:
        raise ValueError(f"a digest has {DIGEST_BYTES} bytes, not {len(payload)}")
    return payload


def _time(_: str) -> Form:
    return Form(
        core_schema.no_info_plain_validator_function(_moment),
        {"type": "string", "format": "date-time"},
    )


def _moment(value: object) -> datetime:
    if not isinstance(value, str):
        raise ValueError("a time is a string of RFC 3339")  # noqa: TRY004  (pydantic's)
    found = datetime.fromisoformat(value)
    if found.utcoffset() is None:
        raise ValueError("a time needs its zone")
    return found


def _filter(_: str) -> Form:
    return Form(core_schema.no_info_plain_validator_function(_made_filter), {"type": "object"})


def _made_filter(value: object) -> Filter:
    if not isinstance(value, dict):
        raise InvalidArgumentError("a filter is an object")
    return Filter(value)


def _nothing(_: str) -> Form:
    return Form(core_schema.none_schema(), {"type": "null"})


_SCALARS: Final[dict[Any, Callable[[str], Form]]] = {
    str: _text,
    int: _integer,
    float: _number,
    bool: _flag,
    bytes: _payload,
    datetime: _time,
    Filter: _filter,
    NoneType: _nothing,
    None: _nothing,
}
