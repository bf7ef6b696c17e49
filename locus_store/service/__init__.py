"""The service: any backend behind a URL, as an ASGI application."""

from locus_store.errors import MissingExtraError, make_install_command

try:
    import starlette  # noqa: F401  (whatever is imported first says what to install)
except ImportError as exc:
    raise MissingExtraError(
        f"the service needs Starlette: {make_install_command('service')}", name="starlette"
    ) from exc

from locus_store.service.application import app

__all__ = ["app"]
