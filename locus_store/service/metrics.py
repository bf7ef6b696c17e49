"""Counts and times of requests, as Prometheus reads them."""

from __future__ import annotations

import os
from functools import cache
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector

WORKERS_FOLDER: Final = "PROMETHEUS_MULTIPROC_DIR"
"""The variable of the environment with the folder in which several workers count together;
prometheus-client reads it when it is imported."""


class Metrics:
    """Requests by path and status, and their seconds. Holds no id and no tenant."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        requests = Counter(
            "locus_store_requests",
            "Requests by path and status.",
            ("path", "status"),
            registry=self._registry,
        )
        times = Histogram(
            "locus_store_request_seconds",
            "Seconds that requests took, by path.",
            ("path",),
            registry=self._registry,
        )
        self._requests = cache(requests.labels)
        self._seconds = cache(times.labels)

    def count(self, path: str, status: int, seconds: float) -> None:
        """Count a request."""
        self._requests(path, status).inc()
        self._seconds(path).observe(seconds)

    def shown(self) -> bytes:
        """Return the text of ``/metrics``: the sum over all workers of the service."""
        registry = self._registry
        if WORKERS_FOLDER in os.environ:
            registry = CollectorRegistry()
            MultiProcessCollector(registry)  # type: ignore[no-untyped-call]
        return generate_latest(registry)
