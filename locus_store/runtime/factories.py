"""Functions that make an object of a class, with the arguments of the class."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, ParamSpec, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

P = ParamSpec("P")
T = TypeVar("T")


def factory(made: Callable[P, T], name: str, doc: str) -> Callable[P, T]:
    """Return a function that makes an object of a generic class.

    The options are stated once, by the class. Type checkers, ``help`` and the documentation see
    them in the function's signature.

    Args:
        made: The class.
        name: Of the function.
        doc: Its docstring.
    """

    def make(*args: P.args, **kwargs: P.kwargs) -> T:
        return made(*args, **kwargs)

    signature = inspect.signature(made).replace(return_annotation=f"{made.__name__}[S]")
    make.__signature__ = signature  # type: ignore[attr-defined]
    make.__name__ = make.__qualname__ = name
    make.__module__, make.__doc__ = made.__module__, doc
    return make
