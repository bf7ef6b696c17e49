"""The inspector: pages in a browser over any backend, as an ASGI application."""

from locus_store.errors import require_extra

with require_extra("the inspector needs Starlette and Jinja2", "inspector"):
    import jinja2  # noqa: F401
    import starlette  # noqa: F401

from locus_store.inspector.application import app
from locus_store.service.access import Caller

__all__ = ["Caller", "app"]
