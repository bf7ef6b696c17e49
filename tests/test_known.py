"""``CachedVersions``: the memory of the versions that an object has seen."""

from __future__ import annotations

from locus_store.types import Mark
from locus_store.values.frames import compare_states
from locus_store.versions.caches import CachedVersions


def test_the_memory_of_versions_keeps_its_bound():
    known = CachedVersions(20_000)
    for nth in range(200):
        done = compare_states({"m": ["x" * 100] * (nth % 30)}, None)
        mark, name = Mark("s", 1, nth, b""), f"v{nth}"
        known.put((f"t{nth % 17}", ""), mark, name, done.tree)
        known.get((f"t{nth % 5}", ""))
        weights = [it.tree.weight for it in known._known.values()]
        assert known._bytes == sum(weights)
        assert known._bytes <= 20_000 or len(weights) == 1
