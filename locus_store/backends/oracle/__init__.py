"""Oracle AI Database 26ai."""

from locus_store.backends.oracle.backend import (
    OracleBackend,
    OracleCheckpointSaver,
    oracle_checkpointer,
)

__all__ = ["OracleBackend", "OracleCheckpointSaver", "oracle_checkpointer"]
