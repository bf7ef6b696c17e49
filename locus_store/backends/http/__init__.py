"""A service over HTTP."""

from locus_store.errors import require_extra

with require_extra("HTTP needs aiohttp", "http"):
    import aiohttp  # noqa: F401

from locus_store.backends.http.backend import HTTPBackend, HTTPCheckpointer, http_checkpointer

__all__ = ["HTTPBackend", "HTTPCheckpointer", "http_checkpointer"]
