"""Users of the threads of message logs, and threads that are kept."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from locus_store.errors import InvalidArgumentError, NotOwnerError
from locus_store.testing.kit import INVALID_IDS, refused
from locus_store.testing.message_kit import MessageLogKit, contents, named, new
from locus_store.types.messages import KeptMessages

if TYPE_CHECKING:
    from locus_store.testing.kit import Another


class Owning(MessageLogKit):
    """``user_id=``: whose a thread is, and who may write it."""

    async def test_an_append_makes_a_thread_its_users(self, log: Any, backend: Any) -> None:
        await log.append("new", new(1), user_id="u", also={"sub": new(2), ("beside", ""): new(3)})
        await log.append("nobody's", new(1))
        await log.append("nobody's", new(2), user_id="u")
        await log.replace("replaced", 0, new(1), user_id="u")
        await log.append("other", new(1), user_id="u2")
        await log.append("new", new(4))
        await log.append("new", new(5), user_id="u")
        owners = {it: (await backend.read_thread(it)).user_id for it in await backend.scan()}
        mine = dict.fromkeys(("beside", "new", "nobody's", "replaced"), "u")
        assert owners == {**mine, "other": "u2"}
        assert contents(await log.load("new")) == [1, 4, 5]
        assert (await backend.forget_user("u"))["messages"] == 8
        assert await backend.scan() == ["other"]

    async def test_another_user_writes_nothing(self, log: Any) -> None:
        await log.append("t", new(1), user_id="u")
        before = await log.logs()
        kept = KeptMessages(new(3), user_id="v")
        for call in (
            log.append("t", new(2), user_id="v"),
            log.append("a", new(2), user_id="v", also={("t", "sub"): new(3)}),
            log.append("a", new(2), also={("t", ""): kept}),
            log.replace("t", 0, new(2), user_id="v"),
        ):
            with pytest.raises(NotOwnerError, match="another user"):
                await call
        assert await log.logs() == before
        assert contents(await log.load("t")) == [1]

    async def test_the_logs_of_one_user_are_listed(self, log: Any) -> None:
        for n in range(5):
            owner = "u" if n % 2 else "v"
            await log.append(f"t{n}", new(n), user_id=owner, also={"sub": new(n)})
        await log.append("nobody's", new(1))
        found = await log.logs(user_id="u")
        assert [(it.thread_id, it.namespace) for it in found] == [
            *(("t1", ""), ("t1", "sub"), ("t3", ""), ("t3", "sub")),
        ]
        first = await log.heads(user_id="v", namespace="", limit=2)
        after = first[-1].info.thread_id, ""
        rest = await log.heads(user_id="v", namespace="", limit=2, after=after)
        assert [it.messages[0].content for it in (*first, *rest)] == [0, 2, 4]
        assert [it.thread_id for it in await log.logs("t1", user_id="v")] == []
        assert await log.logs(user_id="w") == await log.heads(user_id="w") == []

    async def test_a_thread_is_deleted_with_its_last_log(self, log: Any, backend: Any) -> None:
        await log.append("t", new(1), user_id="u", also={"sub": new(2)})
        assert await log.delete("t", namespace="sub")
        assert await backend.scan() == ["t"]
        assert await log.delete("t")
        assert await backend.scan() == []
        await log.append("t", new(1), user_id="v")  # it has no user from before
        await backend.put_thread("named", user_id="u", name="a name")
        await log.append("named", new(1))
        assert await log.delete("named")
        assert await backend.scan() == ["named", "t"]

    async def test_what_is_no_user_is_refused(self, log: Any) -> None:
        wrong: list[Any] = [it for it in INVALID_IDS if it is not None]
        for it in wrong:
            with refused(InvalidArgumentError, it):
                await log.append("t", new(1), user_id=it)
            with refused(InvalidArgumentError, it):
                await log.append("t", new(1), also={"sub": KeptMessages(new(1), user_id=it)})
            with refused(InvalidArgumentError, it):
                await log.logs(user_id=it)
        assert await log.logs() == []


class Keeping(MessageLogKit):
    """``KeptMessages``: threads without a time to live and without an age."""

    async def test_kept_messages_outlive_the_thread_that_they_were_appended_with(
        self, reopen: Another, backend: Any
    ) -> None:
        async with reopen(ttl_seconds=1e-6) as short:
            for n in range(2):
                kept = KeptMessages(named(f"m{n}"), user_id="u")
                await short.append("t", new(n), also={("kept", ""): kept})
            await short.append("other", new(1), also={("not kept", ""): new(1)})
            assert contents(await short.load("kept")) == ["m0", "m1"]
            assert await short.load("not kept") is None
        await backend.expire()
        assert await backend.scan() == ["kept"]

    async def test_a_vacuum_leaves_kept_threads(self, log: Any, backend: Any) -> None:
        kept = KeptMessages(named("m"))
        await log.append("t", new(1), also={("kept", ""): kept})
        await log.append("was not", new(1))
        await log.append("t", new(1), also={("was not", ""): kept})
        assert await backend.vacuum(0) == 0
        assert await backend.scan() == ["kept", "was not"]
        assert contents(await log.load("kept")) == ["m"]
        archived = await backend.read_thread("kept")
        await log.delete("kept")
        await backend.write_thread(archived)
        await backend.vacuum(0)
        assert contents(await log.load("kept")) == ["m"]
