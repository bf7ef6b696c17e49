"""Counts of requests, as Prometheus reads them."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


class Metrics:
    """Requests by path and status, and their seconds. Holds no id and no tenant."""

    def __init__(self) -> None:
        self._requests: Counter[tuple[str, int]] = Counter()
        self._seconds: Counter[str] = Counter()

    def count(self, path: str, status: int, seconds: float) -> None:
        """Count a request."""
        self._requests[path, status] += 1
        self._seconds[path] += seconds  # type: ignore[assignment]  # seconds are not whole

    def shown(self) -> str:
        """Return the text of ``/metrics``."""
        return "\n".join([*self._lines(), ""])

    def _lines(self) -> Iterator[str]:
        yield "# HELP locus_store_requests_total Requests by path and status."
        yield "# TYPE locus_store_requests_total counter"
        for (path, status), number in sorted(self._requests.items()):
            labels = f'path="{path}",status="{status}"'
            yield f"locus_store_requests_total{{{labels}}} {number}"
        yield "# HELP locus_store_request_seconds_total Seconds that requests took, by path."
        yield "# TYPE locus_store_request_seconds_total counter"
        for path, seconds in sorted(self._seconds.items()):
            yield f'locus_store_request_seconds_total{{path="{path}"}} {seconds:.6f}'
