"""The class that ``load`` returns: hostile records, databases without one, the Locus SDK's."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import pytest
from lazily import TESTS_RUN

from locus_store import AgentState, Message, SQLiteBackend, StorageBackendAdapter
from locus_store.errors import SerializationError
from locus_store.types.state import escape_keys
from locus_store.types.state_classes import LOCUS_STATE
from locus_store.values.filters import STATE_CLASS
from locus_store.values.surrogates import escape

if TESTS_RUN:
    from locus.core.state import AgentState as LocusState

pytestmark = pytest.mark.anyio


@pytest.fixture
async def backend(tmp_path: Any) -> Any:
    async with SQLiteBackend(tmp_path / "states.db") as opened:
        yield opened


async def loaded(backend: Any, data: dict[str, Any], recorded: Any = None) -> Any:
    """A stored state as a checkpointer without a state type loads it."""
    labels = {} if recorded is None else {STATE_CLASS: recorded}
    await backend.write_state("t", data, labels=labels)
    return await StorageBackendAdapter(backend).load("t")


SUSPECT = ("import", "open", "exec", "os.", "subprocess.", "socket.", "compile")
_seen: list[str] | None = None


def _audit(event: str, arguments: tuple[Any, ...]) -> None:
    if _seen is not None and event.startswith(SUSPECT) and not event.startswith("sqlite3"):
        _seen.append(f"{event} {arguments[:1]!r}")


sys.addaudithook(_audit)


@pytest.mark.parametrize(
    "recorded",
    [
        "subprocess:Popen",
        "os:system",
        "builtins:eval",
        "builtins:list",
        "builtins:str.__class__",
        "antigravity:Anything",
        "this:AgentState",
        "collections:OrderedDict",
        "locus_store.types.state:BaseModel",  # not where that class is defined
        "locus_store.types.state:AgentState.model_validate",
        "locus_store.backends:FileCheckpointer",  # imported by the module's __getattr__
        "lazy_states:Plan",
        "no.such.module:Plan",
        "locus_store:",
        ":",
        "",
        "x" * 5_000,
        "a:" + "." * 500,
    ],
)
async def test_nothing_is_imported_or_called_by_a_recorded_name(
    backend: Any, recorded: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    global _seen  # noqa: PLW0603  (an audit hook cannot be removed)

    class Lazy(ModuleType):
        """Imports what it stands for when it is first used."""

        def __getattribute__(self, name: str) -> Any:
            if _seen is not None:
                _seen.append(f"lazy_states.{name}")
            return super().__getattribute__(name)

    monkeypatch.setitem(sys.modules, "lazy_states", Lazy("lazy_states"))
    adapter = StorageBackendAdapter(backend)
    await backend.write_state("t", {"n": 1}, labels={STATE_CLASS: recorded})
    await backend.load("t")
    state = await backend.read_state("t")
    _seen = []
    try:
        with pytest.raises(SerializationError, match="state_type=dict"):
            adapter._codec.find_class(state.version.labels, state.state)
    finally:
        seen, _seen = _seen, None
    assert seen == []
    with pytest.raises(SerializationError, match="state_type=dict"):
        await adapter.load("t")


@pytest.mark.parametrize("recorded", [7, None, ["locus_store.types.state:AgentState"], {"a": 1}])
async def test_a_record_that_is_no_text_counts_as_none(backend: Any, recorded: Any) -> None:
    assert type(await loaded(backend, {"agent_id": "a"}, recorded)) is AgentState


async def test_a_state_saved_before_classes_were_recorded_loads_as_before(backend: Any) -> None:
    found = await loaded(backend, AgentState(messages=(Message.user("hi"),)).to_checkpoint())
    assert type(found) is AgentState
    assert found.messages == (Message.user("hi"),)


async def test_an_agents_state_saved_before_classes_were_recorded_is_the_agents_own(
    backend: Any,
) -> None:
    assert type(await loaded(backend, LocusState(agent_id="a").to_checkpoint())) is LocusState


async def test_without_the_sdk_its_states_load_as_ours(
    backend: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = LocusState(agent_id="a").to_checkpoint()
    monkeypatch.delitem(sys.modules, "locus.core.state")
    for recorded in (None, LOCUS_STATE):
        found = await loaded(backend, data, recorded)
        assert type(found) is AgentState
        assert found.agent_id == "a"


async def test_the_sdks_state_stays_its_own_when_a_process_without_the_sdk_saves_it(
    backend: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpointer = StorageBackendAdapter(backend)
    await checkpointer.save(LocusState(agent_id="a"), "t")
    with monkeypatch.context() as without_sdk:
        without_sdk.delitem(sys.modules, "locus.core.state")
        ours = await checkpointer.load("t")
        assert type(ours) is AgentState
        await checkpointer.save(ours, "t")
    assert type(await checkpointer.load("t")) is LocusState


def test_two_keys_of_one_escaped_form_are_refused() -> None:
    half = "\ud800"
    assert escape_keys({half: 1, "\ud801": [{half: 2}]}) == {
        escape(half): 1,
        escape("\ud801"): [{escape(half): 2}],
    }
    with pytest.raises(SerializationError, match="two keys of a dict"):
        escape_keys([{half: 1, escape(half): 2}])
