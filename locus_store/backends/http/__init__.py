"""A service over HTTP."""

from locus_store.errors import MissingExtraError, make_install_command

try:
    import aiohttp  # noqa: F401  (whatever is imported first says what to install)
except ImportError as exc:
    raise MissingExtraError(
        f"HTTP needs aiohttp: {make_install_command('http')}", name="aiohttp"
    ) from exc

from locus_store.backends.http.backend import HTTPBackend, HTTPCheckpointer, http_checkpointer

__all__ = ["HTTPBackend", "HTTPCheckpointer", "http_checkpointer"]
