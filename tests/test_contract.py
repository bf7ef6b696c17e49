"""Every backend and every way to one is held to the contracts of ``locus_store.testing``."""

from __future__ import annotations

from functools import partial
from typing import Any, ClassVar

import anyio.to_thread
import pytest
from locus.core.messages import Message as LocusMessage
from locus.core.state import AgentState as LocusState
from test_contract_sqlite import OnFile

from locus_store import (
    BaseCheckpointer,
    MemoryBackend,
    StorageBackend,
    StorageBackendAdapter,
    sqlite_checkpointer,
)
from locus_store.blocking import BlockingCheckpointer
from locus_store.testing import (
    CheckpointerContract,
    MinimalCheckpointerContract,
)

# --- the blocking facade


class Unblocked(BaseCheckpointer):
    """A blocking checkpointer behind ``await`` again, each call from a thread."""

    def __init__(self, blocking: BlockingCheckpointer) -> None:
        self.blocking = blocking

    capabilities = property(lambda self: self.blocking.capabilities)
    deletes_single_checkpoints = True

    def for_tenant(self, tenant: str) -> Unblocked:
        return Unblocked(self.blocking.for_tenant(tenant))


def _in_a_thread(name: str):
    async def call(self, *args: Any, **kwargs: Any) -> Any:
        method = partial(getattr(self.blocking, name), *args, **kwargs)
        return await anyio.to_thread.run_sync(method)

    return call


for _name in (
    "save", "load", "list_checkpoints", "delete", "exists", "open", "close", "search",
    "query_by_metadata", "get_metadata", "vacuum", "expire", "copy_thread", "list_threads",
    "list_with_metadata", "tenants",
):  # fmt: skip
    setattr(Unblocked, _name, _in_a_thread(_name))
Unblocked.__abstractmethods__ = frozenset()


@pytest.mark.variant
class TestBlockingFacade(OnFile):
    @pytest.fixture
    def reopen(self, path):
        make = partial(sqlite_checkpointer, path, state_type=self.state_type)
        return lambda **options: Unblocked(BlockingCheckpointer(make(**options)))


# --- a user's own


class UsersCheckpointer(BaseCheckpointer):
    """As the guide to custom checkpointers has it: three methods, nothing declared."""

    def __init__(self, rows: dict[str, dict[str, Any]], state_type: type[Any]) -> None:
        self._rows = rows
        self._state_type = state_type

    async def save(self, state, thread_id, checkpoint_id=None, metadata=None) -> str:
        from copy import deepcopy
        from uuid import uuid4

        cp_id = checkpoint_id or uuid4().hex
        self._rows.setdefault(thread_id, {})[cp_id] = deepcopy(state.to_checkpoint())
        return cp_id

    async def load(self, thread_id, checkpoint_id=None):
        from copy import deepcopy

        rows = self._rows.get(thread_id, {})
        data = rows.get(checkpoint_id or next(reversed(rows), None))
        return None if data is None else self._state_type.from_checkpoint(deepcopy(data))

    async def list_checkpoints(self, thread_id, limit=10) -> list[str]:
        return list(reversed(self._rows.get(thread_id, {})))[:limit]


class TestUsersSubclass(MinimalCheckpointerContract):
    @pytest.fixture
    def reopen(self):
        return partial(UsersCheckpointer, {}, self.state_type)

    @pytest.fixture
    def checkpointer(self, reopen):
        return reopen()


class BareBackend(StorageBackend):
    """Only what a backend must implement."""

    def __init__(self) -> None:
        super().__init__()
        inner = MemoryBackend()
        self.commit, self.fetch = inner.commit, inner.fetch
        self.history, self.remove = inner.history, inner.remove

    commit: ClassVar[Any]
    fetch: ClassVar[Any]
    history: ClassVar[Any]
    remove: ClassVar[Any]


BareBackend.__abstractmethods__ = frozenset()


@pytest.mark.variant
class TestBareBackend(CheckpointerContract):
    """Nothing optional is declared, everything else holds."""

    @pytest.fixture
    def checkpointer(self):
        return StorageBackendAdapter(BareBackend(), state_type=self.state_type)


# --- states of other types


class LocusStates:
    """The real ``AgentState`` of the Locus SDK."""

    state_type = LocusState

    def new(self, *texts):
        return LocusState(messages=tuple(map(LocusMessage.user, texts)))

    def said(self, state, text):
        return state.with_message(LocusMessage.user(text))

    def texts(self, state):
        return [it.content for it in state.messages]

    def holding(self, value):
        return LocusState(metadata={"value": value})

    def held(self, state):
        return state.metadata["value"]


@pytest.mark.variant
class TestLocusState(LocusStates, OnFile):
    pass
