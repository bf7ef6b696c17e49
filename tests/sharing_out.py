"""Shares the tests out among the processes of a run.

The tests of a module, and of the folder of a framework, go to one process: the others do not
import the framework, start its servers or make the module's fixtures.
"""

from __future__ import annotations

from xdist.scheduler import LoadScopeScheduling

FOLDERS = ("tests/adapters/", "tests/backends/")
LONG = ("tests/machines/",)
"""Each of their tests takes as long as a module."""


class ByModule(LoadScopeScheduling):
    """In the order of the collection."""

    def _split_scope(self, nodeid: str) -> str:
        module = nodeid.partition("::")[0]
        if module.startswith(LONG):
            return nodeid
        return module.rpartition("/")[0] if module.startswith(FOLDERS) else module
