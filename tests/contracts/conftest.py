"""Each contract's tests, once for each storage of the table that keeps the contract."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

import pytest
import storages
from tiers import is_everyday

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable


@cache
def _places(config: pytest.Config, contract: str, test: Callable[..., Any]) -> list[Any]:
    """Return the storages that a contract's test runs on."""
    names = config.option.storage
    return [*storages.chosen(contract, test, names=names, is_everyday=is_everyday(config))]


@pytest.hookimpl(tryfirst=True)
def pytest_pycollect_makeitem(collector: Any, name: str, obj: Any) -> list[Any] | None:
    """Leave out a test that runs on no storage."""
    contract = getattr(getattr(collector, "obj", None), "contract", None)
    if contract is None or not name.startswith("test_") or _places(collector.config, contract, obj):
        return None
    return []


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    contract = getattr(metafunc.cls, "contract", None)
    if contract is not None:
        places = _places(metafunc.config, contract, metafunc.function)
        metafunc.parametrize("row", places, indirect=True)
        # The fixture of the contracts is made anew for each test, and so would be the event loop.
        metafunc.parametrize(
            "anyio_backend", ["asyncio"], ids=[pytest.HIDDEN_PARAM], scope="module"
        )


@pytest.fixture(autouse=True)
def counts_without_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """A count of what a tenant stores is repeated without a pause, also on a slow machine."""
    monkeypatch.setattr("locus_store.versions.quotas.PAUSE_PART", 0)


@pytest.fixture(scope="module")
async def open_objects(anyio_backend: str) -> AsyncIterator[dict[Any, Any]]:
    """Open objects of the tests of a module, which share an event loop."""
    made: dict[Any, Any] = {}
    yield made
    for it in made.values():
        await it.close()


@pytest.fixture
def row(request: pytest.FixtureRequest, open_objects: dict[Any, Any]) -> Any:
    """An empty storage of the table, not yet open."""
    return storages.STORAGES[request.param].storage(request, open_objects)


@pytest.fixture
async def place(row: Any, anyio_backend: str) -> AsyncIterator[Any]:
    """An empty storage of the table."""
    await row.open()
    yield row
    await row.close()
