"""The inspector: pages in a browser over any backend, as an ASGI application."""

from locus_store.errors import MissingExtraError, make_install_command

try:
    import jinja2  # noqa: F401  (whatever is imported first says what to install)
    import starlette  # noqa: F401
except ImportError as exc:
    raise MissingExtraError(
        f"the inspector needs Starlette and Jinja2: {make_install_command('inspector')}",
        name=exc.name or "jinja2",
    ) from exc

from locus_store.inspector.application import app
from locus_store.service.access import Caller

__all__ = ["Caller", "app"]
