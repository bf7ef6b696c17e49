"""An adapter needs its extra only, and says which one to install."""

from __future__ import annotations

import subprocess
import sys

import pytest

from locus_store.errors import make_install_command

FRAMEWORKS = {
    "adk": ("google.adk", "adk"),
    "agent_framework": ("agent_framework", "agent-framework"),
    "claude_agent": ("claude_agent_sdk", "claude-agent"),
    "openai_agents": ("agents", "openai-agents"),
    "pydantic_ai": ("pydantic_ai", "pydantic-ai"),
    "strands": ("strands", "strands"),
}


@pytest.mark.parametrize("adapter", FRAMEWORKS)
def test_an_adapter_without_its_framework_names_the_extra(adapter: str) -> None:
    framework, extra = FRAMEWORKS[adapter]
    script = f"""
import sys
sys.modules[{framework!r}] = None
from locus_store import MissingExtraError
try:
    import locus_store.adapters.{adapter}
except MissingExtraError as exc:
    print(exc)
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert make_install_command(extra) in done.stdout


OF_CHECKPOINT = ("langgraph.cache", "langgraph.checkpoint", "langgraph.store")
"""The packages of langgraph-checkpoint, the only one of the extra ``langgraph``."""


def test_langgraph_checkpoint_alone_runs_the_saver_the_store_and_the_import(tmp_path) -> None:
    script = f"""
import sys

class Finder:
    def find_spec(self, name, path=None, target=None):
        if name.startswith("langgraph.") and not name.startswith({OF_CHECKPOINT!r}):
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Finder())
from langgraph.checkpoint.base import empty_checkpoint
from langgraph.checkpoint.sqlite import SqliteSaver
from locus_store.adapters.langgraph import LangGraphSaver, LangGraphStore
from locus_store.cli import main

config = {{"configurable": {{"thread_id": "t", "checkpoint_ns": ""}}}}
ours, theirs = "sqlite:///ours.db", "theirs.db"
for opened in (LangGraphSaver.from_url(ours), SqliteSaver.from_conn_string(theirs)):
    with opened as saver:
        saver.put(config, empty_checkpoint(), {{}}, {{}})
        print(len(list(saver.list(config))))
with LangGraphStore.from_url(ours) as store:
    store.put(("a",), "k", {{"v": 1}})
    print(store.get(("a",), "k").value)
sys.argv[1:] = ["import", "langgraph", f"sqlite:///{{theirs}}", "--url", "sqlite:///new.db"]
main()
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, cwd=tmp_path, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("1\n1\n{'v': 1}\ntenant 'default': 1 thread imported")
