"""The former place of the import of the Locus SDK's threads."""

from locus_store.adapters.locus.import_threads import import_locus as import_locus  # noqa: PLC0414
