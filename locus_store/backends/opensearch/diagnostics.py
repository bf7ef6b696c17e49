"""Facts about a cluster and its index for ``locus-store doctor``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from locus_store.backends.documents.object_documents import HEADS, SEGMENTS
from locus_store.backends.opensearch import failures
from locus_store.types.facts import Fact

if TYPE_CHECKING:
    from locus_store.backends.opensearch.client import IndexObjects

_REMEDIES: Final = {
    "yellow": "some copies are missing: add a node, or set number_of_replicas to what there is",
    "red": "a shard has no copy: bring its node back, or restore a snapshot",
}


def facts(objects: IndexObjects) -> list[Fact]:
    """Return the server's version, the number of documents and the health of the index."""
    version = objects.call("GET", "/")["version"]
    kind = version.get("distribution", "elasticsearch")
    server = Fact("server", f"{kind} {version['number']}")
    heads, segments = (sum(1 for _ in objects.list(it)) for it in (HEADS, SEGMENTS))
    count = Fact("threads", f"{heads:,} (a head each; {segments:,} segments)")
    return [server, count, _health(objects)]


def _health(objects: IndexObjects) -> Fact:
    name = objects.place.name
    if "error" in objects.call("GET", f"/{name}", seen=(failures.MISSING,)):
        return Fact("index", "there is none yet; the first save creates it")
    status = objects.call("GET", f"/_cluster/health/{name}")["status"]
    if status == "green":
        return Fact("index", "green", "ok")
    return Fact("index", status, "fail" if status == "red" else "warn", _REMEDIES[status])
