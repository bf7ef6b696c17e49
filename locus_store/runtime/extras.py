"""Public names that need an extra, and functions with the arguments of a class."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Final, ParamSpec, TypeVar

from locus_store.errors import MissingExtraError

_DRIVERS: Final = {"backends.http": "aiohttp", "backends.redis": "redis"}
"""By the packages that cannot be imported without them."""


def keep_available(names: list[str], modules: dict[str, str]) -> None:
    """Remove the names whose driver is not installed: ``import *`` would fail at them."""
    missing = tuple(it for it, driver in _DRIVERS.items() if find_spec(driver) is None)
    names[:] = [it for it in names if not modules[it].startswith(missing)]


def load_name(package: str, modules: dict[str, str], name: str) -> Any:
    """Return a public name of a package, from the module that defines it.

    Raises:
        AttributeError: There is no such name, or its extra is missing: ``hasattr`` is false.
        MissingExtraError: It is imported from the package, and its extra is missing.
    """
    if name not in modules:
        raise AttributeError(f"module {package!r} has no attribute {name!r}")
    try:
        return getattr(import_module(f"locus_store.{modules[name]}"), name)
    except MissingExtraError as exc:
        # Python replaces an AttributeError of `from … import …`, and with it the advice.
        if sys._getframe(2).f_globals.get("__name__") in _IMPORTING:  # noqa: SLF001
            raise
        raise AttributeError(f"{package}.{name}: {exc}", name=name) from exc


_IMPORTING: Final = {"importlib._bootstrap", "_frozen_importlib", __name__}

P = ParamSpec("P")
T = TypeVar("T")


def make_factory(kind: Callable[P, T], name: str, doc: str) -> Callable[P, T]:
    """Return a function that makes an object of a generic class.

    The options are stated once, by the class. Type checkers, ``help`` and the documentation see
    them in the function's signature.

    Args:
        kind: The class.
        name: Of the function.
        doc: Its docstring.
    """

    def make(*args: P.args, **kwargs: P.kwargs) -> T:
        return kind(*args, **kwargs)

    signature = inspect.signature(kind).replace(return_annotation=f"{kind.__name__}[S]")
    make.__signature__ = signature  # type: ignore[attr-defined]
    make.__name__ = make.__qualname__ = name
    make.__module__, make.__doc__ = kind.__module__, doc
    return make
