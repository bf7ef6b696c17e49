"""An adapter without its framework says which extra to install."""

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
