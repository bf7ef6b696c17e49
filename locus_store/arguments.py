"""The former place of ``locus_store.types.arguments``."""

from locus_store.types.arguments import *  # noqa: F403
