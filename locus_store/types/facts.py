"""Facts about a backend and the software below it, for ``locus-store doctor``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Verdict = Literal["ok", "warn", "fail", "info"]


@dataclass(frozen=True, slots=True)
class Fact:
    """One line of the output of ``locus-store doctor``."""

    name: str
    value: str
    verdict: Verdict = "info"
    """``fail``: it does not work so; ``warn``: it should be looked at."""

    remedy: str = ""
    """The remedy; always given for a warning and a failure."""
