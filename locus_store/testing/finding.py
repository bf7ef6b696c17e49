"""Lists of threads, metadata queries, and search."""

from __future__ import annotations

import asyncio
from copy import deepcopy
from dataclasses import replace
from datetime import date, datetime
from typing import Any

import pytest

from locus_store.errors import NotFoundError, SerializationError
from locus_store.testing.kit import NUMBERS, TEXTS, Kit, exact, expect_invalid, requires, seam
from locus_store.timeline.graph import list_statuses
from locus_store.versions.sizes import StatusesWanted


@seam("loop")
@requires("list_threads")
class ThreadListRules(Kit):
    """``list_threads`` and ``list_with_metadata``."""

    async def test_threads_are_listed_the_newest_first(self, checkpointer: Any) -> None:
        for name in ("b", "c", "a"):
            await checkpointer.save(self.new(name), name)
        assert await checkpointer.list_threads() == ["a", "c", "b"]
        assert await checkpointer.list_threads(limit=2) == ["a", "c"]
        await checkpointer.delete("c")
        assert await checkpointer.list_threads() == ["a", "b"]

    async def test_a_pattern_is_shell_style(self, checkpointer: Any) -> None:
        names = ("a", "A", "ab", "abc", "a/b", "/x", "a%b", "a_b", "[a]", "a\\b", "a*b", "a\nb")
        odd = {"a/b", "a%b", "a_b", "a\\b", "a*b", "a\nb"}
        for name in names:
            await checkpointer.save({"n": 1}, name)
        for pattern, expected in {
            "*": set(names), "a": {"a"}, "a?": {"ab"}, "a*b": {"ab"} | odd, "a%b": {"a%b"},
            "a_b": {"a_b"}, "a\\b": {"a\\b"}, "a[*]b": {"a*b"}, "[aA]": {"a", "A"}, "[!A]": {"a"},
            "a[!b-z]b": odd, "/*": {"/x"}, "*x": {"/x"}, "[/]x": {"/x"}, "?x": {"/x"},
            "[[]a]": {"[a]"}, "A*": {"A"}, "none*": set(), "": set(), "'; --": set(), "[": set(),
        }.items():  # fmt: skip
            assert set(await checkpointer.list_threads(pattern=pattern)) == expected, pattern

    async def test_a_limit_counts_matches_only(self, checkpointer: Any) -> None:
        for n in range(6):
            await checkpointer.save({"n": n}, f"{'yes' if n % 2 else 'no'}:{n}")
        assert await checkpointer.list_threads(2, "yes:*") == ["yes:5", "yes:3"]
        assert await checkpointer.list_threads(2, "[y]es:*") == ["yes:5", "yes:3"]

    async def test_250_threads_are_listed_through_pages_of_100(self, checkpointer: Any) -> None:
        names = [f"t/{n}" for n in range(250)]
        await asyncio.gather(*(checkpointer.save({"n": 1}, name) for name in names))
        found: list[str] = await checkpointer.list_threads(limit=100)
        sizes = [len(found)]
        while page := await checkpointer.list_threads(limit=100, after=found[-1]):
            sizes.append(len(page))
            found += page
        assert sizes == [100, 100, 50]
        assert sorted(found) == sorted(names)
        assert await checkpointer.list_threads(limit=1000, pattern="t/*") == found
        after = found[found.index("t/15") + 1 :]
        teens = [name for name in after if len(name) == 4 and name.startswith("t/1")]
        assert await checkpointer.list_threads(5, "[t]/1?", after="t/15") == teens[:5]

    async def test_a_thread_cursor_that_is_gone_is_told(self, checkpointer: Any) -> None:
        with pytest.raises(NotFoundError, match="gone"):
            await checkpointer.list_threads(after="gone")

    async def test_a_pattern_that_is_no_text_is_refused(self, checkpointer: Any) -> None:
        await expect_invalid(
            (None, 7, b"*"), lambda it: checkpointer.list_threads(pattern=it), match="pattern"
        )

    @requires("list_with_metadata")
    async def test_threads_are_listed_with_their_heads_metadata(self, checkpointer: Any) -> None:
        for name in ("t1", "t2", "t3"):
            await checkpointer.save(self.new("a"), name, "v1", {"of": "old"})
            await checkpointer.save(self.new("b"), name, "v2", {"of": name, "n": [1.0, {}]})
        rows = await checkpointer.list_with_metadata()
        assert [row["thread_id"] for row in rows] == ["t3", "t2", "t1"]
        for row in rows:
            assert set(row) == {"thread_id", "checkpoint_id", "metadata", "updated_at"}
            assert row["checkpoint_id"] == "v2"
            assert exact(row["metadata"]) == exact({"of": row["thread_id"], "n": [1.0, {}]})
            assert datetime.fromisoformat(row["updated_at"]).utcoffset() is not None
        assert len(await checkpointer.list_with_metadata(limit=2)) == 2


@requires("metadata_query")
class Metadata(Kit):
    """``get_metadata`` and ``query_by_metadata``."""

    async def test_metadata_comes_back_as_it_was_given(self, checkpointer: Any) -> None:
        given = {"n": list(NUMBERS), "t": list(TEXTS), "": {"a.b": {"$": None}}, "a\0b": "\0"}
        state = self.new("a")
        await checkpointer.save(state, "t", "v1", deepcopy(given))
        await checkpointer.save(self.said(state, "b"), "t", "v2")
        assert exact(await checkpointer.get_metadata("t", "v1")) == exact(given)
        assert await checkpointer.get_metadata("t", "v2") == {}
        assert await checkpointer.get_metadata("t") == {}
        assert await checkpointer.get_metadata("t", "v3") is None
        assert await checkpointer.get_metadata("unknown") is None

    async def test_the_heads_metadata_is_the_one_that_was_given(self, checkpointer: Any) -> None:
        await checkpointer.save(self.new("a"), "t", "v1", {"k": 1})
        await checkpointer.save(self.new("b"), "t", "v2", {"k": 2})
        assert await checkpointer.get_metadata("t") == {"k": 2}
        await checkpointer.delete("t", "v2")
        assert await checkpointer.get_metadata("t") == {"k": 1}

    async def test_changing_metadata_changes_nothing_stored(self, checkpointer: Any) -> None:
        given = {"list": [1]}
        await checkpointer.save(self.new("a"), "t", metadata=given)
        given["list"].append(2)
        (await checkpointer.get_metadata("t"))["list"].append(3)
        (await checkpointer.query_by_metadata("list", 1))[0]["metadata"]["list"].append(4)
        assert await checkpointer.get_metadata("t") == {"list": [1]}

    async def test_a_value_is_found_by_its_type(self, checkpointer: Any) -> None:
        stored = {
            "int": 1, "float": 1.0, "true": True, "text": "1", "null": None, "false": False,
            "zero": 0, "half": "a\ud800",
            "empty": "", "list0": [], "list": ["a", "b"], "object0": {}, "object": {"in": 1},
        }  # fmt: skip
        for name, stored_value in stored.items():
            await checkpointer.save({"n": 1}, name, metadata={"k": stored_value})
            await checkpointer.save({"n": 1}, f"not {name}", metadata={"other": stored_value})
        for value, matches in (
            (1, {"int", "float"}), (1.0, {"int", "float"}), (True, {"true"}), ("1", {"text"}),
            (None, {"null"}), (False, {"false"}), (0, {"zero"}), ("", {"empty"}), ({}, {"object0"}),
            ([], {"list0", "list"}), ("a", {"list"}), (["b", "a"], {"list"}), (["a", "c"], set()),
            ({"in": 1}, {"object"}), ("true", set()), ("null", set()), ("[]", set()), (2, set()),
            ("a\ud800", {"half"}), ("\ud800", set()),
        ):  # fmt: skip
            found = await checkpointer.query_by_metadata("k", value)
            assert {row["thread_id"] for row in found} == matches, value

    async def test_a_key_is_a_path_and_never_a_statement(self, checkpointer: Any) -> None:
        user = {"name": "ann", "tags": ["x"], "deep": {"er": 1}}
        plain = {
            "a.b": "dotted", '"': 1, "'": 2, "$": 3, "$.user": 4, "[0]": 5, "a\0b": 6, "%": 8,
            "é": 9, "') OR 1=1 --": 7, "a\\": 10, "a\\.b": 11, "?": 12, ":k": 13, "{}": 14,
            ".": 15, "a..b": 16,
        }  # fmt: skip
        paths = {"user.name": "ann", "user.tags": "x", "user.deep.er": 1, "user": user}
        await checkpointer.save({"n": 1}, "t", metadata={"user": user, **plain})
        await checkpointer.save({"n": 1}, "other", metadata={"x": list(plain.values())})
        for key, value in {**plain, **paths}.items():
            found = await checkpointer.query_by_metadata(key, value)
            assert [row["thread_id"] for row in found] == ["t"], key
            assert await checkpointer.query_by_metadata(key, "another value") == []
            assert await checkpointer.query_by_metadata(key + "'", value) == []

    async def test_a_key_that_names_nothing_is_refused(self, checkpointer: Any) -> None:
        bad = ("", None, 7, b"k", ["k"])
        await expect_invalid(bad, lambda it: checkpointer.query_by_metadata(it, 1), match="key")

    async def test_a_value_that_is_not_json_is_refused(self, checkpointer: Any) -> None:
        for bad in (float("nan"), {1}, b"1", 2**64, {1: 2}, date(2026, 1, 1), {"in": [object()]}):
            with pytest.raises(SerializationError, match="value"):
                await checkpointer.query_by_metadata("k", bad)

    async def test_every_version_is_found_the_newest_first(self, checkpointer: Any) -> None:
        for n in range(4):
            await checkpointer.save({"n": n}, "t", f"v{n}", {"k": "x", "n": n})
        await checkpointer.save({"n": 9}, "u", "v9", {"k": "x", "n": 9})
        await checkpointer.save({"n": 10}, "u", "v10", {"k": "y"})
        rows = await checkpointer.query_by_metadata("k", "x")
        assert [row["checkpoint_id"] for row in rows] == ["v9", "v3", "v2", "v1", "v0"]
        for row in rows:
            assert set(row) == {"thread_id", "checkpoint_id", "metadata", "updated_at"}
            assert f"v{row['metadata']['n']}" == row["checkpoint_id"]
            assert datetime.fromisoformat(row["updated_at"]).utcoffset() is not None
        assert await checkpointer.query_by_metadata("k", "x", limit=2) == rows[:2]

    async def test_a_deleted_version_is_not_found(self, checkpointer: Any) -> None:
        await checkpointer.save({"n": 1}, "t", "v1", {"k": "x"})
        await checkpointer.save({"n": 2}, "t", "v2", {"k": "y"})
        await checkpointer.save({"n": 3}, "t", "v2", {"k": "z"})
        await checkpointer.delete("t", "v1")
        assert await checkpointer.query_by_metadata("k", "x") == []
        assert await checkpointer.query_by_metadata("k", "y") == []
        assert len(await checkpointer.query_by_metadata("k", "z")) == 1

    async def test_agents_and_tags_of_the_state_are_found(self, checkpointer: Any) -> None:
        await checkpointer.save({"agent_id": "a1", "metadata": {"tags": ["x", "y"]}}, "t1")
        await checkpointer.save({"agent_id": "a2", "tags": ["y", "z"]}, "t2", metadata={"k": 1})
        for key, value, expected in (
            ("agent_id", "a1", ["t1"]), ("agent_id", "a2", ["t2"]), ("tags", "x", ["t1"]),
            ("tags", "y", ["t2", "t1"]), ("tags", ["x", "y"], ["t1"]), ("tags", "none", []),
        ):  # fmt: skip
            found = await checkpointer.query_by_metadata(key, value)
            assert [row["thread_id"] for row in found] == expected
        assert await checkpointer.get_metadata("t1") == {}
        assert await checkpointer.get_metadata("t2") == {"k": 1}


@seam("search")
@requires("search")
class Search(Kit):
    """``search`` finds all words, has no operators, and is the same on every backend."""

    async def find_threads(self, checkpointer: Any, query: str, limit: int = 10) -> list[str]:
        """Return the ids of the threads found, in order; check the list with the text."""
        every, found = await checkpointer.search(query, 999), list[Any]()
        if (backend := getattr(checkpointer, "backend", None)) is not None:
            wanted = StatusesWanted(limit=2, text=query)
            while len(found) <= len(every) and (page := await list_statuses(backend, wanted)):
                found += [(it.thread_id, it.found) for it in page]
                wanted = replace(wanted, place=page[-1].place)
            hits = {it["thread_id"]: (it["checkpoint_id"], it["snippet"]) for it in every}
            names = await checkpointer.list_threads(999)
            assert found == [(it, hits[it]) for it in names if it in hits]
        return [hit["thread_id"] for hit in await checkpointer.search(query, limit)]

    async def test_all_words_must_be_there(self, checkpointer: Any) -> None:
        await self.grow(checkpointer, "t1", "the quick brown fox", "jumps over the lazy dog")
        await self.grow(checkpointer, "t2", "a quick dog")
        assert set(await self.find_threads(checkpointer, "quick dog")) == {"t1", "t2"}
        assert await self.find_threads(checkpointer, "dog fox") == ["t1"]
        assert await self.find_threads(checkpointer, "dog zebra") == []
        assert await self.find_threads(checkpointer, "fo") == []

    async def test_neither_case_nor_accents_matter(self, checkpointer: Any) -> None:
        text = "Crème BRÛLÉE in der Straße, Ångström, ΣΊΣΥΦΟΣ, 東京タワー"
        await self.grow(checkpointer, "t", text)
        for query in (
            "creme brulee", "CRÈME", "strasse", "STRASSE", "angstrom", "σίσυφος", "東京", "京",
        ):  # fmt: skip
            assert await self.find_threads(checkpointer, query) == ["t"], query
        assert await self.find_threads(checkpointer, "大阪") == []

    async def test_there_are_no_operators(self, checkpointer: Any) -> None:
        await self.grow(checkpointer, "t", "alpha beta")
        for query in (
            "alpha OR gamma", "alpha AND gamma", "NOT gamma", "alpha NEAR gamma", "alph*",
            '"alpha gamma', "al%", "alph_", "messages:alpha gamma", "^gamma", "alpha -beta gamma",
            "al?ha", "/al.*/", "(alpha gamma", "alpha'; DROP TABLE locus_threads; -- ",
            "{alpha gamma}", "alpha + gamma",
        ):  # fmt: skip
            assert await self.find_threads(checkpointer, query) == [], query
        for query in (
            '"alpha"', "beta-alpha", "alpha%", "(beta)", "alpha*", "-alpha", "'beta' alpha;",
            '"alpha beta',
        ):  # fmt: skip
            assert await self.find_threads(checkpointer, query) == ["t"], query

    async def test_names_of_fields_never_match(self, checkpointer: Any) -> None:
        await checkpointer.save({"secretkey": {"innerkey": "value"}, "list": [{"rowkey": 1}]}, "t")
        await checkpointer.save({"secretkey": {"innerkey": "value", "laterkey": 2}}, "t")
        for query in ("secretkey", "innerkey", "rowkey", "laterkey", "list"):
            assert await self.find_threads(checkpointer, query) == []
        assert await self.find_threads(checkpointer, "value") == ["t"]

    async def test_text_of_every_version_is_found(self, checkpointer: Any) -> None:
        await checkpointer.save({"text": "first alpha"}, "t", "v1")
        await checkpointer.save({"text": "then beta"}, "t", "v2")
        hits = await checkpointer.search("alpha")
        assert [(it["thread_id"], it["checkpoint_id"]) for it in hits] == [("t", "v1")]
        hits = await checkpointer.search("beta")
        assert [(it["thread_id"], it["checkpoint_id"]) for it in hits] == [("t", "v2")]

    async def test_a_word_that_grew_over_several_saves_is_found(self, checkpointer: Any) -> None:
        long = "word " * 400
        await checkpointer.save({"text": long + "zebra"}, "t")
        await checkpointer.save({"text": long + "zebracrossing"}, "t")
        assert await self.find_threads(checkpointer, "zebracrossing") == ["t"]
        assert await self.find_threads(checkpointer, "crossing") == []

    async def test_text_of_a_deleted_version_is_not_found(self, checkpointer: Any) -> None:
        await checkpointer.save({"text": "alpha"}, "t", "v1")
        await checkpointer.save({"text": "beta"}, "t", "v2")
        await checkpointer.save({"text": "gamma"}, "t", "v3")
        assert await self.find_threads(checkpointer, "beta") == ["t"]
        await checkpointer.delete("t", "v2")
        assert await self.find_threads(checkpointer, "beta") == []
        await checkpointer.delete("t", "v1")
        assert await self.find_threads(checkpointer, "alpha") == []
        assert await self.find_threads(checkpointer, "gamma") == ["t"]
        await checkpointer.delete("t")
        assert await self.find_threads(checkpointer, "gamma") == []

    async def test_text_of_a_deleted_version_is_found_where_it_remains(
        self, checkpointer: Any
    ) -> None:
        one, two, _ = await self.grow(checkpointer, "t", "alpha", "beta", "gamma")
        await checkpointer.delete("t", one)
        await checkpointer.delete("t", two)
        for word in ("alpha", "beta", "gamma"):
            assert await self.find_threads(checkpointer, word) == ["t"]

    async def test_text_of_a_replaced_version_is_not_found(self, checkpointer: Any) -> None:
        await checkpointer.save({"text": "alpha"}, "t", "v1")
        await checkpointer.save({"text": "beta"}, "t", "v1")
        assert await self.find_threads(checkpointer, "alpha") == []
        assert await self.find_threads(checkpointer, "beta") == ["t"]

    async def test_text_of_a_hidden_version_is_not_found(self, another: Any) -> None:
        checkpointer = another(keep_last=1)
        await checkpointer.save({"text": "alpha", "kept": "gamma"}, "t", "v1")
        await checkpointer.save({"text": "beta", "kept": "gamma"}, "t", "v2")
        assert await self.find_threads(checkpointer, "beta gamma") == ["t"]
        assert await self.find_threads(checkpointer, "alpha") == []

    @requires("search", "branching")
    async def test_a_copys_text_is_its_own(self, checkpointer: Any) -> None:
        await self.grow(checkpointer, "t", "alpha", "beta")
        await checkpointer.copy_thread("t", "copy")
        assert set(await self.find_threads(checkpointer, "alpha beta")) == {"t", "copy"}
        await checkpointer.delete("t")
        assert await self.find_threads(checkpointer, "alpha beta") == ["copy"]

    async def test_the_best_match_comes_first(self, checkpointer: Any) -> None:
        await checkpointer.save({"text": ["alpha", "alpha beta", "beta alpha"]}, "often")
        await checkpointer.save({"text": ["alpha", "beta", "gamma"]}, "once")
        assert await self.find_threads(checkpointer, "alpha beta") == ["often", "once"]
        assert await self.find_threads(checkpointer, "alpha beta", limit=1) == ["often"]

    async def test_a_hit_says_where_and_what(self, checkpointer: Any) -> None:
        state = self.new("nothing here")
        await checkpointer.save(state, "t", "v1", {"k": 1})
        state = self.said(state, "x" * 500 + " the Needle in the haystack " + "y" * 500)
        await checkpointer.save(state, "t", "v2", {"k": 2})
        await checkpointer.save(self.said(state, "more"), "t", "v3", {"k": 3})
        (hit,) = await checkpointer.search("needle")
        assert set(hit) == {
            "thread_id", "checkpoint_id", "metadata", "updated_at", "score", "snippet",
        }  # fmt: skip
        assert (hit["thread_id"], hit["checkpoint_id"], hit["metadata"]) == ("t", "v2", {"k": 2})
        assert hit["score"] > 0
        assert "Needle" in hit["snippet"]
        assert len(hit["snippet"]) <= 160
        assert datetime.fromisoformat(hit["updated_at"]).utcoffset() is not None

    async def test_a_query_without_a_word_is_refused(self, checkpointer: Any) -> None:
        bad = ("", " ", "%", "*", "'\"", "\0", None, 7)
        await expect_invalid(bad, checkpointer.search, match="word")
