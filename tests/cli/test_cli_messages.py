"""``locus-store threads messages``: message logs on the terminal."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
import test_cli
from test_cli_threads import NASTY

from locus_store import NewMessage, blocking
from locus_store.timeline.readable import format_content

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    Run = Callable[..., tuple[int, str, str]]

run = test_cli.run


@pytest.fixture
def url(tmp_path: Path) -> str:
    found = f"sqlite:///{tmp_path / 'chats.db'}"
    with blocking.open_message_log(found) as log:
        texts = ("Two tickets to Porto.", "For which day?", NASTY)
        log.append("order", [NewMessage({"content": it}, "user") for it in texts])
        log.append("order", [NewMessage("Searching.")], namespace="agent")
        log.for_tenant("acme").append("order", [NewMessage("Hi.")])
    return found


def test_messages_are_shown_with_their_roles(run: Run, url: str) -> None:
    code, out, _ = run("threads", "messages", "order", "--url", url)
    first, second, *rest = out.splitlines()
    assert code == 0
    assert [first, second] == ["user: Two tickets to Porto.", "user: For which day?"]
    assert "\x1b" not in "".join(rest)
    assert "\u202e" not in "".join(rest)
    of_agent = run("threads", "messages", "order", "--namespace", "agent", "--url", url)
    assert of_agent[1] == "message: Searching.\n"
    of_tenant = run("threads", "messages", "order", "--tenant", "acme", "--url", url)
    assert of_tenant[1] == "message: Hi.\n"


def test_the_newest_are_shown_and_the_others_are_counted(run: Run, url: str) -> None:
    _, out, errors = run("threads", "messages", "order", "--newest", "1", "--url", url)
    assert out.startswith("user: ")
    assert "For which day?" not in out
    assert "The log has 3 messages" in errors


def test_the_other_logs_of_a_thread_are_named(run: Run, url: str) -> None:
    named = "The thread has other logs: --namespace 'agent'.\n"
    assert run("threads", "messages", "order", "--url", url)[2] == named
    for options in (("--namespace", "agent"), ("--tenant", "acme"), ("--json",)):
        assert run("threads", "messages", "order", *options, "--url", url)[2] == ""


def test_messages_are_json_for_programs(run: Run, url: str) -> None:
    _, out, _ = run("threads", "messages", "order", "--json", "--url", url)
    found = json.loads(out)
    assert [it["content"]["content"] for it in found][2] == NASTY
    assert found[0].keys() == {"message_id", "role", "created_at", "metadata", "content"}


def test_an_absent_log_is_an_error_that_names_the_others(run: Run, url: str) -> None:
    code, out, errors = run("threads", "messages", "order", "--namespace", "x", "--url", url)
    assert (code, out) == (4, "")
    assert "its logs have --namespace '', 'agent'" in errors
    code, _, errors = run("threads", "messages", "none", "--url", url)
    assert code == 4
    assert "thread 'none' has no message log; 'locus-store threads list' shows" in errors


def test_a_thread_with_a_log_alone_names_the_command_that_prints_it(run: Run, url: str) -> None:
    for command in ("show", "history", "blame"):
        code, out, errors = run("threads", command, "order", "--url", url)
        assert (code, out) == (4, "")
        assert "'locus-store threads messages order'" in errors


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("a", "a"),
        ({"role": "user", "content": [{"type": "text", "text": "a"}, {"text": "b"}]}, "a b"),
        ({"type": "user", "message": {"role": "user", "content": "a"}}, "a"),
        ({"type": "function_call", "name": "f"}, '{"name":"f","type":"function_call"}'),
        ([1, None], "1 null"),
        ({"content": None}, '{"content":null}'),
    ],
)
def test_a_message_is_read_as_frameworks_write_it(content: Any, text: str) -> None:
    assert format_content(content) == text


def test_a_vacuum_counts_threads_and_messages(
    run: Run, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOCUS_STORE_URL", url)
    vacuum = ("threads", "vacuum", "--older-than", "0", "--tenant", "default")
    _, _, errors = run(*vacuum)
    assert "about 0 versions and 4 messages, with 1 whole thread, older than 0 days" in errors
    code, out, _ = run(*vacuum, "--dry-run", "--json")
    assert (code, json.loads(out)) == (
        0, {"removed": 0, "threads": 1, "messages": 4, "tenant": "default"},
    )  # fmt: skip
    assert run(*vacuum, "--dry-run")[1].startswith("This would delete about 0 versions and 4")
    _, out, _ = run(*vacuum, "--yes")
    assert out.endswith("0 versions and 4 messages removed, with 1 whole thread\n")


def test_a_deleted_log_is_told_by_its_messages(run: Run, url: str) -> None:
    assert run("threads", "delete", "order", "--yes", "--url", url)[1] == "4 messages removed\n"


def test_a_copy_of_a_log_is_told_by_its_messages(run: Run, url: str) -> None:
    fork = run("threads", "fork", "order", "copy", "--url", url)
    assert fork[1] == "copy: 4 messages\n"
