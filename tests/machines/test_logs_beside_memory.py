"""Random message logs: a storage answers every call as the rules in memory do."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from beside import Beside, on_storages, run_beside
from hypothesis import strategies as st
from hypothesis.stateful import invariant, rule

from locus_store import NewMessage

if TYPE_CHECKING:
    import pytest

IDS = st.none() | st.sampled_from(["m1", "m2", "m3"])
MESSAGES = st.lists(
    st.builds(
        NewMessage,
        st.text(max_size=5) | st.integers(-3, 3) | st.lists(st.text(max_size=2), max_size=2),
        st.sampled_from(["user", "assistant"]),
        IDS,
        st.none() | st.dictionaries(st.just("k"), st.integers(0, 2), max_size=1),
        st.none() | st.text(max_size=5),
    ),
    min_size=1,
    max_size=3,
)
LINES = st.tuples(st.sampled_from(["a", "b"]), st.sampled_from(["", "sub"]))
REVISIONS = st.none() | st.integers(0, 6)


class Logs(Beside):
    """Appends, replacements, removals and pages, with and without an expected revision."""

    def __init__(self) -> None:
        super().__init__()
        self.changed = ("a", "")
        self.revisions: list[list[int]] = []

    def change(self, line: tuple[str, str], revision: int | None, method: str, *given: Any) -> None:
        """Change a log; ``revision`` counts back in those that were seen."""
        self.changed, namespace = line, line[1]
        thread, expected = self.named(line[0]), [None, None]
        if revision is not None and self.revisions:
            expected = self.revisions[-1 - revision % len(self.revisions)]
        found = self.both(
            lambda it, side: getattr(it, method)(
                thread, *given, namespace=namespace, expected_revision=expected[side]
            )
        )
        assert shown(found[0]) == shown(found[1])
        infos = self.both(lambda it, _: it.info(thread, namespace=namespace))
        if infos[0] is not None:
            self.revisions.append([it.revision for it in infos])

    @rule(line=LINES, messages=MESSAGES, revision=REVISIONS)
    def append(self, line: Any, messages: Any, revision: Any) -> None:
        named = [it._replace(message_id=it.message_id or f"n{n}") for n, it in enumerate(messages)]
        self.change(line, revision, "append", named)

    @rule(line=LINES, start=st.integers(0, 5), messages=MESSAGES, revision=REVISIONS)
    def replace(self, line: Any, start: int, messages: Any, revision: Any) -> None:
        named = [it._replace(message_id=it.message_id or f"n{n}") for n, it in enumerate(messages)]
        self.change(line, revision, "replace", start, named)

    @rule(line=LINES, revision=REVISIONS, method=st.sampled_from(["pop", "clear", "delete"]))
    def shorten(self, line: Any, revision: Any, method: str) -> None:
        self.change(line, revision, method)

    @rule(
        line=LINES, names=st.lists(st.sampled_from(["m1", "m2", "n0"]), max_size=2),
        revision=REVISIONS,
    )  # fmt: skip
    def remove(self, line: Any, names: Any, revision: Any) -> None:
        self.change(line, revision, "remove", names)

    @invariant()
    def the_messages_are_the_same(self) -> None:
        """Compare the log that the last step changed."""
        thread, namespace = self.named(self.changed[0]), self.changed[1]
        found = self.both(lambda it, _: messages_of(it, thread, namespace))
        assert found[0] == found[1]

    def teardown(self) -> None:
        for thread in map(self.named, ("a", "b")):
            for namespace in ("", "sub"):
                found = self.both(lambda it, _, at=(thread, namespace): everything(it, *at))
                assert found[0] == found[1]


def shown(answer: Any) -> Any:
    """Return what of an answer both sides have to agree on; a revision is any number."""
    if isinstance(answer, Exception):
        return type(answer)
    message = getattr(answer, "message", None)
    return type(answer) if message is None else (message.message_id, message.content)


async def messages_of(log: Any, thread: str, namespace: str) -> Any:
    messages = await log.load(thread, namespace=namespace)
    return messages and [(it.message_id, it.role, it.content, it.metadata) for it in messages]


async def everything(log: Any, thread: str, namespace: str) -> Any:
    """Return all that a log shows."""
    info = await log.info(thread, namespace=namespace)
    return [
        info and info.count,
        await messages_of(log, thread, namespace),
        await log.contents(thread, namespace=namespace, newest=2),
    ]


@on_storages(("sqlite",), "postgresql", "oracle-double", "http")
def test_any_logs_are_as_in_memory(name: str, count: int, request: pytest.FixtureRequest) -> None:
    run_beside(Logs, name, "log", request, count)
