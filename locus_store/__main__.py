"""``python -m locus_store``."""

from locus_store.cli import main

main()
