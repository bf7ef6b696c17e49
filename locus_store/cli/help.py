"""Commands: their help pages, and options that several of them take as one argument."""

from __future__ import annotations

import inspect
import os
import re
import tomllib
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, TypeVar, get_type_hints

import typer
from typer.core import TyperCommand, TyperGroup

from locus_store.errors import InvalidArgumentError
from locus_store.types.arguments import did_you_mean

C = TypeVar("C", bound="Callable[..., None]")


class _Described:
    """A command, or a group of them, as its help page shows it."""

    def get_params(self, ctx: Any) -> list[Any]:
        """Return the parameters without the type of flags, which Typer 0.29 shows as a value."""
        found = list(super().get_params(ctx))  # type: ignore[misc]
        for parameter in found:
            if getattr(parameter, "is_flag", False) and parameter.metavar is None:
                parameter.metavar = ""
        return found


class Command(_Described, TyperCommand):
    """A command."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        # One line per paragraph: Typer keeps line ends after the first one.
        self.help = re.sub(r"(?<=\S)\n(?=\S)", " ", self.help or "")

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the arguments, after the URL that preceded the command.

        Raises:
            InvalidArgumentError: A variable that stands for an option is set and empty.
        """
        rest = super().parse_args(ctx, _with_given(ctx, self.params, args))
        for option in self.params:
            variable, source = str(option.envvar), ctx.get_parameter_source(option.name)
            if source.name != "COMMANDLINE" and not os.environ.get(variable, "unset").strip():
                raise InvalidArgumentError(
                    f"{variable} is set, but empty; give it a value, unset it, or pass "
                    f"{option.opts[0]}"
                )
        return rest


class HelpGroup(_Described, TyperGroup):
    """A group of commands."""


def make_group(text: str) -> typer.Typer:
    """Return a group of commands, which prints its help page if none of them is named."""
    return typer.Typer(help=text, no_args_is_help=True, cls=HelpGroup)


def add_command(app: typer.Typer, name: str | None = None) -> Callable[[C], C]:
    """Return a decorator that adds a command; a parameter of a dataclass stands for its fields."""

    def add(work: C) -> C:
        app.command(name, cls=Command)(_with_options(work))
        return work

    return add


def _with_options(work: Callable[..., None]) -> Callable[..., None]:
    """Return a command that takes the fields of each group as options of its own."""
    hints = get_type_hints(work, include_extras=True)
    groups = {name: _list_options(kind) for name, kind in hints.items() if is_dataclass(kind)}
    parameters: list[inspect.Parameter] = []
    for parameter in inspect.signature(work).parameters.values():
        if parameter.name in groups:
            parameters += groups[parameter.name]
        else:
            parameters.append(parameter.replace(annotation=hints[parameter.name]))

    def run(**given: Any) -> None:
        for name, options in groups.items():
            given[name] = hints[name](**{it.name: given.pop(it.name) for it in options})
        work(**given)

    run.__name__, run.__doc__ = work.__name__, work.__doc__
    run.__annotations__ = {it.name: it.annotation for it in parameters}
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return run


def _list_options(group: Any) -> list[inspect.Parameter]:
    hints = get_type_hints(group, include_extras=True)
    kind = inspect.Parameter.KEYWORD_ONLY
    return [
        inspect.Parameter(field.name, kind, default=field.default, annotation=hints[field.name])
        for field in fields(group)
        if field.init
    ]


_CONFIG = "LOCUS_STORE_CONFIG"
"""The environment's name for the file of profiles."""

_GIVEN = "locus_store.url"
"""Key of the URL in the context of the command line."""


def give(ctx: typer.Context, url: str | None, profile: str | None) -> None:
    """Keep the URL for the command that follows.

    Raises:
        InvalidArgumentError: Both are given, or there is no such profile.
    """
    if url is not None and profile is not None:
        raise InvalidArgumentError("pass --url or --profile, not both")
    if profile is not None:
        url = _find_url(profile)
    ctx.meta[_GIVEN] = url


def _with_given(ctx: Any, parameters: list[Any], args: list[str]) -> list[str]:
    """Return the arguments with the URL that precedes the command, whose own ``--url`` wins."""
    url = ctx.meta.get(_GIVEN)
    if url is None:
        return args
    if all(it.name != "url" for it in parameters):
        raise InvalidArgumentError(f"'{ctx.command_path}' takes no --url or --profile before it")
    return ["--url", url, *args]


def _find_url(profile: str) -> str:
    path = Path(os.environ.get(_CONFIG) or Path(typer.get_app_dir("locus-store")) / "config.toml")
    try:
        profiles = dict(tomllib.loads(path.read_text(encoding="utf-8"))["profiles"])
        url = profiles[profile]["url"] if profile in profiles else None
    except FileNotFoundError as exc:
        raise InvalidArgumentError(
            f"there is no profile {profile!r}: {path} does not exist; it has lines such as"
            f" [profiles.{profile}] and url = 'postgresql://host/database'"
        ) from exc
    except (LookupError, TypeError, AttributeError, ValueError) as exc:
        why = f"{exc} is missing" if isinstance(exc, KeyError) else exc
        raise InvalidArgumentError(
            f"{path} is not a file of [profiles.NAME] tables, each with a url = '…': {why}"
        ) from exc
    if not isinstance(url, str):
        known = ", ".join(profiles) or "none"
        raise InvalidArgumentError(
            f"{path} has no profile {profile!r}{did_you_mean(profile, profiles)}; it has: {known}"
        )
    return url
