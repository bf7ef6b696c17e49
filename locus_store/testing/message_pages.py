"""Reading message logs, and the users of their threads."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from locus_store.errors import InvalidArgumentError, NotFoundError, NotOwnerError
from locus_store.testing.kit import (
    HOSTILE_IDS,
    INVALID_OPTIONAL_IDS,
    Another,
    MessageLogKit,
    expect_invalid,
    make_named,
    make_new,
    unwrap,
)
from locus_store.testing.message_rules import needs_several_threads
from locus_store.types.messages import ROLE, KeptMessages, NewMessage


class Paging(MessageLogKit):
    """``load``, ``read``, ``page`` and ``logs``."""

    async def test_the_newest_come_oldest_first(self, log: Any) -> None:
        await log.append("t", make_new(*range(10)))
        assert unwrap(await log.load("t", newest=3)) == [7, 8, 9]
        assert unwrap(await log.load("t", newest=99)) == [*range(10)]
        assert await log.load("t", newest=0) == []
        assert await log.load("no", newest=0) is await log.load("no", newest=3) is None
        found = await log.read("t", newest=2)
        assert (found.info.count, unwrap(found.messages)) == (10, [8, 9])

    async def test_an_absent_log_is_not_an_empty_one(self, log: Any) -> None:
        await log.append("t", make_new(1))
        await log.clear("t")
        assert await log.load("t") == []
        for absent in (("u", ""), ("t", "sub")):
            thread, namespace = absent
            assert await log.load(thread, namespace=namespace) is None
            assert await log.read(thread, namespace=namespace) is None
            assert await log.info(thread, namespace=namespace) is None
            assert await log.page(thread, namespace=namespace) == []

    async def test_contents_are_those_of_a_load(self, log: Any) -> None:
        values = [*range(20), "text", "", None, [], {"a": "\0é"}, {"long": "word " * 400}]
        puts = [NewMessage(it, f"/{at}", f"/m{at}") for at, it in enumerate(values)]
        puts += [NewMessage("x", metadata={"k": at % 2}, text="y\0") for at in range(9)]
        await log.append("t", puts)
        await log.append("t", make_new("other"), namespace="sub")
        assert await log.contents("t") == unwrap(await log.load("t")) == [it[0] for it in puts]
        assert await log.contents("t", newest=12) == [it[0] for it in puts][-12:]
        assert await log.contents("t", namespace="sub", newest=1) == ["other"]
        assert await log.contents("t", newest=0) == await log.contents("no") == []
        with pytest.raises(InvalidArgumentError):
            await log.contents("t", newest=-1)

    async def test_pages_by_offset_give_each_message_once(self, log: Any) -> None:
        await log.append("t", make_new(*range(25)))
        found = [unwrap(await log.page("t", offset=it, limit=10)) for it in (0, 10, 20, 30)]
        assert found == [[*range(10)], [*range(10, 20)], [*range(20, 25)], []]
        assert await log.page("t", limit=0) == []
        assert len(await log.page("t")) == 25

    async def test_pages_by_cursor_give_each_message_once_during_appends(self, log: Any) -> None:
        ids = [f"m{n}" for n in range(30)]
        await log.append("t", make_named(*ids[:20]))
        seen: list[str] = []
        while page := await log.page("t", limit=7, after=seen[-1] if seen else None):
            seen += [it.message_id for it in page]
            at = min(len(seen) + 13, 30)
            await log.append("t", make_named(*ids[6:at]))  # the known ones keep their places
            if len(seen) == 7:
                await log.remove("t", ids[:6])
                await log.append("t", make_named("x"), namespace="sub")
        assert [it for it in ids if it in seen] == ids
        assert len(seen) == len(set(seen))

    async def test_a_cursor_that_is_no_message_is_refused(self, log: Any) -> None:
        await log.append("t", make_named("a"))
        await log.append("t", make_named("b"), namespace="sub")
        assert await log.page("t", after="a") == []
        for thread, after in (("t", "b"), ("t", "no"), ("no", "a")):
            with pytest.raises(NotFoundError, match="to continue behind"):
                await log.page(thread, after=after)
            with pytest.raises(NotFoundError, match="to continue behind"):
                await log.page(thread, after=after, search="x")
        with pytest.raises(InvalidArgumentError, match="not both"):
            await log.page("t", after="a", offset=1)

    async def test_a_search_finds_any_case_accents_quotes_and_newlines(self, log: Any) -> None:
        texts = [
            "Café au lait", "cafe\u0301", 'she said "it\'s"', "one\ntwo", "100%", "a_b", "STRASSE",
        ]  # fmt: skip
        await log.append("t", [NewMessage({"field": it}) for it in texts])
        for wanted, found in {
            "café": [0, 1], "CAFÉ AU": [0], '"it\'s"': [2], "one\ntwo": [3], "%": [4], "_": [5],
            "straße": [6], "a": [0, 1, 2, 5, 6], "field": [], "": [*range(7)], "a%b": [],
        }.items():  # fmt: skip
            page = await log.page("t", search=wanted)
            assert [texts.index(it.content["field"]) for it in page] == found, wanted
        assert await log.page("no", search="a") == []

    async def test_a_search_looks_into_the_given_text(self, log: Any) -> None:
        await log.append("t", [NewMessage("content", text="Text"), NewMessage("content", text="")])
        assert len(await log.page("t", search="TEXT")) == 1
        assert await log.page("t", search="content") == []
        bad = (1, b"a", ["a"])
        await expect_invalid(bad, lambda it: log.page("t", search=it))

    async def test_pages_are_filtered_by_role_metadata_and_time(self, log: Any) -> None:
        for number in range(6):
            puts = [NewMessage(number, "user" if number % 2 else "tool", metadata={"n": number})]
            await log.append("t", puts, metadata={"user_id": "a"})
        times = [it.created_at for it in await log.page("t")]  # some may be equal
        same = [at for at, time in enumerate(times) if time == times[1]]
        assert unwrap(await log.page("t", since=times[1], until=times[1])) == same
        assert unwrap(await log.page("t", role="user")) == [1, 3, 5]
        later = [at for at, time in enumerate(times) if at % 2 and time >= times[2]]
        some = {"since": times[2], "role": "user"}
        assert unwrap(await log.page("t", **some)) == later
        assert unwrap(await log.page("t", **some, search="")) == later
        above = {"n": {"$gte": 2}, "user_id": "a"}
        assert unwrap(await log.page("t", metadata_filter=above, offset=1, limit=2)) == [3, 4]
        assert unwrap(await log.page("t", metadata_filter=above, role="tool")) == [2, 4]
        for none in ({"role": "User"}, {"metadata_filter": {"user_id": "b"}}):
            assert await log.page("t", **none) == []
        bad: list[dict[str, Any]] = [{"role": ""}, {"since": times[0].replace(tzinfo=None)}]
        bad += [{"until": 1}, {"metadata_filter": {"n": {"$no": 1}}}]
        bad += [{"newest_first": True, "after": "m"}]
        await expect_invalid(bad, lambda wrong: log.page("t", **wrong))

    async def test_pages_of_the_newest_first_are_those_from_the_end(self, log: Any) -> None:
        await log.append("t", make_new(*range(25)))
        for more in ({}, {"search": ""}, {"role": ROLE}):
            found = [
                unwrap(await log.page("t", offset=start, limit=10, newest_first=True, **more))
                for start in (0, 10, 20, 30)
            ]
            assert found == [[*range(24, 14, -1)], [*range(14, 4, -1)], [*range(4, -1, -1)], []]

    async def test_pages_of_a_search_give_each_hit_once(self, log: Any) -> None:
        await log.append("t", [NewMessage(f"{'odd' if n % 2 else 'even'} {n}") for n in range(40)])
        await log.append("t", make_new("odd one out"), namespace="sub")
        odd = [f"odd {n}" for n in range(1, 40, 2)]
        found = [
            unwrap(await log.page("t", search="odd", offset=offset, limit=8))
            for offset in (0, 8, 16)
        ]
        assert [it for page in found for it in page or ()] == odd
        seen: list[Any] = []
        while page := await log.page(
            "t", search="odd", limit=8, after=seen[-1].message_id if seen else None
        ):
            seen += page
        assert unwrap(seen) == odd

    async def test_logs_lists_counts_and_times(self, log: Any) -> None:
        revisions = {}
        for name in (("t", "sub"), ("t", ""), ("u", "")):
            await log.append(name[0], make_new(1, 2), namespace=name[1])
            revisions[name] = (await log.pop(name[0], namespace=name[1])).revision
        found = await log.logs()
        assert [(it.thread_id, it.namespace) for it in found] == sorted(revisions)
        for info in found:
            assert (info.revision, info.count) == (revisions[info.thread_id, info.namespace], 1)
            assert info == await log.info(info.thread_id, namespace=info.namespace)
            assert abs(datetime.now(UTC) - info.changed_at) < timedelta(minutes=5)

    async def test_the_root_namespace_is_listed_first(self, log: Any) -> None:
        names = sorted(["", "/", "//", " ", "!", "-x", ".", "a", "~", "é", "\U0001f600"])
        for name in names:
            await log.append("t", make_new(1), namespace=name)
        assert [it.namespace for it in await log.logs("t")] == names
        for place, name in enumerate(names):
            found = await log.logs(after=("t", name))
            assert [it.namespace for it in found] == names[place + 1 :], name
        assert len(await log.logs(after=("s", ""))) == len(names)

    async def test_the_time_of_the_last_change_is_exact(self, log: Any) -> None:
        seen = []
        changes: tuple[Any, ...] = (
            lambda: log.append("t", make_named(*"abcd")),
            lambda: log.append("t", make_named("a")),
            lambda: log.pop("t"), lambda: log.remove("t", ["b"]),
            lambda: log.replace("t", 1, make_new("x")), lambda: log.clear("t"),
        )  # fmt: skip
        for change in changes:
            await change()
            seen.append((await log.info("t")).changed_at)
        assert seen == sorted(set(seen))

    async def test_logs_are_listed_by_prefix_thread_and_namespace_in_pages(self, log: Any) -> None:
        ids = sorted({it for it in HOSTILE_IDS if len(it) < 200} | {"acme/1", "acme/10", "acme0"})
        for thread_id in ids:
            await log.append(thread_id, make_new(1))
            await log.append(thread_id, make_new(1), namespace="/sub")
        for prefix in ("", "acme/", "acme", "a", "/", "//", "%", "_", "\U0010ffff", "ß", "\uffff"):
            expected = [(it, name) for it in ids if it.startswith(prefix) for name in ("", "/sub")]
            found = await log.logs(prefix=prefix, limit=1000)
            assert [(it.thread_id, it.namespace) for it in found] == expected, prefix
            roots = await log.logs(prefix=prefix, namespace="", limit=1000)
            assert [it.thread_id for it in roots] == [it for it, name in expected if not name]
        assert [it.namespace for it in await log.logs("acme/1")] == ["", "/sub"]
        assert await log.logs("acme/") == [] == await log.logs(limit=0)
        paged: list[Any] = []
        while page := await log.logs(
            limit=7, after=(paged[-1].thread_id, paged[-1].namespace) if paged else None
        ):
            paged += page
        assert paged == await log.logs(limit=1000)

    async def test_heads_give_the_newest_message_of_each_log(self, log: Any) -> None:
        for thread in ("a/1", "a/2", "b/1"):
            await log.append(thread, make_new(1, 2, 3))
            await log.append(thread, make_named("x"), namespace="sub")
        await log.pop("a/1")
        await log.clear("a/2")
        await log.append("b/1", [NewMessage("y", "tool", "x", {"k": 1})], namespace="sub")
        found = await log.heads()
        assert [it.info for it in found] == await log.logs()
        assert [unwrap(it.messages) for it in found] == [[2], ["x"], [], ["x"], [3], ["y"]]
        (head,) = found[-1].messages
        assert head == await log.get("b/1", "x", namespace="sub")
        assert await log.heads(prefix="a/", namespace="sub") == [found[1], found[3]]
        assert await log.heads("b/1") == found[4:]
        assert await log.heads(limit=2, after=("a/1", "sub")) == found[2:4]
        assert await log.heads("c") == await log.heads(limit=0) == []

    async def test_heads_give_whole_logs(self, log: Any) -> None:
        for thread in ("a/1", "a/2", "b/1"):
            await log.append(thread, make_new(*range(3)), namespace="sub")
            await log.append(thread, make_new("root"))
        await log.clear("a/2", namespace="sub")
        found = await log.heads(prefix="a/", namespace="sub", whole=True)
        assert [unwrap(it.messages) for it in found] == [[0, 1, 2], []]
        assert [it.info for it in found] == await log.logs(prefix="a/", namespace="sub")
        after = ("a/1", "")
        assert await log.heads(whole=True, after=after, namespace="sub", limit=2) == found


class Owning(MessageLogKit):
    """``user_id=``: whose a thread is, and who may write it."""

    async def test_an_append_makes_a_thread_its_users(self, log: Any, backend: Any) -> None:
        needs_several_threads(log)
        await log.append(
            "new", make_new(1), user_id="u", also={"sub": make_new(2), ("beside", ""): make_new(3)}
        )
        await log.append("nobody's", make_new(1))
        await log.append("nobody's", make_new(2), user_id="u")
        await log.replace("replaced", 0, make_new(1), user_id="u")
        await log.append("other", make_new(1), user_id="u2")
        await log.append("new", make_new(4))
        await log.append("new", make_new(5), user_id="u")
        found = [await backend.read_thread(it) for it in await backend.scan()]
        mine = dict.fromkeys(("beside", "new", "nobody's", "replaced"), "u")
        assert {it.thread_id: it.user_id for it in found} == {**mine, "other": "u2"}
        assert {it.expires_at for it in found} == {None}
        assert unwrap(await log.load("new")) == [1, 4, 5]
        assert (await backend.forget_user("u"))["messages"] == 8
        assert await backend.scan() == ["other"]

    async def test_another_user_writes_nothing(self, log: Any) -> None:
        needs_several_threads(log)
        await log.append("t", make_new(1), user_id="u")
        before = await log.logs()
        kept, kept_of_u = (KeptMessages(make_new(3), user_id=it) for it in ("v", "u"))
        with pytest.raises(InvalidArgumentError, match="two users for one thread"):
            await log.append("a", make_new(2), user_id="v", also={"sub": kept_of_u})
        for call in (
            log.append("t", make_new(2), user_id="v"),
            log.append("a", make_new(2), user_id="v", also={("t", "sub"): make_new(3)}),
            log.append("a", make_new(2), also={("t", ""): kept}),
            log.replace("t", 0, make_new(2), user_id="v"),
        ):
            with pytest.raises(NotOwnerError, match="another user"):
                await call
        assert await log.logs() == before
        assert unwrap(await log.load("t")) == [1]

    async def test_of_two_first_users_of_another_thread_one_appends(self, log: Any) -> None:
        needs_several_threads(log)
        also = {("shared", ""): make_new(1)}
        users = [f"u{number}" for number in range(8)]
        appends = (log.append(it, make_new(0), user_id=it, also=also) for it in users)
        results = await asyncio.gather(*appends, return_exceptions=True)
        assert sum(isinstance(it, NotOwnerError) for it in results) == 7
        assert unwrap(await log.load("shared")) == [1]

    async def test_the_logs_of_one_user_are_listed(self, log: Any) -> None:
        for n in range(5):
            owner = "u" if n % 2 else "v"
            await log.append(f"t{n}", make_new(n), user_id=owner, also={"sub": make_new(n)})
        await log.append("nobody's", make_new(1))
        found = await log.logs(user_id="u")
        assert [(it.thread_id, it.namespace) for it in found] == [
            *(("t1", ""), ("t1", "sub"), ("t3", ""), ("t3", "sub"))
        ]
        first = await log.heads(user_id="v", namespace="", limit=2)
        after = first[-1].info.thread_id, ""
        rest = await log.heads(user_id="v", namespace="", limit=2, after=after)
        assert [it.messages[0].content for it in (*first, *rest)] == [0, 2, 4]
        assert [it.thread_id for it in await log.logs("t1", user_id="v")] == []
        assert await log.logs(user_id="w") == await log.heads(user_id="w") == []

    async def test_a_thread_is_deleted_with_its_last_log(self, log: Any, backend: Any) -> None:
        await log.append("t", make_new(1), user_id="u", also={"sub": make_new(2)})
        assert await log.delete("t", namespace="sub")
        assert await backend.scan() == ["t"]
        assert await log.delete("t")
        assert await backend.scan() == []
        await log.append("t", make_new(1), user_id="v")  # it has no user from before
        await backend.put_thread("named", user_id="u", name="a name")
        await log.append("named", make_new(1))
        assert await log.delete("named")
        await backend.claim_thread("claimed", "u")
        assert not await log.delete("claimed")
        assert await backend.scan() == ["claimed", "named", "t"]

    async def test_what_is_no_user_is_refused(self, log: Any) -> None:
        await expect_invalid(
            INVALID_OPTIONAL_IDS,
            lambda it: log.append("t", make_new(1), user_id=it),
            lambda user: log.append(
                "t", make_new(1), also={"sub": KeptMessages(make_new(1), user_id=user)}
            ),
            lambda it: log.logs(user_id=it),
        )
        assert await log.logs() == []


class Keeping(MessageLogKit):
    """``KeptMessages``: threads without a time to live and without an age."""

    async def test_kept_messages_outlive_their_thread(self, reopen: Another, backend: Any) -> None:
        async with reopen(ttl_seconds=1e-6) as short:
            needs_several_threads(short)
            for n in range(2):
                kept = KeptMessages(make_named(f"m{n}"), user_id="u")
                await short.append("t", make_new(n), also={("kept", ""): kept})
            await short.append("other", make_new(1), also={("not kept", ""): make_new(1)})
            assert unwrap(await short.load("kept")) == ["m0", "m1"]
            assert await short.load("not kept") is None
        await backend.expire()
        assert await backend.scan() == ["kept"]

    async def test_a_vacuum_leaves_kept_threads(self, log: Any, backend: Any) -> None:
        needs_several_threads(log)
        kept = KeptMessages(make_named("m"))
        await log.append("t", make_new(1), also={("kept", ""): kept})
        await log.append("was not", make_new(1))
        await log.append("t", make_new(1), also={("was not", ""): kept})
        assert await backend.vacuum(0) == 0
        assert await backend.scan() == ["kept", "was not"]
        assert unwrap(await log.load("kept")) == ["m"]
        archived = await backend.read_thread("kept")
        await log.delete("kept")
        await backend.write_thread(archived)
        await backend.vacuum(0)
        assert unwrap(await log.load("kept")) == ["m"]
