"""Help pages: flags have no type, and the terminal folds paragraphs."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from typer.core import TyperCommand, TyperGroup

from locus_store.cli.profiles import with_given

if TYPE_CHECKING:
    from collections.abc import Iterable


class Command(TyperCommand):
    """A command."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.help = _unfolded(self.help or "")

    def get_params(self, ctx: Any) -> list[Any]:
        """Return the parameters as the help page shows them."""
        return _untyped(super().get_params(ctx))

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the arguments, after the URL that preceded the command."""
        return super().parse_args(ctx, with_given(ctx, self.params, args))


class HelpGroup(TyperGroup):
    """A group of commands."""

    def get_params(self, ctx: Any) -> list[Any]:
        """Return the parameters as the help page shows them."""
        return _untyped(super().get_params(ctx))


def _unfolded(text: str) -> str:
    """Return the text with one line per paragraph: Typer keeps line ends after the first one."""
    return re.sub(r"(?<=\S)\n(?=\S)", " ", text)


def _untyped(parameters: Iterable[Any]) -> list[Any]:
    """Return the parameters without the type of flags, which Typer 0.29 shows as a value."""
    found = list(parameters)
    for it in found:
        if getattr(it, "is_flag", False) and it.metavar is None:
            it.metavar = ""
    return found
