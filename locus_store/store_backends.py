"""The former place of the stores, which ``locus_store`` exports."""

from locus_store.backends import __all__, __getattr__  # noqa: F401
