"""``locus-store store …``: show, change and remove the items of the long-term memory."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Annotated, Any, NoReturn, TypeVar
from urllib.parse import quote, unquote

import orjson
import typer

from locus_store.backend import FullBackend
from locus_store.cli.help import add_command, make_group
from locus_store.cli.opening import Yes, ask
from locus_store.cli.output import (
    confirm,
    cut,
    format_count,
    format_time,
    print_line,
    put_found,
    put_json,
    put_outcome,
    render_json,
    select,
    show,
    tell_more,
    tell_more_after,
)
from locus_store.cli.tenants import (
    Outcome,
    TenantOptions,
    TenantsOptions,
    add_up,
    format_tenants,
    select_tenant,
    tell,
)
from locus_store.errors import InvalidArgumentError, NotFoundError
from locus_store.open import Storage
from locus_store.store import BaseStore
from locus_store.types.items import Namespace, StoreItem, iterate_items

T = TypeVar("T")

store = make_group(
    "Show, put, search and remove items of the long-term memory."
    " A namespace is typed as its segments with / between them, such as memory/u42; in a segment"
    " %2F stands for /, %25 for %, and so on; / alone is the root."
)

Where = Annotated[str, typer.Argument(help="Namespace: memory/u42 (%2F for a /; / is the root).")]
Key = Annotated[str, typer.Argument(help="Key of the item.")]
Limit = Annotated[int, typer.Option(min=0, help="At most this many.")]
Offset = Annotated[int, typer.Option(min=0, help="Skip this many first.")]

ROOT = "/"
STANDARD = "-"
PAGE = 500
"""Items, or namespaces, that are asked for at once."""

CELL = 60
"""Characters of a value that a table shows."""

_ESCAPE = re.compile(r"%(?![0-9A-Fa-f]{2})")


def _ask(at: TenantOptions, work: Callable[[BaseStore], Awaitable[T]]) -> T:
    """Return what ``work`` returns for the store beside the opened backend."""
    return at.ask(lambda it: work(Storage(it).store()))


def _ask_each(
    at: TenantsOptions, doing: str, work: Callable[[BaseStore], Awaitable[int]]
) -> Outcome:
    """Return the number of items in the store of each tenant that was chosen."""

    async def counted(backend: FullBackend, _: object) -> dict[str, int]:
        return {"removed": await work(Storage(backend).store())}

    return at.ask_each(doing, counted)


def parse_namespace(text: str) -> Namespace:
    """Return the namespace that was typed.

    Raises:
        InvalidArgumentError: It is none; says how one is typed.
    """
    if text == ROOT:
        return ()
    segments = text.split("/")
    if not all(segments):
        raise _make_namespace_error(text, "it has an empty segment; / alone is the root")
    if _ESCAPE.search(text):
        raise _make_namespace_error(text, "% begins an escape; write %25 for one")
    try:
        return tuple(unquote(it, errors="strict") for it in segments)
    except UnicodeDecodeError as exc:
        raise _make_namespace_error(text, "its escapes are no UTF-8") from exc


def _make_namespace_error(text: str, why: str) -> InvalidArgumentError:
    return InvalidArgumentError(f"{text!r} is not a namespace: {why}")


def format_namespace(namespace: Namespace) -> str:
    """Return a namespace as it is typed; the inverse of ``parse_namespace``."""
    return "/".join("".join(map(_show_character, it)) for it in namespace) or ROOT


def _show_character(character: str) -> str:
    is_plain = character.isprintable() and character not in "%/"
    return character if is_plain else quote(character, safe="")


def read_json(text: str, what: str) -> Any:
    """Return the JSON that was typed, or that of a file or of standard input.

    Raises:
        InvalidArgumentError: It is not JSON, or there is no such file.
    """
    try:
        if text == STANDARD:
            text = sys.stdin.buffer.read().decode()
        elif text.startswith("@"):
            text = Path(text[1:]).read_text("utf-8")
        _require_json(text)
        return json.loads(text, parse_constant=_refuse_number)
    except OSError as exc:
        raise InvalidArgumentError(f"{what}: {text[1:]} cannot be read: {exc.strerror}") from exc
    except (ValueError, RecursionError) as exc:
        raise InvalidArgumentError(
            f"{what} is not JSON: {exc}; a string needs double quotes, as in '\"text\"'"
        ) from exc


def _require_json(text: str) -> None:
    """Check the text by a non-recursive parser: near the recursion limit finalizers fail."""
    try:
        orjson.loads(text)
    except orjson.JSONDecodeError:
        if "NaN" not in text and "Infinity" not in text:  # a later check reports these
            raise


def _refuse_number(name: str) -> NoReturn:
    raise ValueError(f"{name} is none of its numbers")


def _parse_object(text: str | None, what: str) -> dict[str, Any] | None:
    found = None if text is None else read_json(text, what)
    if found is not None and not isinstance(found, dict):
        raise InvalidArgumentError(f'{what} is a JSON object, such as \'{{"kind": "note"}}\'')
    return found


def _describe_item(item: StoreItem) -> dict[str, Any]:
    names = ("namespace", "key", "version", "created_at", "updated_at", "expires_at", "metadata")
    return select(item, (*names, "value"))


def _make_row(item: StoreItem) -> tuple[object, ...]:
    times = format_time(item.updated_at), format_time(item.expires_at)
    value = cut(render_json(item.value), CELL)
    return format_namespace(item.namespace), item.key, item.version, *times, value


def _tell(items: list[StoreItem], *, as_json: bool) -> None:
    columns = ("namespace", "key", "version", "updated", "expires", "value")
    document = [_describe_item(it) for it in items]
    put_found(document, columns, map(_make_row, items), ids=columns[:2], as_json=as_json)


@add_command(store, "list")
def list_items(
    namespace: Where,
    *,
    limit: Limit = 100,
    after: Annotated[str | None, typer.Option(help="Continue after this key.")] = None,
    at: TenantOptions,
) -> None:
    """List the items of a namespace, not of those below it, by key.

    --json: [{namespace, key, version, created_at, updated_at, expires_at, metadata, value}].
    """
    where = parse_namespace(namespace)
    found = _ask(at, lambda it: it.list(where, limit, after))
    _tell(found, as_json=at.as_json)
    if found and len(found) == limit and not at.as_json:
        tell_more_after(found[-1].key)


@add_command(store, "get")
def get_item(namespace: Where, key: Key, *, at: TenantOptions) -> None:
    """Print an item: its metadata and its value.

    --json: {namespace, key, version, created_at, updated_at, expires_at, metadata, value}.
    """
    where = parse_namespace(namespace)
    item = _ask(at, lambda it: it.get_item(where, key))
    if item is None:
        raise _make_missing_error(namespace, key)
    if at.as_json:
        put_json(_describe_item(item))
        return
    print_line(f"namespace:  {format_namespace(item.namespace)}")
    print_line(f"key:        {item.key}")
    print_line(f"version:    {item.version}")
    print_line(f"created_at: {format_time(item.created_at)}")
    print_line(f"updated_at: {format_time(item.updated_at)}")
    print_line(f"expires_at: {format_time(item.expires_at) or 'never'}")
    print_line(f"metadata:   {render_json(item.metadata)}")
    show(render_json(item.value, indent=True))


def _make_missing_error(namespace: str, key: str | None = None) -> NotFoundError:
    what = "nothing" if key is None else f"no item {key!r}"
    return NotFoundError(
        f"there is {what} in namespace {namespace!r}; 'locus-store store list' and 'locus-store"
        " store namespaces' show what there is"
    )


@add_command(store)
def search(
    namespace: Where,
    *,
    query: Annotated[
        str | None, typer.Option(help="Words; the strings of the value must have all of them.")
    ] = None,
    filter: Annotated[  # noqa: A002  (the option's name)
        str | None,
        typer.Option(
            metavar="JSON",
            help='Conditions on the value, such as {"kind": "note", "n": {"$gte": 3}};'
            " $eq $ne $gt $gte $lt $lte $in $exists; or @file, or -.",
        ),
    ] = None,
    metadata_filter: Annotated[
        str | None, typer.Option(metavar="JSON", help="Conditions on the metadata.")
    ] = None,
    limit: Limit = 10,
    offset: Offset = 0,
    at: TenantOptions,
) -> None:
    """Find items of a namespace and of all below it, the last updated first.

    The command has no model, so it does not rank by meaning. --json: [{namespace, key, version,
    created_at, updated_at, expires_at, metadata, value}].
    """
    where = parse_namespace(namespace)
    wanted = _parse_object(filter, "--filter")
    about = _parse_object(metadata_filter, "--metadata-filter")
    items = _ask(at, lambda it: it.search(where, query, wanted, limit, offset, about))
    _tell(items, as_json=at.as_json)
    if items and len(items) == limit:
        tell_more(f"--offset={offset + limit}, or ")


@add_command(store, "namespaces")
def list_namespaces(
    prefix: Annotated[str, typer.Argument(help="First segments; * matches any one.")] = ROOT,
    *,
    suffix: Annotated[str, typer.Option(help="Last segments; * matches any one.")] = ROOT,
    depth: Annotated[
        int | None, typer.Option(min=1, help="Cut to this many segments; print each once.")
    ] = None,
    limit: Limit = 100,
    offset: Offset = 0,
    at: TenantOptions,
) -> None:
    """List the namespaces that have items, in order; --json: a list of lists of their segments."""
    wanted = parse_namespace(prefix), parse_namespace(suffix)
    found = _ask(at, lambda it: it.list_namespaces(*wanted, depth, limit, offset))
    columns = ("namespace",)
    rows = ([format_namespace(it)] for it in found)
    put_found(found, columns, rows, ids=columns, as_json=at.as_json)
    if found and len(found) == limit and not at.as_json:
        tell_more(f"--offset={offset + limit}, or ")


@add_command(store, "put")
def put_item(
    namespace: Where,
    key: Key,
    value: Annotated[
        str, typer.Argument(help="JSON; @file reads a file, - standard input. Put -- before -1.")
    ],
    *,
    metadata: Annotated[
        str | None, typer.Option(metavar="JSON", help="Metadata object; replaces the existing one.")
    ] = None,
    ttl: Annotated[
        float | None, typer.Option(metavar="SECONDS", help="Time to live; by default unlimited.")
    ] = None,
    expected_version: Annotated[
        int | None, typer.Option(min=0, help="Replace only this version; 0: only a new item.")
    ] = None,
    at: TenantOptions,
) -> None:
    """Store a value; it replaces the existing one, if any; --json: {namespace, key, version}.

    The item loses its embeddings: the command has no model to compute new ones.
    """
    where = parse_namespace(namespace)
    document, about = read_json(value, "the value"), _parse_object(metadata, "--metadata")

    async def stored(backend: FullBackend) -> int:
        store = Storage(backend).store()
        return await store.put(where, key, document, about, ttl, expected_version)

    version = ask(at.url, stored, **select_tenant(at.tenant))
    document = {"namespace": where, "key": key, "version": version}
    text = f"{key!r} in {format_namespace(where)}: version {version}"
    put_outcome(document, text, as_json=at.as_json)


@add_command(store)
def delete(
    namespace: Where,
    key: Annotated[str | None, typer.Argument(help="Key of the item; or use --all.")] = None,
    *,
    everything: Annotated[bool, typer.Option("--all", help="All items of the namespace.")] = False,
    recursive: Annotated[
        bool, typer.Option("--recursive", help="With --all: also all namespaces below it.")
    ] = False,
    at: TenantsOptions,
    yes: Yes = False,
) -> None:
    """Delete an item, or all of a namespace.

    --json: {removed, tenant}, in items.
    """
    where = parse_namespace(namespace)
    if (key is None) is not everything or (recursive and not everything):
        raise InvalidArgumentError("name an item's key, or pass --all, with or without --recursive")
    at.require_one("a key", is_named=key is not None)

    async def there(items: BaseStore) -> int:
        if key is not None:
            return int(await items.exists(where, key))
        return await count_items(items, where, recursive=recursive)

    async def removed(items: BaseStore) -> int:
        if key is not None:
            return int(await items.delete(where, key))
        return await items.clear_namespace(where, recursive=recursive)

    if not yes:
        found = _require(_ask_each(at, "counting", there), namespace, key)
        what = format_count(add_up(found)["removed"], "item") if everything else f"item {key!r}"
        below = " and all below it" if recursive else ""
        confirm(f"This deletes {what} of namespace {namespace}{below}{format_tenants(found)}.")
    found = _require(_ask_each(at, "removing", removed), namespace, key)
    tell(found, _describe_removed, at)


def _require(outcome: Outcome, namespace: str, key: str | None) -> Outcome:
    if add_up(outcome).get("removed"):
        return outcome
    raise _make_missing_error(namespace, key)


async def count_items(items: BaseStore, namespace: Namespace, *, recursive: bool) -> int:
    """Return the number of items of a namespace; ``recursive`` adds those below it."""
    if recursive:
        return len([1 async for _ in iterate_items(items.namespaces, items.page, namespace)])
    count, after = 0, None
    while keys := await items.list_keys(namespace, PAGE, after):
        count += len(keys)
        after = keys[-1]
    return count


@add_command(store)
def expire(*, at: TenantsOptions) -> None:
    """Delete the items whose time to live is over, to free their space.

    They are invisible already: there is no prompt. --json: {removed, tenant}, in items.
    """
    tell(_ask_each(at, "removing", lambda it: it.expire()), _describe_removed, at)


def _describe_removed(counts: dict[str, int]) -> str:
    return f"{format_count(counts['removed'], 'item')} removed"
