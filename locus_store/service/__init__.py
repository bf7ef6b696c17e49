"""The service: any backend behind a URL, as an ASGI application."""

from locus_store.errors import MissingExtraError, pip_install

try:
    import starlette  # noqa: F401  (whatever is imported first says what to install)
except ImportError as exc:
    raise MissingExtraError(
        f"the service needs Starlette: {pip_install('service')}", name="starlette"
    ) from exc

from locus_store.service.application import app

__all__ = ["app"]
