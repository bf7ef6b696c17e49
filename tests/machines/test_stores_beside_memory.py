"""Random stores: a storage answers every call as the rules in memory do."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from beside import Beside, on_storages, run_beside
from hypothesis import strategies as st
from hypothesis.stateful import invariant, rule

if TYPE_CHECKING:
    import pytest

NAMES = st.tuples(
    st.sampled_from([(), ("u",), ("u", "v"), ("w",)]), st.sampled_from(["k1", "k2", "%"])
)
VALUES = st.none() | st.integers(-2, 2) | st.text(max_size=5) | st.dictionaries(
    st.sampled_from(["n", "s"]), st.integers(0, 2) | st.text(max_size=3), max_size=2
)  # fmt: skip
METADATA = st.none() | st.dictionaries(st.just("k"), st.integers(0, 2), max_size=1)
VERSIONS = st.none() | st.integers(0, 3)


class Items(Beside):
    """Puts, batches, deletions, versions that are expected, lists, filters and vectors."""

    def below(self, namespace: tuple[str, ...]) -> tuple[str, ...]:
        """Return the namespace below one of this example."""
        return (str(self.number), *namespace)

    @rule(name=NAMES, value=VALUES, metadata=METADATA, version=VERSIONS)
    def put(self, name: Any, value: Any, metadata: Any, version: Any) -> None:
        namespace, key = self.below(name[0]), name[1]
        self.same(lambda it, _: it.put(namespace, key, value, metadata, expected_version=version))

    @rule(name=NAMES, value=VALUES, vector=st.lists(st.integers(-3, 3), min_size=3, max_size=3))
    def embed(self, name: Any, value: Any, vector: Any) -> None:
        namespace, key = self.below(name[0]), name[1]
        self.same(lambda it, _: it.put_with_embedding(namespace, key, value, vector))

    @rule(items=st.lists(st.tuples(NAMES, VALUES), max_size=3))
    def put_batch(self, items: Any) -> None:
        batch = [(self.below(namespace), key, value) for (namespace, key), value in items]
        self.same(lambda it, _: it.put_batch(batch))

    @rule(name=NAMES)
    def delete(self, name: Any) -> None:
        namespace, key = self.below(name[0]), name[1]
        self.same(lambda it, _: it.delete(namespace, key))

    @rule(name=NAMES, is_recursive=st.booleans())
    def clear(self, name: Any, is_recursive: bool) -> None:
        namespace = self.below(name[0])
        self.same(lambda it, _: it.clear_namespace(namespace, recursive=is_recursive))

    @rule(name=NAMES, wanted=st.dictionaries(st.sampled_from(["n", "s"]), st.integers(0, 2)))
    def search(self, name: Any, wanted: Any) -> None:
        namespace = self.below(name[0])

        async def found(store: Any) -> Any:
            items = await store.search(namespace, filter=wanted, limit=100)
            return sorted((it.namespace, it.key, it.version) for it in items)

        self.same(lambda it, _: found(it))

    @invariant()
    def the_items_are_the_same(self) -> None:
        self.same(lambda it, _: everything(it, self.below(())))

    def teardown(self) -> None:
        self.same(lambda it, _: embeddings(it, self.below(())))


async def everything(store: Any, namespace: tuple[str, ...]) -> Any:
    """Return the items that a store shows below a namespace."""
    items = await store.search(namespace, limit=100)
    return sorted((it.namespace, it.key, repr(it.value), it.metadata, it.version) for it in items)


async def embeddings(store: Any, namespace: tuple[str, ...]) -> Any:
    """Return the namespaces below a namespace, and the embedding of each item."""
    below = sorted(await store.list_namespaces(prefix=namespace))
    items = [(one, it.key) for one in below for it in await store.list(one)]
    return below, [await store.get_embedding(*it) for it in items]


@on_storages(("sqlite", "redis"), "postgresql", "opensearch", "oracle-double")
def test_any_items_are_as_in_memory(name: str, count: int, request: pytest.FixtureRequest) -> None:
    run_beside(Items, name, "store", request, count)
