"""Loads by an object that knows an older version of the thread."""

from __future__ import annotations

import random
import secrets
from typing import TYPE_CHECKING, Any

import pytest

from locus_store.backend import StorageBackend
from locus_store.errors import IntegrityError
from locus_store.testing.kit import exact, limited, seam
from locus_store.testing.steps import BackendKit
from locus_store.values.encoding import MAX_STATE_BYTES

if TYPE_CHECKING:
    from locus_store.types import Mark, Version

SAID = [f"{n} " + secrets.token_hex(250) for n in range(60)]
"""30 KB: a tail of it is far smaller than the whole."""


class Reader:
    """A second object on the storage of a backend, with what it knows of thread ``t``."""

    def __init__(self, backend: Any) -> None:
        self.backend = limited(backend, MAX_STATE_BYTES)
        self.known: Mark | None = None

    async def read(self) -> Any:
        """Load the thread, and compare it with a load by an object that knows nothing."""
        found = await self.backend.read_state("t")
        fresh = await limited(self.backend, MAX_STATE_BYTES).read_state("t")
        assert (found and exact(found.state)) == (fresh and exact(fresh.state))
        self.known = found and found.version.mark
        return found and found.state

    async def tail(self) -> Any:
        """Return the ``Stored`` that the storage sends for the head."""
        stored = await self.backend.fetch_head("t", known=self.known)
        if type(self.backend).fetch_head is StorageBackend.fetch_head:
            pytest.skip(f"{type(self.backend).__name__} reads heads whole")
        return stored


async def grown(backend: Any, *counts: int) -> list[Version]:
    """Save thread ``t`` with so many strings each; return its versions, newest first."""
    for count in counts:
        await backend.write_state("t", {"said": SAID[:count]})
    versions: list[Version] = await backend.history("t", limit=1_000)
    return versions


@seam("layout")
class Tails(BackendKit):
    """A process that knows an older version reads only what was saved since."""

    @pytest.fixture
    async def reader(self, backend: Any) -> Reader:
        """An object that knows the first version, of 50 strings."""
        await grown(backend, 50)
        reader = Reader(backend)
        assert await reader.read() == {"said": SAID[:50]}
        return reader

    async def test_only_what_was_saved_since_is_read(self, backend: Any, reader: Reader) -> None:
        await grown(backend, 51, 52, 53)
        tail = await reader.tail()
        assert tail.basis == reader.known
        assert 0 < sum(map(len, tail.payloads)) < 2_000
        assert await reader.read() == {"said": SAID[:53]}

    async def test_of_the_head_nothing_is_read(self, backend: Any, reader: Reader) -> None:
        tail = await reader.tail()
        assert (tail.basis, tail.payloads) == (reader.known, [])
        await grown(backend, 51)
        await reader.read()
        tail = await reader.tail()
        assert (tail.basis, tail.payloads) == (reader.known, [])

    async def test_a_known_version_that_is_gone_is_not_built_upon(
        self, backend: Any, reader: Reader
    ) -> None:
        *_, first = await grown(backend, 51, 52)
        await backend.remove("t", [first.checkpoint_id])
        assert (await reader.tail()).basis is None
        assert await reader.read() == {"said": SAID[:52]}

    async def test_a_version_between_may_be_gone(self, backend: Any, reader: Reader) -> None:
        _, second, _ = await grown(backend, 51, 52)
        await backend.remove("t", [second.checkpoint_id])
        assert await reader.read() == {"said": SAID[:52]}

    async def test_a_head_below_the_known_version_is_read(
        self, backend: Any, reader: Reader
    ) -> None:
        newest, *_ = await grown(backend, 51)
        await reader.read()
        await backend.remove("t", [newest.checkpoint_id])
        assert (await reader.tail()).basis is None
        assert await reader.read() == {"said": SAID[:50]}

    async def test_a_known_version_of_another_branch_is_not_built_upon(
        self, backend: Any, reader: Reader
    ) -> None:
        *_, first = await grown(backend, 51)
        await reader.read()
        await backend.write_state("t", {"said": SAID[:1]}, parent_id=first.checkpoint_id)
        assert await reader.read() == {"said": SAID[:1]}

    async def test_a_replaced_version_is_not_taken_for_the_known_one(
        self, backend: Any, reader: Reader
    ) -> None:
        (first,) = await grown(backend)
        other = {"said": ["other", *SAID[1:50]]}
        await backend.write_state("t", other, checkpoint_id=first.checkpoint_id)
        assert await reader.read() == other

    async def test_a_thread_that_was_made_again_is_read_whole(
        self, backend: Any, reader: Reader
    ) -> None:
        await backend.remove("t")
        assert await reader.read() is None
        await grown(backend, 50, 51)
        assert await reader.read() == {"said": SAID[:51]}

    async def test_a_state_that_was_too_large_between_is_read(self, backend: Any) -> None:
        await grown(backend, 5)
        behind, fresh = limited(backend, 30_000), limited(backend, 30_000)
        await behind.read_state("t")
        for count in (30, 55, 80):  # 40 KB at last
            await backend.write_state("t", {"said": [*SAID, *SAID][:count]})
        last = {"said": [*SAID[:30], *(it[::-1] for it in SAID[:20])]}
        await backend.write_state("t", last)
        for it in (fresh, behind):
            assert (await it.read_state("t")).state == last

    async def test_a_tail_counts_for_max_state_bytes(self, backend: Any, reader: Reader) -> None:
        await grown(backend, 60)
        small = limited(backend, 28_000)
        small._known = reader.backend._known  # noqa: SLF001  (it knows 25 KB)
        with pytest.raises(IntegrityError, match="max_state_bytes=28000"):
            await small.read_state("t")

    @pytest.mark.parametrize("seed", range(3))
    async def test_any_history_is_read_as_by_an_object_that_knows_nothing(
        self, backend: Any, reader: Reader, seed: int
    ) -> None:
        dice, said = random.Random(seed), list(SAID[:50])  # noqa: S311  (a test)
        for step in range(40):
            versions = await backend.history("t", limit=1_000)
            one = dice.choice(versions).checkpoint_id if versions else None
            match dice.randrange(8):
                case 0 if len(versions) > 1:
                    await backend.remove("t", [one])
                case 1:
                    said = said[: dice.randrange(50)]
                case 2 if one:
                    await backend.write_state("t", {"said": said, "forked": step}, parent_id=one)
                    continue
                case 3:
                    await backend.write_state("t", {"said": said}, keep_last=dice.randrange(1, 5))
                    continue
                case 4 if one:
                    await backend.write_state("t", {"said": said, "n": step}, checkpoint_id=one)
                    continue
                case _:
                    said += [f"{step}"] * dice.randrange(3)
            await backend.write_state("t", {"said": said, "step": step})
            if dice.random() < 0.4:
                await reader.read()
        await reader.read()
