"""The stores, at the place that they have in the Locus SDK."""

from locus_store.backends import __all__, __getattr__  # noqa: F401
