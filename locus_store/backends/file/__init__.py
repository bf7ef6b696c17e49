"""A directory of JSON files."""

from locus_store.backends.file.backend import (
    FileBackend,
    FileCheckpointer,
    FileMessageLog,
    file_checkpointer,
)

__all__ = ["FileBackend", "FileCheckpointer", "FileMessageLog", "file_checkpointer"]
