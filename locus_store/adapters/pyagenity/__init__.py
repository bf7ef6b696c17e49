"""Sessions for the graphs of PyAgenity, and of AgentFlow, which succeeded it."""

from locus_store.adapters.pyagenity.checkpointers import (
    InMemoryCheckpointer,
    PgCheckpointer,
    SessionCheckpointer,
    SqliteCheckpointer,
)

__all__ = ["InMemoryCheckpointer", "PgCheckpointer", "SessionCheckpointer", "SqliteCheckpointer"]
