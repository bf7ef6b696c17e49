"""Late imports of agent frameworks and other libraries, when the first test of a module runs.

Most frameworks take half a second to import, and each process of the tests collects all tests.
So a test module imports them, and defines what is made of their classes, in such blocks::

    if TESTS_RUN:
        from langgraph.types import Send

Nothing of a block is there while tests are collected. A decorator has ``Later`` for it::

    @pytest.mark.parametrize("value", [1, Later(lambda: Send("node", 1))])
"""

from __future__ import annotations

import ast
import gc
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

    import pytest

TESTS_RUN = False
"""The condition of a block, as Python and linters read it."""

HEAVY = (
    "agent_framework", "agentflow", "agents", "alembic", "claude_agent_sdk", "google.adk",
    "google.genai", "langchain_core", "langgraph", "locus", "numpy", "oci", "openai", "pyagenity",
    "pydantic_ai", "strands",
)  # fmt: skip
"""Modules that the collection of tests must not import."""

LIBRARIES = (
    "aiohttp", "cryptography", "filelock", "httpx", "jinja2", "opentelemetry", "oracledb",
    "prometheus_client", "redis", "rich", "starlette", "typer", "uvicorn", "yaml",
)  # fmt: skip
"""Modules that only the folders ``full`` may import when they are collected."""

_imported: set[str] = set()
_done: set[str] = set()


@dataclass(frozen=True, repr=False)
class Later:
    """A parameter of a test that is made when the test runs."""

    make: Callable[[], Any]

    def __repr__(self) -> str:
        return "later"


def newly_imported(*, is_full: bool) -> list[str]:
    """Return the heavy modules that this process has imported since the last call."""
    both = (*HEAVY, *LIBRARIES)
    found = [it for it in both if sys.modules.get(it) and it not in _imported]
    _imported.update(found)
    return [it for it in found if it in HEAVY or not is_full]


def prepare(test: pytest.Function) -> None:
    """Run the blocks of a test's module, unless that was done, and make the test's parameters."""
    module = test.module
    if hasattr(module, "TESTS_RUN") and module.__name__ not in _done:
        _run_blocks(module, Path(module.__file__))
        _done.add(module.__name__)
    parameters = test.callspec.params if hasattr(test, "callspec") else {}
    parameters |= {name: it.make() for name, it in parameters.items() if isinstance(it, Later)}


def _run_blocks(module: ModuleType, path: Path) -> None:
    """Run the blocks in the module's namespace; what they import stays until the end."""
    tree = ast.parse(path.read_text("utf-8"))
    blocks = [it for it in tree.body if isinstance(it, ast.If)]
    tree.body = [
        it for block in blocks if ast.unparse(block.test) == "TESTS_RUN" for it in block.body
    ]
    gc.collect()
    gc.disable()
    exec(compile(tree, path, "exec"), vars(module))  # noqa: S102
    gc.freeze()
    gc.enable()
