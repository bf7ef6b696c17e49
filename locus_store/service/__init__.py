"""The service: any backend behind a URL, as an ASGI application."""

from locus_store.errors import MissingExtraError

try:
    import starlette  # noqa: F401  (whatever is imported first says what to install)
except ImportError as exc:
    raise MissingExtraError(
        'the service needs Starlette: pip install "locus-store[service]"', name="starlette"
    ) from exc

from locus_store.service.application import app

__all__ = ["app"]
