"""Random calls of the public methods, with hostile names and values."""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING, Any

from locus_store import NewMessage

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from beside_memory import Side

NAMES = [
    "a", "A", "a/b", "a:b", "é", "e\u0301", "x" * 255, "😀" * 255, "%", "_", "*", "[", "..", "a ",
    " a", "\n", "\x01", "\x7f", "\ufeffa", "\ufffe", "\uffff", "'", '"', "\\", "latest", "a|b",
    "a{b}", "~", "ß", "İ",
]  # fmt: skip
BAD_NAMES = ["", "x" * 256, "\0", "a\0", "\ud800", "a\udfff", None, 7]
TEXTS = [
    "", "a", "line of a text ", "\0", "\ud800", "x\udc00y", "😀", "é", "e\u0301", "\u2028",
    "\ufeff", "\x1f", "long text " * 200, "😀" * 600, "İ", "ﬁ", "%_'\"\\", "null", "1", "\ue000",
    "\ue000d800", "NaN",
]  # fmt: skip
NUMBERS = [
    0, 1, -1, True, False, None, 1.0, -0.0, 0.1, 1e16, 1e22, 1e300, 5e-324, 2**31, 2**53 + 1,
    2**63 - 1, 2**63, 2**64 - 1, -(2**63), 1.7976931348623157e308,
]  # fmt: skip
BAD_VALUES = [float("nan"), float("inf"), 2**64, -(2**63) - 1, 10**400, b"x", {1}, 1j, {1: 2}]
KEYS = [
    "", "a", "a.b", "b", "$", "$eq", "user_id", "tags", "agent_id", "é", "e\u0301", "\0", "\ud800",
    "a/b", "~", "k" * 300,
]  # fmt: skip
OPERATORS = ["$eq", "$ne", "$gt", "$gte", "$lt", "$lte", "$in", "$nin", "$exists", "$foo"]
QUERIES = [None, "a", "line conversation", "é", "\ud800", "", "%"]
PATTERNS = ["*", "a*", "[", "?", "*[!a]", "\ud800", "*/*", ""]
LONG = [f"line {n} of a conversation that is saved" for n in range(60)]


class Calls:
    """Calls that a seed makes, on few names, so that they meet."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.threads = self.random.sample(NAMES, 4)
        self.ids = self.random.sample(NAMES, 5)
        self.names = self.random.sample(NAMES, 4)

    def make_call(self) -> tuple[str, Callable[[Side], Awaitable[Any]]]:
        """Return a description of a call, and what makes it."""
        often = [self.save] * 6 + [self.save_loaded] * 4 + [self.delete, self.put_step] * 2
        kinds = [
            *often, self.copy, self.put_writes, self.remove_steps, self.expire, self.put,
            self.put_vector, self.change_items, self.search, self.list_threads, self.query,
            self.append, self.change_log, self.page,
        ]  # fmt: skip
        kind = self.pick(kinds)
        return kind.__name__, kind()

    def pick(self, values: Sequence[Any]) -> Any:
        return self.random.choice(values)

    def is_one_of(self, count: int) -> bool:
        return self.random.randrange(count) == 0

    def name(self, names: Sequence[str]) -> Any:
        return self.pick(BAD_NAMES if self.is_one_of(50) else names)

    def value(self, depth: int = 0) -> Any:
        """Return a value that JSON has, or that is nested too deeply."""
        kind = self.random.randrange(9 if depth < 3 else 5)
        some = range(self.random.randrange(4))
        if kind < 5:
            return self.pick(self.pick([TEXTS, NUMBERS, NUMBERS]))
        if kind < 7:
            return [self.value(depth + 1) for _ in some]
        made: Any = {self.pick(KEYS): self.value(depth + 1) for _ in some}
        if self.is_one_of(30):
            for _ in range(self.pick([5, 100, 195, 199, 201])):
                made = self.pick([[made], {"d": made}])
        return made

    def json(self) -> Any:
        return self.pick(BAD_VALUES) if self.is_one_of(30) else self.value()

    def state(self) -> dict[str, Any]:
        state = {self.pick(KEYS): self.json() for _ in range(self.random.randrange(4))}
        return {**state, "messages": LONG[: self.random.randrange(60)]}

    def metadata(self) -> Any:
        some = range(self.random.randrange(3))
        return self.pick([None, {self.pick(KEYS): self.json() for _ in some}])

    def namespace(self) -> tuple[Any, ...]:
        return tuple(self.name(self.names) for _ in range(self.random.randrange(3)))

    def filter(self) -> Any:
        scalar = self.pick([*TEXTS, *NUMBERS])
        wanted = {self.pick(OPERATORS): self.pick([scalar, [scalar, 1], True])}
        return self.pick([None, {self.pick(KEYS): self.pick([wanted, wanted, self.value()])}])

    def message(self) -> NewMessage:
        role = self.pick(["user", "assistant", "", "x" * 256, "\ud800"])
        text = self.pick([None, *TEXTS])
        return NewMessage(self.json(), role, self.name(self.ids), self.metadata(), text)

    def save(self) -> Any:
        which, state, thread = self.pick([0, 1, 2]), self.state(), self.name(self.threads)
        name, metadata = self.pick([None, self.name(self.ids)]), self.metadata()
        options: dict[str, Any] = {}
        if self.is_one_of(5):
            options["parent_checkpoint_id"] = self.name(self.ids)
        if self.is_one_of(4):
            options["on_conflict"] = self.pick(["branch", "overwrite", "raise", "x"])
        return lambda side: side.checkpointers[which].save(state, thread, name, metadata, **options)

    def save_loaded(self) -> Any:
        """Save what one of the last loads returned, by any object."""
        loads, saves, thread = self.pick([0, 1, 2]), self.pick([0, 1, 2]), self.pick(self.threads)
        name, key, value = (
            self.pick([None, None, self.pick(self.ids)]),
            self.pick(KEYS),
            self.json(),
        )
        conflict, ago = self.pick(["raise", "branch", "overwrite"]), self.random.randrange(1, 5)

        async def call(side: Side) -> Any:
            loaded = await side.checkpointers[loads].load(thread, name)
            if loaded is not None:
                loaded[key] = value
                side.states.append(loaded)
            if len(side.states) < ago:
                return None
            state = side.states[-ago]
            saved = await side.checkpointers[saves].save(state, thread, on_conflict=conflict)
            return [*(loaded or ())], saved

        return call

    def delete(self) -> Any:
        thread, name = self.name(self.threads), self.pick([None, *[self.name(self.ids)] * 3])
        return lambda side: side.checkpointers[1].delete(thread, name)

    def copy(self) -> Any:
        source, copy = self.name(self.threads), self.name(self.threads)
        return lambda side: side.checkpointers[0].copy_thread(source, copy)

    def put_writes(self) -> Any:
        writes = [(self.name(self.names), self.json()) for _ in range(self.random.randrange(3))]
        place = {
            "thread_id": self.pick(self.threads), "checkpoint_id": self.name(self.ids),
            "checkpoint_ns": self.pick(["", "", self.name(self.names)]),
        }  # fmt: skip
        task = self.name(self.names)

        async def call(side: Side) -> Any:
            put = await side.answer(side.saver.put_writes(task_id=task, writes=writes, **place))
            return put, await side.saver.get_writes(**place)

        return call

    def put_step(self) -> Any:
        options = {
            "thread_id": self.name(self.threads), "checkpoint_id": self.name(self.ids),
            "checkpoint_data": self.state(), "metadata": self.metadata(),
            "checkpoint_ns": self.pick(["", "", self.name(self.names), "n" * 300]),
            "parent_checkpoint_id": self.pick([None, self.name(self.ids)]),
            "fork": self.is_one_of(2),
        }  # fmt: skip
        return lambda side: side.saver.put(**options)

    def remove_steps(self) -> Any:
        method = self.pick(["delete_thread", "prune", "namespaces", "delete_for_runs"])
        name = self.name(self.threads)
        names = [name] if method in {"prune", "delete_for_runs"} else name
        return lambda side: getattr(side.saver, method)(names)

    def expire(self) -> Any:
        kind, thread, key = self.pick([0, 1, 2]), self.pick(self.threads), self.pick(self.names)
        state = {"n": self.pick(NUMBERS)}

        async def call(side: Side) -> Any:
            if kind == 0:
                save = side.checkpointers[0].save
                await save(state, thread, on_conflict="overwrite", ttl_seconds=0.001)
            elif kind == 1:
                await side.store.put(("t",), key, state, None, 0.001)
            else:
                message = NewMessage("x", "user", "m")
                await side.expiring_log.append(thread, [message], namespace=key)
            await asyncio.sleep(0.01)
            return await side.checkpointers[0].exists(thread), await side.store.get(("t",), key)

        return call

    def put(self) -> Any:
        version = self.pick([None, None, None, 0, 1, 2, -1])
        metadata = self.metadata()
        item = (self.namespace(), self.name(self.ids), self.json(), metadata, None, version)
        return lambda side: side.store.put(*item)

    def put_vector(self) -> Any:
        vector = [self.pick([0, 1, -1, 0.5, 1e30, 1e-30]) for _ in range(3)]
        namespace, key, value = self.namespace(), self.name(self.ids), self.json()
        query, wanted = [self.pick([1, -1, 0.5]) for _ in range(3)], self.filter()

        async def call(side: Side) -> Any:
            put = side.store.put_with_embedding(namespace, key, value, vector)
            found = [await side.answer(put)]
            hits = await side.store.search_by_embedding(namespace, query, 50, filter=wanted)
            named = ((it.item.namespace, it.item.key, round(it.score, 3) + 0.0) for it in hits)
            return *found, sorted(named), await side.store.get_embedding(namespace, key)

        return call

    def change_items(self) -> Any:
        kind, namespace, key = self.pick([0, 1, 2, 2]), self.namespace(), self.name(self.ids)
        is_recursive = self.is_one_of(2)
        items = [(namespace, key, {"a": 1}), (namespace, key, 2), (("b",), key, None)]

        def call(side: Side) -> Any:
            if kind == 0:
                return side.store.clear_namespace(namespace, recursive=is_recursive)
            return side.store.put_batch(items) if kind == 1 else side.store.delete(namespace, key)

        return call

    def search(self) -> Any:
        kind, namespace, wanted = self.random.randrange(4), self.namespace(), self.filter()
        limit, offset = self.pick([100, 100, 3, 0, -1]), self.pick([0, 0, 1, -1])
        options = {"metadata_filter": self.filter(), "recursive": self.is_one_of(2)}
        query, after, depth = self.pick(QUERIES), self.name([*self.ids]), self.pick([None, 1, 2])

        def call(side: Side) -> Any:
            if kind < 2:
                return side.store.search(namespace, query, wanted, limit, offset, **options)
            if kind == 2:
                return side.store.list(namespace, limit, after)
            return side.store.list_namespaces(limit=limit, offset=offset, max_depth=depth)

        return call

    def list_threads(self) -> Any:
        kind, limit = self.random.randrange(5), self.pick([100, 2, 0, -1])
        pattern, thread = self.pick(PATTERNS), self.name(self.threads)
        after, query = self.pick([None, self.name(self.ids)]), self.pick(QUERIES[1:])

        async def call(side: Side) -> Any:
            checkpointer = side.checkpointers[0]
            if kind == 0:
                return await checkpointer.list_threads(limit, pattern)
            if kind == 1:
                return await checkpointer.list_checkpoints(thread, limit, after=after)
            if kind == 2:
                return await checkpointer.list_with_metadata(limit)
            if kind == 3:
                return sorted(it["thread_id"] for it in await checkpointer.search(query, 100))
            return await side.saver.list_checkpoints(thread_id=thread, limit=limit, before=after)

        return call

    def query(self) -> Any:
        key, value, thread = self.pick([*KEYS, None]), self.value(), self.name(self.threads)
        name = self.pick([None, self.name(self.ids)])

        async def call(side: Side) -> Any:
            checkpointer = side.checkpointers[0]
            found = await side.answer(checkpointer.query_by_metadata(key, value, 100))
            metadata = await side.answer(checkpointer.get_metadata(thread, name))
            return found, metadata, await checkpointer.exists(thread, name)

        return call

    def append(self) -> Any:
        thread, namespace = self.name(self.threads), self.pick(["", self.name(self.names)])
        messages = [self.message() for _ in range(self.random.randrange(4))]
        options: dict[str, Any] = {"namespace": namespace, "metadata": self.metadata()}
        if self.is_one_of(6):
            options["expected_revision"] = self.pick([0, -1, 10**30, 2**63])
        if self.is_one_of(4):
            other = self.pick(self.names)
            where = self.pick([other, (self.pick(self.threads), other)])
            options["also"] = {where: [self.message()]}
        if self.is_one_of(10):
            options["user_id"] = self.name(self.names)

        async def call(side: Side) -> Any:
            revision = await side.answer(side.log.append(thread, messages, **options))
            found = None if isinstance(revision, int) else revision
            return found, await side.log.load(thread, namespace=namespace)

        return call

    def change_log(self) -> Any:
        method = self.pick(["replace", "pop", "remove", "clear", "delete"])
        thread, namespace = self.name(self.threads), self.pick(["", self.name(self.names)])
        start = self.pick([0, 1, 2, 100, -1])
        given = {"replace": [start, [self.message()]], "remove": [[self.name(self.ids)]]}

        async def call(side: Side) -> Any:
            change = getattr(side.log, method)
            found = await side.answer(change(thread, *given.get(method, []), namespace=namespace))
            found = getattr(found, "message", None) if method == "pop" else found
            shown = None if type(found) is int else found
            return shown, await side.log.load(thread, namespace=namespace)

        return call

    def page(self) -> Any:
        kind, thread = self.random.randrange(4), self.pick([None, self.name(self.threads)])
        namespace, prefix = self.pick([None, "", *self.names]), self.pick(["", "a", "é", "\ud800"])
        options: dict[str, Any] = {
            "offset": self.pick([0, 1, -1]), "limit": self.pick([100, 1, 0, -1]),
            "search": self.pick([None, *TEXTS]), "role": self.pick([None, "user", "\ud800", ""]),
            "metadata_filter": self.filter(), "newest_first": self.is_one_of(2),
        }  # fmt: skip

        def call(side: Side) -> Any:
            if kind == 0:
                return side.log.logs(thread, prefix=prefix, namespace=namespace)
            if kind == 1:
                return side.log.heads(thread, prefix=prefix, namespace=namespace, whole=True)
            return side.log.page(thread or "a", namespace=namespace or "", **options)

        return call
