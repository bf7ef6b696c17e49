"""In-process memory, for tests and for programs that end."""

from locus_store.backends.memory.backend import (
    MemoryBackend,
    MemoryCheckpointer,
    memory_checkpointer,
)

__all__ = ["MemoryBackend", "MemoryCheckpointer", "memory_checkpointer"]
