from __future__ import annotations

import asyncio
import io
import json
import shlex
import sqlite3
import subprocess
from contextlib import closing
from typing import TYPE_CHECKING, Any

import pytest
import sqlalchemy as sa
import test_cli
import test_cli_threads
from lazily import TESTS_RUN
from servers import wait_until
from test_cli import Terminal
from test_cli_threads import parsed, save

from locus_store import InvalidArgumentError, NewMessage, blocking, open as opening
from locus_store.backends import InMemoryStore
from locus_store.types import PendingWrite

if TESTS_RUN:
    from locus_store.cli import forgetting
    from locus_store.cli.store import PAGE, count_items, format_namespace, parse_namespace

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator
    from pathlib import Path

    from locus_store.store import BaseStore

    Run = Callable[..., tuple[int, str, str]]

run = test_cli.run
url = test_cli_threads.url
sql_url = test_cli_threads.sql_url

NASTY = "\x1b[31m[red]\n\u202e'%_:/|*é"


def on(url: str, call: Callable[[BaseStore], Awaitable[Any]]) -> Any:
    async def called() -> Any:
        async with opening.open_store(url) as opened:
            return await call(opened)

    return asyncio.run(called())


def fill(url: str, *items: tuple[Any, ...]) -> None:
    on(url, lambda it: it.put_batch(items))


# --- how a namespace is typed


@pytest.mark.parametrize(
    ("typed", "namespace"),
    [
        ("/", ()),
        ("memory", ("memory",)),
        ("memory/u42", ("memory", "u42")),
        ("a%2Fb/c", ("a/b", "c")),
        ("100%25", ("100%",)),
        ("%0A/ü x/日", ("\n", "ü x", "日")),
        ("a.b/*", ("a.b", "*")),
    ],
)
def test_a_namespace_is_typed_as_a_path(typed: str, namespace: tuple[str, ...]) -> None:
    assert parse_namespace(typed) == namespace
    assert format_namespace(namespace) == typed


@pytest.mark.parametrize("segment", [NASTY, "/", "%", "%2F", " ", ".", "..", "\t", "\U0001f600"])
def test_what_is_shown_can_be_typed(segment: str) -> None:
    shown = format_namespace((segment, "x", segment))
    assert shown.isprintable()
    assert parse_namespace(shown) == (segment, "x", segment)


@pytest.mark.parametrize("typed", ["", "//", "/a", "a/", "a//b", "100%", "a%2", "%zz", "%ff"])
def test_what_is_no_namespace_is_told_in_one_line(run: Run, typed: str) -> None:
    with pytest.raises(InvalidArgumentError, match="is not a namespace: "):
        parse_namespace(typed)
    for arguments in (("list", typed), ("put", typed, "k", "1"), ("delete", typed, "k", "--yes")):
        code, out, errors = run("store", *arguments)
        assert (code, out, errors.count("\n")) == (1, "", 1)
        assert errors.startswith("Error: ")


# --- putting and getting


@pytest.mark.parametrize("value", [{"a": [1, 1.0, None]}, "text", 0, False, None, [], {"é": NASTY}])
def test_what_is_put_is_got(run: Run, url: str, value: Any) -> None:
    text = json.dumps(value)
    assert parsed(run, "store", "put", "m/u", "k", text) == {
        "namespace": ["m", "u"],
        "key": "k",
        "version": 1,
    }
    found = parsed(run, "store", "get", "m/u", "k")
    assert (found["namespace"], found["key"], found["version"]) == (["m", "u"], "k", 1)
    assert found["value"] == value
    assert json.dumps(found["value"]) == text
    assert (found["metadata"], found["expires_at"]) == ({}, None)


def test_a_value_comes_from_a_file_or_from_standard_input(
    run: Run, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "v.json").write_text('{"from": "fïle"}\n', "utf-8")
    assert run("store", "put", "m", "file", "@v.json")[0] == 0
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b'{"from": "stdin"}')))
    assert run("store", "put", "m", "stdin", "-")[0] == 0
    assert run("store", "put", "m", "minus", "--", "-1")[0] == 0
    found = {it["key"]: it["value"] for it in parsed(run, "store", "list", "m")}
    assert found == {"file": {"from": "fïle"}, "stdin": {"from": "stdin"}, "minus": -1}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("k", "text"), "is not JSON"),
        (("k", "NaN"), "none of its numbers"),
        (("k", "[" * 100_000), "is not JSON"),
        (("k", "@no-such-file"), "no-such-file cannot be read: No such file"),
        (("k", "1", "--metadata", "[]"), "--metadata is a JSON object"),
        (("k", "1", "--metadata", "{"), "--metadata is not JSON"),
        (("k", "1", "--ttl", "0"), "ttl_seconds must be a number above 0"),
        (("k", str(2**70)), "value"),
        (("", "1"), "key must have 1 to 255 characters"),
    ],
    ids=lambda it: " ".join(it)[:30] if isinstance(it, tuple) else "",
)
def test_what_makes_no_sense_is_told_and_not_stored(
    run: Run, url: str, arguments: tuple[str, ...], said: str
) -> None:
    code, out, errors = run("store", "put", "m", *arguments)
    assert (code, out, errors.count("\n")) == (1, "", 1)
    assert said in errors
    assert parsed(run, "store", "list", "m") == []


def test_metadata_a_time_to_live_and_the_version_are_kept(run: Run, url: str) -> None:
    about = '{"user_id": "u"}'
    assert run("store", "put", "m", "k", "1", "--metadata", about, "--ttl", "1e6")[0] == 0
    found = parsed(run, "store", "get", "m", "k")
    assert found["metadata"] == {"user_id": "u"}
    assert found["expires_at"] > found["updated_at"]
    out = run("store", "put", "m", "k", "2")[1]
    assert out == "'k' in m: version 2\n"


def test_another_version_is_a_conflict(run: Run, url: str) -> None:
    assert run("store", "put", "m", "k", "1", "--expected-version", "0")[0] == 0
    for version in ("0", "2"):
        code, out, errors = run("store", "put", "m", "k", "2", "--expected-version", version)
        assert (code, out) == (5, "")
        assert "version 1 is stored" in errors
    assert run("store", "put", "m", "k", "2", "--expected-version", "1")[0] == 0
    assert parsed(run, "store", "get", "m", "k")["value"] == 2


def test_get_tells_a_person_all_that_is_known(run: Run, url: str) -> None:
    fill(url, (("a/b", NASTY), NASTY, {"n": NASTY}))
    code, out, _ = run("store", "get", format_namespace(("a/b", NASTY)), NASTY)
    assert code == 0
    assert out.startswith("namespace:  a%2Fb/")
    assert "\x1b" not in out
    assert "expires_at: never" in out
    assert json.loads(out[out.index("\n{") :]) == {"n": NASTY}


@pytest.mark.parametrize(
    "arguments",
    [("get", "m", "no"), ("get", "no", "k"), ("delete", "m", "no", "--yes"), ("delete", "m", "no")],
    ids=" ".join,
)
def test_what_is_not_there_is_exit_code_four(
    run: Run, url: str, arguments: tuple[str, ...]
) -> None:
    fill(url, (("m",), "k", 1))
    code, out, errors = run("store", *arguments)
    assert (code, out, errors.count("\n")) == (4, "", 1)
    assert run("store", "delete", "no", "--all", "--yes")[0] == 4


# --- lists and searches


def test_list_shows_one_namespace_by_key(run: Run, url: str) -> None:
    fill(url, (("m",), "b", {"n": 1}), (("m",), "a", NASTY), (("m", "below"), "c", 1), ((), "r", 1))
    assert [it["key"] for it in parsed(run, "store", "list", "m")] == ["a", "b"]
    assert [it["key"] for it in parsed(run, "store", "list", "/")] == ["r"]
    code, out, errors = run("store", "list", "m")
    assert (code, errors) == (0, "")
    assert '{"n":1}' in out
    assert "\x1b" not in out
    assert run("store", "list", "none")[0] == 0


def test_list_goes_on_page_by_page_as_its_hint_says(run: Run, url: str) -> None:
    names = sorted(["-dash", "sp ace", "it's $(id)", "`id`", "é 日", "z"])
    fill(url, *((("m",), it, 1) for it in names))
    found: list[str] = []
    arguments: list[str] = []
    for _ in names:
        out, errors = run("store", "list", "m", "--limit", "1", "--json", *arguments)[1:]
        assert errors == ""
        found += [it["key"] for it in json.loads(out)]
        errors = run("store", "list", "m", "--limit", "1", *arguments)[2]
        hint = errors.partition(": ")[2].rpartition(", or ")[0]
        typed = subprocess.run(
            ["sh", "-c", f"printf '%s\\0' {hint}"], capture_output=True, text=True, check=True
        )
        arguments = typed.stdout.split("\0")[:-1]
    assert found == names
    assert parsed(run, "store", "list", "m", *arguments) == []


def test_search_finds_below_by_filter_metadata_and_words(run: Run, url: str) -> None:
    fill(
        url,
        (("m",), "a", {"kind": "note", "n": 1, "text": "Green tea"}, {"by": "x"}),
        (("m", "below"), "b", {"kind": "note", "n": 2, "text": "black tea"}, {"by": "y"}),
        (("mm",), "c", {"kind": "note", "n": 3, "text": "tea"}),
    )

    def found(*arguments: str) -> list[str]:
        return [it["key"] for it in parsed(run, "store", "search", *arguments)]

    assert found("m") == ["b", "a"]
    assert found("/") == ["c", "b", "a"]
    assert found("m", "--filter", '{"n": {"$gte": 2}}') == ["b"]
    assert found("m", "--metadata-filter", '{"by": "x"}') == ["a"]
    assert found("/", "--query", "tea green") == ["a"]
    _, out, errors = run("store", "search", "/", "--limit", "1", "--offset", "1", "--json")
    assert [it["key"] for it in json.loads(out)] == ["b"]
    assert "--offset=2, or" in errors
    for bad in ('{"n": {"$regex": 1}}', "[1]", "n=1"):
        code, out, errors = run("store", "search", "m", "--filter", bad)
        assert (code, out, errors.count("\n")) == (1, "", 1)


def test_namespaces_are_listed_in_order(run: Run, url: str) -> None:
    fill(url, *((it, "k", 1) for it in [(), ("a", "x", "v1"), ("a", "y", "v2"), ("a/b",)]))
    everything = [[], ["a", "x", "v1"], ["a", "y", "v2"], ["a/b"]]
    assert parsed(run, "store", "namespaces") == everything
    assert parsed(run, "store", "namespaces", "a") == everything[1:3]
    assert parsed(run, "store", "namespaces", "*/x") == everything[1:2]
    assert parsed(run, "store", "namespaces", "--suffix", "v2") == everything[2:3]
    assert parsed(run, "store", "namespaces", "--depth", "1") == [[], ["a"], ["a/b"]]
    out, errors = run("store", "namespaces", "--limit", "2", "--offset", "2")[1:]
    assert [it.strip() for it in out.splitlines()[-2:]] == ["a/y/v2", "a%2Fb"]
    assert "--offset=4" in errors


# --- removing


def test_delete_asks_and_removes_one_item(
    run: Run, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(url, (("m",), "k", 1), (("m",), "other", 1))
    for answer, code in (("n\n", 1), ("yes\n", 0)):
        monkeypatch.setattr("sys.stdin", Terminal(answer))
        found, _, errors = run("store", "delete", "m", "k")
        assert found == code
        assert "This deletes item 'k' of namespace m" in errors
    assert [it["key"] for it in parsed(run, "store", "list", "m")] == ["other"]


def test_delete_without_a_terminal_needs_yes(run: Run, url: str) -> None:
    fill(url, (("m",), "k", 1))
    code, out, errors = run("store", "delete", "m", "--all")
    assert (code, out) == (2, "")
    assert "This deletes 1 item of namespace m" in errors
    assert parsed(run, "store", "delete", "m", "k", "--yes")["removed"] == 1


def test_delete_all_takes_one_namespace_or_all_below_it_too(run: Run, url: str) -> None:
    names = [("m",), ("m", "x"), ("m", "x", "y"), ("mm",), ("*",)]
    fill(url, *((it, key, 1) for it in names for key in "ab"))
    errors = run("store", "delete", "m", "--all", "--recursive")[2]
    assert "This deletes 6 items of namespace m and all below it" in errors
    assert "deletes 2 items" in run("store", "delete", "*", "--all", "--recursive")[2]
    assert run("store", "delete", "m", "--all", "--yes")[1].endswith("2 items removed\n")
    assert run("store", "delete", "m", "--all", "--recursive", "--yes")[1].endswith(
        "4 items removed\n"
    )
    assert parsed(run, "store", "namespaces") == [["*"], ["mm"]]


@pytest.mark.parametrize(
    "arguments", [(), ("k", "--all"), ("--recursive",), ("k", "--recursive")], ids=" ".join
)
def test_no_namespace_goes_for_want_of_a_key(
    run: Run, url: str, arguments: tuple[str, ...]
) -> None:
    fill(url, (("m",), "k", 1))
    code, out, errors = run("store", "delete", "m", *arguments, "--yes")
    assert (code, out) == (1, "")
    assert "--all" in errors
    assert len(parsed(run, "store", "list", "m")) == 1


def test_items_are_counted_through_all_pages() -> None:
    async def counted() -> list[int]:
        opened = InMemoryStore()
        await opened.put_batch([(("m", str(it)), "k", 1) for it in range(PAGE + 1)])
        await opened.put_batch([(("m",), str(it), 1) for it in range(PAGE + 1)])
        return [await count_items(opened, ("m",), recursive=it) for it in (False, True)]

    assert asyncio.run(counted()) == [PAGE + 1, 2 * PAGE + 2]


def test_expired_items_are_shown_by_nothing_and_expire_removes_them(run: Run, url: str) -> None:
    fill(url, (("m",), "k", 1, None, 0.01), (("m",), "stays", 1))
    wait_until(lambda: len(parsed(run, "store", "list", "m")) == 1, "the item's end")
    assert run("store", "get", "m", "k")[0] == 4
    assert parsed(run, "store", "expire")["removed"] == 1
    assert run("store", "expire")[1].endswith("0 items removed\n")


# --- forget


def test_forget_takes_the_namespaces_that_are_named_and_all_below(run: Run, sql_url: str) -> None:
    save(sql_url, "t", {"n": 1}, with_={"labels": {"user_id": "u"}})
    fill(
        sql_url,
        (("memory", "u"), "a", 1),
        (("memory", "u", "below"), "b", 1),
        (("memory", "u"), "expired", 1, None, 0.001),
        (("chat", "u/1"), "c", 1),
        (("elsewhere",), "d", 1, {"user_id": "u"}),
        (("memory", "u2"), "e", 1),
        (("memory",), "f", 1),
    )
    named = ("--namespace", "memory/u", "--namespace", "chat/u%2F1")
    wait_until(lambda: len(parsed(run, "store", "list", "memory/u")) == 1, "the item's end")
    code, out, errors = run("forget", "--user", "u", *named)
    assert (code, out) == (2, "")
    assert "3 store items of 2 namespaces" in errors
    found = parsed(run, "forget", "--user", "u", *named, "--yes")
    assert found["store"] == 4
    left = [it["key"] for it in parsed(run, "store", "search", "/")]
    assert sorted(left) == ["e", "f"]
    assert sorted(stored(sql_url, "SELECT key FROM locus_store")) == ["e", "f"]


def stored(url: str, query: str) -> list[Any]:
    """Return the rows of the tables, expired ones included."""
    if url.startswith("sqlite"):
        with closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as connection:
            return [it for (it,) in connection.execute(query)]
    engine = sa.create_engine(sa.make_url(url).set(drivername="postgresql+psycopg"))
    with engine.connect() as connection:
        found = [it for (it,) in connection.execute(sa.text(query))]
    engine.dispose()
    return found


@pytest.mark.parametrize(
    ("left", "arguments"),
    [
        (1, ("store", "put", "memory/u", "k", "2")),
        (1, ("store", "delete", "memory/u", "k", "--yes")),
        (0, ("store", "delete", "memory", "--all", "--recursive", "--yes")),
        (0, ("forget", "--user", "u", "--namespace", "memory", "--yes")),
        (1, ("forget", "--user", "u", "--yes")),
    ],
    ids=lambda it: " ".join(it) if isinstance(it, tuple) else None,
)
def test_an_items_embeddings_go_with_it(
    run: Run, sql_url: str, left: int, arguments: tuple[str, ...]
) -> None:
    async def embedded() -> None:
        async with opening.open_store(sql_url, dimension=3) as opened:
            await opened.put_with_embedding(
                ("memory", "u"), "k", 1, [1.0, 2.0, 3.0], {"user_id": "u"}
            )
            await opened.put_with_embedding(("memory", "v"), "k", 1, [1.0, 2.0, 3.0])

    asyncio.run(embedded())
    query = "SELECT part FROM locus_embeddings"
    assert len(stored(sql_url, query)) == 2
    assert run(*arguments)[0] == 0
    assert len(stored(sql_url, query)) == left


def test_forget_finds_somebody_who_has_store_items_only(run: Run, url: str) -> None:
    fill(url, (("memory", "u"), "a", 1))
    assert run("forget", "--user", "u", "--namespace", "memory/none", "--yes")[0] == 4
    out = run("forget", "--user", "u", "--namespace", "memory/u", "--yes")[1]
    assert "1 store item" in out


def test_forget_and_export_list_namespaces_with_the_users_id(run: Run, url: str) -> None:
    save(url, "t", {"n": 1}, with_={"labels": {"user_id": "u"}})
    fill(
        url,
        (("memory", "u"), "a", 1),
        (("memory", "u", "below"), "b", 1),
        (("u", "of it"), "c", 1),
        (("deep", "er", "u"), "d", 1),
        (("memory", "u2"), "e", 1),
        (("u2",), "f", 1),
    )
    listed = ["deep/er/u", "memory/u", "u"]
    code, out, errors = run("export", "--user", "u")
    assert (code, '"thread_id":"t"' in out) == (0, True)
    assert "not exported: the store items of" in errors
    assert "locus-store store search memory/u --limit 1000000 --json" in errors
    code, _, errors = run("forget", "--user", "u", "--dry-run")
    assert (code, "not covered: the store items of" in errors) == (0, True)
    found = parsed(run, "forget", "--user", "u", "--yes")
    (left,) = found["left"]
    assert (found["threads"], sorted(left["namespaces"])) == (1, listed)
    code, _, errors = run("forget", "--user", "u", "--yes")
    assert code == 4
    assert "not removed: the store items of" in errors
    named = [part for it in listed for part in ("--namespace", it)]
    (words,) = [it.split() for it in errors.splitlines() if "If they are the user's: " in it]
    command = words[words.index("locus-store") + 1 :]
    assert sorted(command[3:][: len(named)]) == sorted(named)
    assert parsed(run, *command, "--yes")["store"] == 4
    keys = [it["key"] for it in parsed(run, "store", "search", "/")]
    assert sorted(keys) == ["e", "f"]
    assert "segment" not in run("forget", "--user", "*", "--yes")[2]


def test_a_search_says_in_json_too_that_there_may_be_more(run: Run, url: str) -> None:
    fill(url, *((("m",), str(it), it) for it in range(11)))
    code, out, errors = run("store", "search", "m", "--json")
    assert (code, len(json.loads(out))) == (0, 10)
    assert errors == "There may be more: --offset=10, or a greater --limit.\n"


def commands(errors: str) -> Iterator[list[str]]:
    """The words of the commands that print store items."""
    for line in errors.splitlines():
        for command in line.partition("To print them: ")[2].split("; "):
            if command.startswith("locus-store "):
                yield [it for it in shlex.split(command)[1:] if it != "--json"]


def test_an_export_names_the_commands_that_print_all_items_of_a_user(run: Run, url: str) -> None:
    save(url, "t", {"n": 1}, with_={"labels": {"user_id": "u"}})
    of_user = {"user_id": "u"}
    fill(url, *((("memory", "u"), str(it), it, of_user) for it in range(25)))
    fill(url, (("prefs",), "k7", "pt", of_user), (("prefs",), "k8", "de", {"user_id": "w"}))
    errors = run("export", "--user", "u")[2]
    assert '1 store item with the metadata user_id="u"' in errors
    found = [parsed(run, *it) for it in commands(errors)]
    assert [len(it) for it in found] == [25, 26]
    assert "k7" in {it["key"] for it in found[1]}


@pytest.mark.parametrize("place", ["file:threads", "sqlite:///forget.db"])
def test_forget_says_if_items_are_not_searched_by_metadata(
    run: Run, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    monkeypatch.setenv("LOCUS_STORE_URL", place)
    save(place, "t", {"n": 1}, with_={"metadata": {"user_id": "u"}})
    fill(place, (("prefs",), "k7", "pt", {"user_id": "u", "org": {"name": "acme"}}))
    errors = run("forget", "--user", "u", "--dry-run")[2]
    assert "removed in SQL databases and with encryption only: 1 store item" in errors
    stays = place.startswith("file")
    code, _, errors = run("forget", "--user", "u", "--yes")
    assert (code, "not removed, as items are not searched by metadata here" in errors) == (0, stays)
    assert [parsed(run, *it)[0]["key"] for it in commands(errors)] == ["k7"] * stays
    errors = run("forget", "--where", "org.name=acme", "--yes")[2]
    assert ('1 store item with the metadata org.name="acme"' in errors) is stays


def test_forget_counts_only_threads_that_it_leaves(run: Run, url: str) -> None:
    save(url, "t", {"n": 1}, with_={"metadata": {"user_id": "u"}})
    save(url, "t", {"n": 2}, name="v1")
    save(url, "nobody", {"n": 1})
    app = NewMessage({"theme": "dark"}, "state", "theme", text="")
    with blocking.open_message_log(url) as log:
        log.append("tickets//", [app], namespace="adk-app")  # shared by all users of an ADK app
        log.append("a//", [NewMessage("Hi.")])
    (left,) = parsed(run, "forget", "--user", "u", "--dry-run")["left"]
    assert (left["unowned"], left["unowned_threads"]) == (2, ["a//", "nobody"])
    code, out, errors = run("forget", "--user", "u", "--dry-run")
    assert (code, "1 thread" in out) == (0, True)
    assert "2 threads that name no user ('a//', 'nobody')" in errors
    assert "locus-store forget --user u --dry-run --json" in errors
    assert "threads delete" not in errors
    assert "2 threads that name no user" in run("export", "--user", "u")[2]


def test_forget_says_how_many_threads_it_cannot_attribute(run: Run, url: str) -> None:
    save(url, "t", {"n": 1}, with_={"labels": {"user_id": "u"}})
    wrote = [PendingWrite("a", 0, "c", "t", b"1")]

    async def write() -> None:
        async with opening.open_checkpointer(url) as checkpointer:
            await checkpointer.backend.put_writes("late", "v", wrote)

    asyncio.run(write())
    found = parsed(run, "forget", "--user", "u", "--yes")
    assert (found["threads"], found["left"][0]["pending_only"]) == (1, 1)
    code, _, errors = run("forget", "--user", "u", "--yes")
    assert (code, "1 thread with pending writes only" in errors) == (4, True)


@pytest.mark.parametrize("page", [1, 2, 4, 5])
def test_forget_reads_each_page_of_threads_that_may_name_no_user(
    run: Run, url: str, page: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(4):
        save(url, f"nobody-{number}", {"n": 1})
        save(url, f"named-{number}", {"n": 1}, with_={"labels": {"user_id": "a"}})
    save(url, "mine", {"n": 1}, with_={"metadata": {"user_id": "b"}})
    monkeypatch.setattr(forgetting, "PAGE", page)
    found = parsed(run, "forget", "--user", "b", "--yes")
    assert (found["threads"], found["left"][0]["unowned"]) == (1, 4)


def test_forget_counts_the_threads_that_name_no_user(run: Run, url: str) -> None:
    for thread in ("a", "b"):
        save(url, f"named-{thread}", {"n": 1}, with_={"metadata": {"user_id": thread}})
    save(url, "state", {"n": 1}, with_={"labels": {"user_id": "c"}})
    save(url, "nobody", {"n": 1})
    if url.startswith("redis"):  # it has no message log yet
        save(url, "log", {"n": 1})
        save(url, "owned", {"n": 1}, with_={"metadata": {"user_id": "a"}})
    else:
        with blocking.open_message_log(url) as log:
            log.append("log", [NewMessage("Hi.")])
            log.append("owned", [NewMessage("Hi.")], user_id="a")
    found = parsed(run, "forget", "--user", "a", "--yes")
    assert (found["threads"], found["left"][0]["unowned"]) == (2, 2)
    code, _, errors = run("forget", "--user", "a", "--yes")
    assert (code, "not attributed: 2 threads that name no user" in errors) == (4, True)
    assert '(LangGraph: config["metadata"]["user_id"]) write them' in errors
    assert "2 threads that name no user" in run("export", "--user", "b")[2]
    assert "unowned" in run("forget", "--where", "user_id=b", "--yes", "--json")[1]
    assert "name no user" not in run("forget", "--where", "user_id=c", "--yes")[2]


def test_forget_does_not_take_everybodys_root(run: Run, url: str) -> None:
    fill(url, (("memory", "u"), "a", 1))
    code, _, errors = run("forget", "--user", "u", "--namespace", "/", "--yes")
    assert code == 1
    assert "belongs to all users" in errors
    assert len(parsed(run, "store", "list", "memory/u")) == 1


# --- what there is none of


@pytest.mark.parametrize("command", ["list m", "get m k", "put m k 1", "search m", "namespaces"])
def test_no_command_makes_a_database(run: Run, tmp_path: Path, command: str) -> None:
    code, out, errors = run("store", *command.split(), "--url", "sqlite:///none.db")
    assert (code, out) == (1, "")
    assert "db upgrade" in errors
    assert not (tmp_path / "none.db").exists()


def test_a_directory_has_a_store(run: Run) -> None:
    url = ("--url", "file:threads")
    assert run("store", "put", "m/a", "k", '{"n": 1}', *url)[0] == 0
    assert '"n": 1' in run("store", "get", "m/a", "k", *url)[1]
    assert "m/a" in run("store", "namespaces", *url)[1]
    assert run("threads", "list", "--json", *url)[1].strip() == "[]"
