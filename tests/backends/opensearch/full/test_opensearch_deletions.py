"""Deletions that the server refuses in a request of several writes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import orjson
import pytest
from watched import Watched

from locus_store import BackendError, opensearch_checkpointer
from locus_store.backends.documents import segmented
from locus_store.backends.documents.objects import LAYOUT
from locus_store.backends.opensearch.bulk import make_id

if TYPE_CHECKING:
    from collections.abc import Iterator

    from indexes import TestIndex

pytestmark = pytest.mark.anyio


class Refusing(Watched):
    """A client whose server refuses the deletion of some documents."""

    refused: frozenset[str] = frozenset()

    def perform_request(self, method: str, url: str, **options: Any) -> Any:
        lines = options["body"].split(b"\n")[:-1] if url.endswith("/_bulk") else []
        asked = [orjson.loads(it).get("delete", {"_id": ""})["_id"] for it in lines]
        if self.refused.isdisjoint(asked):
            return super().perform_request(method, url, **options)
        error = {"type": "cluster_block_exception", "reason": "blocked"}
        first = {"delete": {"_id": "x", "status": 409, "error": error}}
        return {"errors": True, "items": [first] * len(asked)}


@pytest.fixture
def refusing(index: TestIndex, monkeypatch: pytest.MonkeyPatch) -> Iterator[Refusing]:
    monkeypatch.setattr(segmented, "TAIL_BYTES", 1)
    made = Refusing(index)
    yield made
    made.real.close()


@pytest.mark.parametrize("kind", ["segment", "version"])
async def test_a_deletion_that_leaves_documents_is_an_error(
    kind: str, index: TestIndex, refusing: Refusing
) -> None:
    async with opensearch_checkpointer(
        client=refusing, index_name=index.name, state_type=dict
    ) as checkpointer:
        for name in ("a", "b"):
            await checkpointer.save({"secret": name}, name)
        index.refresh()
        assert await checkpointer.backend.damage() == []
        objects = checkpointer.backend.index
        refusing.refused = frozenset(make_id(it.name) for it in objects.list(f"{LAYOUT}{kind}s/"))
        with pytest.raises(BackendError, match="1 documents were not deleted and stay"):
            await checkpointer.delete("a")
        refusing.refused = frozenset()
        index.refresh()
        [told] = await checkpointer.backend.damage()
        assert "1 versions or segments is named by no thread" in told
        assert await checkpointer.load("b") == {"secret": "b"}
