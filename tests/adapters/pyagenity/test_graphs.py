"""Real graphs of PyAgenity or AgentFlow on our checkpointers: see ``make pyagenity``."""

from __future__ import annotations

from importlib.util import find_spec

import pytest
from lazily import TESTS_RUN

IS_AGENTFLOW = find_spec("agentflow") is not None

if not IS_AGENTFLOW and find_spec("pyagenity") is None:
    pytest.skip("neither PyAgenity nor AgentFlow: see make pyagenity", allow_module_level=True)

if TESTS_RUN:
    import graphs
    from graphs import BOB, Place, Running, TravelState, run

agentflow_only = pytest.mark.skipif(not IS_AGENTFLOW, reason="PyAgenity has no such call")


@pytest.fixture(params=["sqlite", "postgresql"])
def place(request) -> Place:
    """A database of the test's own; PostgreSQL with a cache in Valkey."""
    if request.param == "sqlite":
        return Place(str(request.getfixturevalue("database_file")), None)
    url = request.getfixturevalue("migrated_database")
    return Place(url, request.getfixturevalue("redis_url"))


def test_two_turns(place) -> None:
    found = run(graphs.talk, place, "one", "two")
    turns = ["one", "a1", "b2", "two"] + (["a4", "b5"] if IS_AGENTFLOW else ["b4"])
    # PyAgenity 0.3.3 starts the second turn at the node that the first one ended with.
    assert found["ran"] == ("abab" if IS_AGENTFLOW else "abb")
    assert (found["context"], found["log"]) == (turns, turns)
    assert found["status"] == "completed"


def test_a_second_process_continues(place) -> None:
    run(graphs.talk, place, "one")
    cold = place._replace(cache_url=place.cache_url and f"{place.cache_url.rstrip('/0')}/1")
    found = run(graphs.talk, cold, "two")
    turns = ["one", "a1", "b2", "two"] + (["a4", "b5"] if IS_AGENTFLOW else ["b4"])
    assert (found["context"], found["log"]) == (turns, turns)


def test_a_graph_is_interrupted_before_a_node_and_resumed(place) -> None:
    options = {"names": "abc", "interrupt_before": ["b"]}
    found = run(graphs.talk, place, "one", **options)
    assert (found["ran"], found["status"]) == ("a", "interrupted_before")
    resumed = run(graphs.talk, place, "", **options)
    if IS_AGENTFLOW:
        assert (resumed["ran"], resumed["status"]) == ("bc", "completed")
        assert resumed["log"] == ["one", "a1", "b2", "c3"]
    else:  # PyAgenity 0.3.3 interrupts again before the same node
        assert (resumed["ran"], resumed["status"]) == ("", "interrupted_before")
    assert resumed["context"][:2] == ["one", "a1"]


def test_a_stream_is_saved(place) -> None:
    found = run(graphs.stream, place, "one")
    assert found["chunks"] > 0
    assert found["context"] == found["log"] == ["one", "a1", "b2"]


def test_a_fork_leaves_the_first_thread_alone(place) -> None:
    run(graphs.talk, place, "one")
    first, context = run(graphs.fork, place, "what if")
    assert first["context"] == first["log"] == ["one", "a1", "b2"]
    assert context[:4] == ["one", "a1", "b2", "what if"]
    assert len(context) > 4


def test_a_second_user_is_refused(place) -> None:
    before = run(graphs.talk, place, "one")
    with pytest.raises(AssertionError, match="NotOwnerError"):
        run(graphs.talk, place, "let me in", config=BOB)
    assert run(graphs.talk, place)["context"] == before["context"]


def test_a_crash_between_two_nodes(place) -> None:
    crashed = Running(graphs.crash, place, "one")
    crashed.process.join()
    assert crashed.process.exitcode == -9
    is_warm = place.cache_url is not None
    if is_warm:
        found = run(graphs.talk, place, "")
        assert (found["ran"], found["context"]) == ("b", ["one", "a1", "b2"])
    elif IS_AGENTFLOW:  # its last checkpoint names the node that had finished
        found = run(graphs.talk, place, "")
        assert (found["ran"], found["context"]) == ("ab", ["one", "a1", "a2", "b3"])
    else:  # PyAgenity commits at the end of a run only
        found = run(graphs.talk, place, "again")
        assert (found["ran"], found["context"]) == ("ab", ["again", "a1", "b2"])
    assert found["status"] == "completed"


@pytest.mark.parametrize("is_new", [True, False])
def test_a_run_that_another_process_overtook_is_refused(place, is_new) -> None:
    if not is_new:
        run(graphs.talk, place, "one")
    reached, may_go_on = graphs.forking.Event(), graphs.forking.Event()
    slow = Running(graphs.overtaken, place, "slow", reached, may_go_on)
    assert reached.wait(60)
    winner = run(graphs.talk, place, "fast")
    may_go_on.set()
    lost = slow.result()
    assert "ConflictError" in lost
    assert ("StaleStateError" in lost) is IS_AGENTFLOW
    found = run(graphs.talk, place)
    assert (found["context"], found["versions"]) == (winner["context"], winner["versions"])


def test_the_checkpointer_is_injected(place) -> None:
    assert run(graphs.injected, place) == [True, True, True]


def test_a_state_of_a_user_comes_back(place) -> None:
    state = TravelState(budget=900)
    run(graphs.talk, place, "one", state=state)
    found = run(graphs.talk, place, "two", state=state)
    assert found["class"] == "TravelState"


@agentflow_only
def test_another_process_stops_a_run(place) -> None:
    reached = graphs.forking.Event()
    running = Running(graphs.hang, place, reached)
    assert reached.wait(60)
    assert run(graphs.stop, place)["running"] is True
    found = running.result()
    assert (found["ran"], found["status"]) == ("ab", "interrupted_after")


@agentflow_only
def test_a_tool_that_answered_is_not_called_again_after_a_crash(place, tmp_path) -> None:
    ledger = tmp_path / "called"
    crashed = Running(graphs.call_tools, place, "buy", str(ledger))
    crashed.process.join()
    assert crashed.process.exitcode == -9
    assert ledger.read_text() == "cp"
    assert run(graphs.call_tools, place, "", str(ledger))["status"] == "completed"
    assert ledger.read_text() == "cpp"
