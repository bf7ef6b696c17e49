"""Life cycles of processes: fork, workers that a master forks, exit without close."""

from __future__ import annotations

import http.client
import json
import os
import pickle
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import servers
from tiers import first_of

from locus_store import MemoryCheckpointer, open_checkpointer
from locus_store.blocking import open_checkpointer as open_blocking

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[1]
WORKER = Path(__file__).parent / "workers" / "lifecycle.py"
FLAGS = ("-X", "dev", "-W", "error", "-W", "ignore:This process:DeprecationWarning")
"""Python 3.12 warns of any fork in a process that has threads."""

BACKENDS = ["memory", "sqlite", "file", "postgresql", "redis"]
FORMS = first_of("async", "blocking")
TURNS = 15


@pytest.fixture
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    kind = getattr(request, "param", "sqlite")
    if kind == "memory":
        return "memory://"
    if kind == "sqlite":
        return f"sqlite:///{tmp_path / 'checkpoints.db'}"
    if kind == "file":
        return f"file://{tmp_path / 'checkpoints'}"
    return request.getfixturevalue("redis_url" if kind == "redis" else "migrated_database")


everywhere = pytest.mark.parametrize("url", first_of(*BACKENDS), indirect=True)
on_disk = pytest.mark.parametrize("url", first_of(*BACKENDS[1:]), indirect=True)


def ran(*arguments: str) -> list[Any]:
    """Return the output of a process that succeeded and wrote nothing to stderr."""
    done = subprocess.run(
        [sys.executable, *FLAGS, WORKER, *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=servers.DEADLINE_SECONDS,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return [json.loads(it) for it in done.stdout.splitlines()]


# --- fork


@on_disk
@pytest.mark.parametrize("form", FORMS)
def test_a_child_and_its_parent_lose_nothing_on_one_thread(url: str, form: str) -> None:
    ((code, said, _),) = ran("fork", url, form)
    assert code == 0
    expected = {f"{who} {turn}" for who in ("parent", "child") for turn in range(TURNS)}
    assert set(said) == expected
    assert len(said) == len(expected)
    for who in ("parent", "child"):
        assert [it for it in said if it.startswith(who)] == [f"{who} {n}" for n in range(TURNS)]


@pytest.mark.parametrize("form", FORMS)
def test_a_child_has_a_copy_of_what_is_in_memory(form: str) -> None:
    ((code, said, of_child),) = ran("fork", "memory://", form)
    assert code == 0
    assert said == [f"parent {turn}" for turn in range(TURNS)]
    assert of_child == [f"child {turn}" for turn in range(TURNS)]


def test_a_child_that_never_uses_the_object_ends() -> None:
    assert ran("fork_and_leave", "memory://") == [0]


def test_a_child_does_not_wait_for_a_thread_of_its_parent() -> None:
    assert ran("fork_beside_a_first_call", "memory://") == [0]


@on_disk
@pytest.mark.parametrize("method", ["spawn", "forkserver"])
@pytest.mark.full
def test_a_process_is_given_the_url(url: str, method: str) -> None:
    assert ran("in_a_worker", url, method) == [0]
    with open_blocking(url, state_type=dict) as checkpointer:
        assert checkpointer.list_checkpoints("t") == ["v0"]


@everywhere
def test_an_object_is_not_pickled(url: str) -> None:
    for it in (open_checkpointer(url), open_blocking(url)):
        with pytest.raises(TypeError, match="cannot pickle"):
            pickle.dumps(it)


# --- gunicorn


class Gunicorn:
    """A master with two workers and the example's application."""

    def __init__(self, url: str, *arguments: str) -> None:
        self.port = servers.free_port()
        self.process = subprocess.Popen(
            [
                *(sys.executable, "-m", "gunicorn", "--preload", "--workers", "2"),
                *("--bind", f"{servers.LOOPBACK}:{self.port}", "--no-control-socket", *arguments),
            ],
            cwd=ROOT / "examples",
            env={**os.environ, "LOCUS_STORE_URL": url, "PYTHONDONTWRITEBYTECODE": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        servers.wait_until(self._is_up, "gunicorn to start")

    def _is_up(self) -> bool:
        assert self.process.poll() is None, self.process.stdout.read()
        return servers.accepts(self.port)

    def say(self, thread_id: str, text: str) -> dict[str, Any]:
        """One request; the answer."""
        connection = http.client.HTTPConnection(
            servers.LOOPBACK, self.port, timeout=servers.DEADLINE_SECONDS
        )
        try:
            connection.request("POST", f"/{thread_id}", body=text)
            response = connection.getresponse()
            body = response.read()
            assert response.status == 200, body
            answer: dict[str, Any] = json.loads(body)
            return answer
        finally:
            connection.close()

    def end(self) -> str:
        """Return its output after it ended on request."""
        self.process.send_signal(signal.SIGTERM)
        said, _ = self.process.communicate(timeout=servers.DEADLINE_SECONDS)
        assert self.process.returncode == 0, said
        return said

    def kill(self) -> None:
        with suppress(ProcessLookupError):
            self.process.kill()
        self.process.communicate()


@pytest.fixture(
    params=[
        pytest.param(("gunicorn_app:blocking",), id="blocking"),
        pytest.param(("gunicorn_app:blocking", "--threads", "4"), id="threads"),
        pytest.param(("gunicorn_app:asynchronous", "--worker-class", "asgi"), id="async"),
    ]
)
def gunicorn(request: pytest.FixtureRequest, url: str) -> Iterator[Gunicorn]:
    started = Gunicorn(url, *request.param)
    yield started
    started.kill()


@on_disk
@pytest.mark.full
def test_workers_forked_from_a_master_that_opened_it_share_a_store(
    gunicorn: Gunicorn, url: str
) -> None:
    workers: set[int] = set()
    said: list[str] = []

    def is_enough() -> bool:
        """Requests of several threads, until both workers have answered some."""
        texts = [f"line {len(said) + n}" for n in range(8)]
        with ThreadPoolExecutor(4) as pool:
            answers = list(pool.map(lambda it: gunicorn.say("order-7", it), texts))
        assert all(text in it["said"] for text, it in zip(texts, answers, strict=True))
        said.extend(texts)
        workers.update(it["worker"] for it in answers)
        return len(workers) == 2

    servers.wait_until(is_enough, "both workers to serve")
    log = gunicorn.end()
    assert "Traceback" not in log
    assert "locus_store" not in log
    with open_blocking(url, state_type=dict) as checkpointer:
        assert sorted(checkpointer.load("order-7")["said"]) == sorted(said)
        assert len(checkpointer.list_checkpoints("order-7", limit=1000)) == len(said)


# --- the end


WAYS_TO_END = [
    "exit_inside_the_loop",
    "error_inside_the_loop",
    "exit_with_daemon_threads",
    "exit_without_a_word",
    "exit_with_telemetry",
]


@pytest.mark.parametrize("how", first_of(*WAYS_TO_END))
@on_disk
def test_an_end_without_a_close_is_quiet_and_loses_no_acknowledged_save(url: str, how: str) -> None:
    assert ran(how, url) == list(range(5))
    with open_blocking(url, state_type=dict) as checkpointer:
        assert checkpointer.list_checkpoints("t") == [f"v{n}" for n in range(4, -1, -1)]
        for step in range(5):
            assert checkpointer.load("t", f"v{step}") == {"step": step}


@pytest.mark.parametrize("how", first_of(*WAYS_TO_END))
def test_an_end_in_memory_is_quiet(how: str) -> None:
    assert ran(how, "memory://") == list(range(5))


@on_disk
@pytest.mark.full
def test_what_is_told_while_the_interpreter_ends_is_no_error(url: str) -> None:
    told = [it for it in ran("exit_while_told_of", url) if isinstance(it, str)]
    opens = not url.startswith("file:")
    assert {"locus_store.operations", *["locus_store.connections"] * opens} == set(told)


def test_memory_is_gone_with_its_process() -> None:
    assert open_blocking("memory://", state_type=dict).load("t") is None
    assert MemoryCheckpointer().capabilities.persistent_checkpoint_ids is False
