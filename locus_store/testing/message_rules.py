"""Messages of one log: what comes back, order, changes, and what is refused."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import pytest

from locus_store.errors import ConflictError, InvalidArgumentError, SerializationError
from locus_store.testing.kit import (
    CUT_TEXTS,
    HOSTILE_IDS,
    INVALID_IDS,
    INVALID_LIMITS,
    INVALID_OPTIONAL_IDS,
    NUMBERS,
    TEXTS,
    UNSERIALISABLE,
    Another,
    MessageLogKit,
    exact,
    expect,
    expect_invalid,
    make_named,
    make_new,
    refused,
    seam,
    unwrap,
)
from locus_store.types.messages import NewMessage, Popped

NO_MESSAGES: tuple[Any, ...] = (
    *("text", {"content": 1}, None, 1, ()),
    (1, "role", "m", None, None, None),
)


def needs_several_threads(log: Any) -> None:
    """Skip the test if a change of the log cannot have logs of several threads."""
    if not log.changes_several_threads:
        pytest.skip(f"{type(log).__name__} changes the logs of one thread at a time")


class Appending(MessageLogKit):
    """``append``: order, ids, metadata, revisions."""

    async def test_a_message_comes_back_whole(self, log: Any) -> None:
        given = NewMessage({"a": [1]}, "user", "m", {"k": 1.0}, "its text")
        await log.append("t", [given, tuple(given._replace(message_id="n"))])
        for name in "mn":
            found = await log.get("t", name)
            assert (found.message_id, found.role, found.content) == (name, "user", {"a": [1]})
            assert exact(found.metadata) == exact({"k": 1.0})
            assert found.text == "its text"
            assert abs(datetime.now(UTC) - found.created_at) < timedelta(minutes=5)
        assert await log.get("t", "no") is await log.get("no", "m") is None

    async def test_every_number_and_text_comes_back_exactly(self, log: Any) -> None:
        values: list[Any] = [{"v": it, "l": [it]} for it in (*NUMBERS, *TEXTS, *CUT_TEXTS)]
        values += [{"v": it, it: [it]} for it in CUT_TEXTS]
        given = [NewMessage(it, metadata={"it": it["v"]}) for it in values]
        await log.append("t", given)
        found = await log.load("t")
        assert exact(unwrap(found)) == exact(values)
        assert [exact(it.metadata) for it in found] == [exact({"it": it["v"]}) for it in values]

    async def test_a_text_comes_back_exactly_and_an_empty_one_is_one(self, log: Any) -> None:
        texts = [*TEXTS, *CUT_TEXTS, None, "\x01", "\x010"]
        large = ["x" * 5000, "日本" * 400_000]
        await log.append("t", [NewMessage(n, text=it) for n, it in enumerate(texts)])
        await log.append("t", [NewMessage(it, text=it) for it in large])
        assert [it.text for it in await log.load("t")] == [*texts, *large]

    async def test_a_known_id_replaces_the_message_in_its_place(self, log: Any) -> None:
        await log.append("t", make_named("a", "b", "c"))
        before = await log.get("t", "b")
        again = NewMessage("B", "tool", "b", {"k": 1}, "text")
        await log.append("t", [again, NewMessage("d", message_id="d")])
        assert unwrap(await log.load("t")) == ["a", "B", "c", "d"]
        after = await log.get("t", "b")
        assert (after.role, after.metadata, after.text) == ("tool", {"k": 1}, "text")
        assert after.created_at == before.created_at
        assert (await log.info("t")).count == 4

    async def test_a_whole_turn_that_is_put_again_changes_no_order(self, log: Any) -> None:
        ids = [f"m{n}" for n in range(250)]
        await log.append("t", make_named(*ids))
        await log.append("t", make_named(*reversed(ids), "last"))
        assert unwrap(await log.load("t")) == [*ids, "last"]
        assert (await log.info("t")).count == 251

    async def test_of_several_messages_with_one_id_the_last_counts(self, log: Any) -> None:
        twice = [*make_named("a", "b"), NewMessage("A", message_id="a")]
        await log.append("t", twice)
        assert unwrap(await log.load("t")) == ["A", "b"]

    async def test_messages_without_ids_are_always_appended(self, log: Any) -> None:
        for _ in range(2):
            await log.append("t", make_new("same", "same"))
        found = await log.load("t")
        assert unwrap(found) == ["same"] * 4
        assert len({it.message_id for it in found}) == 4

    async def test_an_id_is_unique_in_its_log_only(self, log: Any) -> None:
        for thread, namespace in (("t", ""), ("t", "sub"), ("u", "")):
            await log.append(
                thread, [NewMessage([thread, namespace], message_id="m")], namespace=namespace
            )
        assert unwrap(await log.load("t")) == [["t", ""]]
        assert unwrap(await log.load("t", namespace="sub")) == [["t", "sub"]]
        assert unwrap(await log.load("u")) == [["u", ""]]

    async def test_the_calls_metadata_is_merged_into_each_messages(self, log: Any) -> None:
        messages = [NewMessage(1, metadata={"a": 1, "b": 1}), NewMessage(2)]
        shared = {"b": 2, "c": {"d": None}}
        await log.append("t", messages, metadata=shared)
        assert [it.metadata for it in await log.load("t")] == [
            {"a": 1, "b": 1, "c": {"d": None}},
            {"b": 2, "c": {"d": None}},
        ]
        assert messages[0].metadata == {"a": 1, "b": 1}

    async def test_appending_nothing_creates_no_log(self, log: Any) -> None:
        assert await log.append("t", []) == 0
        assert await log.load("t") is None
        revision = await log.append("t", make_new(1))
        before = await log.info("t")
        assert await log.append("t", []) == revision
        assert await log.info("t") == before

    async def test_an_append_to_several_logs_is_one_change(self, log: Any) -> None:
        first = await log.append("t", make_named("s1"), also={"sub": make_new(1, 2), "other": []})
        assert [it.namespace for it in await log.logs("t")] == ["", "sub"]
        second = await log.append(
            "t",
            make_named("s2"),
            expected_revision=first,
            also={"sub": make_new(3), "other": make_new(4)},
        )
        assert second > first
        before = await log.heads("t")
        with pytest.raises(ConflictError):
            await log.append("t", make_new(6), expected_revision=first, also={"sub": make_new(5)})
        assert await log.heads("t") == before
        loaded = [unwrap(await log.load("t", namespace=it)) for it in ("", "sub", "other")]
        assert loaded == [["s1", "s2"], [1, 2, 3], [4]]
        assert await log.append("u", [], also={"sub": make_new(1)}) == 0
        assert [it.namespace for it in await log.logs("u")] == ["sub"]

    async def test_an_append_to_logs_of_several_threads_is_one_change(self, log: Any) -> None:
        needs_several_threads(log)
        shared = {
            ("a", "state"): make_named("k"),
            "sub": make_new(1),
            ("z", ""): make_new(2),
            ("y", ""): [],
        }
        first = await log.append("t", make_named("s1"), also=shared)
        names = [(it.thread_id, it.namespace) for it in await log.logs()]
        assert names == [("a", "state"), ("t", ""), ("t", "sub"), ("z", "")]
        shared = {("a", "state"): [NewMessage("K", message_id="k")], ("z", ""): make_new(3)}
        assert await log.append("t", make_new("s2"), expected_revision=first, also=shared) > first
        before = await log.heads()
        with pytest.raises(ConflictError):
            await log.append(
                "t", make_new(9), expected_revision=first, also={("new", ""): make_new(9)}
            )
        assert await log.heads() == before
        assert unwrap(await log.load("a", namespace="state")) == ["K"]
        assert unwrap(await log.load("z")) == [2, 3]
        await log.append("v", [], also={("w", ""): make_new(4)})
        assert [unwrap(await log.load(it)) for it in "w"] == [[4]]
        assert await log.load("v") is None

    async def test_each_change_makes_the_revision_greater(self, log: Any) -> None:
        seen = [await log.append("t", make_named(*names)) for names in ("abcdef", "a")]
        seen.append((await log.pop("t")).revision)
        seen.append(await log.replace("t", 3, make_new("x")))
        seen.append(await log.remove("t", ["a"]))
        seen.append(await log.clear("t"))
        seen.append(await log.append("t", make_new(1)))
        assert seen == sorted(set(seen))
        assert (await log.info("t")).revision == (await log.read("t")).info.revision == seen[-1]

    async def test_a_log_that_is_created_again_has_new_revisions(self, log: Any) -> None:
        seen = []
        for _ in range(5):
            seen.append(await log.append("t", make_new(1)))
            assert await log.delete("t") is True
        assert seen == sorted(set(seen))

    async def test_logs_with_hostile_names_are_logs_of_their_own(self, log: Any) -> None:
        names = [(it, "") for it in HOSTILE_IDS] + [("t", it) for it in HOSTILE_IDS]
        names += [("t", ""), ("a:b", "c"), ("a", "b:c")]
        for thread, namespace in names:
            id_ = namespace or thread
            message = NewMessage([thread, namespace], id_, id_)
            await log.append(thread, [message], namespace=namespace)
        for thread, namespace in names:
            [found] = await log.load(thread, namespace=namespace)
            assert found.content == [thread, namespace]
            assert found.role == found.message_id == (namespace or thread)

    async def test_results_are_the_callers_own(self, log: Any) -> None:
        content, metadata = {"a": [1]}, {"k": [1]}
        await log.append("t", [NewMessage(content, message_id="m", metadata=metadata)])
        content["a"].append(2)
        metadata["k"].append(2)
        for _ in range(2):
            found = await log.get("t", "m")
            assert (found.content, found.metadata) == ({"a": [1]}, {"k": [1]})
            found.content["a"].append(3)
            found.metadata["k"].append(3)


@seam("connection")
class Changing(MessageLogKit):
    """``pop``, ``replace``, ``remove``, ``clear``, ``delete`` and the expected revision."""

    async def test_pop_removes_the_newest_message(self, log: Any) -> None:
        await log.append("t", make_named("a", "b"))
        await log.append("t", make_named("a"))
        for name in "ba":
            found, revision = await log.pop("t")
            assert (found.content, found.message_id) == (name, name)
            assert (await log.info("t")).revision == revision
        before = await log.info("t")
        assert await log.pop("t") == Popped(None, before.revision)
        assert await log.info("t") == before
        assert await log.pop("no") == Popped(None, 0)

    async def test_what_follows_a_pop_is_the_newest(self, log: Any) -> None:
        await log.append("t", make_named("a", "b"))
        await log.pop("t")
        await log.append("t", make_named("c", "b"))
        assert unwrap(await log.load("t")) == ["a", "c", "b"]

    async def test_replace_exchanges_the_messages_from_a_position_on(self, log: Any) -> None:
        await log.append("t", make_named(*"abcdef"))
        await log.remove("t", ["b"])
        await log.replace("t", 2, [*make_named("x", "f"), *make_new("y")])
        assert unwrap(await log.load("t")) == ["a", "c", "x", "f", "y"]
        await log.replace("t", 5, make_named("z"))
        await log.replace("t", 5, [])
        assert unwrap(await log.load("t")) == ["a", "c", "x", "f", "y"]
        await log.replace("t", 0, make_named("n"))
        assert unwrap(await log.load("t")) == ["n"]
        assert (await log.info("t")).count == 1

    async def test_replace_behind_the_end_is_a_conflict(self, log: Any) -> None:
        await log.append("t", make_named("a"))
        before = await log.read("t")
        with pytest.raises(ConflictError, match="no position 2"):
            await log.replace("t", 2, make_named("b"))
        assert await log.read("t") == before
        with pytest.raises(ConflictError, match="no position 1"):
            await log.replace("no", 1, make_named("b"))
        assert await log.load("no") is None
        await log.replace("no", 0, make_named("b"))
        assert unwrap(await log.load("no")) == ["b"]

    async def test_remove_removes_the_messages_that_exist(self, log: Any) -> None:
        await log.append("t", make_named(*(f"m{n}" for n in range(500))))
        await log.remove("t", [*(f"m{n}" for n in range(1, 499)), "no"])
        assert unwrap(await log.load("t")) == ["m0", "m499"]
        before = await log.info("t")
        assert await log.remove("t", ["no"]) == await log.remove("t", []) == before.revision
        assert await log.info("t") == before
        assert await log.remove("no", ["m0"]) == 0

    async def test_a_cleared_log_exists_and_is_empty(self, log: Any) -> None:
        assert await log.clear("t") == 0
        assert await log.load("t") is await log.info("t") is None
        revision = await log.append("t", make_named("a", "b"))
        cleared = await log.clear("t")
        assert cleared > revision
        assert await log.load("t") == []
        info = await log.info("t")
        assert (info.revision, info.count) == (cleared, 0)
        assert await log.clear("t") == cleared
        await log.append("t", make_named("b"), expected_revision=cleared)
        assert unwrap(await log.load("t")) == ["b"]

    async def test_delete_removes_the_logs_of_all_namespaces(self, log: Any) -> None:
        for namespace in ("", "sub", "sub/x"):
            await log.append("t", make_named("a"), namespace=namespace)
            await log.append("u", make_named("a"), namespace=namespace)
        assert await log.delete("t") is True
        assert await log.logs("t") == []
        assert await log.delete("t") is False
        assert len(await log.logs("u")) == 3

    async def test_delete_of_a_namespace_removes_its_log_only(self, log: Any) -> None:
        for namespace in ("", "sub", "sub/x"):
            await log.append("t", make_named("a"), namespace=namespace)
        assert await log.delete("t", namespace="sub") is True
        assert await log.delete("t", namespace="sub") is False
        assert [it.namespace for it in await log.logs("t")] == ["", "sub/x"]
        assert await log.delete("t", namespace="") is True
        assert unwrap(await log.load("t", namespace="sub/x")) == ["a"]

    async def test_a_change_that_expects_another_revision_is_a_conflict(self, log: Any) -> None:
        first = await log.append("t", make_named("a"), expected_revision=0)
        second = await log.append("t", make_named("b"), expected_revision=first)
        before = await log.read("t")
        for wrong in (0, first, second + 1, 1):
            await expect(
                ConflictError,
                [wrong],
                lambda it: log.append("t", make_named("c"), expected_revision=it),
                lambda it: log.append("t", [], expected_revision=it),
                lambda it: log.replace("t", 0, make_named("c"), expected_revision=it),
                lambda it: log.pop("t", expected_revision=it),
                lambda it: log.remove("t", ["a"], expected_revision=it),
                lambda it: log.clear("t", expected_revision=it),
                lambda it: log.delete("t", expected_revision=it),
                match=f"revision {wrong} was expected",
            )
        assert await log.read("t") == before
        await expect(
            ConflictError,
            [first],
            lambda revision: log.append(
                "t", make_named("a"), namespace="no", expected_revision=revision
            ),
            *(
                lambda it, call=call: call("no", expected_revision=it)
                for call in (log.clear, log.pop, log.delete)
            ),
            match="there is no such log",
        )
        assert await log.logs() == [before.info]

    async def test_every_change_accepts_the_revision_that_is_stored(self, log: Any) -> None:
        revision = await log.append("t", make_named(*"abcd"), expected_revision=0)
        revision = await log.replace("t", 3, make_named("x"), expected_revision=revision)
        revision = (await log.pop("t", expected_revision=revision)).revision
        revision = await log.remove("t", ["a"], expected_revision=revision)
        assert unwrap(await log.load("t")) == ["b", "c"]
        revision = await log.clear("t", expected_revision=revision)
        assert await log.delete("t", expected_revision=revision) is True
        assert await log.delete("t", expected_revision=0) is False


class MessageArguments(MessageLogKit):
    """Invalid arguments are refused before anything is written."""

    async def test_invalid_names_are_refused(self, log: Any) -> None:
        errors = (InvalidArgumentError, TypeError)
        await expect(errors, INVALID_IDS, lambda it: log.append(it, make_new(1)))
        await expect_invalid(
            INVALID_IDS,
            lambda it: log.append("t", [*make_new(1), NewMessage(1, it)]),
            *(log.load, log.page, log.pop, log.clear, log.delete, log.info),
        )
        names = INVALID_OPTIONAL_IDS
        await expect_invalid(
            names, lambda it: log.append("t", [*make_new(1), NewMessage(1, message_id=it)])
        )
        await expect_invalid(names[1:], lambda it: log.append("t", make_new(1), namespace=it))
        hashable = (it for it in names[1:] if not isinstance(it, list))
        await expect_invalid(hashable, lambda it: log.append("t", [], also={(it, ""): make_new(1)}))
        assert await log.logs() == []

    async def test_what_json_cannot_keep_is_refused(self, log: Any) -> None:
        await expect(
            SerializationError,
            UNSERIALISABLE,
            lambda it: log.append("t", [*make_new(1), NewMessage(it)]),
            lambda it: log.append("t", [*make_new(1), NewMessage([it])]),
            lambda it: log.append("t", [*make_new(1), NewMessage(1, metadata={"a": it})]),
            lambda it: log.append("t", make_new(1), metadata={"a": it}),
        )
        assert await log.logs() == []

    async def test_what_is_no_message_is_refused(self, log: Any) -> None:
        await expect_invalid(
            NO_MESSAGES,
            lambda it: log.append("t", [*make_new(1), it]),
            lambda it: log.append("t", make_new(1), also={"sub": [*make_new(1), it]}),
        )
        more = make_new(2)
        bad: list[Any] = [5, [1], {"": more}, {"sub": more, ("t", "sub"): more}]
        await expect_invalid(bad, lambda it: log.append("t", make_new(1), also=it))
        await expect_invalid((1, b"b", ["a"]), lambda it: log.append("t", [NewMessage(1, text=it)]))
        await expect(
            SerializationError,
            ("text", [1], 7),
            lambda it: log.append("t", [NewMessage(1, metadata=it)]),
        )
        assert await log.logs() == []

    async def test_invalid_numbers_are_refused(self, log: Any) -> None:
        await log.append("t", make_new(1, 2))
        await expect_invalid(
            INVALID_LIMITS,
            lambda it: log.page("t", limit=it),
            lambda it: log.page("t", offset=it),
            lambda it: log.replace("t", it, []),
            lambda it: log.logs(limit=it),
        )
        await expect_invalid(
            [it for it in INVALID_LIMITS if it is not None],
            lambda it: log.load("t", newest=it),
            lambda it: log.clear("t", expected_revision=it),
        )
        append = partial(log.append, "t", make_new(3))
        await expect_invalid((2**63, 10**5000), lambda it: append(expected_revision=it))
        with refused(ConflictError, "a revision that no log has"):
            await append(expected_revision=2**63 - 1)
        assert unwrap(await log.load("t")) == [1, 2]

    async def test_what_is_no_list_is_refused(self, log: Any) -> None:
        await log.append("t", make_new(1, 2))
        lists = (None, "m", 1)
        await expect_invalid(lists, lambda it: log.append("t", it))
        await expect_invalid((*lists, [["m"]]), lambda it: log.remove("t", it))
        cursors = ("x", "xy", 1, ("t",), ("t", "", ""), ("t", None), (None, ""))
        await expect_invalid(cursors, lambda it: log.logs(after=it))
        assert unwrap(await log.load("t")) == [1, 2]

    async def test_a_message_above_the_limit_is_refused(self, reopen: Another) -> None:
        async with reopen(max_state_bytes=1000) as log:
            for bad in (NewMessage("x" * 1000), NewMessage(1, text="x" * 1000)):
                with refused(SerializationError, bad, match="max_state_bytes"):
                    await log.append("t", [*make_new(1), bad])
            assert await log.load("t") is None
            await log.append("t", make_new("x" * 900))

    async def test_invalid_options_are_refused(self, reopen: Another) -> None:
        bad = (0, -1, float("nan"), "1", True)
        await expect_invalid(bad, lambda it: reopen(ttl_seconds=it))
