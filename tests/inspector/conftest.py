from __future__ import annotations

import inspect
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest
from servers import missing
from tiers import first_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@pytest.fixture(scope="session")
def chromium() -> Iterator[Any]:
    """A running Chromium. A coroutine function that asks for it runs in its loop."""
    browsers = pytest.importorskip("browsers")
    path = browsers.executable()
    if path is None:
        missing("no Chromium: run .ci/servers as root, or name one in LOCUS_TEST_CHROMIUM")
    found = browsers.Chromium(path)
    yield found
    found.stop()


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    chromium = pyfuncitem.funcargs.get("chromium")
    if chromium is None or not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    names = inspect.signature(pyfuncitem.obj).parameters
    chromium.run(pyfuncitem.obj(**{it: pyfuncitem.funcargs[it] for it in names}))
    return True


@pytest.fixture
def visit() -> Iterator[Callable[..., Any]]:
    """Starts sites, see ``browsers.Site``, and stops them."""
    from browsers import Site

    with ExitStack() as stack:

        def started(*arguments: Any, **options: Any) -> Any:
            site = Site(*arguments, **options)
            stack.callback(site.stop)
            return site

        yield started


def _place(request: pytest.FixtureRequest, tmp_path: Any) -> Any:
    if request.param == "postgresql":
        return request.getfixturevalue("migrated_database")
    return None if request.param == "memory" else tmp_path / "store.db"


@pytest.fixture(params=first_of("memory", "sqlite"))
def place(request: pytest.FixtureRequest, tmp_path: Any) -> Any:
    """The place of a storage, for ``services.parts``."""
    return _place(request, tmp_path)


@pytest.fixture(params=first_of("memory", "sqlite", "postgresql"))
def any_place(request: pytest.FixtureRequest, tmp_path: Any) -> Any:
    """The place of a storage, a PostgreSQL database among them."""
    return _place(request, tmp_path)
