"""``locus-store threads effects``, ``resolve`` and ``rewind``: calls of tools on the terminal."""

from __future__ import annotations

import json
from base64 import b64encode
from typing import TYPE_CHECKING

import pytest
import test_cli
from test_cli_threads import NASTY

from locus_store import blocking
from locus_store.values.msgpack import TypedForm, freeze, get_packed

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    Run = Callable[..., tuple[int, str, str]]

run = test_cli.run


def lose_reply(idempotency_key: str) -> None:
    raise TimeoutError(NASTY)


@pytest.fixture
def url(tmp_path: Path) -> str:
    found = f"sqlite:///{tmp_path / 'agents.db'}"
    with blocking.open_checkpointer(found) as checkpointer:
        checkpointer.effect("order", "pay", lambda _: {"receipt": 7})
        checkpointer.save({"paid": True}, "order", "v1")
        with pytest.raises(TimeoutError):
            checkpointer.effect("order", "ship", lose_reply)
        checkpointer.save({"paid": True, "sent": None}, "order", "v2")
    return found


def test_effects_are_shown_with_their_outcomes(run: Run, url: str) -> None:
    code, out, _ = run("threads", "effects", "order", "--url", url)
    assert (code, "\x1b" in out, "\u202e" in out) == (0, False, False)
    assert out.splitlines()[2].split()[:2] == ["pay", "finished"]
    found = json.loads(run("threads", "effects", "order", "--json", "--url", url)[1])
    assert [(it["key"], it["status"], it["result"]) for it in found] == [
        ("pay", "finished", {"receipt": 7}),
        ("ship", "unknown", None),
    ]
    for option in (["--unknown"], ["--since", "v1"]):
        some = json.loads(run("threads", "effects", "order", *option, "--json", "--url", url)[1])
        assert [it["key"] for it in some] == ["ship"]


def test_the_idempotency_key_is_shown_and_what_a_serializer_packed_is_decoded(
    run: Run, url: str
) -> None:
    fields = {"content": "paid 7", "type": "tool", "name": "pay", "tool_call_id": "c1"}
    message = freeze(TypedForm("model", ["langchain_core.messages.tool", "ToolMessage", fields]))
    packed = b64encode(get_packed({**message, "c": 5, "v": message["v"][1:]})).decode()
    results = {
        "graph": ({"type": "msgpack", "data": packed}, "tool (pay): paid 7"),
        "other": ({"type": "x", "data": "no base64"}, {"type": "x", "data": "no base64"}),
    }
    with blocking.open_checkpointer(url) as checkpointer:
        for thread, (result, _) in results.items():
            checkpointer.effect(thread, "c1", lambda _, it=result: it)
        effects = {it: checkpointer.effects(it)[0] for it in results}
    for thread, (_, shown) in results.items():
        [found] = json.loads(run("threads", "effects", thread, "--json", "--url", url)[1])
        assert found["result"] == shown
        line = run("threads", "effects", thread, "--url", url)[1].splitlines()[2]
        assert effects[thread].idempotency_key in line
    assert "tool (pay): paid 7" in run("threads", "effects", "graph", "--url", url)[1]


def test_an_unknown_outcome_is_settled(run: Run, url: str) -> None:
    at = "--url", url
    assert run("threads", "resolve", "order", "ship", *at)[0] == 1
    both = run("threads", "resolve", "order", "ship", "--not-done", "--result", "1", *at)
    assert both[0] == 1
    assert "--not-done" in both[2]
    code, out, _ = run("threads", "resolve", "order", "ship", "--result", '{"parcel": 9}', *at)
    assert (code, out) == (0, "order: effect 'ship' is finished\n")
    again = run("threads", "resolve", "order", "ship", "--not-done", *at)
    assert again[0] == 5
    assert "known outcome" in again[2]
    assert run("threads", "resolve", "order", "unknown", "--not-done", *at)[0] == 4
    with blocking.open_checkpointer(url) as checkpointer:
        assert checkpointer.effect("order", "ship", lose_reply) == {"parcel": 9}


def test_a_rewind_names_the_effects_that_it_does_not_undo(run: Run, url: str) -> None:
    code, out, errors = run("threads", "rewind", "order", "v1", "--json", "--url", url)
    assert (code, json.loads(out)["effects"]) == (0, ["ship"])
    assert run("threads", "fork", "order", "copy", "--checkpoint", "v1", "--url", url)[0] == 0
    copied = json.loads(run("threads", "effects", "copy", "--json", "--url", url)[1])
    assert [it["key"] for it in copied] == ["pay", "ship"]
    _, _, errors = run("threads", "rewind", "order", "v1", "--url", url)
    assert "These effects ran since, and are not undone: 'ship'." in errors
