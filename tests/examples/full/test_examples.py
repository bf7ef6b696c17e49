"""Every program in ``examples/``, run as its first lines say."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from locus_store.blocking import open_checkpointer as open_blocking
from tests import servers

if TYPE_CHECKING:
    from collections.abc import Callable

ROOT = Path(__file__).parents[3]
EXAMPLES = ROOT / "examples"
ELSEWHERE = {
    "gunicorn_app.py": "tests/test_lifecycle.py",
    "oracle_notebook.py": "tests/backends/oracle/full/test_oracle.py",
    "telemetry.py": "tests/test_observing.py",
}
"""Examples that other test files run."""


def started(folder: Path, *command: str, **options: Any) -> subprocess.Popen[str]:
    """A Python process in the folder."""
    environment = {**os.environ, "PYTHONWARNINGS": "ignore"}
    environment.pop("LOCUS_STORE_URL", None)
    return subprocess.Popen(
        [sys.executable, *command],
        cwd=folder,
        env=environment | options,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.fixture
def run(tmp_path: Path) -> Callable[..., str]:
    """Runs an example to its end, in an empty folder; gives what it printed."""

    def ran(name: str, *arguments: str) -> str:
        process = started(tmp_path, str(EXAMPLES / name), *arguments)
        out, err = process.communicate(timeout=120)
        assert process.returncode == 0, err
        return out.strip()

    return ran


def test_every_example_is_run_here_or_in_the_file_that_is_named() -> None:
    here = Path(__file__).read_text("utf-8")
    for path in EXAMPLES.iterdir():
        if path.name != "__pycache__":
            there = ELSEWHERE.get(path.name)
            text = (ROOT / there).read_text("utf-8") if there else here.partition("def run(")[2]
            assert path.stem in text, path.name


def test_a_conversation_outlives_its_process(run: Callable[..., str]) -> None:
    said = run("conversation.py", "--thread", "alex")
    assert "It is 18 °C and raining in Lisbon, Alex." in said
    assert "You are Alex." in said
    assert "You are Robin." in said


def test_a_graph_waits_for_a_person(run: Callable[..., str]) -> None:
    name = "langgraph_approval.py"
    assert run(name, "ask", "order-7", "a refund of 90 EUR") == "Approve a refund of 90 EUR?"
    assert run(name, "answer", "order-7", "yes") == "a refund of 90 EUR: approved"
    asked = run(name, "ask", "order-8", "a refund of 20 EUR")
    assert asked == "Approve a refund of 20 EUR? (last answer: yes)"


def test_a_session_of_openai_agents_goes_on_in_a_second_process(run: Callable[..., str]) -> None:
    assert run("openai_agents_session.py", "user-42", "Hello") == "1 items"
    assert run("openai_agents_session.py", "user-42", "And again") == "3 items"


def test_a_session_of_strands_goes_on_in_a_second_process(run: Callable[..., str]) -> None:
    assert run("strands_session.py", "order-7", "Two tickets to Porto.") == "1 messages"
    assert run("strands_session.py", "order-7", "Friday.") == "3 messages"


def test_a_worker_that_was_killed_goes_on_after_its_last_step(
    run: Callable[..., str], tmp_path: Path
) -> None:
    run("background_worker.py", "submit", "report-7", "300")
    url = f"sqlite:///{tmp_path}/jobs.db"
    with open_blocking(url, state_type=dict) as jobs:
        first = started(tmp_path, str(EXAMPLES / "background_worker.py"), "work")
        servers.wait_until(lambda: len(jobs.list_checkpoints("report-7", 10)) > 5, "some steps")
        first.kill()
        first.communicate()
        done = len(jobs.list_checkpoints("report-7", 1000)) - 1
        assert 5 <= done < 300
        assert run("background_worker.py", "work") == f"report-7: {sum(n * n for n in range(300))}"
        assert len(jobs.list_checkpoints("report-7", 1000)) == 301
        run("background_worker.py", "submit", "report-7", "300")
        assert run("background_worker.py", "work") == ""


def test_a_workflow_that_crashed_pays_once(run: Callable[..., str], tmp_path: Path) -> None:
    example = str(EXAMPLES / "dbos_workflow.py")
    paid, _ = started(tmp_path, example, "order-42", "--crash").communicate(timeout=120)
    assert paid == "paying\n"
    assert run("dbos_workflow.py", "order-42") == (
        "order-42-turn-1 {'paid': {'receipt': 7}} ['order-42-turn-1']"
    )


def test_the_tables_of_an_application_have_migrations_of_their_own(tmp_path: Path) -> None:
    folder = EXAMPLES / "alembic_beside"
    shop = f"sqlite:///{tmp_path}/shop.db"

    def ran(*command: str) -> str:
        process = started(folder, *command, SHOP_URL=shop, LOCUS_STORE_URL=shop)
        out, err = process.communicate(timeout=120)
        assert process.returncode == 0, out + err
        return out.strip()

    ran("-m", "alembic", "upgrade", "head")
    ran("-m", "locus_store", "db", "upgrade")
    ran("-m", "alembic", "check")  # proposes nothing for the tables of locus-store
    assert ran("sell.py", "order-7", "Porto") == "sold [1]"
    assert ran("sell.py", "order-7", "Faro") == "sold [1, 2]"


def test_a_chat_service_keeps_its_threads(tmp_path: Path) -> None:
    port = servers.free_port()
    process = started(
        tmp_path,
        *("-m", "uvicorn", "--app-dir", str(EXAMPLES), "fastapi_service:app", "--port", str(port)),
    )
    try:
        servers.wait_until(lambda: process.poll() is not None or servers.accepts(port), "a service")
        place = f"http://{servers.LOOPBACK}:{port}/threads/order-7"
        for number in (1, 3):
            answer = httpx.post(f"{place}/messages", json={"text": "Hello."}, timeout=30)
            assert answer.json()["reply"] == f"That was message {number}."
        assert len(httpx.get(place, timeout=30).json()["messages"]) == 4
    finally:
        process.terminate()
        process.communicate(timeout=30)


@pytest.mark.parametrize("wait", ["queue", "reject"])
def test_a_double_click_gets_one_answer(wait: str, tmp_path: Path) -> None:
    port = servers.free_port()
    command = ("-m", "uvicorn", "--app-dir", str(EXAMPLES), "turns:app", "--workers", "2")
    process = started(tmp_path, *command, "--port", str(port), WAIT=wait)
    place = f"http://{servers.LOOPBACK}:{port}/threads/order-7"

    def click(name: str) -> httpx.Response:
        return httpx.post(place, json={"id": name, "text": "Hello."}, timeout=60)

    try:
        servers.wait_until(lambda: process.poll() is not None or servers.accepts(port), "a service")
        with ThreadPoolExecutor(6) as pool:
            for number in (1, 2):
                found = [*pool.map(click, [f"click-{number}"] * 6)]
                answered = [it.json()["reply"] for it in found if it.status_code == 200]
                assert set(answered) == {f"Answer {number}, to 'Hello.'"}
                refused = [it.json()["detail"] for it in found if it.status_code == 409]
                assert len(answered) + len(refused) == 6
                assert bool(refused) is (wait == "reject")
                assert all("is still taken by turn" in it for it in refused)
    finally:
        process.terminate()
        process.communicate(timeout=30)


def test_the_page_of_fastapi_shows_the_example() -> None:
    page = (ROOT / "docs" / "fastapi.md").read_text("utf-8")
    shown = page.partition("# service.py\n")[2].partition("```")[0]
    example = (EXAMPLES / "fastapi_service.py").read_text("utf-8")

    def code(text: str) -> list[str]:
        """Return its lines without docstrings and blank lines."""
        return [it for it in text.splitlines() if it.strip() and not it.strip().startswith('"""')]

    assert shown
    assert set(code(shown)) <= set(code(example))


def named(path: str) -> Any:
    """The object that ``langgraph.json`` names as ``./file.py:name``."""
    file, _, name = path.partition(":")
    folder = EXAMPLES / "langgraph_server"
    spec = importlib.util.spec_from_file_location(f"example_{Path(file).stem}", folder / file)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return getattr(module, name)


def test_the_graph_of_a_langgraph_server_runs_on_its_checkpointer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("LOCUS_STORE_URL", raising=False)
    text = (EXAMPLES / "langgraph_server" / "langgraph.json").read_text("utf-8")
    settings = json.loads(text)
    graph, opened = named(settings["graphs"]["chat"]), named(settings["checkpointer"]["path"])
    config = {"configurable": {"thread_id": "alex"}}

    async def turns() -> str:
        async with opened() as saver:
            served = graph.copy({"checkpointer": saver})
            for _ in range(2):
                found = await served.ainvoke({"messages": [("user", "Hello.")]}, config)
            return found["messages"][-1].content

    assert asyncio.run(turns()) == "That was message 3."
