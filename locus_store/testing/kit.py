"""The bases of the contracts: hostile data, fixtures, states, messages and items."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import AsyncExitStack, contextmanager
from copy import copy
from datetime import date
from functools import partial
from inspect import isawaitable
from itertools import product
from time import monotonic
from typing import Any, Protocol, TypeVar

import pytest

from locus_store.backend import StorageBackend
from locus_store.checkpointer import StorageBackendAdapter
from locus_store.errors import InvalidArgumentError, SerializationError
from locus_store.types.items import Namespace
from locus_store.types.messages import NewMessage
from locus_store.types.state import AgentState, Message

HOSTILE_IDS = (
    "latest", "_checkpoints", "a:b", "b:c", "a", "c", "acme_42", "acme/42", "acme%42", "acme*42",
    "/", "//", ":", "|", "%", "_", "'", "''", '"', "\\", "*", "?", "[a]", "..", "../a", ".", " ",
    " a", "a ", "A", "\u00e1", "a\u0301", "ß", "ss", "日本語", "🎉", "\n", "\t", "\x01", "\ufeff",
    "\uffff",
    "\U0010ffff", "null", "None", "0", "-1", "'; DROP TABLE locus_threads; --", "${a}", "{a}",
    "x" * 255, "🎉" * 255,
)  # fmt: skip
"""Ids that some backend somewhere took for something else; each names a thread of its own."""

INVALID_IDS = ("", "x" * 256, "a\0b", "\ud800", "a\udfff", None, 7, 1.5, b"t", ["t"], True)
"""Invalid ids, wherever an id is required."""

INVALID_OPTIONAL_IDS = tuple(it for it in INVALID_IDS if it is not None)
"""Invalid ids, wherever one may be left out."""

INVALID_LIMITS = (-1, 1.5, "3", None, True)

NUMBERS = (
    0, 0.0, -0.0, 1, 1.0, -1, True, False, None, 2**31, 2**53 + 1, 2**63, 2**64 - 1, -(2**63), 1e-7,
    0.1, 1e22, 5e-324, 1.7976931348623157e308, 123456789.123456789,
)  # fmt: skip
TEXTS = (
    "", "\0", "a\0b", "\u00e9", "e\u0301", "日本語", "🎉", "'\"\\", "\u2028", "null", "{}",
    "1" * 5000,
)  # fmt: skip
CUT_TEXTS = ("a\ud83d", "\ude00b", "\ud83d\ude00", "\ude00\ud83d 🎉", "\ud83d\0", "\ufdd0")
"""Strings that were cut within a character, and the first character of their stored form."""

UNSERIALISABLE = (
    float("nan"), float("inf"), float("-inf"), date(2026, 1, 1), {1, 2}, b"bytes", 2**64,
    -(2**63) - 1, {1: "int key"}, {None: "no key"}, object(), 1 + 2j,
)  # fmt: skip

B = TypeVar("B", bound=StorageBackend)
T = TypeVar("T")
Another = Callable[..., Any]


class StorageProbe(Protocol):
    """Access below a backend for a few tests; the ``storage`` fixture may return one."""

    def age(self, seconds: float) -> None:
        """Make every existing version older."""

    def damage(self, change: Callable[[bytes], bytes]) -> None:
        """Replace the stored payload of every version by ``change(payload)``."""

    def holds(self, text: str) -> bool:
        """Return whether stored bytes, packed or not, reveal ``text``; call after ``close()``."""

    def rows(self) -> int:
        """Return the numbers of stored threads, lines and versions, visible or not."""


def exact(value: Any) -> Any:
    """Return a form of a JSON value that differs if any type, sign or character differs."""
    if isinstance(value, Mapping):
        return {key: exact(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [exact(item) for item in value]
    return type(value).__name__, repr(value)


class LoopKit:
    """The base of all contracts: their tests run in an event loop of asyncio."""

    pytestmark = pytest.mark.anyio

    @pytest.fixture
    def anyio_backend(self) -> str:
        return "asyncio"


class Kit(LoopKit):
    """The fixtures and states that every contract of a checkpointer uses.

    For another ``state_type`` override the five methods below; for storage that outlives an object
    override ``reopen``.
    """

    state_type: type[Any] = AgentState
    """The class that ``load`` returns."""

    carries_marks = True
    """A loaded state has room for its mark; else loads are distinguished by their caller."""

    def new(self, *texts: str) -> Any:
        """Return a state that was not loaded."""
        return AgentState(messages=tuple(map(Message.user, texts)))

    def said(self, state: Any, text: str) -> Any:
        """Return a state made from ``state`` with one more string."""
        return state.with_message(Message.user(text))

    def texts(self, state: Any) -> list[str]:
        return [message.content for message in state.messages]

    def holding(self, value: Any) -> Any:
        """Return a state that holds a JSON value."""
        return AgentState(metadata={"value": value})

    def held(self, state: Any) -> Any:
        """Return the value of ``holding``."""
        return state.metadata["value"]

    @pytest.fixture
    def checkpointer(self) -> Any:
        """The object to test, on empty storage; override this."""
        raise NotImplementedError("give the contract a `checkpointer` fixture")

    @pytest.fixture
    def reopen(self, checkpointer: Any) -> Another:
        """Create another object on the same storage, with a factory's options."""
        return make_reopen(checkpointer, self.state_type)

    @pytest.fixture
    def storage(self) -> StorageProbe | None:
        """Access below the backend; without it the tests that need it are skipped."""
        return None

    @pytest.fixture
    def below(self, storage: StorageProbe | None) -> StorageProbe:
        """Access below the backend, for tests that need it."""
        return probe(storage)

    @pytest.fixture
    def backend(self, checkpointer: Any) -> Any:
        """The backend of the object to test, for tests that need it."""
        return find_backend(checkpointer)

    @pytest.fixture
    async def another(self, reopen: Another) -> AsyncIterator[Another]:
        """Call ``reopen``, and close all its objects at the end."""
        opened: list[Any] = []

        def open_one(**options: Any) -> Any:
            opened.append(reopen(**options))
            return opened[-1]

        yield open_one
        for checkpointer in opened:
            await checkpointer.close()

    @pytest.fixture
    def other(self, another: Another) -> Any:
        """Another object on the same storage."""
        return another()

    @pytest.fixture(autouse=True)
    async def closing(
        self, checkpointer: Any, request: pytest.FixtureRequest
    ) -> AsyncIterator[None]:
        skip_unless_capable(checkpointer, request)
        yield
        await checkpointer.close()

    async def grow(self, checkpointer: Any, thread_id: str, *texts: str) -> list[str]:
        """Save a thread several times, each with one more string; return the checkpoint ids."""
        state, ids = self.new(), []
        for text in texts:
            state = self.said(state, text)
            ids.append(await checkpointer.save(state, thread_id))
        return ids

    async def read_texts(
        self, checkpointer: Any, thread_id: str, checkpoint_id: str | None = None
    ) -> list[str] | None:
        """Return the strings of a version; ``None`` if it does not exist."""
        state = await checkpointer.load(thread_id, checkpoint_id)
        return None if state is None else self.texts(state)

    async def read_all_texts(
        self, checkpointer: Any, thread_id: str
    ) -> dict[str, list[str] | None]:
        """Return the strings of every version by id, newest first."""
        ids = await checkpointer.list_checkpoints(thread_id, limit=10_000)
        return {it: await self.read_texts(checkpointer, thread_id, it) for it in ids}


def make_reopen(checkpointer: Any, state_type: type[Any]) -> Another:
    """Return a function that creates another object over a checkpointer's backend."""

    def adapter(**options: Any) -> StorageBackendAdapter:
        backend = checkpointer.backend
        if "max_state_bytes" in options:
            backend = limit_backend(backend, options.pop("max_state_bytes"))
        return StorageBackendAdapter(backend, **{"state_type": state_type, **options})

    return adapter


def seam(*names: str) -> Callable[[T], T]:
    """Mark a test, or the tests of a class, as one of a seam; it is kept in ``test.seams``.

    A wrapper changes one part of the way of a call, and runs the tests with the mark of that part
    only. The names are ``connection`` (who owns the connections), ``loop`` (event loops and
    threads), ``state`` (the class of states), ``layout`` (how versions are stored) and ``search``.
    The mark of a test takes the place of its class's.
    """
    return _mark_tests("seams", frozenset(names))


def requires(*capabilities: str | type) -> Callable[[T], T]:
    """Mark a test, or the tests of a class, as one that needs capabilities, or powers of a backend.

    It is skipped if the object to test does not have all of them. The mark of a test takes the
    place of its class's.
    """
    return _mark_tests("required", capabilities)


def _mark_tests(name: str, value: object) -> Callable[[T], T]:
    """Return a decorator that sets an attribute of tests, unless they have it."""

    def mark(subject: T) -> T:
        tests: list[tuple[str, Any]] = [("test_", subject)]
        if isinstance(subject, type):
            tests = [*vars(subject).items()]
        for test_name, test in tests:
            if test_name.startswith("test_") and not hasattr(test, name):
                setattr(test, name, value)
        return subject

    return mark


def limit_backend(backend: B, max_state_bytes: Any) -> B:
    """Return a backend on the same storage, even in memory, with another limit."""
    other = copy(backend)
    StorageBackend.__init__(other, max_state_bytes=max_state_bytes)
    if backend.tenant is not None:
        other._enter(backend.tenant)  # noqa: SLF001  (nothing under way is shared)
    for name, part in list(vars(other).items()):
        if isinstance(part, list):  # backends that it stands over
            setattr(other, name, [limit_backend(it, max_state_bytes) for it in part])
        elif hasattr(part, "max_state_bytes"):  # it folds states for the backend
            setattr(other, name, copy(part))
            getattr(other, name).max_state_bytes = max_state_bytes
    return other


def needs(checkpointer: Any, *capabilities: str | type) -> None:
    """Skip the test if a capability is not declared; its refusal is tested once."""
    for capability in capabilities:
        if isinstance(capability, type):
            if not isinstance(checkpointer, capability):
                pytest.skip(f"{type(checkpointer).__name__} is no {capability.__name__}")
        elif not getattr(checkpointer.capabilities, capability):
            pytest.skip(f"{type(checkpointer).__name__} does not declare {capability}")


def skip_unless_capable(subject: Any, request: pytest.FixtureRequest) -> None:
    """Skip the test if the object to test lacks what ``requires`` names."""
    needs(subject, *getattr(request.function, "required", ()))


def find_backend(subject: Any) -> Any:
    """Return the backend of an object; skip the test if there is none."""
    if getattr(subject, "backend", None) is None:
        pytest.skip(f"{type(subject).__name__} stands over no backend")
    return subject.backend


def probe(storage: StorageProbe | None) -> StorageProbe:
    """Skip the test if no ``storage`` fixture is given."""
    if storage is None:
        pytest.skip("no `storage` fixture")
    return storage


@contextmanager
def refused(
    error: type[Exception] | tuple[type[Exception], ...], case: object, *, match: str = ""
) -> Iterator[None]:
    """Expect an error as ``pytest.raises`` does, and name the case if there was none."""
    try:
        yield
    except error as exc:
        if match not in str(exc):
            pytest.fail(f"{exc} does not name {match!r}")
    else:
        pytest.fail(f"{ascii(case)[:60]} was not refused")


async def expect(
    error: type[Exception] | tuple[type[Exception], ...],
    values: Iterable[Any],
    *calls: Callable[[Any], Any],
    match: str = "",
) -> None:
    """Expect an error of each call with each value, as ``refused`` does."""
    for value, call in product(values, calls):
        with refused(error, value, match=match):
            answer = call(value)
            if isawaitable(answer):
                await answer


expect_invalid = partial(expect, InvalidArgumentError)
"""Expects that each call refuses each value as an argument, as ``expect`` does."""

LOOPS = ("t0", "t1", "t2", "t3", "here")


async def run_in_loops(call: Callable[[str], Any]) -> None:
    """Run a coroutine function with each name of ``LOOPS`` at once, in event loops of their own."""
    *others, here = LOOPS
    calls = [asyncio.to_thread(asyncio.run, call(it)) for it in others]
    await asyncio.gather(*calls, call(here))


async def run_while_closing(subject: Any, *calls: Any) -> list[Any]:
    """Close an object again and again while calls run; return their answers."""
    running = asyncio.gather(*calls)
    while not running.done():
        await subject.close()
        await asyncio.sleep(0)  # not every storage waits for anything
    return await running


async def fail_one_in_three(call: Callable[[Any], Any]) -> list[int]:
    """Make 30 calls at once, every third of them with NaN; return the numbers of the others."""
    calls = (call(n if n % 3 else float("nan")) for n in range(30))
    results = await asyncio.gather(*calls, return_exceptions=True)
    failed = [n for n, it in enumerate(results) if isinstance(it, SerializationError)]
    assert failed == [*range(0, 30, 3)]
    return [n for n in range(30) if n % 3]


async def tick(checkpointer: Any) -> None:
    """Wait without sleeping until the server's clock has advanced."""
    needs(checkpointer, "list_with_metadata")
    seen: set[str] = set()
    while len(seen) < 3:  # so that a whole unit of the clock lies between
        await checkpointer.save({}, "a clock")
        rows = await checkpointer.list_with_metadata(limit=10_000)
        seen |= {row["updated_at"] for row in rows if row["thread_id"] == "a clock"}
    await checkpointer.delete("a clock")


class OpenedKit(LoopKit):
    """The fixtures that the contracts of a store and of a message log share."""

    persists = True
    """Another object of ``reopen`` has the same items or logs."""

    @pytest.fixture
    def reopen(self) -> Another:
        """Create an object on this test's storage, empty at first; override this.

        It takes the options of the base class. A store without one has ``dimension=3``.
        """
        raise NotImplementedError("give the contract a `reopen` fixture")

    @pytest.fixture
    async def subject(self, reopen: Another) -> AsyncIterator[Any]:
        """The object to test, open."""
        async with reopen() as made:
            yield made

    @pytest.fixture
    async def other(self, subject: Any, reopen: Another) -> AsyncIterator[Any]:
        """Another object on the storage, for tests that need it."""
        if not self.persists:
            pytest.skip(f"nothing outlives an object of {type(subject).__name__}")
        async with reopen() as made:
            yield made

    @pytest.fixture
    async def several(self, subject: Any, reopen: Another) -> AsyncIterator[list[Any]]:
        """Three objects on one storage, or one if the storage ends with it; again and again."""
        async with AsyncExitStack() as stack:
            others = [reopen() for _ in range(2)] if self.persists else []
            yield [subject, *[await stack.enter_async_context(it) for it in others]] * 20


class MessageLogKit(OpenedKit):
    """The fixtures that every part of a message log's contract uses."""

    @pytest.fixture
    def log(self, subject: Any) -> Any:
        """The object to test, open."""
        return subject

    @pytest.fixture
    def backend(self, log: Any) -> Any:
        """The backend whose threads have the logs."""
        return find_backend(log)


def make_new(*contents: Any) -> list[NewMessage]:
    """Return messages with these contents, without ids."""
    return [NewMessage(it) for it in contents]


def make_named(*ids: str) -> list[NewMessage]:
    """Return messages with these ids, which are their contents, too."""
    return [NewMessage(it, message_id=it) for it in ids]


def unwrap(messages: Iterable[Any] | None) -> list[Any] | None:
    """Return the contents of messages; ``None`` where there is no log."""
    return None if messages is None else [it.content for it in messages]


NS: Namespace = ("memory", "u42")

HOSTILE_NAMESPACES: tuple[Namespace, ...] = (
    (), ("a", "b"), ("a/b",), ("a", "b", "c"), ("ab",), ("a", "bc"), ("b", "a"), ("a\x01b",),
    ("a\x01", "b"), ("a", "\x01b"), ("a", "%"), ("a", "_"), ("a", "*"), ("a%",), ("a_",),
    ("*", "b"), ("a.b",), ("a|b",), ("a", "a", "b"), ("x" * 255, "y" * 43), ("🎉",) * 150,
    *((it,) for it in HOSTILE_IDS),
)  # fmt: skip
"""Each is one of its own."""

INVALID_NAMESPACES: tuple[Any, ...] = (
    None, "a", ["a"], ("",), ("a", ""), ("a\0",), ("a", None), ("a", 1), (b"a",), ("\ud800",),
    ("a", ["b"]), ("x" * 256,), ("x" * 255, "y" * 44), ("x",) * 151, 7, {"a"},
)  # fmt: skip
"""Invalid namespaces."""

LONG = 3600.0
SHORT = 0.02
"""Seconds to live; what has the first outlives a test."""


class StoreKit(OpenedKit):
    """The fixtures that every part of a store's contract uses."""

    @pytest.fixture
    def store(self, subject: Any, request: pytest.FixtureRequest) -> Any:
        """The object to test, open."""
        skip_unless_capable(subject, request)
        return subject


async def put_over(store: Any, namespace: Namespace, key: str, value: Any = "over") -> None:
    """Put an item, and wait until it has expired."""
    await store.put(namespace, key, value, ttl_seconds=SHORT)
    await wait_for_expiry(store.get_item, namespace, key)


async def wait_for_expiry(find: Callable[..., Awaitable[object]], *names: object) -> None:
    """Wait until an item or a log is not found, because it has expired by the server's clock."""
    deadline = monotonic() + 20
    while await find(*names) is not None:
        assert monotonic() < deadline, "what has expired is still shown"
        await asyncio.sleep(0.005)


def list_keys(items: Iterable[Any]) -> list[str]:
    """Return the keys of items or hits, in their order."""
    return [getattr(it, "item", it).key for it in items]
