"""Every call's arguments and answer survive the wire, and invalid bodies are refused."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import fields, is_dataclass
from datetime import UTC, datetime
from functools import cache, partial
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import pytest
from hypothesis import strategies as st
from properties import given, reject, settings

from locus_store import ConflictError, InvalidArgumentError, LocusStoreError
from locus_store.errors import BackendError, ConnectionFailedError
from locus_store.types.items import Name, Namespace
from locus_store.values.filters import Filter
from locus_store.versions.sizes import BADGES, KINDS, StatusesWanted
from locus_store.wire import bodies, failures
from locus_store.wire.calls import CALLS, WireCall
from locus_store.wire.forms import _LOCALS, CHARACTERS, COUNTS
from locus_store.wire.records import SentChange, StateNeededError

BY_ID = {it.path: it for it in CALLS}
LETTERS = st.characters(codec="utf-8", exclude_characters="\0")
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.text(LETTERS, max_size=5)
    | st.floats(allow_nan=False, allow_infinity=False),
    lambda below: (
        st.lists(below, max_size=3) | st.dictionaries(st.text(LETTERS), below, max_size=3)
    ),
    max_leaves=3,
)  # fmt: skip
NAMED: dict[Any, Any] = {StatusesWanted: {"kind": KINDS, "badge": BADGES}}
"""The names of which fields hold one."""

OBJECTS = st.dictionaries(st.text(LETTERS, max_size=5), JSON, max_size=3)
NAMESPACES = st.lists(st.text(LETTERS, min_size=1, max_size=5), max_size=3).map(tuple)
TIMES = st.integers(0, 2**41).map(lambda it: datetime.fromtimestamp(it / 1000, UTC))


def values(kind: Any, field: str = "") -> st.SearchStrategy[Any]:
    """Values of a type, of which some are at its bounds."""
    if kind == Namespace and field in {"namespace", "prefix", "suffix"}:
        return NAMESPACES
    if kind == Name:
        return st.tuples(NAMESPACES, st.text(LETTERS, min_size=1, max_size=9))
    origin, inner = get_origin(kind), get_args(kind)
    if origin is None:
        return _plain(kind, field)
    if origin in {Union, UnionType}:
        return st.one_of(*(values(it, field) for it in inner))
    return st.sampled_from(inner) if origin is Literal else _many(origin, inner, field)


def _many(origin: Any, inner: tuple[Any, ...], field: str) -> st.SearchStrategy[Any]:
    if origin in {dict, Mapping}:
        return OBJECTS if inner[1] is Any else st.dictionaries(values(inner[0]), values(inner[1]))
    if origin is tuple and inner[-1] is not Ellipsis:
        return st.tuples(*map(values, inner))
    if origin is Collection:
        return st.frozensets(values(inner[0], field), max_size=3)
    lists = st.lists(values(inner[0], field), max_size=3)
    return lists.map(tuple) if origin is tuple else lists


def _plain(kind: Any, field: str) -> st.SearchStrategy[Any]:
    least, most = CHARACTERS.get(field, (0, 9))
    scalars: dict[Any, Any] = {
        Any: JSON,
        str: st.text(LETTERS, min_size=least, max_size=min(most, 20)),
        int: st.integers(0, 2**31 - 1) if field in COUNTS else st.integers(-(2**63) + 1, 2**63 - 1),
        float: st.floats(allow_nan=False, allow_infinity=False),
        bool: st.booleans(),
        bytes: st.binary(min_size=16, max_size=16)
        if field.endswith("digest")
        else st.binary(max_size=40),
        datetime: TIMES,
        Filter: OBJECTS.map(lambda it: Filter({"a": {"$eq": it}, "b": {"$gt": float("inf")}})),
        NoneType: st.none(),
    }
    return scalars[kind] if kind in scalars else _records(kind)


@cache
def _records(kind: Any) -> st.SearchStrategy[Any]:
    hints = get_type_hints(kind, localns=_LOCALS)
    names = [it.name for it in fields(kind) if it.init] if is_dataclass(kind) else kind._fields
    named = {it: st.sampled_from([None, *known]) for it, known in NAMED.get(kind, {}).items()}
    each = st.fixed_dictionaries({it: values(hints[it], it) for it in names} | named)
    return each.map(partial(_made, kind))


def _made(kind: Any, given: dict[str, Any]) -> Any:
    try:
        return kind(**given)
    except InvalidArgumentError:  # of criteria, which check themselves
        reject()


def same(one: Any, other: Any) -> bool:
    """Return whether two values are equal; filters are compared by their conditions."""
    return repr(_shown(one)) == repr(_shown(other))


def _shown(value: Any) -> Any:
    if isinstance(value, Filter):
        return value.clauses
    if isinstance(value, frozenset | set):
        return sorted(map(repr, value))
    if isinstance(value, Mapping):
        return sorted((key, repr(_shown(it))) for key, it in value.items())
    if is_dataclass(value):
        return type(value), [_shown(getattr(value, it.name)) for it in fields(value) if it.init]
    if isinstance(value, list | tuple):
        return type(value), [_shown(it) for it in value]
    return value


@pytest.mark.parametrize("path", BY_ID)
@given(data=st.data())
@settings(max_examples=5, deadline=None)
def test_arguments_come_back_framed_and_as_json(path: str, data: Any) -> None:
    call = BY_ID[path]
    arguments = data.draw(
        st.fixed_dictionaries({it: values(call._types[it], it) for it in call.parameters})
    )
    for body, kind in (bodies.encode_body(arguments), (bodies.encode_json(arguments), bodies.JSON)):
        assert same(call.arguments.read(*bodies.decode_body(body, kind)), arguments)


@pytest.mark.parametrize("path", BY_ID)
@given(data=st.data())
@settings(max_examples=5, deadline=None)
def test_an_answer_comes_back_framed_and_as_json(path: str, data: Any) -> None:
    call = BY_ID[path]
    answer = data.draw(values(call._types["return"]))
    for body, kind in (bodies.encode_body(answer), (bodies.encode_json(answer), bodies.JSON)):
        assert same(call.answer.read(*bodies.decode_body(body, kind)), answer)


def test_each_path_is_one_call() -> None:
    assert len(BY_ID) == len(CALLS) == len({(it.part, it.name) for it in CALLS})


# --- bodies that are not valid

FETCH = BY_ID["/v1/fetch"]
WRITES = BY_ID["/v1/store_writes"]
MARK = {"store": "s", "line": 1, "sequence": 1, "digest": 0}


@given(st.binary(max_size=60))
def test_any_bytes_are_a_body_or_refused(body: bytes) -> None:
    for kind in (bodies.JSON, bodies.FRAMED, "text/plain", ""):
        try:
            value, payloads = bodies.decode_body(body, kind)
            FETCH.arguments.read(value, payloads)
        except InvalidArgumentError:
            pass


def test_a_body_that_is_cut_off_is_refused() -> None:
    body, kind = bodies.encode_body({"a": b"12345", "b": b"6"})
    assert kind == bodies.FRAMED
    for end in range(len(body)):
        with pytest.raises(ValueError, match=r"cut off|no such payload"):
            both(body[:end], kind)
    assert both(body, kind) == (b"12345", b"6")


def both(body: bytes, kind: str) -> tuple[bytes, bytes]:
    value, payloads = bodies.decode_body(body, kind)
    return payloads.take(value["a"]), payloads.take(value["b"])


@pytest.mark.parametrize(
    "wrong",
    [
        {},
        [],
        None,
        {"thread_id": 7},
        {"thread_id": ""},
        {"thread_id": "a\0"},
        {"thread_id": "t" * 256},
        {"thread_id": "t", "namespace": None},
        {"thread_id": "t", "with_writes": 1},
        {"thread_id": "t", "with_writes": "true"},
        {"thread_id": "t", "unknown": 1},
        {"thread_id": ["t"]},
    ],
)
def test_wrong_arguments_are_refused(wrong: Any) -> None:
    named = r"^(thread_id|namespace|with_writes|unknown|the body)\b"
    with pytest.raises(InvalidArgumentError, match=named):
        FETCH.arguments.read(wrong, bodies.Payloads([]))


def test_a_refusal_names_the_argument_and_no_call() -> None:
    recent = next(it for it in CALLS if it.name == "recent")
    for limit, said in ((-1, "greater than or equal to 0"), ("5", "a valid integer")):
        with pytest.raises(InvalidArgumentError, match=f"^limit must be {said}$"):
            recent.arguments.read({"limit": limit}, bodies.Payloads([]))


@pytest.mark.parametrize(
    ("places", "payloads"),
    [([0], []), ([-1], [b"a"]), ([True], [b"a"]), ([0, 0], [b"a"]), ([], [b"a"]), ([1.0], [b"a"])],
)
def test_each_payload_stands_in_one_place(places: list[Any], payloads: list[bytes]) -> None:
    writes = [
        {"task_id": f"{at}", "idx": 0, "channel": "c", "type": "t", "payload": place}
        for at, place in enumerate(places)
    ]
    head = {"put": {"thread_id": "t", "checkpoint_id": "v", "writes": writes}}
    with pytest.raises(InvalidArgumentError):
        WRITES.arguments.read(head, bodies.Payloads(payloads))


def test_a_number_in_an_object_of_the_user_is_not_a_payload() -> None:
    call = BY_ID["/v1/query"]
    found = call.arguments.read({"key": "k", "value": {"payload": 0}}, bodies.Payloads([]))
    assert found["value"] == {"payload": 0}


# --- errors


@pytest.mark.parametrize("kind", sorted(failures.SHOWN, key=str))
def test_an_error_comes_back_as_its_class(kind: type[LocusStoreError]) -> None:
    status, value = failures.encode_error(kind("thread 't' moved on"))
    found = failures.decode_error(value)
    assert type(found) is kind
    assert (str(found), status) == ("thread 't' moved on", failures.STATUSES[kind])


def test_a_conflict_comes_back_with_its_ids() -> None:
    _, value = failures.encode_error(ConflictError("no", head_id="h", parent_id=None))
    found = failures.decode_error(value)
    assert isinstance(found, ConflictError)
    assert (found.head_id, found.parent_id) == ("h", None)


@pytest.mark.parametrize("kind", [BackendError, ConnectionFailedError])
def test_the_message_of_a_storages_failure_stays_in_the_service(kind: Any) -> None:
    status, value = failures.encode_error(kind("no connection to db.internal, /var/lib/x.db"))
    assert status == 503
    assert "db.internal" not in str(value)
    assert type(failures.decode_error(value)) is kind


@pytest.mark.parametrize("wrong", [None, [], {}, {"error": "X", "message": "m"}, {"error": "E"}])
def test_what_is_not_our_error_is_none(wrong: Any) -> None:
    assert failures.decode_error(wrong) is None


def test_a_change_without_its_state_asks_for_it() -> None:
    change = SentChange(digest=b"d" * 16, state_bytes=1, frames=b"", state=None)
    with pytest.raises(StateNeededError):
        change.to_payload()


def test_a_call_binds_its_arguments_by_name() -> None:
    call: WireCall = FETCH
    assert call.bind(("t",), {"namespace": "n"}) == {"thread_id": "t", "namespace": "n"}
