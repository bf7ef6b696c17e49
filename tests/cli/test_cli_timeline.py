"""``threads blame``, ``bisect``, ``watch`` and ``rewind``."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

import pytest
import test_cli
import test_cli_threads
from test_cli_threads import parsed, save

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    Run = Callable[..., tuple[int, str, str]]

run = test_cli.run
url = test_cli_threads.url
STORY: list[dict[str, Any]] = [
    {"city": "Bern", "messages": [{"id": "m1", "role": "user", "content": "hi"}]},
    {"city": "Basel", "messages": [{"id": "m1", "role": "user", "content": "hi"}]},
    {
        "city": "Basel",
        "messages": [
            {"id": "m1", "role": "user", "content": "hi"},
            {"id": "m2", "role": "assistant", "content": "in Basel"},
        ],
    },
    {"city": "Bern", "messages": []},
]


def test_blame_shows_the_version_of_each_value(run: Run, url: str) -> None:
    save(url, "t", *STORY[:3])
    code, out, _ = run("threads", "blame", "t")
    assert code == 0
    rows = [line.split() for line in out.splitlines()]
    assert [row[0] for row in rows if row and row[0] in {"city", "messages"}] == [
        "city",
        "messages",
    ]
    found = parsed(run, "threads", "blame", "t")["values"]
    origins = {it["path"][0]: [it[n]["checkpoint_id"] for n in ("made", "changed")] for it in found}
    assert origins == {"city": ["v1", "v1"], "messages": ["v0", "v2"]}
    [value] = parsed(run, "threads", "blame", "t", "messages[id=m2].content")["values"]
    assert (value["value"], value["made"]["checkpoint_id"]) == ("in Basel", "v2")
    [value] = parsed(run, "threads", "blame", "t", "city", "--checkpoint", "v0")["values"]
    assert (value["made"]["checkpoint_id"], value["made"]["is_exact"]) == ("v0", True)


def test_blame_says_that_older_versions_are_not_stored(run: Run, url: str) -> None:
    save(url, "t", *STORY[:3])
    run("threads", "delete", "t", "--checkpoint", "v1", "--yes")
    assert "in or before v2" in run("threads", "blame", "t", "city")[1]


def test_a_path_that_leads_nowhere_is_exit_code_four(run: Run, url: str) -> None:
    save(url, "t", STORY[0])
    code, out, errors = run("threads", "blame", "t", "messages[7]")
    assert (code, out) == (4, "")
    assert errors.startswith("Error: there is no messages[7] in checkpoint 'v0'")
    assert run("threads", "blame", "t", "a[")[0] == 1
    for command in (("blame", "no"), ("bisect", "no", "--text", "x"), ("watch", "no")):
        assert run("threads", *command)[0] == 4
    assert run("threads", "rewind", "t", "no")[0] == 4


def test_inspect_says_what_is_wrong_with_the_database_before_it_serves(
    run: Run, tmp_path: Path
) -> None:
    where = f"sqlite:///{tmp_path}/absent.db"
    code, out, errors = run("inspect", "--no-browser", "--url", where)
    assert (code, out) == (1, "")
    assert "Inspecting on" not in errors
    assert "Traceback" not in errors
    assert "db upgrade" in errors


@pytest.mark.parametrize(
    ("options", "first", "turns"),
    [
        (("--path", "city", "--equals", "Basel"), "v1", ["v0", "v1", "v3"]),
        (("--path", "city", "--equals", '"Bern"'), "v0", ["v0", "v1", "v3"]),
        (("--path", "messages[id=m2].content", "--contains", "Basel"), "v2", ["v0", "v2", "v3"]),
        (("--path", "messages[id=m2]", "--exists"), "v2", ["v0", "v2", "v3"]),
        (("--path", "messages", "--longer-than", "0"), "v0", ["v0", "v3"]),
        (("--path", "city", "--type", "number"), None, ["v0"]),
        (("--path", "city", "--filter", '{"$lt": "Bb"}'), "v1", ["v0", "v1", "v3"]),
        (("--text", "in Basel"), "v2", ["v0", "v2", "v3"]),
        (("--run", "! grep -q Basel"), "v1", ["v0", "v1", "v3"]),
        (("--text", "in Basel", "--checkpoint", "v2"), "v2", ["v0", "v2"]),
    ],
)
def test_bisect_finds_the_first_version_and_all_changes(
    run: Run, url: str, options: tuple[str, ...], first: str | None, turns: list[str]
) -> None:
    save(url, "t", *STORY)
    found = parsed(run, "threads", "bisect", "t", *options)
    assert found["first"] == first
    assert [it["checkpoint_id"] for it in found["turns"]] == turns
    out = run("threads", "bisect", "t", *options)[1]
    assert out.splitlines()[-1].startswith(f"The condition holds {f'first in {first}' if first else 'in none'} of ")  # fmt: skip  # noqa: E501


def test_a_command_may_skip_versions_and_must_end_by_itself(run: Run, url: str) -> None:
    save(url, "t", *STORY)
    skip = 'test "$LOCUS_CHECKPOINT_ID" = v1 && exit 125; ! grep -q Basel'
    out = run("threads", "bisect", "t", "--run", skip)[1]
    assert "in or before v2" in out
    assert out.splitlines()[-1] == "The condition holds first in v2 of 4 versions, 1 skipped."
    code, _, errors = run("threads", "bisect", "t", "--run", "exit 200")
    assert code == 1
    assert "ended with code 200 for version 'v0'" in errors


def test_an_empty_text_is_no_condition(run: Run, url: str) -> None:
    save(url, "t", *STORY)
    code, out, errors = run("threads", "bisect", "t", "--text", "")
    assert (code, out) == (1, "")
    assert "write the text to look for" in errors


@pytest.mark.parametrize(
    "options",
    [
        (),
        ("--path", "city"),
        ("--equals", "1"),
        ("--text", "a", "--run", "b"),
        ("--path", "a", "--exists", "--text", "b"),
        ("--path", "a", "--exists", "--equals", "b"),
        ("--path", "a", "--filter", "3"),
        ("--path", "a", "--type", "string?"),
    ],
)
def test_bisect_needs_one_condition(run: Run, url: str, options: tuple[str, ...]) -> None:
    save(url, "t", STORY[0])
    code, out, errors = run("threads", "bisect", "t", *options)
    assert (code, out) == (1, "")
    assert errors.startswith("Error: ")


def test_a_report_is_json_without_strings_of_the_state(run: Run, url: str) -> None:
    save(url, "t", *STORY[:2])
    code, out, _ = run("threads", "report", "t")
    assert (code, "Basel" in out) == (0, False)
    values = {tuple(it["path"]): it for it in json.loads(out)["values"]}
    assert values["city",]["made"] == {"checkpoint_id": "v1", "is_exact": True}
    assert run("threads", "report", "no")[0] == 4


def test_rewind_makes_an_old_version_the_head(run: Run, url: str) -> None:
    save(url, "t", *STORY)
    code, _, errors = run("threads", "rewind", "t", "v0", "--head", "v2")
    assert (code, "the head of thread 't' is 'v3', not 'v2'" in errors) == (5, True)
    name = parsed(run, "threads", "rewind", "t", "v0", "--head", "v3")["checkpoint_id"]
    head = parsed(run, "threads", "show", "t")
    assert (head["checkpoint_id"], head["parent_id"], head["state"]) == (name, "v0", STORY[0])
    assert "the state of v2" in run("threads", "rewind", "t", "v2")[1]
    assert len(parsed(run, "threads", "history", "t")) == 6


def test_rewind_names_finished_functions_that_would_run_again(
    run: Run, tmp_path: Path, migrated: Path
) -> None:
    pytest.importorskip("langgraph")
    from langgraph.func import entrypoint, task
    from langgraph.types import interrupt

    from locus_store.adapters.langgraph import LangGraphSaver

    there = f"sqlite:///{shutil.copy(migrated, tmp_path / 'functions.db')}"
    with LangGraphSaver.from_url(there) as saver:

        @task
        def fetch(word: str) -> str:
            return word

        @entrypoint(checkpointer=saver)
        def travel(word: str) -> Any:
            return fetch(word).result(), interrupt("city?")

        travel.invoke("a", {"configurable": {"thread_id": "t"}})
    head = parsed(run, "threads", "show", "t", "--url", there)["checkpoint_id"]
    code, _, errors = run("threads", "rewind", "t", head, "--url", there)
    assert (code, "call 1 of 'travel'" in errors) == (1, True)
    assert len(parsed(run, "threads", "history", "t", "--url", there)) == 1
    for option in (("--task", "fetch"), ("--run-again",)):
        assert run("threads", "rewind", "t", head, *option, "--url", there)[0] == 0
    assert len(parsed(run, "threads", "history", "t", "--url", there)) == 3


def test_watch_prints_versions_as_they_are_saved(run: Run, tmp_path: Path, migrated: Path) -> None:
    there = f"sqlite:///{shutil.copy(migrated, tmp_path / 'watched.db')}"
    save(there, "t", STORY[0])
    command = [sys.executable, "-m", "locus_store", "threads", "watch", "t", "--url", there]
    options = ["--interval", "0.1", "--count", "2", "--json"]
    with subprocess.Popen([*command, *options], stdout=subprocess.PIPE, text=True) as watching:
        seen: list[str] = []
        number = 0
        assert watching.stdout is not None
        while watching.poll() is None and number < 600:  # it starts to look at some time
            number += 1
            save(there, "t", STORY[number % 2], with_={"checkpoint_id": f"n{number}"})
            time.sleep(0.1)
        seen = [json.loads(line)["checkpoint_id"] for line in watching.stdout]
    numbers = [int(it[1:]) for it in seen]
    assert numbers == [numbers[0], numbers[0] + 1]
    assert watching.returncode == 0


# --- the story: a graph keeps a stale city


@pytest.fixture
def stale(tmp_path: Path, migrated: Path) -> str:
    """A thread ``trip`` in which a node wrote the wrong city, and a later one answered with it."""
    pytest.importorskip("langgraph")
    from typing import TypedDict

    from langgraph.graph import START, StateGraph

    from locus_store.adapters.langgraph import LangGraphSaver

    class Trip(TypedDict, total=False):
        asked: str
        city: str
        answer: str

    builder = StateGraph(Trip)
    builder.add_node("plan", lambda state: {"city": state["asked"]})
    builder.add_node("profile", lambda state: {"city": "Bern"})
    builder.add_node("reply", lambda state: {"answer": f"Your hotel is in {state['city']}."})
    builder.add_edge(START, "plan")
    builder.add_edge("plan", "profile")
    builder.add_edge("profile", "reply")
    there = f"sqlite:///{shutil.copy(migrated, tmp_path / 'stale.db')}"
    with LangGraphSaver.from_url(there) as saver:
        graph = builder.compile(checkpointer=saver)
        graph.invoke({"asked": "Basel"}, {"configurable": {"thread_id": "trip"}})
    return there


def test_three_commands_lead_from_a_wrong_answer_to_before_its_cause(run: Run, stale: str) -> None:
    answer = parsed(run, "threads", "blame", "trip", "answer", "--url", stale)["values"][0]
    assert answer["changed"]["nodes"] == ["reply"]
    options = ("--path", "city", "--equals", "Bern", "--url", stale)
    found = parsed(run, "threads", "bisect", "trip", *options)
    turn = found["turns"][-1]
    assert (turn["holds"], turn["nodes"], turn["checkpoint_id"]) == (
        True,
        ["profile"],
        found["first"],
    )
    before, first = (it["checkpoint_id"] for it in parsed(run, "threads", "history", "trip", "--url", stale)[1:3][::-1])  # fmt: skip  # noqa: E501
    assert first == found["first"]
    run("threads", "rewind", "trip", before, "--url", stale)

    from locus_store.adapters.langgraph import LangGraphSaver

    with LangGraphSaver.from_url(stale) as saver:
        state = saver.get_tuple({"configurable": {"thread_id": "trip"}})
        assert state is not None
        assert state.checkpoint["channel_values"]["city"] == "Basel"
    shown = run("threads", "blame", "trip", "--url", stale)[1]
    assert "branch:" not in shown
    assert (
        "branch:" in run("threads", "blame", "trip", "channel_values", "--raw", "--url", stale)[1]
    )
