"""The words of SQL that the library sends, compared with the features that are tried."""

from __future__ import annotations

import re
from typing import Any

import oracle_methods as methods
import pytest
import servers
from test_compatibility import NOT_TRIED, words, words_tried

from locus_store import (
    PostgreSQLBackend,
    PostgreSQLCheckpointSaver,
    PostgreSQLMessageLog,
    PostgreSQLStore,
)

pytestmark = pytest.mark.anyio

LOGGED = re.compile(r"@@LOG:  (?:statement|execute [^:]*): (.*)", re.DOTALL)
SETTINGS = {"log_statement": "all", "log_line_prefix": "@@"}


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


EMBEDDINGS = {"operator", "<=>"}
"""Words of pgvector's, which the library's own work tries."""


async def test_the_features_have_every_word_that_is_sent() -> None:
    with servers.started(servers.PostgreSQL, settings=SETTINGS) as server:
        backend = PostgreSQLBackend(server.url())
        store = PostgreSQLStore(backend=backend, dimension=3)
        saver = PostgreSQLCheckpointSaver(server.url())
        log = PostgreSQLMessageLog(backend=backend)
        for number, (name, call) in enumerate(methods.SCENARIOS.items()):
            parts = (it.for_tenant(f"t{number}") for it in (backend, saver, store, log))
            opened: Any = methods.Opened(*parts)
            if not name.endswith("_on"):
                await methods.prepare(opened)
                await call(opened)
        await backend.create_search_index()
        await saver.close()
        await store.close()
        await backend.close()
        logged = (LOGGED.match(it) for it in re.split("(?=@@)", server.log))
        sent = [re.sub(r"/\*.*?\*/", "", it[1]) for it in logged if it]
    assert len(sent) > 3000
    assert set[str]().union(*map(words, sent)) - words_tried() - NOT_TRIED == EMBEDDINGS
