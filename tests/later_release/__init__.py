"""Later releases of the library: the package's chain of migrations with two revisions more.

0002 gives each thread a title, in batches; 0003 raises the compatibility floor. What migrations
promise is tested on this chain, as the package's own has one revision.
"""

from __future__ import annotations

import shutil
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from locus_store.sql import migrate
from locus_store.sql.schema import status

if TYPE_CHECKING:
    from collections.abc import Iterator

SCRIPTS = migrate.SCRIPTS
LATER = Path(__file__).parent / "versions"
PACKAGE = status.REVISIONS
REVISIONS = (*PACKAGE, "0002", "0003")


class Release:
    """A release that knows the revisions up to ``last``; the package itself is an older one.

    Args:
        folder: Of its scripts, which another process may use as well.
        last: Its newest revision.
    """

    def __init__(self, folder: Path, last: str = REVISIONS[-1]) -> None:
        self.revisions = REVISIONS[: REVISIONS.index(last) + 1]
        self.scripts = folder / f"release_{last}"
        if not self.scripts.exists():
            shutil.copytree(SCRIPTS, self.scripts, ignore=shutil.ignore_patterns("__pycache__"))
            for it in sorted(LATER.glob("*.py"))[: len(self.revisions) - len(PACKAGE)]:
                shutil.copy(it, self.scripts / "versions")

    @contextmanager
    def installed(self) -> Iterator[None]:
        """This process runs the release in the package's place."""
        before = migrate.SCRIPTS, status.REVISIONS, status.HEAD
        migrate.SCRIPTS, status.REVISIONS = self.scripts, self.revisions
        status.HEAD = self.revisions[-1]
        try:
            yield
        finally:
            migrate.SCRIPTS, status.REVISIONS, status.HEAD = before
