"""The service: any backend behind a URL, as an ASGI application."""

from locus_store.errors import require_extra

with require_extra("the service is not installed", "service"):
    import prometheus_client  # noqa: F401
    import starlette  # noqa: F401

from locus_store.service.application import app

__all__ = ["app"]
