"""The contracts on memory, with states of other types."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from document_probe import DocumentsProbe
from pydantic import BaseModel

from locus_store import (
    MemoryBackend,
    MemoryCheckpointer,
)
from locus_store.testing import (
    CheckpointerContract,
    StorageBackendContract,
)
from locus_store.types import Vacuumed

if TYPE_CHECKING:
    from locus_store.versions.rows import Row


class MemoryProbe(DocumentsProbe):
    """Below a ``MemoryBackend``."""

    def __init__(self, backend: MemoryBackend) -> None:
        super().__init__(backend._documents)


class TestMemory(CheckpointerContract):
    @pytest.fixture
    def checkpointer(self):
        return MemoryCheckpointer(state_type=self.state_type)

    @pytest.fixture
    def storage(self, checkpointer):
        return MemoryProbe(checkpointer.backend)


@pytest.mark.variant
class TestDictState(TestMemory):
    state_type = dict

    def new(self, *texts):
        return {"messages": list(texts)}

    def said(self, state, text):
        state = state.copy()
        state["messages"] = [*state["messages"], text]
        return state

    def texts(self, state):
        return state["messages"]

    def holding(self, value):
        return {"value": value}

    def held(self, state):
        return state["value"]


class Note(BaseModel):
    """A pydantic model with no room for a mark."""

    texts: list[str] = []
    value: Any = None


@pytest.mark.variant
class TestPydanticState(TestMemory):
    state_type = Note
    carries_marks = False

    def new(self, *texts):
        return Note(texts=list(texts))

    def said(self, state, text):
        return Note(texts=[*state.texts, text])

    def texts(self, state):
        return state.texts

    def holding(self, value):
        return Note(value=value)

    def held(self, state):
        return state.value


class Plain:
    """A class with the two methods and no room for a mark."""

    def __init__(self, texts: list[str], value: Any = None) -> None:
        self.texts = texts
        self.value = value

    def to_checkpoint(self) -> dict[str, Any]:
        return {"texts": self.texts, "value": self.value}

    @classmethod
    def from_checkpoint(cls, data: dict[str, Any]) -> Plain:
        return cls(data["texts"], data["value"])


@pytest.mark.variant
class TestPlainState(TestMemory):
    state_type = Plain
    carries_marks = False

    def new(self, *texts):
        return Plain(list(texts))

    def said(self, state, text):
        return Plain([*state.texts, text])

    def texts(self, state):
        return state.texts

    def holding(self, value):
        return Plain([], value)

    def held(self, state):
        return state.value


class TestMemoryBackend(StorageBackendContract):
    @pytest.fixture
    def backend(self):
        return MemoryBackend()


def spoil(row: Row) -> None:
    """Operations that cannot be done, in a document that is as it was written."""
    row._held = False, b'[["-",["no such key"]]]'


@pytest.mark.anyio
async def test_a_damaged_chain_fails_neither_a_sweep_nor_a_vacuum() -> None:
    backend = MemoryBackend()
    below = MemoryProbe(backend)
    for n in range(80):
        await backend.write_state("t", {"body": "b" * 1000, "n": n})
        if n == 0:
            below.age(40 * 86_400)
    below.change_rows(spoil)
    await backend.write_state("t", {"n": 80}, keep_last=10)
    assert await backend.load("t") == {"n": 80}
    assert await backend.vacuum_report(30) == Vacuumed(removed=0, skipped=0, unreadable=1)
    assert await backend.prune("t") == 80  # what goes whole is not read
