"""A service over HTTP."""

from locus_store.errors import MissingExtraError, pip_install

try:
    import aiohttp  # noqa: F401  (whatever is imported first says what to install)
except ImportError as exc:
    raise MissingExtraError(f"HTTP needs aiohttp: {pip_install('http')}", name="aiohttp") from exc

from locus_store.backends.http.backend import HTTPBackend, HTTPCheckpointer, http_checkpointer

__all__ = ["HTTPBackend", "HTTPCheckpointer", "http_checkpointer"]
