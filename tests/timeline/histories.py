"""Generated histories of a thread, and the origins of their values by comparing states in pairs."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from locus_store.values.encoding import encode_canonical
from locus_store.values.frames.alignment import align, digest_elements

if TYPE_CHECKING:
    import random

    from locus_store.backend import FullBackend
    from locus_store.types import Version

State = dict[str, Any]
Path = tuple[str | int, ...]
WORDS = ("red", "green", "blue", "ash", "oak", "elm", "one", "two", "ten")


# --- a thread


@dataclass
class History:
    """A thread that changes at random, and each state that was saved under each id."""

    backend: FullBackend
    choose: random.Random
    keep_last: int | None
    saved: dict[str, State] = field(default_factory=dict)
    number: int = 0

    async def grow(self, steps: int) -> None:
        await self.save({"messages": [], "plan": {"goal": "red"}, "text": self.words(300)})
        for _ in range(steps):
            await self.choose.choices(
                [self.append, self.fork, self.delete, self.replace, self.rewind], [12, 2, 2, 1, 1]
            )[0]()

    def words(self, count: int) -> str:
        return " ".join(self.choose.choices(WORDS, k=count))

    async def ids(self) -> list[str]:
        return [it.checkpoint_id for it in await self.backend.history("t", limit=1000)]

    async def save(self, state: State, name: str | None = None, **options: Any) -> None:
        self.number += 1
        name = name or f"v{self.number}"
        await self.backend.write_state(
            "t", state, checkpoint_id=name, keep_last=self.keep_last, **options
        )
        self.saved[name] = copied(state)

    async def append(self) -> None:
        found = await self.backend.read_state("t")
        assert found is not None
        await self.save(self.edited(found.state))

    async def fork(self) -> None:
        name = self.choose.choice(await self.ids())
        found = await self.backend.read_state("t", name)
        assert found is not None
        await self.save(self.edited(found.state), parent_id=name)

    async def rewind(self) -> None:
        name = self.choose.choice(await self.ids())
        await self.save(self.saved[name], parent_id=name)

    async def delete(self) -> None:
        ids = await self.ids()
        if len(ids) > 2:
            await self.backend.remove("t", self.choose.sample(ids, self.choose.randint(1, 2)))

    async def replace(self) -> None:
        name = self.choose.choice(await self.ids())
        state = self.edited(self.saved[name])
        await self.save(state, name, on_conflict="overwrite")

    # --- edits

    def edited(self, state: State) -> State:
        state = copied(state)
        edits = [
            *(self.say, self.say, self.say, self.stream, self.stream, self.edit_message),
            *(self.move, self.drop, self.swap, self.set, self.nest, self.unset, self.edit_text),
            *(self.counter, self.duplicate),
        ]
        for edit in self.choose.choices(edits, k=self.choose.randint(1, 3)):
            edit(state)
        return state

    def message(self, length: int) -> State:
        self.number += 1
        content: Any = self.words(length)
        made: State = {"id": f"m{self.number}", "role": self.choose.choice(WORDS[:2])}
        if self.choose.random() < 0.3:
            content = [{"type": "text", "text": content}, {"type": "note", "tags": ["a", "b"]}]
        made["content"] = content
        if self.choose.random() < 0.3:
            del made["id"]
        return made

    def say(self, state: State) -> None:
        at = self.choose.choice([len(state["messages"]), len(state["messages"]), 0])
        state["messages"].insert(at, self.message(self.choose.choice([2, 2, 400])))

    def stream(self, state: State) -> None:
        if state["messages"] and isinstance(state["messages"][-1].get("content"), str):
            state["messages"][-1]["content"] += " " + self.words(2)
        else:
            state["text"] += " " + self.words(3)

    def edit_message(self, state: State) -> None:
        for message in state["messages"][: self.choose.randint(1, 3)]:
            message[self.choose.choice(["role", "usage", "id"])] = self.choose.choice(WORDS)

    def counter(self, state: State) -> None:
        if state["messages"]:
            state["messages"][0]["usage"] = {"tokens": self.number, "kind": "total"}

    def move(self, state: State) -> None:
        self.choose.shuffle(state["messages"])

    def drop(self, state: State) -> None:
        del state["messages"][: self.choose.randint(0, 2)]

    def duplicate(self, state: State) -> None:
        if state["messages"]:
            state["messages"].append(copied(self.choose.choice(state["messages"])))

    def swap(self, state: State) -> None:
        """Replace a part by one that has most of it."""
        for at in range(len(state["messages"]))[-2:]:
            state["messages"][at] = self.message(2) | {"content": self.words(2)}

    def set(self, state: State) -> None:
        state["plan"][self.choose.choice(WORDS)] = self.choose.choice([1, 1.0, True, None, "1"])

    def nest(self, state: State) -> None:
        deep = state["plan"].setdefault("deep", {"a": [1, [2, 3], {"b": 4}], "c": {"d": 5}})
        kind = self.choose.randint(0, 3)
        if kind == 0:
            deep["a"][1] = [2, self.number]
        elif kind == 1:
            deep["c"] = {"d": 5, "e": self.number}
        elif kind == 2:
            state["plan"]["deep"] = {"a": deep["a"], "z": {**deep["c"], "n": self.number}, "c": {}}
        else:
            deep["a"] = [*deep["a"], self.number]

    def unset(self, state: State) -> None:
        if state["plan"]:
            del state["plan"][self.choose.choice(list(state["plan"]))]

    def edit_text(self, state: State) -> None:
        at = self.choose.randint(0, len(state["text"]))
        state["text"] = state["text"][:at] + self.choose.choice(WORDS) + state["text"][at + 4 :]


def copied(value: Any) -> Any:
    """A copy with sorted keys, as states are stored."""
    if isinstance(value, dict):
        return {key: copied(it) for key, it in sorted(value.items())}
    return [copied(it) for it in value] if isinstance(value, list) else value


# --- the states compared in pairs


def values(value: Any, path: Path = ()) -> list[Path]:
    """The paths of all values of a state, its parts included."""
    found = [path]
    if isinstance(value, dict | list):
        for key, it in value.items() if isinstance(value, dict) else enumerate(value):
            found += values(it, (*path, key))
    return found


def at(state: Any, path: Path) -> Any:
    for key in path:
        state = state[key]
    return state


def before(path: Path, state: State, parent: State) -> Path | None:
    """The path that a value had in the parent's state; ``None``: it came with this state."""
    found: Path = ()
    old: Any = parent
    new: Any = state
    for key in path:
        if isinstance(key, str):
            there = key if isinstance(old, dict) and key in old else None
        else:
            there = _matched(old, new, key) if isinstance(old, list) else None
        if there is None:
            return None
        old, new, found = old[there], new[key], (*found, there)
    kinds = {type(old), type(new)}
    is_kept = encode_canonical(old) == encode_canonical(new) or (
        len(kinds) == 1 and kinds <= {dict, list}
    )
    return found if is_kept else None


def _matched(old: list[Any], new: list[Any], index: int) -> int | None:
    shift = 0
    for start, stop, first, last in align(digest_elements(old), digest_elements(new)):
        if index < first:
            break
        if index < last:
            there = start + index - first
            return there if there < stop and not _renamed(old[there], new[index]) else None
        shift = stop - last
    return index + shift


def _renamed(old: Any, new: Any) -> bool:
    if not (isinstance(old, dict) and isinstance(new, dict)):
        return False
    names = old.get("id"), new.get("id")
    return isinstance(names[0], str) and isinstance(names[1], str) and names[0] != names[1]


def origin(path: Path, row: list[State]) -> tuple[int, int]:
    """The steps that made a value of the last state of a row and last changed anything in it."""
    changed = None
    for step in range(len(row) - 1, 0, -1):
        there = before(path, row[step], row[step - 1])
        if there is None:
            return step, step if changed is None else changed
        if changed is None and encode_canonical(at(row[step], path)) != encode_canonical(
            at(row[step - 1], there)
        ):
            changed = step
        path = there
    return 0, changed or 0


async def ancestry(backend: FullBackend, head: Version) -> list[tuple[Version, bool]]:
    """A version's stored ancestors, the oldest first; with it, whether nothing is missing."""
    stored = {it.checkpoint_id: it for it in await backend.history("t", limit=1000)}
    sequences = {it.mark.sequence for it in stored.values()}
    found = []
    version: Version | None = head
    while version is not None:
        parent = stored.get(version.parent_id or "")
        since = range(parent.mark.sequence if parent else 1, version.mark.sequence)
        hidden = parent is None and version.parent_id is not None
        found.append((version, not hidden and sequences.issuperset(since)))
        version = parent
    return found[::-1]
