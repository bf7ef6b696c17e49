"""Every checkpointer, and every way to one, is held to the contract."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from storages.states import DictStates, LocusStates, PlainStates, PydanticStates

from locus_store import BaseCheckpointer
from locus_store.testing import CheckpointerContract, MinimalCheckpointerContract
from locus_store.testing.kit import make_reopen

if TYPE_CHECKING:
    from collections.abc import Iterator

    from storages import Storage


class TestCheckpointer(CheckpointerContract):
    """On every storage of the table."""

    contract = "checkpointer"

    @pytest.fixture
    def checkpointer(self, place: Storage) -> Any:
        return place.checkpointer(state_type=self.state_type)

    @pytest.fixture
    def reopen(self, place: Storage, checkpointer: Any) -> Any:
        if place.persists:
            return partial(place.checkpointer, state_type=self.state_type)
        return make_reopen(checkpointer, self.state_type)

    @pytest.fixture
    def storage(self, place: Storage, checkpointer: Any) -> Any:
        return place.probe()

    @pytest.fixture(autouse=True)
    def in_order(self, place: Storage) -> Iterator[None]:
        yield
        place.check()


class TestDictStates(DictStates, TestCheckpointer):
    contract = "states"


class TestPydanticStates(PydanticStates, TestCheckpointer):
    contract = "states"


class TestPlainStates(PlainStates, TestCheckpointer):
    contract = "states"


class TestLocusStates(LocusStates, TestCheckpointer):
    contract = "locus states"


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
