"""Random threads: a storage answers every call as the rules in memory do."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from beside import Beside, on_storages, run_beside
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, rule

from locus_store.types import Expected, PendingWrite

if TYPE_CHECKING:
    import pytest

LONG = [f"line {n} of a conversation that is saved as differences" for n in range(20)]
VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**63), 2**64 - 1),
    st.floats(allow_nan=False, allow_infinity=False) | st.sampled_from([0.0, -0.0, 1e300]),
    st.text(max_size=30),
)
STATES = st.fixed_dictionaries(
    {"messages": st.lists(st.text(max_size=4), max_size=4).map(lambda texts: LONG + texts)},
    optional={"n": VALUES, "nested": st.dictionaries(st.text(max_size=3), VALUES, max_size=3)},
)
IDS = st.sampled_from([f"v{n}" for n in range(6)])
SELDOM_IDS = st.sampled_from([*[None] * 8, "v0", "v2"])
LINES = st.sampled_from([("a", ""), ("a", ""), ("a", "sub"), ("a/b", "")])

SAVES = st.fixed_dictionaries({
    "checkpoint_id": st.none() | IDS,
    "metadata": st.none() | st.dictionaries(st.sampled_from(["k", "user_id"]), st.integers(0, 2)),
    "parent_id": SELDOM_IDS,
    "keep_last": st.sampled_from([None, None, None, 2]),
})  # fmt: skip
WRITES = st.tuples(
    st.sampled_from(["t1", "t2"]), st.integers(-1, 1), st.just("channel"), st.just("bytes"),
    st.binary(max_size=40), st.just(""),
)  # fmt: skip


class Threads(Beside):
    """Saves, loads, deletions, retention, branches, expiry, copies and pending writes."""

    def __init__(self) -> None:
        super().__init__()
        self.marks: list[tuple[Any, Any]] = []
        self.changed = ("a", "")

    def write(self, line: tuple[str, str], state: Any, options: Any) -> None:
        """Save on both; ``options`` has the options of each side."""
        self.changed = line
        thread = self.named(line[0])
        found = self.both(
            lambda it, side: it.write_state(thread, state, namespace=line[1], **options[side])
        )
        if not isinstance(found[0], Exception):
            assert found[0].outcome == found[1].outcome
            assert found[0].checkpoint_id == found[1].checkpoint_id
            self.marks.append((found[0].mark, found[1].mark))

    @initialize(states=st.lists(STATES, min_size=3, max_size=3))
    def begin(self, states: list[Any]) -> None:
        """A thread with three versions."""
        for n, state in enumerate(states):
            self.write(("a", ""), state, [{"checkpoint_id": f"v{n}"}] * 2)

    @rule(line=LINES, state=STATES, options=SAVES, is_repeated=st.booleans())
    def save(self, line: Any, state: Any, options: Any, is_repeated: bool) -> None:
        name = options["checkpoint_id"] or f"w{len(self.marks)}"
        for _ in range(1 + is_repeated):
            self.write(line, state, [options | {"checkpoint_id": name}] * 2)

    @rule(
        line=LINES, state=STATES, seen=st.tuples(st.integers(0, 9), st.integers(0, 9)),
        on_conflict=st.sampled_from(["raise", "branch", "overwrite"]),
    )  # fmt: skip
    def save_after_a_load(self, line: Any, state: Any, seen: Any, on_conflict: Any) -> None:
        """With the marks of earlier saves, which may be stale, or of another line."""
        if self.marks:
            made, head = (self.marks[-1 - n % len(self.marks)] for n in seen)
            name = f"w{len(self.marks)}"
            common = {"checkpoint_id": name, "on_conflict": on_conflict}
            expected = [Expected(made_from=made[it], head=head[it]) for it in (0, 1)]
            self.write(line, state, [common | {"expected": it} for it in expected])

    @rule(line=LINES, names=st.lists(IDS, max_size=3))
    def remove(self, line: Any, names: list[str]) -> None:
        self.changed = line
        self.same(lambda it, _: it.remove(self.named(line[0]), names, namespace=line[1]))

    @rule(line=LINES)
    def remove_head(self, line: Any) -> None:
        """The newest version of a line."""
        self.changed, thread = line, self.named(line[0])

        async def removed(backend: Any) -> Any:
            newest = await backend.history(thread, namespace=line[1], limit=1)
            names = [it.checkpoint_id for it in newest]
            return await backend.remove(thread, names, namespace=line[1])

        self.same(lambda it, _: removed(it))

    @rule(thread=st.sampled_from(["a", "a/b", "a/b", "copy"]), is_pruned=st.booleans())
    def clean(self, thread: str, is_pruned: bool) -> None:
        """All versions but the heads, or the whole thread."""
        self.changed, name = (thread, ""), self.named(thread)
        self.same(lambda it, _: it.prune(name) if is_pruned else it.remove_thread(name))

    @rule(source=st.sampled_from(["a", "a", "a/b"]), copy=st.sampled_from(["copy", "copy", "a/b"]))
    def copy_thread(self, source: str, copy: str) -> None:
        self.changed = (copy, "")
        self.same(lambda it, _: it.copy_thread(self.named(source), self.named(copy)))

    @rule(thread=st.sampled_from(["a/b", "copy"]), state=STATES)
    def expire(self, thread: str, state: Any) -> None:
        """A save with a short time to live, after which the thread is removed."""
        self.write((thread, ""), state, [{"ttl_seconds": 0.001, "checkpoint_id": "last"}] * 2)
        for it in self.objects:
            while self.run(it.has_thread(self.named(thread))):
                pass
            self.run(it.expire())
            self.run(it.remove_thread(self.named(thread)))

    @rule(line=LINES, name=IDS, write=WRITES)
    def put_writes(self, line: Any, name: str, write: Any) -> None:
        self.changed = line
        thread, writes = self.named(line[0]), [PendingWrite(*write)]
        self.same(lambda it, _: it.put_writes(thread, name, writes, namespace=line[1]))

    @invariant()
    def the_line_is_the_same(self) -> None:
        """Compare what the last step changed: a line's versions, and its newest state."""
        thread, namespace = self.named(self.changed[0]), self.changed[1]
        self.same(lambda it, _: versions_and_head(it, thread, namespace))

    def teardown(self) -> None:
        """Compare everything of every thread."""
        for thread in map(self.named, ("a", "a/b", "copy")):
            self.same(lambda it, _, thread=thread: everything(it, thread))


async def versions_and_head(backend: Any, thread: str, namespace: str) -> Any:
    """Return the versions of a line, and its newest state; ``repr`` tells -0.0 from 0.0."""
    versions = await backend.history(thread, namespace=namespace, limit=100)
    newest = await backend.read_state(thread, namespace=namespace)
    shown = [(it.checkpoint_id, it.parent_id, it.metadata) for it in versions]
    return shown, newest and repr(newest.state)


async def everything(backend: Any, thread: str) -> Any:
    """Return what a backend shows of a thread, with the state of each version."""
    found = [await backend.has_thread(thread), await backend.namespaces(thread)]
    for namespace in ("", "sub"):
        versions, head = await versions_and_head(backend, thread, namespace)
        names = [name for name, *_ in versions]
        read = [await backend.read_state(thread, name, namespace=namespace) for name in names]
        writes = await backend.writes_of(thread, [*{*names, "v0", "v1"}], namespace=namespace)
        found += [versions, head, [it and repr(it.state) for it in read], writes]
    return found


@on_storages(
    ("sqlite", "objects", "redis", "postgresql"), "file", "portable", "oracle-double", "oci"
)
def test_any_threads_are_as_in_memory(
    name: str, count: int, request: pytest.FixtureRequest
) -> None:
    run_beside(Threads, name, "backend", request, count)
