"""Classes of the user's in a graph's state: kept by default, and never more than data in a row."""

from __future__ import annotations

import contextlib
import gc
import json
import math
import operator
import os
import subprocess
import sys
from dataclasses import InitVar, dataclass, field
from datetime import date
from enum import Enum, Flag, IntEnum, StrEnum, auto
from typing import TYPE_CHECKING, Annotated, Any, Generic, TypeVar

import ormsgpack
import pydantic.dataclasses
import pytest
from lazily import TESTS_RUN, Later
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    Json,
    PrivateAttr,
    RootModel,
    SecretBytes,
    SecretStr,
    computed_field,
    field_serializer,
    field_validator,
)

from locus_store import InvalidArgumentError, MemoryBackend, SerializationError
from locus_store.values.codec.names import name_of

if TESTS_RUN:
    from langchain_core.agents import AgentAction, AgentFinish
    from langgraph.checkpoint.serde import _msgpack
    from langgraph.checkpoint.serde.encrypted import EncryptedSerializer
    from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
    from langgraph.graph import END, START, StateGraph

    from locus_store.adapters.langgraph import LangGraphSaver
    from locus_store.adapters.langgraph.serializer import ExactSerializer

if TYPE_CHECKING:
    from types import ModuleType

T = TypeVar("T")
CALLED: list[Any] = []


class Step(BaseModel):
    name: str
    done: bool = False


class Timed(Step):
    """A subclass in a field of its base."""

    seconds: float = 1.0


class Plan(BaseModel):
    title: str = Field(alias="planTitle", default="")
    steps: list[Step] = []
    pair: tuple[int, ...] = ()
    any: Any = None


class Open(BaseModel):
    model_config = ConfigDict(extra="allow")
    n: int


class Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)
    names: frozenset[str]

    @computed_field
    @property
    def count(self) -> int:
        return len(self.names)


class Hidden(BaseModel):
    key: str = Field(default="none", exclude=True)
    _cache: dict = PrivateAttr(default_factory=dict)


class Own(BaseModel):
    """Says itself how it is stored."""

    model_config = ConfigDict(arbitrary_types_allowed=True)
    held: Any
    parsed: Json[list[int]]

    @field_serializer("held")
    def _shown(self, held: object) -> str:
        return type(held).__name__


class Box(BaseModel, Generic[T]):
    held: T


class Numbers(RootModel[list[int]]):
    pass


IntBox = Box[int]


class Outer:
    class Inner(BaseModel):
        n: int

    @dataclass
    class Data:
        n: int


@dataclass(frozen=True, slots=True)
class Slotted:
    x: int
    y: list[int] = field(default_factory=list)


@dataclass
class Counted:
    x: int
    start: InitVar[int] = 0
    total: int = field(init=False, default=0)

    def __post_init__(self, start: int) -> None:
        CALLED.append("post_init")
        self.total += self.x + start


@pydantic.dataclasses.dataclass
class Checked:
    n: int


class Colour(Enum):
    RED = (1, [2])
    BLUE = 1
    TRUE = "true"


class Rights(Flag):
    READ = auto()
    WRITE = auto()


class Level(IntEnum):
    LOW = 1


class Name(StrEnum):
    A = "a"


VALUES = [
    Plan(planTitle="t", steps=[Step(name="a"), Timed(name="b", seconds=2)], pair=(1, 2)),
    Plan(any=[Slotted(1, [2]), {"k": Colour.RED}, (Step(name="a"),)]),
    Open(n=1, more=[Step(name="a")], class_="c"), Frozen(names=frozenset({"a"})),
    Box[int](held=1), Box(held=(1,)), IntBox(held=2), Numbers([1, 2]), Outer.Inner(n=1),
    Outer.Data(1), Slotted(1), Counted(1, 2), Checked(1),
    Colour.RED, Colour.BLUE, Colour.TRUE, Rights.READ, Rights.READ | Rights.WRITE, Rights(0),
    Level.LOW, Name.A,
    Later(lambda: AgentAction(tool="t", tool_input={"q": 1}, log="l")),
    Later(lambda: AgentFinish({"o": 1}, "l")),
]  # fmt: skip


def again(value: Any, **options: Any) -> Any:
    """Return a stored value as another serializer reads it."""
    return ExactSerializer(**options).loads_typed(ExactSerializer(**options).dumps_typed(value))


@pytest.mark.parametrize("value", VALUES, ids=repr)
def test_an_object_comes_back_as_it_was(value):
    found = again(value)
    assert type(found) is type(value)
    assert found == value
    assert repr(found) == repr(value)


def test_subclasses_and_what_was_set_are_kept():
    plan = again(VALUES[0])
    assert [type(it) for it in plan.steps] == [Step, Timed]
    assert plan.model_fields_set == {"title", "steps", "pair"}
    assert again(Step(name="a")).model_dump(exclude_unset=True) == {"name": "a"}


def test_post_init_does_not_run_again():
    value = Counted(1, 2)
    CALLED.clear()
    assert again(value).total == 3
    assert CALLED == []


def test_a_models_own_form_is_stored():
    found = again(Own(held=object(), parsed="[1]"))
    assert (found.held, found.parsed) == ("object", [1])


def test_excluded_fields_and_private_attributes_are_not_stored():
    value = Hidden(key="secret")
    value._cache["a"] = "secret"
    _, data = ExactSerializer().dumps_typed(value)
    assert b"secret" not in data
    assert again(value) == Hidden()


def test_a_class_that_gained_fields_reads_what_was_stored_before(monkeypatch):
    slotted = ExactSerializer().dumps_typed(Slotted(1))
    step = ExactSerializer().dumps_typed(Step(name="a"))

    @dataclass
    class NewSlotted:
        x: int
        more: str = "default"

    class NewStep(BaseModel):
        name: str
        more: list[int] = [1]

    monkeypatch.setattr(sys.modules[__name__], "Slotted", NewSlotted)
    monkeypatch.setattr(sys.modules[__name__], "Step", NewStep)
    assert ExactSerializer().loads_typed(slotted) == NewSlotted(1)
    assert ExactSerializer().loads_typed(step) == NewStep(name="a")


def test_a_class_that_does_not_fit_any_more_is_named(monkeypatch):
    model = ExactSerializer().dumps_typed(Step(name="secret"))
    data = ExactSerializer().dumps_typed(Outer.Data(1))
    colour = ExactSerializer().dumps_typed(Colour.BLUE)

    class NewStep(BaseModel):
        name: str
        number: int

    @dataclass
    class NewData:
        needed: int

    module = sys.modules[__name__]
    monkeypatch.setattr(module, "Step", NewStep)
    monkeypatch.setattr(Outer, "Data", NewData)
    monkeypatch.setattr(module, "Colour", Rights)
    with pytest.raises(SerializationError, match="NewStep is not valid: number: ") as error:
        ExactSerializer().loads_typed(model)
    assert "secret" not in str(error.value)
    with pytest.raises(SerializationError, match="has no 'needed'"):
        ExactSerializer().loads_typed(data)
    monkeypatch.setattr(module, "Colour", Name)
    with pytest.raises(SerializationError, match="no member with the stored value"):
        ExactSerializer().loads_typed(colour)


def test_a_local_class_comes_back_in_its_process_only():
    class Local(BaseModel):
        n: int

    box = Box[Local]  # pydantic does not keep it
    serializer = ExactSerializer()
    data = serializer.dumps_typed([Local(n=1), box(held=Local(n=2))])
    assert serializer.loads_typed(data) == [Local(n=1), box(held=Local(n=2))]
    with pytest.raises(SerializationError, match="is local to a function"):
        ExactSerializer().loads_typed(data)
    given = ExactSerializer([Local, box])
    del box
    gc.collect()
    assert given.loads_typed(data)[0] == Local(n=1)
    assert JsonPlusSerializer().loads_typed(data)[0] == {"n": 1}


def test_what_langgraphs_serializer_wrote_of_a_class_is_read():
    for value in (Step(name="a"), Plan(planTitle="t"), Slotted(1), Colour.BLUE, Level.LOW):
        assert ExactSerializer().loads_typed(JsonPlusSerializer().dumps_typed(value)) == value


@pytest.mark.skipif(sys.version_info >= (3, 14), reason="pydantic 1 ends with Python 3.13")
def test_a_model_of_pydantic_1_comes_back(monkeypatch):
    from pydantic import v1

    class First(v1.BaseModel):
        n: int = v1.Field(alias="number")
        steps: list[Any] = []

    First.__qualname__ = "First"
    monkeypatch.setattr(sys.modules[__name__], "First", First, raising=False)
    value = First(number=1, steps=[Step(name="a"), First(number=2)])
    assert again(value) == value
    data = row(4, __name__, "First", {"n": "secret"})
    with pytest.raises(SerializationError, match="First is not valid") as error:
        ExactSerializer().loads_typed(data)
    assert "secret" not in str(error.value)


# --- graphs


@pytest.mark.parametrize("durability", ["sync", "async", "exit"])
def test_a_graph_keeps_classes_in_its_state(tmp_path, durability):
    @dataclass
    class State:
        said: Annotated[list, operator.add]
        plan: Plan | None = None

    def plans(state: State) -> dict[str, Any]:
        return {"plan": Plan(planTitle="p", any=Colour.RED), "said": [Slotted(1)]}

    builder = StateGraph(State).add_node(plans).add_edge(START, "plans").add_edge("plans", END)
    config = {"configurable": {"thread_id": "t"}}
    url = f"sqlite:///{tmp_path / 'graph.db'}"
    with LangGraphSaver.from_url(url) as saver:
        builder.compile(checkpointer=saver).invoke({"said": []}, config, durability=durability)
    with LangGraphSaver.from_url(url) as saver:
        found = builder.compile(checkpointer=saver).get_state(config).values
    assert found == {"said": [Slotted(1)], "plan": Plan(planTitle="p", any=Colour.RED)}


class Odd:
    pass


@pytest.mark.parametrize("value", [Odd(), [Odd()], {"k": (Odd(),)}, Plan(any=Odd())])
def test_what_cannot_be_stored_is_named_with_its_channel(value):
    saver = LangGraphSaver(MemoryBackend())
    made = {"v": 4, "id": "v", "ts": "", "channel_values": {"plan": value}, "versions_seen": {}}
    config: Any = {"configurable": {"thread_id": "t", "checkpoint_ns": ""}}
    with pytest.raises(SerializationError, match=r"channel 'plan': .*classes\.Odd cannot be st"):
        saver.put(config, {**made, "channel_versions": {"plan": 1}}, {"source": "loop"}, {})
    config["configurable"]["checkpoint_id"] = "v"
    with pytest.raises(SerializationError, match=r"channel 'c': .*classes\.Odd cannot be stored"):
        saver.put_writes(config, [("c", value)], "task")
    saver.close()


def test_a_list_narrows_what_is_kept(monkeypatch):
    for options in ({"allowed": []}, {"allowed": [Step]}):
        with pytest.raises(SerializationError, match="Slotted is not allowed"):
            ExactSerializer(**options).dumps_typed(Slotted(1))
        with pytest.raises(SerializationError, match="Slotted is not allowed"):
            ExactSerializer(**options).loads_typed(ExactSerializer().dumps_typed(Slotted(1)))
        assert again(AgentFinish({}, "l"), **options) == AgentFinish({}, "l")
    assert again(Outer.Inner(n=1), allowed=[Outer.Inner]) == Outer.Inner(n=1)
    monkeypatch.setattr(_msgpack, "STRICT_MSGPACK_ENABLED", True)
    strict = ExactSerializer()
    with pytest.raises(SerializationError, match="Step is not allowed"):
        strict.dumps_typed(Step(name="a"))
    widened = strict.with_msgpack_allowlist([name_of(Step)])
    assert widened.loads_typed(widened.dumps_typed(Step(name="a"))) == Step(name="a")


@pytest.mark.full
def test_strict_mode_allows_the_classes_of_the_graphs_state():
    code = """
import operator, sys
from dataclasses import dataclass
from typing import Annotated
from langgraph.graph import START, StateGraph
from locus_store import SerializationError
from locus_store.adapters.langgraph import LangGraphSaver
@dataclass
class Named:
    n: int
@dataclass
class Other:
    n: int
@dataclass
class State:
    plan: Named | None = None
    any: object = None
config = {"configurable": {"thread_id": "t"}}
saver = LangGraphSaver.from_url("memory://")
def graph(values):
    builder = StateGraph(State).add_node("node", lambda _: values).add_edge(START, "node")
    return builder.compile(checkpointer=saver)
graph({"plan": Named(1)}).invoke({}, config)
assert graph({}).get_state(config).values["plan"] == Named(1)
try:
    graph({"any": Other(1)}).invoke({}, config)
except SerializationError as exc:
    assert "Other is not allowed" in str(exc), exc
    sys.exit(7)
"""
    env = {**os.environ, "LANGGRAPH_STRICT_MSGPACK": "true"}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, check=False)
    assert done.returncode == 7, done.stderr.decode()


# --- hostile rows


def row(code: int, *held: Any) -> tuple[str, bytes]:
    return "msgpack", ormsgpack.packb([ormsgpack.Ext(code, ormsgpack.packb(held))])


@pytest.fixture
def module(tmp_path, monkeypatch):
    """Imports a module of a folder, and forgets it."""
    monkeypatch.syspath_prepend(tmp_path)

    def make(text: str) -> ModuleType:
        (tmp_path / "plans.py").write_text(text)
        monkeypatch.delitem(sys.modules, "plans", raising=False)
        __import__("plans")
        made = sys.modules["plans"]
        monkeypatch.delitem(sys.modules, "plans")
        return made

    return make


def test_a_class_that_is_not_imported_is_an_error_with_the_import(module):
    made = module("from dataclasses import dataclass\n@dataclass\nclass Plan:\n    n: int\n")
    data = ExactSerializer().dumps_typed(made.Plan(1))
    with pytest.raises(SerializationError, match="`from plans import Plan`"):
        ExactSerializer().loads_typed(data)
    with pytest.raises(SerializationError, match="`from plans import Plan`"):
        ExactSerializer([("plans", "Plan")]).loads_typed(data)
    assert "plans" not in sys.modules
    sys.modules["plans"] = made
    assert ExactSerializer().loads_typed(data) == made.Plan(1)


class Guarded(BaseModel):
    """Tells that its validator ran, and its constructor."""

    n: int

    @field_validator("n")
    @classmethod
    def _note(cls, n: int) -> int:
        CALLED.append("validator")
        return n

    @classmethod
    def build(cls, *_: Any) -> None:
        CALLED.append("build")


@dataclass
class Loud:
    n: int

    def __init__(self, n: int) -> None:
        CALLED.append("init")
        self.n = n


class Plain:
    def __init__(self, *_: Any, **__: Any) -> None:
        CALLED.append("plain")


class Meta(type):
    """Says that its classes are whatever is asked for."""

    __dataclass_fields__: Any = None

    def __call__(cls, *_: Any, **__: Any) -> None:
        CALLED.append("meta")

    def __getattribute__(cls, name: str) -> Any:
        CALLED.append("getattribute")
        return BaseModel if name != "__mro__" else (BaseModel,)

    def __instancecheck__(cls, _: Any) -> bool:
        return True


class Tricky(metaclass=Meta):
    pass


class Pretender:
    @property
    def __class__(self) -> Any:
        return type


pretender = Pretender()
BaseModel_alias = BaseModel
HERE = __name__
NAMES = [
    ("os", "system"), ("posix", "system"), ("builtins", "eval"), ("builtins", "exec"),
    ("builtins", "__import__"), ("subprocess", "Popen"), ("importlib", "import_module"),
    (HERE, "Plain"), (HERE, "Plain.__init__"), (HERE, "Guarded.build"), (HERE, "Tricky"),
    (HERE, "pretender"), (HERE, "BaseModel"), (HERE, "__builtins__.eval"), (HERE, "os.system"),
    (HERE, "Step.__class__"), (HERE, "Step.__init__"), (HERE, "Step.model_construct"), (HERE, ""),
    (HERE, "."), (HERE, "CALLED"), ("", ""), ("antigravity", "Step"), ("this", "s"),
    ("locus_store.no_such", "Step"), (f"{HERE}.Step", "x"), ("operator", "attrgetter"),
]  # fmt: skip
PAYLOADS: list[Any] = ["x", 1, ["echo"], {"n": 1}, {"args": "x"}, None, {"__class__": "x"}]


@pytest.fixture(scope="module")
def audited():
    """The warnings of Python in the block."""
    events: list[tuple[str, Any]] = []
    looking = [False]
    watched = ("import", "exec", "compile", "open", "os.", "subprocess", "socket", "ctypes")

    def hook(event: str, args: tuple[Any, ...]) -> None:
        if looking[0] and event.startswith(watched):
            events.append((event, args))

    sys.addaudithook(hook)
    yield events, looking
    looking[0] = False


@pytest.mark.parametrize("name", NAMES, ids=".".join)
def test_a_hostile_row_calls_and_imports_nothing(name, audited):
    events, looking = audited
    serializers = [ExactSerializer(), ExactSerializer([])]
    CALLED.clear()
    events.clear()
    for code in (0, 1, 2, 3, 4, 5):
        for payload in PAYLOADS:
            for more in ([], ["__init__"], ["build"], ["model_validate_json", ["n"]]):
                for serializer in serializers:
                    data = row(code, *name, payload, *more)
                    looking[0] = True
                    try:
                        serializer.loads_typed(data)
                    except SerializationError:
                        pass
                    else:
                        pytest.fail(f"{code} {payload} {more}: it was read")
                    finally:
                        looking[0] = False
    assert CALLED == []
    assert events == []


def test_a_constructor_is_never_called_and_a_validator_is():
    CALLED.clear()
    assert ExactSerializer().loads_typed(row(2, HERE, "Loud", {"n": 1}))[0].n == 1
    assert CALLED == []
    ExactSerializer().loads_typed(row(5, HERE, "Guarded", {"n": 1}, "build"))
    assert CALLED == ["validator"]
    for code in (0, 1, 2, 3, 4):
        with pytest.raises(SerializationError):
            ExactSerializer().loads_typed(row(code, HERE, "Guarded", {"n": 1}, "build"))
    assert CALLED == ["validator"]


def test_a_module_that_imports_on_access_is_not_asked(module, monkeypatch):
    lazy = module("def __getattr__(name):\n    raise AssertionError(name)\n")
    monkeypatch.setitem(sys.modules, "plans", lazy)
    with pytest.raises(SerializationError, match="module plans has no class Plan"):
        ExactSerializer().loads_typed(row(5, "plans", "Plan", {}))


@pytest.mark.parametrize("held", [[], [1], [1, 2], ["a", "b"], ["a", 2, 3], "text", {"a": 1}, None])
def test_a_row_that_makes_no_sense_is_refused(held):
    packed = ormsgpack.packb(held)
    for code in (0, 1, 2, 3, 4, 5):
        data = ormsgpack.packb(ormsgpack.Ext(code, packed))
        with pytest.raises(SerializationError):
            ExactSerializer().loads_typed(("msgpack", data))


def test_langchains_json_constructors_call_nothing_else(tmp_path):
    made = tmp_path / "made"
    for version in (1, 2):
        text = (
            f'{{"lc": {version}, "type": "constructor", "id": ["os", "system"],'
            f' "args": ["touch {made}"], "kwargs": {{"command": "touch {made}"}}}}'
        )
        with contextlib.suppress(ValueError, NotImplementedError):
            found = ExactSerializer().loads_typed(("json", text.encode()))
            assert found is None or isinstance(found, dict)
    assert not made.exists()


@dataclass
class Watched:
    number: int

    def __post_init__(self) -> None:
        raise AssertionError("a row called it")


def _extension(code: int, *held: Any) -> Any:
    return ormsgpack.Ext(code, ormsgpack.packb(list(held)))


@pytest.mark.parametrize("code", [0, 1, 4, 5])
def test_row_cannot_call_the_constructor_of_an_allowed_dataclass(code: int) -> None:
    held = [7] if code == 1 else 7 if code == 0 else {"number": 7}
    row = ormsgpack.packb(_extension(code, __name__, "Watched", held))
    with pytest.raises(SerializationError, match="as stored"):
        ExactSerializer([Watched]).loads_typed(("msgpack", row))


@pytest.mark.parametrize("name", [(__name__, "Watched"), ("this", "s")])
def test_row_cannot_hide_an_object_in_an_array(name: tuple[str, str]) -> None:
    """LangGraph's hook would import the module and call the class."""
    sys.modules.pop("this", None)
    inner = _extension(0, *name, 7)
    row = ormsgpack.packb(_extension(6, "<i8", [1], inner, b"12345678"))
    with pytest.raises(SerializationError, match="an array has an extension in it"):
        ExactSerializer([name]).loads_typed(("msgpack", row))
    assert "this" not in sys.modules


def test_list_of_a_config_without_a_thread_is_refused() -> None:
    with LangGraphSaver.from_url("memory://") as saver, pytest.raises(InvalidArgumentError):
        list(saver.list({"configurable": {}}))


class Cipher:
    def encrypt(self, plaintext: bytes) -> tuple[str, bytes]:
        return "turned", plaintext[::-1]

    def decrypt(self, ciphername: str, ciphertext: bytes) -> bytes:
        return ciphertext[::-1]


def test_a_row_in_clear_calls_nothing_below_an_encrypted_serializer(module: Any) -> None:
    module("CALLED = []\ndef call(value):\n    CALLED.append(value)\n")
    with LangGraphSaver(MemoryBackend(), serde=EncryptedSerializer(Cipher())) as saver:
        row = ormsgpack.packb(_extension(0, "plans", "call", 7))
        with pytest.raises(SerializationError):
            saver.serde.loads_typed(("msgpack", row))
        kind, data = saver.serde.dumps_typed(Step(name="a"))
        assert saver.serde.loads_typed((kind, data)) == Step(name="a")
        assert kind == "msgpack+turned"
    assert "plans" not in sys.modules or sys.modules["plans"].CALLED == []


def test_allowed_classes_hold_below_an_encrypted_serializer() -> None:
    serde = EncryptedSerializer(Cipher())
    with (
        LangGraphSaver(MemoryBackend(), serde=serde, allowed=[]) as saver,
        pytest.raises(SerializationError, match="is not allowed"),
    ):
        saver.serde.dumps_typed(Step(name="a"))
    with pytest.raises(InvalidArgumentError, match="serde or allowed"):
        LangGraphSaver(MemoryBackend(), serde=ExactSerializer(), allowed=[])


def test_a_row_of_json_is_a_message_or_refused() -> None:
    message = {"lc": 1, "type": "constructor", "kwargs": {"content": "hello"}}
    message["id"] = ["langchain", "schema", "messages", "HumanMessage"]
    found = ExactSerializer().loads_typed(("json", json.dumps(message).encode()))
    assert found.content == "hello"
    prompt = {"lc": 1, "type": "constructor", "kwargs": {"template": "x", "input_variables": []}}
    prompt["id"] = ["langchain", "prompts", "prompt", "PromptTemplate"]
    with pytest.raises(SerializationError, match="not a LangChain message"):
        ExactSerializer([]).loads_typed(("json", json.dumps(prompt).encode()))


class Trip(BaseModel):
    day: date
    tags: list[str] = []
    seats: int = 1

    @field_serializer("day")
    def as_text(self, day: date) -> str:
        return f"{day:%d.%m.%Y}"

    @field_validator("tags", mode="before")
    @classmethod
    def parted(cls, value: str) -> list[str]:
        return value.split(",")


class Odd(Enum):
    NAN = math.nan
    ONE = 1


def test_what_a_model_holds_comes_back_though_its_validators_refuse_it(caplog: Any) -> None:
    trip = Trip(day=date(2026, 11, 22), tags="a,b")
    trip.seats = "two"  # no validate_assignment
    serde = ExactSerializer()
    found = serde.loads_typed(serde.dumps_typed(trip))
    assert type(found) is Trip
    assert found.__dict__ == {"day": date(2026, 11, 22), "tags": ["a", "b"], "seats": "two"}
    assert found.model_fields_set == trip.model_fields_set
    assert "Trip is not valid" in caplog.text


def test_a_model_without_a_required_field_is_refused() -> None:
    with pytest.raises(SerializationError, match="is not valid"):
        ExactSerializer().loads_typed(row(5, __name__, "Trip", {"tags": "a"}))


def test_a_member_whose_value_is_nan_comes_back() -> None:
    serde = ExactSerializer()
    assert serde.loads_typed(serde.dumps_typed(Odd.NAN)) is Odd.NAN


class Login(BaseModel):
    name: str
    password: SecretStr
    token: SecretBytes = SecretBytes(b"t")


def test_secrets_of_pydantic_come_back() -> None:
    login = Login(name="alex", password=SecretStr("p4ss"))
    for serde in (ExactSerializer(), ExactSerializer([Login])):
        assert serde.loads_typed(serde.dumps_typed(login)) == login
