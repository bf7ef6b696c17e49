"""The message log in memory: its contract, and behind the blocking facade."""

from __future__ import annotations

import pytest

from locus_store import InMemoryMessageLog
from locus_store.testing import MessageLogContract


class TestMemory(MessageLogContract):
    @pytest.fixture
    def reopen(self):
        backends = []

        def reopen(**options):
            if "max_state_bytes" in options:
                return InMemoryMessageLog(**options)
            made = InMemoryMessageLog(**options, backend=backends[0] if backends else None)
            backends.append(made.backend)
            return made

        return reopen
