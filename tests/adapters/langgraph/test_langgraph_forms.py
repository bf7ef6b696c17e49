"""Values that LangGraph's serializer returns as another type, and that ours keeps or refuses."""

from __future__ import annotations

import enum
import http
import uuid
from collections import Counter, OrderedDict, defaultdict, deque
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from pathlib import PurePosixPath
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from lazily import TESTS_RUN, Later
from pydantic import BaseModel
from test_langgraph_serializer import AT, ON_V, checkpoint

from locus_store.backends.memory import MemoryBackend
from locus_store.errors import SerializationError

if TESTS_RUN:
    import numpy as np
    from langchain_core.documents import Document
    from langchain_core.messages import AIMessage, HumanMessage, ToolMessage

    from locus_store.adapters.langgraph import ExactSerializer, LangGraphSaver

pytestmark = pytest.mark.anyio


class Step(str, enum.Enum):  # noqa: UP042  (as programs have it)
    ONE = "s1"


class Other(enum.Enum):
    ONE = "s1"


@dataclass(frozen=True)
class Cell:
    row: int


@dataclass
class Board:
    cells: dict[Any, int] = field(default_factory=dict)


class Weather(BaseModel):
    city: str
    at: datetime


class Rows(list[Any]):
    heading = "none"


class Label(str):
    __slots__ = ()


class Slotted(str):
    __slots__ = ("held",)


class Celsius(float):
    pass


class Bag(dict[str, Any]):
    pass


class Day(date):
    pass


class Opaque:
    pass


def titled() -> Rows:
    rows = Rows([1, Cell(2)])
    rows.heading = "mine"
    return rows


NOON = datetime(2026, 1, 2, 12, tzinfo=UTC)
ID = uuid.UUID(int=7)
KEYS = [
    {Step.ONE: 1, Other.ONE: 2}, {ID: 1, str(ID): 2}, {NOON.date(): 1, "2026-01-02": 2},
    {NOON: 1, time(9): 2, (1, ("a", Step.ONE)): 3}, {b"k": 1, "k": 2}, {frozenset({1}): 1},
    {Cell(1): 1, Decimal("1.5"): 2, PurePosixPath("a/b"): 3},
    [{"rows": {ID: {date(2026, 1, 1): 1}}}],
    Board({ID: 1, (1, 2): 3}), {2**70: 1}, {"a\ud83d": 1},
]  # fmt: skip
CONTAINERS = [
    defaultdict(list, a=[1]), defaultdict(None, {1: 2}), Counter("abca"), OrderedDict(b=1, a=2),
    deque([1, 2, 3], maxlen=3), [Counter("aab")], titled(), Label("x"), Celsius(1.5), Bag(a=ID),
    Later(lambda: HumanMessage("hi").text),
]  # fmt: skip
SCALARS = [
    bytearray(b"x"), [bytearray(b"x")], 2**70, -(2**70), "a\ud83d", ["\ud83d\ude00"], 1 + 2j,
    range(1, 9, 2), slice(1, None),
    datetime(2026, 10, 25, 2, 30, tzinfo=ZoneInfo("Europe/Oslo"), fold=1),
    datetime(2026, 1, 1, tzinfo=timezone(timedelta(hours=1), "CET")),
    time(1, tzinfo=ZoneInfo("UTC")),
    Later(lambda: np.float64(1.5)), Later(lambda: np.int8(3)), Later(lambda: np.bool_(True)),
    float("-inf"), http.HTTPStatus.OK,
]  # fmt: skip
IN_MESSAGES = [
    Weather(city="Oslo", at=NOON),
    Later(lambda: [Document("t", metadata={"w": Weather(city="Rome", at=NOON)})]),
    Cell(3), Other.ONE, NOON, ID, b"\x89", (1, (2,)), {1, 2},
    {"rows": [{"when": date(2026, 1, 1)}]},
    Later(lambda: HumanMessage("inner", id="m")), {1: "a"},
]  # fmt: skip


def same(found: Any, given: Any) -> None:
    assert (type(found), repr(found)) == (type(given), repr(given))
    for name in ("default_factory", "maxlen", "heading", "tzinfo", "fold"):
        assert getattr(found, name, None) == getattr(given, name, None)


@pytest.mark.parametrize("value", [*KEYS, *CONTAINERS, *SCALARS], ids=lambda it: ascii(it)[:40])
async def test_a_value_comes_back_with_its_type(value: Any) -> None:
    serializer = ExactSerializer()
    same(serializer.loads_typed(serializer.dumps_typed(value)), value)
    async with LangGraphSaver(MemoryBackend()) as saver:
        config = await saver.aput(AT, checkpoint(c=value), {"source": "loop"}, {})
        await saver.aput_writes(config, [("c", [value])], "task")
        found = await saver.aget_tuple(config)
    same(found.checkpoint["channel_values"]["c"], value)
    same(found.pending_writes[0][2][0], value)


@pytest.mark.parametrize("value", IN_MESSAGES, ids=lambda it: ascii(it)[:40])
def test_objects_in_messages_come_back(value: Any) -> None:
    given = [
        ToolMessage("done", tool_call_id="c", id="t", artifact=value),
        AIMessage("x", id="a", additional_kwargs={"parsed": value}, response_metadata={"m": value}),
        Document("page", metadata={"held": value}),
    ]
    serializer = ExactSerializer()
    found = serializer.loads_typed(serializer.dumps_typed(given))
    same(found, given)
    same(found[0].artifact, value)


REFUSED = [
    (Opaque(), "Opaque"), (ValueError("x"), r"str\(exc\)"), (defaultdict(lambda: 1), "factory"),
    (Day(2026, 1, 1), "convert it to a datetime"), (Slotted("x"), "Slotted"),
    (Later(lambda: np.ma.masked_array([1, 2], mask=[0, 1])), "MaskedArray"),
    (memoryview(b"x"), "memoryview"),
    (type("Extra", (Counter,), {"__slots__": ("x",)})("a"), "Extra"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("value", "named"), REFUSED, ids=lambda it: it if isinstance(it, str) else type(it).__name__
)
@pytest.mark.parametrize("allowed", [None, [Day, ValueError, Slotted]])
async def test_what_cannot_be_kept_is_refused_with_channel_and_path(
    value: Any, named: str, allowed: Any
) -> None:
    async with LangGraphSaver(MemoryBackend(), allowed=allowed) as saver:
        for held in ([0, {"rows": (1, {"x": value})}], [0, {"rows": (1, {"x": value})}, 2]):
            with pytest.raises(SerializationError, match=named) as caught:
                await saver.aput(AT, checkpoint(c=held), {"source": "loop"}, {})
            assert str(caught.value).startswith("channel 'c': [1].rows[1].x: ")
            with pytest.raises(SerializationError, match="channel 'c'"):
                await saver.aput_writes(ON_V, [("c", held)], "task")
        assert await saver.aget_tuple(AT) is None


async def test_the_path_leads_through_objects() -> None:
    held = [
        HumanMessage("x"),
        ToolMessage("y", tool_call_id="c", artifact={"a": Board({ID: Opaque()})}),
    ]
    async with LangGraphSaver(MemoryBackend()) as saver:
        await saver.aput(AT, checkpoint(c=held[:1]), {"source": "loop"}, {})
        with pytest.raises(SerializationError) as caught:
            await saver.aput(AT, checkpoint(c=held), {"source": "loop"}, {})
    assert str(caught.value).startswith(f"channel 'c': [1].artifact.a.cells[{ID!r}]: ")


async def test_the_error_of_a_task_is_kept_as_its_text() -> None:
    async with LangGraphSaver(MemoryBackend()) as saver:
        config = await saver.aput(AT, checkpoint(c=1), {"source": "loop"}, {})
        await saver.aput_writes(config, [("__error__", ValueError("x"))], "task")
        assert (await saver.aget_tuple(config)).pending_writes == [
            ("task", "__error__", repr(ValueError("x")))
        ]


def test_a_read_array_can_be_changed() -> None:
    serializer = ExactSerializer()
    for given in (np.arange(6).reshape(2, 3), np.asfortranarray(np.ones((2, 2)))):
        found = serializer.loads_typed(serializer.dumps_typed(given))
        found[0, 0] = 9
        assert found.flags.f_contiguous == given.flags.f_contiguous


@pytest.mark.parametrize("value", [Label("x"), Rows([1]), Bag(a=1)])
def test_a_subclass_that_is_not_allowed_is_refused_both_ways(value: Any) -> None:
    strict, data = ExactSerializer([]), ExactSerializer().dumps_typed(value)
    with pytest.raises(SerializationError, match="not allowed"):
        strict.dumps_typed(value)
    with pytest.raises(SerializationError, match="not allowed"):
        strict.loads_typed(data)
    same(ExactSerializer([type(value)]).loads_typed(data), value)


@pytest.mark.parametrize(
    ("value", "plain"),
    [
        (http.HTTPStatus.OK, 200), (Step.ONE, "s1"), (Label("x"), "x"), (Celsius(1.5), 1.5),
        (Later(lambda: np.float64(2.5)), 2.5), (2**70, 2**70), ("a\ud83d", "a\ud83d"),
        (float("inf"), float("inf")),
    ],
)  # fmt: skip
async def test_metadata_is_the_number_or_text_that_it_is(value: Any, plain: Any) -> None:
    config = {"configurable": {**AT["configurable"], "key": value}, "metadata": {"other": value}}
    async with LangGraphSaver(MemoryBackend()) as saver:
        await saver.aput(config, checkpoint(c=1), {"source": "loop", "deep": {"in": [value]}}, {})
        (found,) = [it async for it in saver.alist(AT, filter={"key": plain, "other": plain})]
    assert [type(found.metadata[it]) for it in ("key", "other")] == [type(plain)] * 2
    assert found.metadata["deep"] == {"in": [plain]}
