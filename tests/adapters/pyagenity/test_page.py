"""The programs of ``docs/pyagenity.md``, with the library that is installed."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[3] / "docs" / "pyagenity.md"
BLOCK = re.compile(r"^```\w+\n(.*?)^```$", re.MULTILINE | re.DOTALL)
OURS = "\nfrom locus_store"
LIBRARIES = ["agentflow", "pyagenity"]


@pytest.mark.parametrize("library", LIBRARIES)
def test_the_program_prints_what_the_page_shows(library, tmp_path) -> None:
    if find_spec(library) is None:
        pytest.skip(f"{library} is not installed: see make pyagenity")
    name = f"trip_{library}.py"
    shown = BLOCK.findall(PAGE.read_text("utf-8"))
    whole, printed = next(it for it in pairwise(shown) if it[0].startswith("# trip_agentflow.py"))
    imports = next(it for it in shown if it.startswith(f"# {name}")).partition(OURS)[0]
    (tmp_path / name).write_text(imports + OURS + whole.partition(OURS)[2])
    told = [
        subprocess.run([sys.executable, name], cwd=tmp_path, check=True, capture_output=True).stdout
        for _ in range(2)
    ]
    assert told[0].decode() == printed
    assert told[1].decode().startswith(printed + "user Two tickets to Porto.\n")
