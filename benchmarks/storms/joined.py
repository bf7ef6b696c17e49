"""Records are joined after every second save, so that storms meet segments all the time."""

from __future__ import annotations

import os
import traceback
from typing import NoReturn

from locus_store.sql.threads import segments as joining
from locus_store.versions import segments


def join_often() -> None:
    """Join two records each; the process ends if they cannot be joined."""
    segments.RECORDS = 2
    joining.report_not_joined = _end


def _end(_: str, exc: Exception) -> NoReturn:
    """End at once: the work beside the calls has nobody to tell."""
    traceback.print_exception(exc)
    os._exit(3)
