"""Help pages, in which flags have no type."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from typer.core import TyperCommand, TyperGroup

if TYPE_CHECKING:
    from collections.abc import Iterable


class Command(TyperCommand):
    """A command."""

    def get_params(self, ctx: Any) -> list[Any]:
        """Return the parameters as the help page shows them."""
        return _untyped(super().get_params(ctx))


class HelpGroup(TyperGroup):
    """A group of commands."""

    def get_params(self, ctx: Any) -> list[Any]:
        """Return the parameters as the help page shows them."""
        return _untyped(super().get_params(ctx))


def _untyped(parameters: Iterable[Any]) -> list[Any]:
    """Return the parameters without the type of flags, which Typer 0.29 shows as a value."""
    found = list(parameters)
    for it in found:
        if getattr(it, "is_flag", False) and it.metavar is None:
            it.metavar = ""
    return found
