"""The saver's memory of messages changes its speed and nothing else."""

from __future__ import annotations

import copy
import gc
import random
import secrets
import tracemalloc
from typing import Any

import pytest
from lazily import TESTS_RUN, Later
from test_langgraph import checkpoint
from test_langgraph_serializer import Cipher, Point, exact, opened  # noqa: F401  (a fixture)
from tiers import ALL

from locus_store import InvalidArgumentError, MemoryBackend, SerializationError
from locus_store.saver import make_line_name

if TESTS_RUN:
    from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
    from langgraph.checkpoint.serde.encrypted import EncryptedSerializer
    from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
    from langgraph.checkpoint.serde.types import _DeltaSnapshot

    from locus_store.adapters.langgraph import LangGraphSaver, values
    from locus_store.adapters.langgraph.copies import make_copier
    from locus_store.adapters.langgraph.serializer import ExactSerializer

pytestmark = pytest.mark.anyio

PLACE = {"thread_id": "t", "checkpoint_ns": ""}


@pytest.fixture
async def saver(opened):  # noqa: F811
    async with LangGraphSaver(opened()) as made:
        yield made


def at(checkpoint_id: str | None = None) -> Any:
    named = {} if checkpoint_id is None else {"checkpoint_id": checkpoint_id}
    return {"configurable": {**PLACE, **named}}


async def put(
    saver: Any, name: str, parent: str | None, source: str = "loop", **values: Any
) -> None:
    await saver.aput(at(parent), checkpoint(name, **values), {"source": source, "step": 1}, {})


async def read(saver: Any, name: str | None = None) -> Any:
    found = await saver.aget_tuple(at(name))
    return found.checkpoint["channel_values"]["messages"]


async def listed(saver: Any) -> list[Any]:
    return [it.checkpoint["channel_values"]["messages"] async for it in saver.alist(at())]


def conversation() -> list[Any]:
    call = {"name": "f", "args": {"x": [1.5]}, "id": "c", "type": "tool_call"}
    return [
        HumanMessage("hi", id="1", additional_kwargs={"deep": {"n": [1]}}),
        AIMessage([{"type": "text", "text": "a"}], id="2", tool_calls=[call]),
        ToolMessage("done", tool_call_id="c", id="3", artifact={"rows": [[1], [2]]}),
        {"role": "user", "content": ["x", {"y": [1]}]},
        "text",
        [1, [2]],
    ]


def spoil(messages: list[Any]) -> None:
    """Change all that can be changed."""
    messages[0].content = "spoilt"
    messages[0].additional_kwargs["deep"]["n"].append("spoilt")
    messages[0].__pydantic_extra__["spoilt"] = True
    messages[0].__pydantic_fields_set__.add("spoilt")
    messages[1].content[0]["text"] = "spoilt"
    messages[1].tool_calls[0]["args"]["x"].append("spoilt")
    messages[1].response_metadata["spoilt"] = True
    messages[1].invalid_tool_calls.append("spoilt")
    messages[2].artifact["rows"][0].append("spoilt")
    messages[3]["content"][1]["y"].append("spoilt")
    messages[3]["spoilt"] = True
    messages[5][1].append("spoilt")
    messages.append("spoilt")


async def test_what_a_reader_changes_is_its_own(saver) -> None:
    saver.share_messages = False
    await put(saver, "v1", None, messages=conversation(), other={"deep": [1]})
    await put(saver, "v2", "v1", messages=conversation(), other={"deep": [1]})
    expected = exact(await read(LangGraphSaver(saver.saver)))
    for _ in range(3):
        for name in (None, "v1", "v2"):
            found = await read(saver, name)
            assert exact(found) == expected
            assert "spoilt" not in found[0].model_fields_set
            spoil(found)
        pages = await listed(saver)
        assert [exact(it) for it in pages] == [expected] * 2
        spoil(pages[0])
        assert exact(pages[1]) == expected
        tuples = [it async for it in saver.alist(at())]
        for it in tuples:
            it.checkpoint["channel_values"]["other"]["deep"].append("spoilt")
            it.metadata["source"] = "spoilt"
        assert (await saver.aget_tuple(at())).checkpoint["channel_values"]["other"] == {"deep": [1]}


async def stored_messages(saver: Any) -> Any:
    found = await saver.saver.backend.read_kept("t", namespace=make_line_name(""))
    return found.snapshot.to_state()["channel_values"]["messages"]


@pytest.mark.parametrize("reads", [1, 2, 3])
async def test_what_the_first_reader_of_a_process_changes_is_its_own(tmp_path, reads) -> None:
    url = f"sqlite:///{tmp_path / 'threads.db'}"
    new = [*conversation(), HumanMessage("new", id="4")]
    async with LangGraphSaver.from_url(url) as writer, LangGraphSaver.from_url(url) as other:
        await put(writer, "v1", None, messages=conversation())
        before = await stored_messages(writer)
        for _ in range(reads):
            found = await read(other)
            assert exact(found) == exact(conversation())
            spoil(found)
        await put(other, "v2", "v1", messages=conversation())
        assert await stored_messages(other) == await stored_messages(writer) == before
        await put(other, "v3", "v2", messages=new)
        assert exact(await read(writer)) == exact(await read(other)) == exact(new)
    async with LangGraphSaver.from_url(url) as third:
        edited = await read(third)
        edited[0].additional_kwargs["deep"]["n"].append(2)
        await put(third, "v4", "v3", messages=edited)
        assert exact(await read(third)) == exact(await read(writer)) == exact(edited)
        assert exact(edited) != exact(new)


async def test_messages_that_another_process_appends_are_the_only_ones_made(
    tmp_path, monkeypatch
) -> None:
    url = f"sqlite:///{tmp_path / 'threads.db'}"
    said = [HumanMessage(f"{number} " * 500, id=str(number)) for number in range(9)]
    made: list[int] = []
    load = values.ChannelValues.load

    def note(self: Any, kind: str, data: bytes) -> Any:
        found = load(self, kind, data)
        made.extend(found)
        return found

    monkeypatch.setattr(values.ChannelValues, "load", note)
    async with LangGraphSaver.from_url(url) as writer, LangGraphSaver.from_url(url) as other:
        for turn, count in enumerate([5, 7, 8, 9]):
            await put(writer, f"v{turn}", f"v{turn - 1}" if turn else None, messages=said[:count])
            made.clear()
            assert exact(await read(other)) == exact(said[:count])
            assert len(made) == [5, 7, 1, 1][turn]


async def test_checkpoints_of_one_listing_share_messages_and_nothing_else(saver) -> None:
    await put(saver, "v1", None, messages=conversation())
    await put(saver, "v2", "v1", messages=[*conversation(), HumanMessage("new", id="4")])
    expected = exact(await read(LangGraphSaver(saver.saver)))
    newer, older = await listed(saver)
    assert exact(newer) == expected
    assert exact(older) == exact(conversation())
    assert [a is b for a, b in zip(newer[:3], older[:3], strict=True)] == [True] * 3
    assert newer[3] is not older[3]
    assert newer[5] is not older[5]
    older.append("spoilt")
    assert exact(newer) == expected
    spoil(newer)
    assert exact(await read(saver)) == expected
    assert exact((await listed(saver))[0]) == expected


@pytest.mark.parametrize("shares", [True, False])
@pytest.mark.parametrize("kinds", ["plain", "all"])
async def test_each_listed_checkpoint_has_the_list_that_was_saved(saver, shares, kinds) -> None:
    saver.share_messages, chosen = shares, random.Random(kinds)
    pool = ["text", 1, True, 1.0, None, "x" * 600]
    pool += [*conversation(), (1, 2), {3}] if kinds == "all" else []
    said: list[Any] = []
    for number in range(40):
        start, gone = chosen.randrange(len(said) + 1), chosen.randrange(2)
        said[start : start + gone] = copy.deepcopy(chosen.choices(pool, k=chosen.randrange(3)))
        await put(saver, f"v{number:02}", f"v{number - 1:02}" if number else None, messages=said)
    names = [f"v{number:02}" for number in reversed(range(40))]
    expected = [exact(await read(saver, name)) for name in names]
    found = await listed(saver)
    for messages in found:
        messages.append("spoilt")
    assert [exact(it[:-1]) for it in found] == expected


@pytest.mark.parametrize("shares", [True, False])
async def test_a_list_of_checkpoints_on_two_branches_has_each_ones_own_values(saver, shares):
    saver.share_messages, saver.saver.on_conflict = shares, "branch"
    other = LangGraphSaver(saver.saver)

    def said(names: str) -> list[HumanMessage]:
        return [HumanMessage(f"{it} " + "long " * 300, id=it) for it in names]

    await put(saver, "01", None, messages=said("a"))
    await put(saver, "02", "01", messages=said("abc"))
    await put(saver, "03", "02", messages=said("abcd"))
    await put(other, "04", "02", messages=said("abxyz"))
    await put(saver, "05", "03", messages=said("abcde"))
    found = [it async for it in saver.alist(at())]
    assert len(found) == 5
    for it in found:
        name = it.config["configurable"]["checkpoint_id"]
        assert exact(it.checkpoint["channel_values"]["messages"]) == exact(await read(saver, name))


async def test_what_a_writer_changes_later_is_not_in_what_it_saved(saver) -> None:
    messages = conversation()
    expected = exact(messages)
    await put(saver, "v1", None, messages=messages)
    spoil(messages)
    assert exact(await read(saver)) == expected


def whole(messages: list[Any]) -> Any:
    """``exact``, and what a message has beyond its fields."""
    return exact(messages), [exact(getattr(it, "__pydantic_extra__", None)) for it in messages]


def renamed(messages: list[Any]) -> None:
    messages[3] = {"content": messages[3]["content"], "role": "user"}


CHANGES = [
    lambda it: setattr(it[0], "content", "other"),
    lambda it: it[0].additional_kwargs["deep"]["n"].__setitem__(0, 1.0),
    lambda it: it[0].additional_kwargs["deep"]["n"].__setitem__(0, True),
    lambda it: it[1].tool_calls[0]["args"].update(x=(1.5,)),
    lambda it: it[1].tool_calls[0]["args"].update(x=b"\0"),
    lambda it: setattr(it[2], "extra_of_mine", {"k": 1}),
    lambda it: it.__setitem__(2, HumanMessage(**it[2].model_dump(include={"content", "id"}))),
    renamed,
    lambda it: it[5].__setitem__(0, -0.0),
    lambda it: it.reverse(),
    lambda it: it.pop(0),
    lambda it: it.insert(1, it[3]),
    lambda it: it.__setitem__(slice(2, 4), []),
    lambda it: it.clear(),
]


@pytest.mark.parametrize("number", range(len(CHANGES)))
async def test_a_message_that_was_changed_in_place_is_saved_so(saver, number) -> None:
    messages = conversation()
    await put(saver, "v1", None, messages=messages)
    messages = await read(saver)
    before = whole(messages)
    await put(saver, "v2", "v1", messages=messages)
    CHANGES[number](messages)
    assert whole(messages) != before
    await put(saver, "v3", "v2", messages=messages)
    messages.append(HumanMessage("one more", id="9"))
    await put(saver, "v4", "v3", messages=messages)
    other = LangGraphSaver(saver.saver)
    for name in ("v1", "v2", "v3", "v4"):
        assert whole(await read(saver, name)) == whole(await read(other, name))
    assert whole(await read(saver, "v2")) == before
    assert whole(await read(saver)) == whole(messages)
    assert [whole(it) for it in await listed(saver)] == [
        whole(await read(other, name)) for name in ("v4", "v3", "v2", "v1")
    ]


async def test_forks_with_the_same_versions_of_channels_are_told_apart(saver) -> None:
    one, two, three = (HumanMessage(it, id=it) for it in ("one", "two", "three"))
    await put(saver, "v1", None, messages=[one])
    await put(saver, "v2", "v1", messages=[one, two])
    await put(saver, "f2", "v1", "fork", messages=[one, three])
    await put(saver, "f3", "f2", messages=[one, three, two])
    assert await read(saver, "v2") == [one, two]
    assert await read(saver, "f2") == [one, three]
    assert await read(saver) == [one, three, two]
    assert await listed(saver) == [[one, three, two], [one, three], [one, two], [one]]


@pytest.mark.parametrize("begun", [0, 61], ids=["from nothing", "beyond prints of 64 elements"])
async def test_random_edits_are_what_a_reader_without_memory_finds(begun: int) -> None:
    chance, backend = random.Random(7), MemoryBackend()
    messages: list[Any] = [HumanMessage(f"{it}", id=f"b{it}") for it in range(begun)]
    saved, parent = [], None
    async with LangGraphSaver(backend) as saver:
        for turn in range(120):
            messages = await read(saver) if turn and chance.random() < 0.5 else messages
            for _ in range(chance.randrange(3)):
                edit(chance, messages, turn)
            await put(saver, f"v{turn}", parent, messages=messages)
            parent = f"v{turn}"
            saved.append(exact(messages))
        found = [exact(it) for it in await listed(saver)]
        assert found == saved[::-1]
        assert [exact(await read(LangGraphSaver(backend), f"v{it}")) for it in range(120)] == saved


def edit(chance: random.Random, messages: list[Any], turn: int) -> None:
    kind, place = chance.randrange(6), chance.randrange(len(messages) + 1)
    if kind == 0 and messages:
        messages.pop(chance.randrange(len(messages)))
    elif kind == 1 and messages:
        messages.insert(place, copy.deepcopy(messages[chance.randrange(len(messages))]))
    elif kind == 2 and messages and isinstance(messages[-1], HumanMessage):
        messages[-1].additional_kwargs[f"k{turn}"] = [turn, float(turn)]
    else:
        made = [HumanMessage("a" * turn, id=str(turn)), {"n": turn, "b": "x" * 900}, turn]
        messages.append(made[kind % 3])


async def test_another_serializer_gets_nothing_that_the_first_one_made(opened) -> None:  # noqa: F811
    backend = opened()
    async with LangGraphSaver(backend, allowed=[Point]) as saver:
        await put(saver, "v1", None, messages=[Point(1.0), HumanMessage("hi", id="1")])
        assert await read(saver) == [Point(1.0), HumanMessage("hi", id="1")]
        other = copy.copy(saver)  # as `with_allowlist` does it
        other.serde = ExactSerializer([])
        with pytest.raises(SerializationError):
            await read(other)
        assert await read(saver) == [Point(1.0), HumanMessage("hi", id="1")]


if TESTS_RUN:

    class Counting(JsonPlusSerializer):
        """A user's own: makes something else of what it reads."""

        def loads_typed(self, data: tuple[str, bytes]) -> Any:
            found = super().loads_typed(data)
            return [f"read {it}" for it in found] if isinstance(found, list) else found


async def test_objects_are_made_by_the_users_own_serializer() -> None:
    async with LangGraphSaver(MemoryBackend(), serde=Counting()) as saver:
        await put(saver, "v1", None, messages=["a", "b"])
        assert await read(saver) == ["read a", "read b"]
        assert await listed(saver) == [["read a", "read b"]]


async def test_an_encrypted_list_comes_back(opened) -> None:  # noqa: F811
    serde = EncryptedSerializer(Cipher(), ExactSerializer())
    async with LangGraphSaver(opened(), serde=serde) as saver:
        await put(saver, "v1", None, messages=conversation())
        assert exact(await read(saver)) == exact(await read(saver))
        assert exact((await listed(saver))[0]) == exact(await read(saver))


async def test_lists_that_are_not_kept_are_read_and_saved_all_the_same() -> None:
    async with LangGraphSaver(MemoryBackend(), cache_bytes=0) as saver:
        messages = conversation()
        for turn in range(5):
            await put(saver, f"v{turn}", f"v{turn - 1}" if turn else None, messages=messages)
            messages = await read(saver)
            messages.append(HumanMessage(str(turn), id=f"m{turn}"))
        assert len(await read(saver)) == len(conversation()) + 4


def talk(saver: Any, threads: int, count: int, size: int) -> None:
    """Save and read threads of different messages."""
    for thread in range(threads):
        messages = [
            AIMessage(
                secrets.token_hex(size // 2),
                id=f"{thread}-{it}",
                tool_calls=[{"name": "f", "args": {"x": [it, {"y": 1.5}]}, "id": "c"}],
            )
            for it in range(count)
        ]
        config = {"configurable": {"thread_id": f"t{thread}", "checkpoint_ns": ""}}
        saver.put(config, checkpoint("v", messages=messages), {"source": "loop", "step": 1}, {})
        assert saver.get_tuple(config).checkpoint["channel_values"]["messages"] == messages


SHAPES = [(60, 40, 20), (60, 20, 2000), (4, 700, 200), (800, 1, 100)]


@pytest.mark.parametrize(("threads", "count", "size"), SHAPES if ALL else SHAPES[:3:2])
@pytest.mark.full
def test_what_is_remembered_stays_within_one_bound_of_real_memory(
    tmp_path, threads, count, size
) -> None:
    bound = 8 * 1024 * 1024
    with LangGraphSaver.from_url(f"sqlite:///{tmp_path / 'x.db'}", cache_bytes=bound) as saver:
        talk(saver, 2, count, size)
        gc.collect()
        tracemalloc.start()
        try:
            talk(saver, threads, count, size)
            gc.collect()
            grown = tracemalloc.get_traced_memory()[0]
        finally:
            tracemalloc.stop()
        assert saver._caches.size + saver.saver.backend._known._bytes <= bound
        assert bound // 4 < grown < bound


async def test_clones_share_their_origins_memory(saver) -> None:
    clones = [saver.with_allowlist([("a", f"C{it}")]) for it in range(3)]
    for it in clones:
        await put(it, "v1", None, messages=conversation())
        assert exact(await read(it)) == exact(conversation())
        assert it._caches is saver._caches
    assert clones[0]._values._lists is not clones[1]._values._lists


@pytest.mark.parametrize("wrong", [-1, 1.5, "64M", None, True])
def test_a_bound_of_memory_that_is_none_is_refused(wrong) -> None:
    with pytest.raises(InvalidArgumentError, match="cache_bytes"):
        LangGraphSaver(MemoryBackend(), cache_bytes=wrong)


if TESTS_RUN:

    class Own(HumanMessage):
        """A message class of the user's: who knows what else it holds?"""


@pytest.mark.parametrize(
    "value",
    [
        Later(lambda: Own("x")),
        {"k": Point(1)},
        (1,),
        {1, 2},
        [object()],
        Later(lambda: HumanMessage("x", artifact=(1,))),
    ],
)
def test_what_is_not_known_well_is_not_copied(value) -> None:
    assert make_copier(value) is None


# --- what cannot be copied


@pytest.mark.parametrize(
    "odd", [(1, 2), {1}, b"x", Point(1, 2), Later(lambda: _DeltaSnapshot([1]))]
)
async def test_a_list_of_checkpoints_has_each_ones_own_values(saver, odd):
    """A value that no copy is made of is made later, from what was there when it was read."""
    saver = saver.with_allowlist([(Point.__module__, Point.__qualname__)])
    before = None
    for number in range(5):
        value = {"n": number, "odd": odd, "pad": "x" * 400}
        await put(saver, f"v{number}", before, messages=[value], value=value)
        before = f"v{number}"
    found = [it.checkpoint["channel_values"] async for it in saver.alist(at())]
    wanted = [(await saver.aget_tuple(at(f"v{it}"))).checkpoint for it in (4, 3, 2, 1, 0)]
    assert [exact(it["value"]) for it in found] == [
        exact(it["channel_values"]["value"]) for it in wanted
    ]
    assert [it["value"]["n"] for it in found] == [4, 3, 2, 1, 0]
    assert [it["messages"][0]["n"] for it in found] == [4, 3, 2, 1, 0]


async def test_a_dict_that_is_sent_again_is_stored_as_it_is_now() -> None:
    value: dict[str, Any] = {"b": [1, {"c": "x"}], "a": 1}
    changes: list[dict[str, Any]] = [{}, {"a": True}, {"a": 1.0}, {"b": b"x"}]
    changes += [{"b": bytearray(b"x")}, {"b": (1, 2)}, {"b": [1, 2]}, {"$": "d"}]
    async with LangGraphSaver(MemoryBackend()) as saver:
        for turn, change in enumerate(changes):
            value.update(change)
            parent = f"v{turn - 1}" if turn else None
            sent = [value, {"in": value}, [value, "s"]]
            await put(saver, f"v{turn}", parent, messages=sent, one=value)
            found = await saver.aget_tuple(at())
            assert exact(found.checkpoint["channel_values"]) == exact(
                {"messages": sent, "one": value}
            )


async def put_versions(
    saver: Any, name: str, parent: str | None, new: dict[str, str], versions: Any, **values: Any
) -> None:
    made = {**checkpoint(name, **values), "channel_versions": versions}
    await saver.aput(at(parent), made, {"source": "loop", "step": 1}, new)


async def test_trusted_new_versions_leave_other_channels_as_they_are() -> None:
    backend = MemoryBackend()
    trusting = LangGraphSaver(backend, trust_new_versions=True)
    messages, other = [HumanMessage("one", id="1")], {"n": [1]}
    first, second = {"messages": "1", "other": "1"}, {"messages": "2", "other": "1"}
    await put_versions(trusting, "v1", None, first, first, messages=messages, other=other)
    messages.append(HumanMessage("two", id="2"))
    other["n"].append(2)  # in place, and not returned
    await put_versions(
        trusting, "v2", "v1", {"messages": "2"}, second, messages=messages, other=other
    )
    found = await LangGraphSaver(backend).aget_tuple(at("v2"))
    assert found.checkpoint["channel_values"] == {"messages": messages, "other": {"n": [1]}}
    await put_versions(
        LangGraphSaver(backend), "v3", "v2", {}, second, messages=messages, other=other
    )
    found = await LangGraphSaver(backend).aget_tuple(at("v3"))
    assert found.checkpoint["channel_values"]["other"] == {"n": [1, 2]}


async def test_the_set_of_a_join_is_saved_as_it_was_when_its_version_was_new() -> None:
    saver, seen = LangGraphSaver(MemoryBackend()), set[str]()
    first, second, values = {"join:x+y:z": "1"}, {"join:x+y:z": "2"}, {"join:x+y:z": seen}
    await put_versions(saver, "v1", None, first, first, **values)
    seen |= {"x", "y"}  # as LangGraph does after the next step, while "v2" is put
    await put_versions(saver, "v2", "v1", {}, first, **values)
    await put_versions(saver, "v3", "v2", second, second, **values)
    found = [(await saver.aget_tuple(at(it))).checkpoint["channel_values"] for it in ("v2", "v3")]
    assert found == [{"join:x+y:z": set()}, {"join:x+y:z": {"x", "y"}}]


async def test_trusted_new_versions_do_not_hide_a_copy_of_another_savers_checkpoint() -> None:
    backend = MemoryBackend()
    trusting = LangGraphSaver(backend, trust_new_versions=True)
    first, second = {"messages": "1"}, {"messages": "2"}
    await put_versions(trusting, "v1", None, first, first, messages=["a", {}])
    await put_versions(LangGraphSaver(backend), "v2", "v1", second, second, messages=["b", {}])
    # A copy, as by `update_state(as_node="__copy__")`, has the parent of the original.
    copied = {**checkpoint("c1", messages=["b", {}]), "channel_versions": second}
    await trusting.aput(at("v1"), copied, {"source": "fork", "step": 1}, {})
    assert await read(LangGraphSaver(backend), "c1") == ["b", {}]
