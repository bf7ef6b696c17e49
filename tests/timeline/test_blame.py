"""Blame gives what comparing the states of all versions in pairs gives."""

from __future__ import annotations

import gc
import os
import random
import weakref
from typing import TYPE_CHECKING, Any

import histories
import pytest
from tiers import ALL, first_of, full

from locus_store import InvalidArgumentError, open_checkpointer
from locus_store.backends.memory import MemoryBackend
from locus_store.timeline import ancestry, blame as blaming
from locus_store.timeline.blame import blame

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from locus_store.backend import FullBackend

pytestmark = pytest.mark.anyio

HISTORIES = int(os.environ.get("LOCUS_TEST_HISTORIES", "1000" if ALL else "300"))
PARTS = 10


async def wrong(seed: int, backend: FullBackend | None = None) -> int:
    """The number of values with a wrong origin in one generated history."""
    choose = random.Random(seed)
    backend = backend or MemoryBackend()
    history = histories.History(backend, choose, choose.choice([None, None, None, 4]))
    await history.grow(choose.randint(3, 14))
    names = [None, choose.choice(await history.ids())]
    return sum([await differing(history, name) for name in names])


async def differing(history: histories.History, name: str | None) -> int:
    found = await blame(history.backend, "t", name)
    assert found is not None
    way = await histories.ancestry(history.backend, found.version)
    row = [history.saved[it.checkpoint_id] for it, _ in way]
    assert found.state == row[-1]
    count = 0
    for path in histories.values(row[-1]):
        blamed = found.find(path)
        assert blamed is not None
        made, changed = (way[it] for it in histories.origin(path, row))
        there = [(it.version, it.is_exact) for it in (blamed.made, blamed.changed)]
        count += there != [made, changed]
    return count


@pytest.mark.parametrize("part", [*range(3), *full(*range(3, PARTS))])
async def test_blame_is_what_comparing_states_in_pairs_gives(part: int) -> None:
    for seed in range(part, HISTORIES, PARTS):
        assert await wrong(seed) == 0, f"history {seed}"


@pytest.mark.parametrize("place", first_of("sqlite", "file", "postgresql", "redis"))
async def test_blame_is_exact_on_each_storage(
    place: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    urls = {
        "file": lambda: f"file://{tmp_path}/files",
        "sqlite": lambda: f"sqlite:///{tmp_path}/store.db",
        "postgresql": lambda: request.getfixturevalue("migrated_database"),
        "redis": lambda: request.getfixturevalue("redis_url"),
    }
    url = urls[place]()
    for seed in range(6):
        async with open_checkpointer(url, state_type=dict).backend as backend:
            assert await wrong(seed, backend) == 0, f"history {seed}"
            await backend.remove_thread("t")


def _unrefined(node: Any, old: Any, new: Any, step: int) -> Any:
    return node if old == new else step


def _without_seam(self: Any, old: Any, new: Any) -> None:
    """The state of a chain's first record counts as new."""
    self._root = self.step


def _any_element(old: Any, new: Any) -> bool:
    return False


@pytest.mark.parametrize(
    "damage",
    [
        lambda patch: patch.setattr(blaming, "_keep_origins", _unrefined),
        lambda patch: patch.setattr(blaming.Origins, "compare", _without_seam),
        lambda patch: patch.setattr(blaming, "_is_another", _any_element),
        lambda patch: patch.setattr(blaming.Origins, "_mark", lambda self, opened: None),
    ],
    ids=["no refinement", "no seam", "elements by place only", "changes inside are lost"],
)
async def test_a_rule_that_is_broken_is_found(
    damage: Callable[[Any], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    damage(monkeypatch)
    assert sum([await wrong(seed) for seed in range(60)]) > 0


async def test_the_states_are_free_when_the_origins_are_known(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    backend = MemoryBackend()
    for number in range(300):  # several chains
        await backend.write_state("t", {"n": [number] * 300, "m": os.urandom(99).hex()})
    folders: list[weakref.ref[Any]] = []
    follow = blaming.Origins.follow

    def followed(self: Any, folder: Any) -> None:
        folders.append(weakref.ref(folder))
        follow(self, folder)

    monkeypatch.setattr(blaming.Origins, "follow", followed)
    gc.disable()
    try:
        found = await blaming.blame(backend, "t")
        assert found is not None
        assert len(folders) > 1
        assert [it() for it in folders] == [None] * len(folders)
    finally:
        gc.enable()


async def test_a_wrong_parent_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    async def every_version(backend: Any, thread: str, name: str | None, **_: Any) -> Any:
        at = await backend.version(thread, name)
        older = await backend.history(thread, limit=1000, before=at.checkpoint_id)
        return ancestry.Ancestry([*older[::-1], at], [True] * (len(older) + 1))

    monkeypatch.setattr(blaming, "find_ancestry", every_version)
    assert sum([await wrong(seed) for seed in range(60)]) > 0


async def test_versions_that_are_read_in_parts_have_the_same_origins(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ancestry, "READ", 3)
    monkeypatch.setattr(ancestry, "PAGE", 2)
    assert sum([await wrong(seed) for seed in range(40)]) == 0


async def test_a_thread_that_is_not_there_has_no_origins() -> None:
    assert await blame(MemoryBackend(), "t") is None


async def test_a_path_may_be_its_text() -> None:
    backend = MemoryBackend()
    for city in ("Bern", "Graz"):
        await backend.save("t", {"city": city, "stops": [{"n": 1}]}, checkpoint_id=city)
    found = await blame(backend, "t")
    assert found is not None
    for text, path, made in (
        ("city", ("city",), "Graz"),
        ("stops[0].n", ("stops", 0, "n"), "Bern"),
    ):
        blamed = found.find(text)
        assert blamed == found.find(path)
        assert blamed is not None
        assert (blamed.query, blamed.made.version.checkpoint_id) == (path, made)
    assert found.list_parts("stops[0]") == found.list_parts(("stops", 0)) != []
    with pytest.raises(InvalidArgumentError, match="is not a path"):
        found.find("stops[")
