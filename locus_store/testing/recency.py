"""Lists of threads in the order of their last saves, even within one minute."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from locus_store.testing.existing import message, without_versions
from locus_store.testing.kit import needs
from locus_store.testing.steps import BackendKit, written

if TYPE_CHECKING:
    from datetime import datetime

    from locus_store.types import ArchivedThread


class Recency(BackendKit):
    """``list_threads`` and ``heads``: the most recently active first, in exact order."""

    @pytest.fixture(autouse=True)
    def listing(self, backend: Any) -> None:
        needs(backend, "list_threads", "list_with_metadata")

    async def listed(self, backend: Any) -> list[str]:
        """Return the threads in the order that both lists, and pages of any size, agree on."""
        found: list[str] = await backend.list_threads()
        assert [it.thread_id for it in await backend.heads()] == found
        for size in (1, 2):
            paged: list[str] = []
            while page := await backend.list_threads(size, after=paged[-1] if paged else None):
                paged += page
            assert paged == found
        return found

    async def later(self, backend: Any) -> None:
        """Wait without sleeping until the server's clock has advanced."""
        seen: set[datetime] = set()
        while len(seen) < 3:
            await backend.save("a clock", {"n": len(seen)})
            seen |= {it.created_at for it in await backend.history("a clock", limit=1)}
        await backend.delete("a clock")

    async def saved(self, backend: Any, names: str) -> None:
        """Save threads one after the other."""
        for name in names:
            await backend.save(name, {"n": 1})

    async def test_the_thread_that_was_saved_last_is_listed_first(self, backend: Any) -> None:
        await self.saved(backend, "zamz")
        assert await self.listed(backend) == ["z", "m", "a"]
        await self.saved(backend, "amzzma")
        assert await self.listed(backend) == ["a", "m", "z"]

    async def test_a_save_in_any_namespace_is_activity(self, backend: Any) -> None:
        await self.saved(backend, "zam")
        await backend.write_state("z", {"n": 1}, namespace="sub")
        assert await self.listed(backend) == ["z", "m", "a"]
        await backend.write_state("a", {"n": 1}, namespace="sub")
        await backend.write_state("z", {"n": 2}, namespace="sub")
        assert await self.listed(backend) == ["z", "a", "m"]

    async def test_a_side_branch_is_activity(self, backend: Any) -> None:
        await backend.save("z", {"n": 0}, checkpoint_id="v0")
        await self.saved(backend, "zam")
        await backend.write_state(
            "z", {"n": 2}, parent_id="v0", forks=False, on_conflict="branch", checkpoint_id="side"
        )
        assert await self.listed(backend) == ["z", "m", "a"]

    async def test_deletions_and_pending_writes_are_no_activity(self, backend: Any) -> None:
        for name in "zam":
            for n in range(3):
                await backend.save(name, {"n": n}, checkpoint_id=f"v{n}")
        await backend.delete("z", "v2")
        await backend.delete("a", "v0")
        if backend.capabilities.branching:
            await backend.put_writes("z", "v1", [written("a")])
            await backend.prune("a")
        assert await self.listed(backend) == ["m", "a", "z"]

    async def test_a_copy_is_active_when_it_is_made(self, backend: Any) -> None:
        needs(backend, "branching")
        await self.saved(backend, "zam")
        await self.later(backend)
        await backend.copy_thread("z", "copy")
        assert await self.listed(backend) == ["copy", "m", "a", "z"]
        await self.later(backend)
        await self.saved(backend, "a")
        assert await self.listed(backend) == ["a", "copy", "m", "z"]

    async def test_a_thread_that_is_written_as_it_was_keeps_its_place(self, backend: Any) -> None:
        needs(backend, "branching")
        for name in "zam":
            await self.saved(backend, name)
            await self.later(backend)
        for name in "zam":
            thread = await backend.read_thread(name)
            await backend.delete(name)
            await backend.write_thread(thread)
            assert await self.listed(backend) == ["m", "a", "z"]

    async def test_a_repeated_save_is_activity(self, backend: Any) -> None:
        for name in "zamz":
            await backend.save(name, {"n": 1}, checkpoint_id="v")
        assert await self.listed(backend) == ["z", "m", "a"]
        assert [it.checkpoint_id for it in await backend.history("z")] == ["v"]

    async def test_deleting_all_versions_of_a_namespace_is_no_activity(self, backend: Any) -> None:
        await self.saved(backend, "zam")
        for name in "az":
            await backend.write_state(name, {"n": 1}, namespace="sub", checkpoint_id="v")
        for name in "za":
            assert await backend.remove(name, ["v"], namespace="sub") == 1
            assert await self.listed(backend) == ["z", "a", "m"]
        await self.saved(backend, "ma")
        assert await self.listed(backend) == ["a", "m", "z"]

    async def test_a_thread_without_versions_stands_where_its_newest_message_puts_it(
        self, backend: Any
    ) -> None:
        needs(backend, "branching")
        await self.saved(backend, "zam")
        for days in (8, 10):
            await backend.write_thread(logged(f"{days} days", days))
        for namespace in ("", "sub"):
            await backend.write_state("m", {"n": 2}, namespace=namespace, checkpoint_id="v")
        messages = [message(1, 11), message(2, 9)]
        for name in "zm":
            thread = await backend.read_thread(name)
            await backend.delete(name)
            await backend.write_thread(replace(thread, messages=messages))
        assert await self.listed(backend) == ["m", "a", "z", "8 days", "10 days"]
        for name, namespace in (("z", ""), ("m", ""), ("m", "sub")):
            ids = [it.checkpoint_id for it in await backend.history(name, namespace=namespace)]
            await backend.remove(name, ids, namespace=namespace)
        found = await self.listed(backend)
        assert found[:2] + found[4:] == ["a", "8 days", "10 days"]
        assert sorted(found[2:4]) == ["m", "z"]
        await backend.save("z", {"n": 1})
        assert (await self.listed(backend))[0] == "z"

    async def test_a_copy_without_versions_stands_where_its_newest_message_puts_it(
        self, backend: Any
    ) -> None:
        needs(backend, "branching")
        for days in (8, 9, 10):
            await backend.write_thread(logged(f"{days} days", days))
        await self.saved(backend, "a")
        assert await backend.copy_thread("9 days", "copy") is True
        found = await self.listed(backend)
        assert found[:2] + found[4:] == ["a", "8 days", "10 days"]
        assert sorted(found[2:4]) == ["9 days", "copy"]


def logged(thread_id: str, days: float) -> ArchivedThread:
    """Return a thread with only a message, ``days`` old."""
    newest = message(1, days)
    minute = newest.created_at.replace(second=0, microsecond=0)
    return replace(without_versions(thread_id, messages=[newest]), active_at=minute)
