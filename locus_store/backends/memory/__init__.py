"""In-process memory, for tests and for programs that end."""

from locus_store.backends.memory.backend import (
    InMemoryMessageLog,
    MemoryBackend,
    MemoryCheckpointer,
    memory_checkpointer,
)

__all__ = ["InMemoryMessageLog", "MemoryBackend", "MemoryCheckpointer", "memory_checkpointer"]
