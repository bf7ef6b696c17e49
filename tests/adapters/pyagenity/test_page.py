"""The programs of ``docs/pyagenity.md``, with the library that is installed."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[3] / "docs" / "pyagenity.md"
BLOCK = re.compile(r"^```\w+\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LIBRARIES = ["agentflow", "pyagenity"]


@pytest.mark.parametrize("library", LIBRARIES)
def test_the_program_prints_what_the_page_shows(library, tmp_path) -> None:
    if find_spec(library) is None:
        pytest.skip(f"{library} is not installed: see make pyagenity")
    name = f"trip_{library}.py"
    shown = BLOCK.findall(PAGE.read_text("utf-8"))
    at = next(n for n, it in enumerate(shown) if it.startswith(f"# {name}"))
    (tmp_path / name).write_text(shown[at])
    told = [
        subprocess.run([sys.executable, name], cwd=tmp_path, check=True, capture_output=True).stdout
        for _ in range(2)
    ]
    assert told[0].decode() == shown[at + 1]
    assert told[1].decode().startswith(shown[at + 1] + "user Two tickets to Porto.\n")
