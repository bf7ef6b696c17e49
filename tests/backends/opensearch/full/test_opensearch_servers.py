"""The node of the tests: shared by the processes of a run, from jars that are those of a list."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import opensearch_servers
import pytest
from servers import UnavailableError

if TYPE_CHECKING:
    from opensearch_servers import Server

ASK = """
import sys, opensearch_servers
from pathlib import Path
print(opensearch_servers.shared(Path(sys.argv[1])).url)
sys.stdin.read()
"""


def test_the_node_is_the_server_that_the_jars_name(opensearch_server: Server) -> None:
    version = opensearch_server.ask("GET", "/")["version"]
    assert version["distribution"] == "opensearch"
    assert int(version["number"].partition(".")[0]) >= 2


def test_the_processes_of_a_run_share_a_node_that_ends_with_the_last(tmp_path: Path) -> None:
    try:
        opensearch_servers.command()
    except UnavailableError as error:
        pytest.skip(str(error))
    run: Any = [sys.executable, "-c", ASK, str(tmp_path)]
    here = Path(opensearch_servers.__file__).parent
    pipes: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "cwd": here}
    first, second = subprocess.Popen(run, **pipes), subprocess.Popen(run, **pipes)
    url = first.stdout.readline().strip()
    assert second.stdout.readline().strip() == url
    server = opensearch_servers.Server(url)
    first.communicate()
    assert server.answers()
    second.communicate()
    deadline = time.monotonic() + 60
    while (tmp_path / "node").exists() and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not (tmp_path / "node").exists()
    assert not server.answers()


def test_jars_that_are_not_those_of_the_list_are_refused(tmp_path: Path) -> None:
    (tmp_path / "opensearch-3.8.0.jar").write_bytes(b"another")
    with pytest.raises(UnavailableError, match=r"not those of the list: \{.*'opensearch-3\.8\.0"):
        opensearch_servers._verify(tmp_path)


def test_an_old_java_is_not_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "bin" / "java"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\necho 'openjdk version \"17.0.15\"' >&2\n")
    program.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert opensearch_servers._version(program) == 17
    assert opensearch_servers.java() != program
