"""``--url`` and ``--profile`` before a command, and the file of profiles."""

from __future__ import annotations

import os
import tomllib
from pathlib import Path
from typing import Any

import typer

from locus_store.errors import InvalidArgumentError
from locus_store.types.arguments import did_you_mean

CONFIG = "LOCUS_STORE_CONFIG"
"""The environment's name for the file of profiles."""

_GIVEN = "locus_store.url"
"""Key of the URL in the context of the command line."""


def config_file() -> Path:
    """Return the path of the file of profiles, which need not exist."""
    return Path(os.environ.get(CONFIG) or Path(typer.get_app_dir("locus-store")) / "config.toml")


def give(ctx: typer.Context, url: str | None, profile: str | None) -> None:
    """Keep the URL for the command that follows.

    Raises:
        InvalidArgumentError: Both are given, or there is no such profile.
    """
    if url is not None and profile is not None:
        raise InvalidArgumentError("pass --url or --profile, not both")
    if profile is not None:
        url = _url_of(profile)
    ctx.meta[_GIVEN] = url


def with_given(ctx: Any, parameters: list[Any], args: list[str]) -> list[str]:
    """Return the arguments of a command with the URL that precedes it; its own ``--url`` wins.

    Raises:
        InvalidArgumentError: The command takes none.
    """
    url = ctx.meta.get(_GIVEN)
    if url is None:
        return args
    if all(it.name != "url" for it in parameters):
        raise InvalidArgumentError(f"'{ctx.command_path}' takes no --url or --profile before it")
    return ["--url", url, *args]


def _url_of(profile: str) -> str:
    path = config_file()
    try:
        profiles = tomllib.loads(path.read_text(encoding="utf-8"))["profiles"]
        urls = {name: it["url"] for name, it in profiles.items()}
    except FileNotFoundError as exc:
        raise InvalidArgumentError(
            f"there is no profile {profile!r}: {path} does not exist; it has lines such as"
            f" [profiles.{profile}] and url = 'postgresql://host/database'"
        ) from exc
    except (LookupError, TypeError, AttributeError, ValueError) as exc:
        raise InvalidArgumentError(
            f"{path} is not a file of [profiles.NAME] tables, each with a url = '…': {exc}"
        ) from exc
    if not isinstance(urls.get(profile), str):
        known = ", ".join(urls) or "none"
        raise InvalidArgumentError(
            f"{path} has no profile {profile!r}{did_you_mean(profile, urls)}; it has: {known}"
        )
    return str(urls[profile])
