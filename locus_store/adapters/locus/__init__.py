"""The Locus SDK on every backend, and the import of its threads."""

from locus_store.adapters.locus.store import LocusStore, register

__all__ = ["LocusStore", "register"]
