"""Commands: their help pages, and options that several of them take as one argument."""

from __future__ import annotations

import inspect
import re
from dataclasses import fields, is_dataclass
from typing import TYPE_CHECKING, Any, TypeVar, get_type_hints

from typer.core import TyperCommand, TyperGroup

from locus_store.cli.profiles import with_given

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    import typer

C = TypeVar("C", bound="Callable[..., None]")


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


# --- groups of options


def command(app: typer.Typer, name: str | None = None) -> Callable[[C], C]:
    """Return a decorator that adds a command; a parameter of a dataclass stands for its fields."""

    def add(work: C) -> C:
        app.command(name, cls=Command)(_with_options(work))
        return work

    return add


def _with_options(work: Callable[..., None]) -> Callable[..., None]:
    """Return a command that takes the fields of each group as options of its own."""
    hints = get_type_hints(work, include_extras=True)
    groups: dict[str, Any] = {it: kind for it, kind in hints.items() if is_dataclass(kind)}
    parameters: list[inspect.Parameter] = []
    for it in inspect.signature(work).parameters.values():
        if it.name in groups:
            parameters += _options(groups[it.name])
        else:
            parameters.append(it.replace(annotation=hints[it.name]))

    def run(**given: Any) -> None:
        for name, group in groups.items():
            given[name] = group(**{it.name: given.pop(it.name) for it in fields(group)})
        work(**given)

    run.__name__, run.__doc__ = work.__name__, work.__doc__
    run.__annotations__ = {it.name: it.annotation for it in parameters}
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return run


def _options(group: Any) -> list[inspect.Parameter]:
    hints = get_type_hints(group, include_extras=True)
    kind = inspect.Parameter.KEYWORD_ONLY
    return [
        inspect.Parameter(it.name, kind, default=it.default, annotation=hints[it.name])
        for it in fields(group)
    ]
