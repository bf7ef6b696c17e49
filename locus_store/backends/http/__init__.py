"""A service over HTTP."""

from locus_store.errors import MissingExtraError

try:
    import httpx  # noqa: F401  (whatever is imported first says what to install)
except ImportError as exc:
    raise MissingExtraError(
        'HTTP needs httpx: pip install "locus-store[http]"', name="httpx"
    ) from exc

from locus_store.backends.http.backend import HTTPBackend, HTTPCheckpointer, http_checkpointer

__all__ = ["HTTPBackend", "HTTPCheckpointer", "http_checkpointer"]
