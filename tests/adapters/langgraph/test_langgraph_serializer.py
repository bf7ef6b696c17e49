"""Values of graphs: what was put is what comes back, or it is refused."""

from __future__ import annotations

import asyncio
import math
import operator
import sys
import uuid
from collections import OrderedDict, deque, namedtuple
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from enum import Enum
from functools import partial, reduce
from ipaddress import ip_address
from pathlib import Path
from re import compile as pattern
from shutil import copyfile
from typing import Any

import ormsgpack
import pytest
from lazily import TESTS_RUN, Later
from pydantic import BaseModel, ConfigDict, PrivateAttr, model_serializer
from tiers import first_of

from locus_store import (
    FileBackend,
    InvalidArgumentError,
    MemoryBackend,
    PostgreSQLBackend,
    SerializationError,
    SQLiteBackend,
)

if TESTS_RUN:
    import numpy as np
    from langchain_core.documents import Document
    from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
    from langgraph.checkpoint.serde.encrypted import EncryptedSerializer
    from langgraph.checkpoint.serde.jsonplus import EXT_NUMPY_ARRAY, JsonPlusSerializer
    from langgraph.checkpoint.serde.types import _DeltaSnapshot
    from langgraph.types import Command, Interrupt, Send

    from locus_store.adapters.langgraph import LangGraphSaver, channel_lists
    from locus_store.adapters.langgraph.serializer import ExactSerializer

pytestmark = pytest.mark.anyio

AT: dict[str, Any] = {"configurable": {"thread_id": "t", "checkpoint_ns": ""}}
ON_V: dict[str, Any] = {"configurable": {**AT["configurable"], "checkpoint_id": "v"}}


@dataclass
class Point:
    """A class of the user's."""

    x: Any
    more: dict[str, Any] = field(default_factory=dict)


class Model(BaseModel):
    """Another one."""

    value: Any
    pair: tuple[int, int] = (1, 2)


class Colour(Enum):
    RED = "red"


Pair = namedtuple("Pair", ["one", "two"])  # noqa: PYI024  (the untyped kind)


OURS = [(__name__, it) for it in ("Point", "Model", "Colour", "Pair")]

CALL = {"name": "f", "args": {"x": 1.5}, "id": "c"}
NUMBERS = [0, 0.0, -0.0, 1, 1.0, True, False, None, 2**63 - 1, 2**64 - 1, -(2**63), 1e22, 5e-324]
ODD_TEXTS = ["", "\0", "a\0b", "é", "e\u0301", "日本語", "🎉", "$", "'\"\\", "\u2028", "1" * 5000]
TUPLES = [(), (1,), [(1, 2), [3]], {"k": ((1, [2]), {})}, ([({"a": (1,)},)],), [[], ()]]
MADE = [
    datetime(2026, 1, 2, 3, 4, 5, 6, UTC), datetime(2026, 1, 2), date(2026, 1, 2),  # noqa: DTZ001
    timedelta(days=1, microseconds=1), uuid.UUID(int=7), Decimal("1.10"), Path("/a/b"),
    pattern("a.b"), ip_address("127.0.0.1"),
]  # fmt: skip
OBJECTS = [
    {1, 2}, frozenset({"a"}), deque([1, 2]), b"\0\xff",
    {1: "int", 2.5: "float", "s": "text", None: 0, False: 1},
    {"b": 1, "a": 2}, {"$": "tag"}, {"$": {"$": "d"}}, [{"$": "x", "c": 5, "v": [1]}],
]  # fmt: skip
HELD = [
    Later(lambda: Send("node", (1, [(2,)]))),
    Later(lambda: Send("node", {"k": (1.0,)})),
    Later(lambda: Interrupt((1, (2,)), id="i")),
    Later(lambda: [Interrupt([(1,)], id="i")]),
    Later(lambda: Command(update={"k": (1,)}, goto=[Send("n", (1,))])),
    Later(lambda: _DeltaSnapshot((1, [2]))),
    Later(lambda: _DeltaSnapshot([(1,), 1.0])),
    Later(lambda: _DeltaSnapshot({"k": (1,)})),
    Later(lambda: HumanMessage("hi", id="1", additional_kwargs={"n": 1.0})),
    Later(lambda: [AIMessage("a\0b", id="2", tool_calls=[CALL])]),
    Later(lambda: ToolMessage("done", tool_call_id="c", id="3")),
    Later(lambda: Document("page", metadata={"k": [1.0]})),
]
ALLOWED = [
    Point(1.0), Point((1, [2]), {"t": ({"u": (3,)},)}), Point(Point((1,))), [Point((1,))],
    Model(value=1.0), Model(value=[1, 2], pair=(3, 4)), Pair((1,), 2.0),
    {"deep": [Point({1: Pair(0, 0)})]},
]  # fmt: skip


def held() -> list[Any]:
    return [it.make() for it in HELD]


def exact(value: Any) -> Any:
    """A form that differs wherever a type, an order of keys, or a sign does."""
    from langgraph.checkpoint.serde.types import _DeltaSnapshot
    from langgraph.types import Command, Interrupt, Send

    if isinstance(value, dict):
        return type(value), [(exact(key), exact(it)) for key, it in value.items()]
    if isinstance(value, list | deque) or type(value) in {tuple, Pair, _DeltaSnapshot}:
        return type(value), [exact(it) for it in value]
    if isinstance(value, set | frozenset):
        return type(value), sorted(map(repr, value))
    if isinstance(value, Point | Send | Interrupt | Command | BaseModel):
        names = vars(value) if hasattr(value, "__dict__") else value.__slots__
        return type(value), [(name, exact(getattr(value, name))) for name in names]
    return type(value), repr(value)


@pytest.fixture(params=["memory", *first_of("sqlite", "file", "postgresql")])
def opened(request, tmp_path):
    """Makes backends on one storage."""
    if request.param == "memory":
        shared = MemoryBackend()
        return lambda: shared
    if request.param == "file":
        return partial(FileBackend, tmp_path / "files")
    if request.param == "sqlite":
        migrated = request.getfixturevalue("migrated")
        return partial(SQLiteBackend, copyfile(migrated, tmp_path / "checkpoints.db"))
    return partial(PostgreSQLBackend, request.getfixturevalue("migrated_database"), pool_size=4)


def checkpoint(**values: Any) -> Any:
    return {
        "v": 4,
        "id": "v",
        "ts": "2026-01-01T00:00:00+00:00",
        "channel_values": values,
        "channel_versions": dict.fromkeys(values, 1),
        "versions_seen": {},
        "updated_channels": None,
    }


async def put(saver: LangGraphSaver, metadata: Any = None, **values: Any) -> Any:
    made = checkpoint(**values)
    return await saver.aput(AT, made, {"source": "loop", **(metadata or {})}, {})


async def kept(opened: Any, *values: Any, **options: Any) -> None:
    """Check that values come back unchanged from channels, lists of them, writes and lists."""
    channels = {f"c{n}": it for n, it in enumerate(values)} | {"all": list(values)}
    expected = exact(channels)
    async with LangGraphSaver(opened(), **options) as saver:
        config = await put(saver, **channels)
        await saver.aput_writes(config, list(channels.items()), "task")
    async with LangGraphSaver(opened(), **options) as saver:
        found = [await saver.aget_tuple(AT), *[it async for it in saver.alist(AT)]]
    for it in found:
        assert exact({name: it.checkpoint["channel_values"][name] for name in channels}) == expected
        assert exact({name: value for _, name, value in it.pending_writes}) == expected
    assert len(found) == 2


# --- types


@pytest.mark.parametrize("values", [NUMBERS, ODD_TEXTS, TUPLES, OBJECTS, Later(held), MADE])
async def test_values_keep_their_types(opened, values):
    await kept(opened, *values)


async def test_values_of_an_allowed_enum_keep_their_types(opened):
    await kept(opened, Colour.RED, [Colour.RED], {"deep": [Point({1: Colour.RED})]}, allowed=OURS)


async def test_values_of_allowed_classes_keep_their_types(opened):
    await kept(opened, *ALLOWED, allowed=OURS)


async def test_floats_that_json_has_not_come_back(opened):
    async with LangGraphSaver(opened()) as saver:
        odd = {
            "nan": math.nan,
            "inf": math.inf,
            "list": [math.nan, -math.inf, 1.0],
            "t": (math.nan,),
        }
        config = await put(saver, odd | {"n": [math.nan]}, **odd)
        await saver.aput_writes(config, list(odd.items()), "task")
        (found,) = [it async for it in saver.alist(AT)]
        writes = {name: value for _, name, value in found.pending_writes}
        for held in (found.checkpoint["channel_values"], writes):
            assert {name: repr(held[name]) for name in odd} == {k: repr(v) for k, v in odd.items()}
        assert repr(found.metadata["inf"]) == "inf"
        assert repr(found.metadata["n"]) == "[nan]"


@pytest.mark.parametrize(
    "value",
    [2**70, [2**70], {"k": -(2**70)}, (2**64,)],
)
async def test_a_number_beyond_64_bits_comes_back_or_is_refused(opened, value):
    async with LangGraphSaver(opened()) as saver:
        try:
            config = await put(saver, c=value)
        except SerializationError as refusal:
            assert "'c'" in str(refusal)  # noqa: PT017  (or it comes back)
            assert await saver.aget_tuple(AT) is None
            with pytest.raises(SerializationError, match="'c'"):
                await saver.aput_writes(ON_V, [("c", value)], "task")
            return
        assert exact((await saver.aget_tuple(config)).checkpoint["channel_values"]["c"]) == exact(
            value
        )


@pytest.mark.parametrize(
    "value",
    [
        "\ud800",
        ["a\udfff"],
        {"k": "\ud800"},
        pytest.param({"\ud800": 1}),
        ("\ud800",),
    ],
)
async def test_a_lone_surrogate_is_never_silently_another_text(opened, value):
    async with LangGraphSaver(opened()) as saver:
        try:
            config = await put(saver, c=value)
        except SerializationError:
            assert await saver.aget_tuple(AT) is None
        else:
            assert exact(
                (await saver.aget_tuple(config)).checkpoint["channel_values"]["c"]
            ) == exact(value)


async def test_versions_and_names_of_channels_keep_a_lone_surrogate(opened):
    async with LangGraphSaver(opened()) as saver:
        names = {"c\ud800": "1\udfff", "d": 1}
        made = checkpoint(**{"c\ud800": "x", "d": [1]}) | {
            "channel_versions": names,
            "versions_seen": {"node\ud800": names},
        }
        await saver.aput(AT, made, {"source": "loop"}, names)
        (listed,) = [it async for it in saver.alist(AT)]
        for found in (listed, await saver.aget_tuple(AT)):
            assert {name: found.checkpoint[name] for name in made} == made


async def test_metadata_keeps_what_json_has_and_more(opened):
    told = {
        "float": 1.0, "int": 1, "flag": True, "none": None, "nested": {"l": [1, 1.0, {"$": "d"}]},
        "$": "tag", "large": 2**70, "text": "日本語🎉\u2028", "inner": {"nul": "a\0b"},
        "bytes": b"\0", "keys": {"b": 1, "a": 2},
        "message": HumanMessage("hi", id="1"), "": "no name", "set": {1},
    }  # fmt: skip
    async with LangGraphSaver(opened()) as saver:
        await put(saver, told)
        (found,) = [it async for it in saver.alist(AT, filter={"large": 2**70, "$": "tag"})]
    assert exact({name: found.metadata[name] for name in told}) == exact(told)


async def test_metadata_keeps_a_time(opened):
    when = datetime(2026, 1, 2, tzinfo=UTC)
    async with LangGraphSaver(opened()) as saver:
        await put(saver, {"when": when})
        assert (await saver.aget_tuple(AT)).metadata["when"] == when


async def test_a_deep_value_and_a_large_one_come_back(opened):
    deep = reduce(lambda it, _: [it], range(140), "x")
    deeper: Any = reduce(lambda it, _: {"k": (it,)}, range(100), "x")
    await kept(opened, deep, deeper, ["x" * 1000] * 2000, b"\0" * 2_000_000)


async def test_a_channel_without_a_version_is_not_kept_and_one_without_a_value_is(opened):
    async with LangGraphSaver(opened()) as saver:
        made = checkpoint(c=1, gone=2) | {"channel_versions": {"c": 1, "empty": "0001.5"}}
        await saver.aput(AT, made, {"source": "loop"}, {})
        found = (await saver.aget_tuple(AT)).checkpoint
    assert found["channel_values"] == {"c": 1}
    assert exact(found["channel_versions"]) == exact({"c": 1, "empty": "0001.5"})


async def test_a_value_that_is_changed_after_is_not_changed_in_the_store(opened):
    async with LangGraphSaver(opened()) as saver:
        value = [{"text": "one"}, Point([1])]
        allowed = saver.with_allowlist(OURS)
        config = await put(allowed, c=value)
        value[0]["text"] = "two"
        value[1].x.append(2)
        await allowed.aput_writes(config, [("c", value)], "task")
        found = await allowed.aget_tuple(AT)
        found.checkpoint["channel_values"]["c"].append("mine")
        again = await allowed.aget_tuple(AT)
    assert again.checkpoint["channel_values"]["c"] == [{"text": "one"}, Point([1])]
    assert again.pending_writes == [("task", "c", [{"text": "two"}, Point([1, 2])])]


class Busy(BaseModel):
    """A model that is stored while another thread works."""

    model_config = ConfigDict(frozen=True)
    n: int = 0
    _work: Any = PrivateAttr(default=None)

    @model_serializer(mode="wrap")
    def dump(self, handler: Any) -> Any:
        if self._work is not None:
            self._work()
        return handler(self)


@pytest.mark.parametrize("kind", [list, dict, OrderedDict, deque, set])
async def test_a_container_may_grow_while_it_is_stored(kind):
    busy = Busy()
    is_mapping = issubclass(kind, dict)
    value = kind({"a": busy} if is_mapping else [busy])

    def grow() -> None:
        busy._work = None
        value.update({n: Busy(n=n) for n in range(1, 9)}) if is_mapping else add()

    def add() -> None:
        for n in range(1, 9):
            (value.add if kind is set else value.append)(Busy(n=n))

    busy._work = grow
    async with LangGraphSaver(MemoryBackend()) as saver:
        await put(saver, c=value)
        assert len((await saver.aget_tuple(AT)).checkpoint["channel_values"]["c"]) in {1, 9}
        await put(saver, c=value)
        assert (await saver.aget_tuple(AT)).checkpoint["channel_values"]["c"] == value


@pytest.mark.parametrize(
    ("work", "undo"),
    [
        (lambda it: it.pop(), lambda it: it.append(AIMessage("b", id="b"))),
        (lambda it: it.insert(0, AIMessage("0", id="0")), lambda it: it.pop(0)),
        (lambda it: setattr(it[1], "content", "x"), lambda it: setattr(it[1], "content", "b")),
    ],
    ids=["pop", "insert", "edit"],
)
async def test_a_list_that_changed_while_it_was_stored_is_stored_right_the_next_time(
    work, undo, monkeypatch
):
    said = [AIMessage(it, id=it) for it in "ab"]
    rest, print_elements = [work], channel_lists._print

    def be_slow(*args: Any) -> Any:
        made = print_elements(*args)
        while rest:
            rest.pop()(said)
        return made

    monkeypatch.setattr(channel_lists, "_print", be_slow)
    async with LangGraphSaver(MemoryBackend()) as saver:
        await put(saver, c=said)
        undo(said)
        await put(saver, c=said)
        assert (await saver.aget_tuple(AT)).checkpoint["channel_values"]["c"] == said


# --- the serializer itself


@pytest.mark.parametrize("value", [*NUMBERS, *TUPLES, *OBJECTS, *MADE, *HELD])
def test_what_langgraphs_serializer_wrote_is_read(value):
    theirs, ours = JsonPlusSerializer(), ExactSerializer()
    try:
        data = theirs.dumps_typed(value)
    except TypeError:
        pytest.skip("theirs has no form for it")
    assert exact(ours.loads_typed(data)) == exact(theirs.loads_typed(data))


@pytest.mark.parametrize(
    "value",
    [*NUMBERS, *TUPLES, *OBJECTS, *HELD, *MADE],
)
def test_what_ours_wrote_is_read_by_langgraphs(value):
    data = ExactSerializer().dumps_typed(value)
    theirs = JsonPlusSerializer(allowed_msgpack_modules=[("builtins", "tuple")])
    assert exact(theirs.loads_typed(data)) == exact(value)


# --- classes that are not allowed


@pytest.mark.parametrize(
    "value",
    [
        *ALLOWED, Colour.RED, [Colour.RED], (Point(1),), {"k": {1: Pair(1, 2)}}, {Colour.RED},
        Later(lambda: Send("n", Point(1))), Later(lambda: Interrupt(Point(1))),
        Later(lambda: _DeltaSnapshot([Point(1)])), Point, len,
    ],
)  # fmt: skip
async def test_a_class_that_is_not_allowed_is_refused_on_writing(value):
    saver = LangGraphSaver(MemoryBackend(), allowed=[])
    with pytest.raises(SerializationError, match=r"channel 'c'|not allowed"):
        await put(saver, c=value)
    with pytest.raises(SerializationError):
        await saver.aput_writes(ON_V, [("c", value)], "task")
    assert [it async for it in saver.alist(None)] == []


@pytest.mark.parametrize("value", [Point(1), [Model(value=1)], {"k": Point(1)}, {Point}, len])
async def test_a_class_that_is_not_allowed_is_refused_in_metadata(value):
    saver = LangGraphSaver(MemoryBackend(), allowed=[])
    with pytest.raises(SerializationError, match=r"metadata 'k'|not allowed"):
        await put(saver, {"k": value})
    assert [it async for it in saver.alist(None)] == []


async def test_a_class_that_is_not_allowed_is_refused_on_reading(opened):
    async with LangGraphSaver(opened(), allowed=[Point, *OURS]) as writer:
        config = await put(writer, c=[1, {"k": Point(1)}])
        await writer.aput_writes(config, [("c", Pair(1, 2))], "task")
    async with LangGraphSaver(opened(), allowed=[]) as reader:
        with pytest.raises(SerializationError, match=r"class test_langgraph_serializer\.P"):
            await reader.aget_tuple(AT)
        with pytest.raises(SerializationError, match=r"class test_langgraph_serializer\.P"):
            [it async for it in reader.alist(AT)]
    async with LangGraphSaver(opened(), allowed=[Point]) as reader:
        with pytest.raises(SerializationError, match="Pair"):
            await reader.aget_tuple(AT)


def calling(function: Any, *args: Any) -> bytes:
    """Bytes that ask a reader to call a function."""
    import ormsgpack

    held = ormsgpack.packb([function.__module__, function.__name__, list(args)])
    packed: bytes = ormsgpack.packb(ormsgpack.Ext(1, held))
    return packed


@pytest.mark.parametrize("nest", [lambda it: it, lambda it: b"\x91" + it])
def test_a_function_is_never_called_on_reading(nest, tmp_path):
    import os

    made = tmp_path / "made"
    with pytest.raises(SerializationError, match=r"\.system is not allowed"):
        ExactSerializer().loads_typed(("msgpack", nest(calling(os.system, f"touch {made}"))))
    assert not made.exists()


@pytest.mark.parametrize(
    "array",
    [
        Later(lambda: np.arange(6.0).reshape(2, 3)),
        Later(lambda: np.arange(6).reshape(2, 3).T),
        Later(lambda: np.zeros((2, 0))),
        Later(lambda: np.array(3, dtype=">i2")),
        Later(lambda: np.array(["é", ""])),
        Later(lambda: np.array([b"x"])),
        Later(lambda: np.array([True, False])),
        Later(lambda: np.array([1j])),
    ],
)
def test_an_array_comes_back(array):
    serializer = ExactSerializer()
    [back] = serializer.loads_typed(serializer.dumps_typed([array]))
    assert (back.dtype, back.shape) == (array.dtype, array.shape)
    assert (back == array).all()


@pytest.mark.parametrize(
    "array",
    [
        Later(lambda: np.array([object()])),
        Later(lambda: np.array([(1, 2.0)], dtype=[("a", "i4"), ("b", "f8")])),
        Later(lambda: np.array([None, 1])),
    ],
)
def test_an_array_that_would_not_come_back_is_refused(array):
    with pytest.raises(SerializationError, match="NumPy array of dtype"):
        ExactSerializer().dumps_typed([array])


def test_an_array_is_not_read_before_numpy_is_imported(monkeypatch):
    data = ExactSerializer().dumps_typed({"a": np.arange(3)})
    monkeypatch.delitem(sys.modules, "numpy")
    with pytest.raises(SerializationError, match="`import numpy`"):
        ExactSerializer().loads_typed(data)
    assert "numpy" not in sys.modules


@pytest.mark.parametrize(
    "held",
    [
        None, [], ["<i8", [2], "C"], ["<i8", [3], "C", b"12345678"], ["<i8", [1], "C", b"1234567"],
        ["|O", [1], "C", b"12345678"], ["|T16", [1], "C", b"1234567812345678"],
        ["<M8[s]", [1], "C", b"12345678"], ["i4,f4", [1], "C", b"12345678"],
        [{"names": ["a"]}, [1], "C", b"12345678"],
        ["<i8", [1], "?", b"12345678"], ["<i8", "x", "C", b"12345678"], ["<i8", [1], "C", "text"],
    ],
)  # fmt: skip
def test_a_damaged_array_is_an_error(held):
    data = ormsgpack.packb({"a": ormsgpack.Ext(EXT_NUMPY_ARRAY, ormsgpack.packb(held))})
    with pytest.raises(SerializationError, match="a NumPy array cannot be read"):
        ExactSerializer().loads_typed(("msgpack", data))


def test_pickles_are_not_read():
    import pickle

    data = pickle.dumps(operator.add)
    with pytest.raises((SerializationError, NotImplementedError, ValueError)):
        ExactSerializer().loads_typed(("pickle", data))


async def test_an_allow_list_adds_to_the_one_that_is_there(opened):
    async with LangGraphSaver(opened(), allowed=[(__name__, "Point")]) as saver:
        wider = saver.with_allowlist([(__name__, "Pair")])
        await put(wider, c=[Point(1), Pair(1, 2)])
        found = await wider.aget_tuple(AT)
        assert found.checkpoint["channel_values"]["c"] == [Point(1), Pair(1, 2)]
        with pytest.raises(SerializationError, match="Pair"):
            await saver.aget_tuple(AT)
        await wider.with_allowlist([(__name__, "Model")]).aget_tuple(AT)


# --- another serializer


class Cipher:
    """The shortest one that there is."""

    def __init__(self) -> None:
        from cryptography.fernet import Fernet

        self._fernet = Fernet(Fernet.generate_key())

    def encrypt(self, plaintext: bytes) -> tuple[str, bytes]:
        return "fernet", self._fernet.encrypt(plaintext)

    def decrypt(self, ciphername: str, ciphertext: bytes) -> bytes:
        assert ciphername == "fernet"
        return self._fernet.decrypt(ciphertext)


async def test_another_serializer_keeps_all_that_a_channel_holds(opened):
    serde = EncryptedSerializer(Cipher(), ExactSerializer())
    await kept(opened, *NUMBERS, *TUPLES, *OBJECTS, *held(), serde=serde)


@pytest.mark.parametrize(
    "text",
    ["avocado", {"k": "avocado"}, ["avocado", {}], ["avocado"]],
)
async def test_what_is_encrypted_is_nowhere_in_clear(text):
    backend = MemoryBackend()
    serde = EncryptedSerializer(Cipher(), ExactSerializer())
    saver = LangGraphSaver(backend, serde=serde)
    config = await put(saver, c=text)
    await saver.aput_writes(config, [("c", text)], "task")
    assert "avocado" not in str((await backend.read_state("t")).state)
    assert await backend.search("avocado") == []
    writes = await saver.saver.get_writes(thread_id="t", checkpoint_id="v")
    assert "avocado" not in str(writes)


async def test_langgraphs_own_serializer_may_be_given(opened):
    async with LangGraphSaver(opened(), serde=JsonPlusSerializer()) as saver:
        await put(saver, c=[HumanMessage("hi", id="1"), 1.0])
        found = await saver.aget_tuple(AT)
    assert found.checkpoint["channel_values"]["c"] == [HumanMessage("hi", id="1"), 1.0]


def test_a_serializer_and_an_allow_list_are_not_given_both():
    with pytest.raises(InvalidArgumentError, match="not both"):
        LangGraphSaver(MemoryBackend(), serde=JsonPlusSerializer(), allowed=[Point])


async def test_order_of_keys_is_kept_in_channels():
    saver = LangGraphSaver(MemoryBackend())
    value = OrderedDict([("z", 1), ("a", {"y": 1, "b": 2})])
    await put(saver, c=dict(value), l=[dict(value)])
    found = (await saver.aget_tuple(AT)).checkpoint["channel_values"]
    assert list(found["c"]) == ["z", "a"]
    assert list(found["l"][0]["a"]) == ["y", "b"]


async def test_the_elements_of_lists_are_shared_by_no_two_runs():
    """Many tasks put lists with the same elements through one saver."""
    saver = LangGraphSaver(MemoryBackend())

    async def work(n: int) -> Any:
        config: Any = {"configurable": {"thread_id": f"{n}", "checkpoint_ns": ""}}
        said = [HumanMessage(f"{it}", id=f"{it}") for it in range(n)]
        await saver.aput(config, checkpoint(c=said), {"source": "loop"}, {})
        found = await saver.aget_tuple(config)
        return found.checkpoint["channel_values"]["c"] == said

    assert all(await asyncio.gather(*(work(n) for n in range(30))))
