from __future__ import annotations

import asyncio
import io
import json
import re
import shutil
import sqlite3
import subprocess
from contextlib import closing
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
import servers
import test_cli
from lazily import TESTS_RUN
from test_cli import Terminal
from tiers import first_of

from locus_store import blocking, open_checkpointer
from locus_store.timeline import readable

if TESTS_RUN:
    from rich.console import Console

    from locus_store.cli.output import print_said, put_table

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    Run = Callable[..., tuple[int, str, str]]

run = test_cli.run

NASTY = "\x1b[31m[red]\n\u202e'%_:/|"


def _url(
    request: pytest.FixtureRequest, tmp_path: Path, migrated: Path, monkeypatch: pytest.MonkeyPatch
) -> str:
    """A store with nothing in it, which every command finds in its environment."""
    if request.param == "postgresql":
        found = request.getfixturevalue("migrated_database")
    elif request.param == "redis":
        found = request.getfixturevalue("redis_url")
    else:
        found = f"sqlite:///{shutil.copy(migrated, tmp_path / 'store.db')}"
    request.getfixturevalue("run")  # takes the variable away
    monkeypatch.setenv("LOCUS_STORE_URL", found)
    return str(found)


url = pytest.fixture(params=first_of("sqlite", "postgresql", "redis"), name="url")(_url)
sql_url = pytest.fixture(params=first_of("sqlite", "postgresql"), name="sql_url")(_url)
each_sql_url = pytest.fixture(params=first_of("sqlite", "postgresql"), name="sql_url")(_url)


def save(url: str, thread: str, *states: dict[str, Any], **options: Any) -> None:
    """Versions v0, v1 … of a thread."""

    async def saved() -> None:
        async with open_checkpointer(url, state_type=dict) as checkpointer:
            for number, state in enumerate(states):
                name = options.get("name", f"v{number}")
                await checkpointer.backend.write_state(
                    thread, state, **{"checkpoint_id": name, **options.get("with_", {})}
                )

    asyncio.run(saved())


def ids(url: str) -> list[str]:
    async def asked() -> list[str]:
        async with open_checkpointer(url) as checkpointer:
            return await checkpointer.backend.scan()

    return asyncio.run(asked())


def parsed(run: Run, *arguments: str) -> Any:
    code, out, errors = run(*arguments, "--json")
    assert (code, errors) == (0, "")
    return json.loads(out)


CHAT = [{"said": ["one"], "n": 0}, {"said": ["one", "two"], "n": 1}]


# --- looking


def test_list_gives_threads_with_their_newest_version(run: Run, url: str) -> None:
    save(url, "a", *CHAT, with_={"metadata": {"k": 1}})
    save(url, "b", CHAT[0], with_={"labels": {"agent_id": "x"}})
    found = {it["thread_id"]: it for it in parsed(run, "threads", "list")}
    assert (found["a"]["checkpoint_id"], found["a"]["metadata"]) == ("v1", {"k": 1})
    assert found["b"]["labels"] == {"agent_id": "x"}
    code, out, _ = run("threads", "list")
    assert code == 0
    assert "v1" in out
    assert "agent_id" in out


def test_list_goes_on_page_by_page(run: Run, url: str) -> None:
    for name in ("a1", "a2", "b1"):
        save(url, name, CHAT[0])
    _, out, _ = run("threads", "list", "--pattern", "a*", "--limit", "1", "--json")
    first = json.loads(out)[0]["thread_id"]
    rest = parsed(run, "threads", "list", "--pattern", "a*", "--after", first)
    assert {first, *(it["thread_id"] for it in rest)} == {"a1", "a2"}
    assert "--after" in run("threads", "list", "--limit", "1")[2]
    assert run("threads", "list", "--after", "nowhere")[0] == 4


@pytest.mark.parametrize(
    "thread", ["-dash", "sp ace", "quo'te", "it's $(id)", "a\\b", "`id`", "é 日", "!"]
)
def test_the_hint_of_a_list_can_be_typed(run: Run, url: str, thread: str) -> None:
    save(url, "older", CHAT[0])
    save(url, thread, CHAT[0])
    errors = run("threads", "list", "--limit", "1")[2]
    hint = errors.partition(": ")[2].rpartition(", or ")[0]
    typed = subprocess.run(
        ["sh", "-c", f"printf '%s\\0' {hint}"], capture_output=True, text=True, check=True
    )
    arguments = typed.stdout.split("\0")[:-1]
    assert [it["thread_id"] for it in parsed(run, "threads", "list", *arguments)] == ["older"]


def test_an_id_that_cannot_be_typed_is_no_hint(run: Run, url: str) -> None:
    save(url, "a\nb", CHAT[0])
    errors = run("threads", "list", "--limit", "1")[2]
    assert errors == "There may be more: a greater --limit.\n"


def test_a_namespace_is_shown(run: Run, url: str) -> None:
    save(url, "t", CHAT[0], with_={"namespace": "sub"})
    assert parsed(run, "threads", "show", "t", "--namespace", "sub")["state"] == CHAT[0]


def test_show_gives_the_head_or_a_version_with_its_state(run: Run, url: str) -> None:
    save(url, "t", *CHAT)
    head = parsed(run, "threads", "show", "t")
    assert (head["checkpoint_id"], head["parent_id"], head["is_head"]) == ("v1", "v0", True)
    assert head["state"] == CHAT[1]
    old = parsed(run, "threads", "show", "t", "--checkpoint", "v0")
    assert (old["state"], old["is_head"]) == (CHAT[0], False)
    out = run("threads", "show", "t")[1]
    assert json.loads(out[out.index("\n{") :]) == CHAT[1]
    assert "checkpoint_id: v1" in out


@pytest.mark.parametrize(
    "arguments",
    [
        ("show", "no"),
        ("show", "t", "--checkpoint", "no"),
        ("show", "t", "--namespace", "no"),
        ("history", "no"),
        ("history", "t", "--before", "no"),
        ("diff", "no"),
        ("diff", "t", "no"),
        ("fork", "no", "new"),
        ("fork", "t", "new", "--checkpoint", "no"),
        ("fork", "no", "new", "--checkpoint", "no"),
        ("delete", "no", "--yes"),
        ("delete", "t", "--checkpoint", "no", "--yes"),
    ],
)
def test_what_is_not_there_is_exit_code_four(
    run: Run, url: str, arguments: tuple[str, ...]
) -> None:
    save(url, "t", *CHAT)
    code, out, errors = run("threads", *arguments)
    assert (code, out) == (4, "")
    assert errors.startswith("Error: ")
    assert ids(url) == ["t"]


def test_history_shows_branches_by_their_parents(run: Run, url: str) -> None:
    save(url, "t", *CHAT)
    save(url, "t", {"n": 5}, name="fork", with_={"parent_id": "v0"})
    found = parsed(run, "threads", "history", "t")
    assert [(it["checkpoint_id"], it["parent_id"], it["is_head"]) for it in found] == [
        ("fork", "v0", True),
        ("v1", "v0", False),
        ("v0", None, False),
    ]
    places = [line.split()[2] for line in run("threads", "history", "t")[1].splitlines()[2:4]]
    assert places == ["head", "side"]


def test_history_and_show_have_the_changes_of_a_version_in_one_line(run: Run, url: str) -> None:
    said = [{"role": "user", "content": "Bern"}, {"role": "user", "content": "Zurich then"}]
    first, then = ({"messages": said[:at], "padding": "x" * 500} for at in (1, 2))
    about = {"metadata": {"node": "listen"}}
    save(url, "trip-3", first | {"budget": 120}, then | {"budget": 90}, with_=about)
    line = "messages + 1: 'Zurich then'; budget 120 → 90"
    assert line in run("threads", "history", "trip-3")[1]
    out = run("threads", "show", "trip-3")[1]
    assert f"by:            listen\nchanged:       {line}\n" in out
    assert "  user: Zurich then\n" in out


def test_history_has_a_limit_a_cursor_and_all(run: Run, url: str) -> None:
    save(url, "t", *({"n": number} for number in range(12)))
    assert len(parsed(run, "threads", "history", "t")) == 10
    older = parsed(run, "threads", "history", "t", "--before", "v3", "--limit", "2")
    assert [it["checkpoint_id"] for it in older] == ["v2", "v1"]
    assert len(parsed(run, "threads", "history", "t", "--all")) == 12
    assert len(parsed(run, "threads", "history", "t", "--all", "--before", "v3")) == 3
    assert run("threads", "history", "t", "--before", "v3")[0] == 0


def test_diff_shows_what_the_head_changed(run: Run, url: str) -> None:
    save(url, "t", *CHAT)
    found = parsed(run, "threads", "diff", "t")
    assert (found["from"], found["to"]) == ("v0", "v1")
    assert found["changes"] == [
        {"what": "changed", "path": ["n"], "before": 0, "after": 1},
        {"what": "added", "path": ["said", 1], "after": "two"},
    ]
    assert run("threads", "diff", "t")[1].splitlines() == [
        "v0 → v1: 2 differences",
        "~ n: 0 → 1",
        '+ said[1]: "two"',
    ]


def test_diff_compares_any_two_versions_and_the_first_with_nothing(run: Run, url: str) -> None:
    save(url, "t", *CHAT)
    back = parsed(run, "threads", "diff", "t", "v1", "v0")["changes"]
    assert {"what": "removed", "path": ["said", 1], "before": "two"} in back
    assert parsed(run, "threads", "diff", "t", "v0")["to"] == "v1"
    save(url, "u", CHAT[0])
    assert parsed(run, "threads", "diff", "u")["from"] is None


def test_search_finds_threads_by_their_words(run: Run, url: str) -> None:
    save(url, "t", *CHAT)
    save(url, "u", {"said": ["three"]})
    found = parsed(run, "threads", "search", "two", "ONE")
    assert [it["thread_id"] for it in found] == ["t"]
    assert found[0]["score"] > 0
    assert "three" in run("threads", "search", "three")[1]
    assert parsed(run, "threads", "search", "nothing") == []


def test_texts_of_users_cannot_act_on_the_terminal(run: Run, url: str) -> None:
    thread = f"t{NASTY}"
    save(
        url, thread, {"said": NASTY}, with_={"checkpoint_id": f"c{NASTY}", "metadata": {"m": NASTY}}
    )
    save(url, thread, {"said": NASTY * 2, NASTY: 1})
    for command in (["list"], ["show", thread], ["history", thread], ["diff", thread]):
        code, out, errors = run("threads", *command)
        assert code == 0
        assert out.replace("\n", "").isprintable()
        assert "[red]" in out
    errors = run("threads", "show", thread, "--checkpoint", NASTY)[2]
    assert errors.strip().isprintable()
    found = parsed(run, "threads", "history", thread)
    assert found[1]["checkpoint_id"] == f"c{NASTY}"
    assert found[1]["metadata"] == {"m": NASTY}
    assert parsed(run, "threads", "list")[0]["thread_id"] == thread


def test_long_ids_are_whole_where_there_is_no_terminal(run: Run, url: str) -> None:
    save(url, "t" * 255, CHAT[0])
    assert "t" * 255 in run("threads", "list")[1]


def test_ids_are_whole_on_a_terminal_of_eighty_columns(
    run: Run, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ["a" * 24, "b" * 24]
    for number, name in enumerate(names):
        told = {"metadata": {"k": "ten " * 10}}
        save(url, "t" * 24, {"n": number}, name=name, with_=told)
    monkeypatch.setattr("locus_store.cli.output._make_console", partial(Console, width=80))
    listed, shown = (run("threads", *it)[1] for it in (["list"], ["history", "t" * 24]))
    assert max(map(len, (*listed.splitlines(), *shown.splitlines()))) <= 80
    assert [it in listed for it in ("t" * 24, names[1])] == [True, True]
    assert [shown.count(it) for it in names] == [2, 1]
    assert listed.count("ten") == 10, "the metadata is folded, not cut"


def test_ids_that_leave_no_room_are_whole_all_the_same(
    run: Run, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(url, "t" * 255, CHAT[0], with_={"metadata": {"k": "ten " * 10}})
    monkeypatch.setattr("locus_store.cli.output._make_console", partial(Console, width=80))
    listed = run("threads", "list")[1]
    assert "t" * 255 in listed
    assert listed.count("ten") == 10


# --- copying


def test_fork_copies_a_thread(run: Run, url: str) -> None:
    save(url, "t", *CHAT)
    told = parsed(run, "threads", "fork", "t", "u")
    assert told == {"thread_id": "u", "checkpoint_id": "v1", "versions": 2}
    assert parsed(run, "threads", "show", "u")["state"] == CHAT[1]
    assert run("threads", "fork", "t", "u")[0] == 5


def test_fork_at_a_version_makes_that_the_head(run: Run, url: str) -> None:
    save(url, "t", *({"n": number} for number in range(5)))
    save(url, "t", {"n": 9}, name="side", with_={"parent_id": "v1"})
    assert parsed(run, "threads", "fork", "t", "u", "--checkpoint", "v2")["versions"] == 3
    assert parsed(run, "threads", "show", "u")["state"] == {"n": 2}
    assert [it["checkpoint_id"] for it in parsed(run, "threads", "history", "u")] == [
        "v2",
        "v1",
        "v0",
    ]
    save(url, "u", {"n": 3}, name="next")
    assert parsed(run, "threads", "show", "u")["parent_id"] == "v2"
    assert parsed(run, "threads", "fork", "t", "w", "--checkpoint", "side")["versions"] == 3
    assert run("threads", "fork", "t", "w", "--checkpoint", "side")[0] == 5
    assert run("verify")[0] == 0


# --- removing


def test_delete_asks_and_names_what_goes(
    run: Run, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(url, "t", *CHAT)
    for answer, left in (("n\n", ["t"]), ("", ["t"]), ("y\n", [])):
        monkeypatch.setattr("sys.stdin", Terminal(answer))
        code, _, errors = run("threads", "delete", "t")
        assert code == (1 if left else 0)
        assert "thread 't': 2 versions, 1 namespace" in errors
        assert ids(url) == left


def test_a_version_is_deleted_alone(run: Run, url: str) -> None:
    save(url, "t", *CHAT)
    assert parsed(run, "threads", "delete", "t", "--checkpoint", "v1", "--yes") == {"removed": 1}
    assert parsed(run, "threads", "show", "t")["checkpoint_id"] == "v0"
    assert run("threads", "delete", "t", "--namespace", "n", "--yes")[0] == 1


@pytest.mark.parametrize(
    "command",
    ["threads delete t", "threads vacuum --older-than 0", "forget --user u"],
)
def test_where_nobody_can_be_asked_nothing_is_deleted_but_told(
    run: Run, url: str, command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(url, "t", *CHAT, with_={"metadata": {"user_id": "u"}})
    monkeypatch.setattr("sys.stdin", io.StringIO("y\n"))
    code, out, errors = run(*command.split())
    assert (code, out) == (2, "")
    assert "2 versions" in errors
    assert "--yes" in errors
    assert ids(url) == ["t"]


def test_vacuum_names_what_is_old_and_removes_it(
    run: Run, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(url, "t", *CHAT)
    monkeypatch.setattr("sys.stdin", Terminal("n\n"))
    code, _, errors = run("threads", "vacuum", "--older-than", "0")
    assert code == 1
    assert "1 whole thread" in errors
    assert "2 versions" in errors
    assert ids(url) == ["t"]
    assert run("threads", "vacuum", "--older-than", "1", "--yes")[1].endswith(
        "0 versions removed\n"
    )
    assert parsed(run, "threads", "vacuum", "--older-than", "0", "--yes")["removed"] == 2
    assert ids(url) == []


def test_vacuum_names_what_is_old_in_every_namespace(
    run: Run, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def grow() -> None:
        async with open_checkpointer(url) as checkpointer:
            for namespace in ("", "inner"):
                for step in range(3):
                    await checkpointer.backend.write_state(
                        "t", {"n": step}, namespace=namespace, checkpoint_id=f"v{step}"
                    )

    asyncio.run(grow())
    monkeypatch.setattr("sys.stdin", Terminal("n\n"))
    _, _, errors = run("threads", "vacuum", "--older-than", "0")
    assert "6 versions" in errors


def test_vacuum_says_how_many_threads_it_skipped(
    run: Run, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from locus_store import RedisBackend
    from locus_store.sql.backend import SqlBackend
    from locus_store.types import Vacuumed

    async def vacuumed(self: object, older_than_days: float = 30) -> Vacuumed:
        return Vacuumed(removed=3, skipped=1)

    save(url, "t", *CHAT)
    for kind in (SqlBackend, RedisBackend):
        monkeypatch.setattr(kind, "vacuum_report", vacuumed)
    command = ("threads", "vacuum", "--older-than", "1", "--yes")
    assert run(*command)[1].endswith(
        "3 versions removed; 1 thread skipped, held by other transactions: run it again later\n"
    )
    found = parsed(run, *command)
    assert (found["removed"], found["skipped"]) == (3, 1)


@pytest.mark.parametrize("days", ["-1", "x", "1e9"])
def test_an_age_that_makes_no_sense_is_refused(run: Run, url: str, days: str) -> None:
    assert run("threads", "vacuum", "--older-than", days, "--yes")[0] == 2


def test_expire_sweeps_what_is_over(run: Run, url: str) -> None:
    save(url, "t", CHAT[0], with_={"ttl_seconds": 0.001})
    save(url, "u", CHAT[0])

    def is_over() -> bool:
        return "t" not in {it["thread_id"] for it in parsed(run, "threads", "list")}

    servers.wait_until(is_over, "the thread expires")
    assert parsed(run, "threads", "expire")["removed"] == 1
    assert run("threads", "expire")[1].endswith("0 threads removed\n")


def test_what_a_backend_does_not_declare_is_told(
    run: Run, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from locus_store import RedisBackend
    from locus_store.backend import StorageBackend, Vacuums, needs
    from locus_store.sql.backend import SqlBackend

    class Bare(StorageBackend):
        commit = fetch = history = remove = None

    async def refused(self: Any, older_than_days: float) -> Any:
        return needs(Bare(), Vacuums)

    save(url, "t", *CHAT)
    for kind in (SqlBackend, RedisBackend):
        monkeypatch.setattr(kind, "vacuum_report", refused)
    code, out, errors = run("threads", "vacuum", "--older-than", "1", "--yes")
    assert (code, out) == (1, "")
    assert "capability 'vacuum'" in errors


def test_looking_makes_no_database(run: Run, tmp_path: Path) -> None:
    for command in ("threads list", "threads show t", "verify", "export --all", "doctor"):
        code, _, _ = run(*command.split(), "--url", "sqlite:///typo.db")
        assert code in {1, 3}
    assert list(tmp_path.iterdir()) == []


# --- damage


def test_a_damaged_state_is_an_error_and_no_traceback(run: Run, tmp_path: Path) -> None:
    run("db", "upgrade", "--url", "sqlite:///a.db")
    save("sqlite:///a.db", "t", *CHAT)
    with closing(sqlite3.connect("a.db")) as connection:
        connection.execute("UPDATE locus_checkpoints SET digest = zeroblob(16)")
        connection.commit()
    code, out, errors = run("threads", "show", "t", "--url", "sqlite:///a.db")
    assert (code, out) == (1, "")
    assert errors.startswith("Error: ")


# --- threads of LangGraph's graphs


@pytest.fixture
def graph_thread(request: pytest.FixtureRequest, tmp_path: Path, migrated: Path, run: Run) -> str:
    """A thread of a graph with messages."""
    pytest.importorskip("langgraph")
    from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
    from langgraph.graph import START, MessagesState, StateGraph

    from locus_store.adapters.langgraph import LangGraphSaver

    def answer(state: MessagesState) -> dict[str, Any]:
        calls: Any = [{"name": "look", "args": {"a": 1}, "id": "1"}]
        blocks: Any = [{"type": "text", "text": "Hello"}, {"type": "image_url"}]
        return {
            "messages": [AIMessage(blocks, tool_calls=calls), ToolMessage("42", tool_call_id="1")]
        }

    builder = StateGraph(MessagesState)
    builder.add_node("answer", answer)
    builder.add_edge(START, "answer")
    url = f"sqlite:///{shutil.copy(migrated, tmp_path / 'graph.db')}"
    with LangGraphSaver.from_url(url) as saver:
        graph = builder.compile(checkpointer=saver)
        said: Any = {"messages": [HumanMessage("hi é\x1b", name="bob")]}
        graph.invoke(said, {"configurable": {"thread_id": "g"}})
    return url


def test_a_graphs_messages_are_shown_as_messages(run: Run, graph_thread: str) -> None:
    code, out, _ = run("threads", "show", "g", "--url", graph_thread)
    assert code == 0
    assert out.partition("messages:\n")[2] == (
        '  human (bob): hi é\\x1b\n  ai: Hello [image_url] [calls look({"a":1})]\n  tool: 42\n'
    )
    assert '"$"' not in out
    assert "channel_versions" not in out
    raw = run("threads", "show", "g", "--raw", "--url", graph_thread)[1]
    assert '"$"' in raw
    assert "channel_versions" in raw


def test_a_graphs_differences_are_those_of_its_channels(run: Run, graph_thread: str) -> None:
    _, out, _ = run("threads", "diff", "g", "--url", graph_thread)
    assert out.splitlines()[0].endswith(": 2 differences")
    assert '+ messages[2]: "tool: 42"' in out
    assert "channel_versions" in run("threads", "diff", "g", "--raw", "--url", graph_thread)[1]


def test_a_graphs_history_hides_what_only_langgraph_needs(run: Run, graph_thread: str) -> None:
    out = run("threads", "history", "g", "--url", graph_thread)[1]
    assert '"source":"loop"' in out
    assert "parents" not in out
    assert "parents" in run("threads", "history", "g", "--raw", "--url", graph_thread)[1]


def test_json_of_a_graphs_thread_is_what_is_stored(run: Run, graph_thread: str) -> None:
    state = parsed(run, "threads", "show", "g", "--url", graph_thread)["state"]
    assert "channel_versions" in state
    assert state["channel_values"]["messages"][0]["$"] == "x"


@pytest.mark.parametrize(
    "value",
    [
        {"$": "x"}, {"$": "x", "c": 5, "v": ["a"]}, {"$": "x", "c": 1, "b": "AA=="}, {"$": "d"},
        {"$": "d", "k": ["a"], "v": {}}, {"$": "m", "v": [1]}, {"$": "unknown"}, {"$": []},
        {"$": "x", "c": 5, "v": ["langchain_core.messages.x", "X", {"content": {"a": 1}}, "m"]},
    ],
)  # fmt: skip
def test_what_the_codec_never_writes_is_shown_as_it_is(value: Any) -> None:
    readable.strip_tags(value)
    readable.strip_tags([{"k": value}])


# --- on a terminal


def test_a_table_that_is_too_narrow_for_its_words_is_a_list_of_records(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    out = Terminal()
    monkeypatch.setattr("sys.stdout", out)
    monkeypatch.setenv("COLUMNS", "80")
    row = ("t" * 36, "v" * 36, "2026-01-01 00:00:00 UTC", '{"user_id":"alexandra"}')
    put_table(("thread", "newest version", "saved", "metadata"), [row, row], ids=("thread",))
    for it in row:
        assert out.getvalue().count(it) == 2
    assert f"thread:         {'t' * 36}\n" in out.getvalue()
    assert max(map(len, out.getvalue().splitlines())) <= 80


def test_a_role_has_a_colour_unless_the_terminal_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    shown = {}
    for color in ("", "1"):
        if color:
            monkeypatch.setenv("NO_COLOR", color)
        out = Terminal()
        monkeypatch.setattr("sys.stdout", out)
        print_said("user: It is [red]\x1b[31m")
        shown[color] = out.getvalue()
    assert re.search(r"\x1b\[1;34muser: ?\x1b\[0m", shown[""])
    assert "\x1b[1;34m" not in shown["1"]
    assert all("It is [red]\\x1b[31m" in it for it in shown.values())


def test_a_table_is_folded_between_words(monkeypatch: pytest.MonkeyPatch) -> None:
    out = Terminal()
    monkeypatch.setattr("sys.stdout", out)
    monkeypatch.setenv("COLUMNS", "60")
    words = "several words that are folded between two of them, never within"
    put_table(("thread", "text"), [("t" * 30, words)], ids=("thread",))
    assert "t" * 30 in out.getvalue()
    assert all(it in out.getvalue() for it in words.split())
    shown = re.sub(r"\x1b\[[0-9;]*m", "", out.getvalue())
    assert max(map(len, shown.splitlines())) <= 60


def test_a_checkpoint_that_is_not_there_is_told_from_its_thread(run: Run, url: str) -> None:
    save(url, "t", *CHAT)
    for options in ((), ("--yes",)):
        code, _, errors = run("threads", "delete", "t", "--checkpoint", "nope", *options)
        assert code == 4
        assert "no checkpoint 'nope' in thread 't'" in errors
        assert "threads history t" in errors
    code, _, errors = run("threads", "delete", "no")
    assert "no thread 'no'" in errors


def test_turns_are_listed_and_released(run: Run, url: str) -> None:
    with blocking.open_checkpointer(url) as checkpointer:
        turn = checkpointer.turn("chat", owner=NASTY, lease_seconds=600)
        turn.run(turn.begin)
        code, out, _ = run("threads", "turns", "--json")
        [listed] = json.loads(out)
        assert (code, listed["thread_id"], listed["position"]) == (0, "chat", 0)
        assert (listed["owner"], listed["number"]) == (NASTY, turn.number)
        code, out, _ = run("threads", "turns")
        assert "chat" in out
        assert NASTY not in out
        released = json.loads(run("threads", "release", "chat", "--json")[1])
        assert released == {"released": turn.number}
        code, _, err = run("threads", "release", "chat")
        assert (code, "no turn of thread 'chat' is held" in err) == (4, True)
        turn.run(turn.end)
