"""Arguments of wrong types: every method of the saver answers them with an error of the package."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

import pytest
from lazily import TESTS_RUN

from locus_store import InvalidArgumentError, LocusStoreError

if TESTS_RUN:
    from locus_store.adapters.langgraph import LangGraphSaver

CONFIG = {"configurable": {"thread_id": "t", "checkpoint_ns": "", "checkpoint_id": "v0"}}
CHECKPOINT = {
    "id": "v0",
    "v": 4,
    "ts": "",
    "channel_values": {"c": 1},
    "channel_versions": {"c": "1"},
    "versions_seen": {},
}
CALLS: dict[str, dict[str, Any]] = {
    "get_tuple": {"config": CONFIG},
    "put": {"config": CONFIG, "checkpoint": CHECKPOINT, "metadata": {}, "new_versions": {}},
    "put_writes": {"config": CONFIG, "writes": [("c", 1)], "task_id": "task", "task_path": ""},
    "list": {"config": None, "filter": None, "before": None, "limit": None},
    "delete_thread": {"thread_id": "t"},
    "delete_for_runs": {"run_ids": ["run"]},
    "copy_thread": {"source_thread_id": "t", "target_thread_id": "u"},
    "prune": {"thread_ids": ["t"], "strategy": "keep_latest"},
    "get_delta_channel_history": {"config": CONFIG, "channels": ["c"]},
}
WRONG: list[Any] = [
    *(None, True, 3, -1, 2.5, float("nan"), float("inf"), "", "abc", b"x", object(), int),
    *([], ["x"], [["x"]], [{}], [("a",)], [(1, 2)], [([], 1)], [("a", 1, 2)]),
    *({}, {"x": 1}, {1: 2}, {"a"}, {"configurable": 3}),
    *({"configurable": {"thread_id": "t"} | it} for it in ({"checkpoint_id": ["v0"]}, {"a": 1})),
    *({"configurable": {"thread_id": "t", name: 3}} for name in ("checkpoint_ns", "ttl_seconds")),
    *({"configurable": {"thread_id": "t"}, "metadata": it} for it in (None, 3, ["x"])),
    *({**CHECKPOINT, name: wrong} for name in CHECKPOINT for wrong in (None, 3, ["x"], {1: 2})),
    *(
        {name: CHECKPOINT[name] for name in CHECKPOINT if name != left_out}
        for left_out in CHECKPOINT
    ),
]
"""Values that not every argument takes."""


def call(saver: LangGraphSaver, name: str, given: dict[str, Any], *, is_async: bool) -> Any:
    """Return what a method returns, of a list all checkpoints."""
    if name != "list":
        method = getattr(saver, f"a{name}" if is_async else name)
        return asyncio.run(method(**given)) if is_async else method(**given)
    config, *options = given.items()
    if not is_async:
        return list(saver.list(config[1], **dict(options)))

    async def collect() -> list[Any]:
        return [it async for it in saver.alist(config[1], **dict(options))]

    return asyncio.run(collect())


@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
@pytest.mark.parametrize("trusts", [False, True], ids=["compares", "trusts"])
@pytest.mark.parametrize("name", CALLS)
def test_a_value_that_an_argument_does_not_take_gets_an_error_of_the_package(
    name: str, trusts: bool, is_async: bool
) -> None:
    with LangGraphSaver.from_url("memory://", trust_new_versions=trusts) as saver:
        saver.put({"configurable": {"thread_id": "t"}}, **dict([*CALLS["put"].items()][1:]))
        for argument in CALLS[name]:
            for wrong in WRONG:
                with suppress(LocusStoreError):
                    call(saver, name, CALLS[name] | {argument: wrong}, is_async=is_async)


@pytest.mark.parametrize(
    ("name", "given", "message"),
    [
        ("get_tuple", {"config": "t"}, "a config must be a dict, not str"),
        ("list", {"config": {"configurable": ["t"]}}, "configurable of a config must be a dict"),
        ("list", {"filter": ["x"]}, "filter must be a dict, not list"),
        ("list", {"before": "abc"}, "a config must be a dict, not str"),
        ("list", {"limit": "3"}, "limit must be a whole number from 0"),
        ("put", {"checkpoint": {"id": "v"}}, r"checkpoint\['channel_versions'\] must be a dict"),
        ("put", {"metadata": None}, "metadata must be a dict, not NoneType"),
        ("put_writes", {"writes": [("c",)]}, "writes must be pairs of a channel and a value"),
        ("delete_for_runs", {"run_ids": "run"}, "run_ids must be a list, not str"),
        ("get_delta_channel_history", {"channels": 3}, "channels must be a list, not int"),
    ],
)
def test_the_error_says_what_is_expected(name: str, given: dict[str, Any], message: str) -> None:
    saver = LangGraphSaver.from_url("memory://")
    with saver, pytest.raises(InvalidArgumentError, match=message):
        call(saver, name, CALLS[name] | given, is_async=False)


@pytest.mark.parametrize("wrong", ["abc", float("nan"), float("inf"), [1], b"1"], ids=repr)
def test_a_version_of_a_channel_that_is_none_is_refused(wrong: Any) -> None:
    with pytest.raises(InvalidArgumentError, match="is not a version of a channel"):
        LangGraphSaver.from_url("memory://").get_next_version(wrong)
