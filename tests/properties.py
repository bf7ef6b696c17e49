"""Hypothesis for tests of properties, which give an example as long as it takes.

By default, Hypothesis fails where an example takes 200 ms, as it may on a busy machine.
"""

from __future__ import annotations

from hypothesis import HealthCheck, given, reject, settings

__all__ = ["given", "reject", "settings"]

settings.register_profile(
    "busy machine", deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("busy machine")
