"""The state of an index, for ``locus-store db check``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from locus_store.backends.opensearch import failures, index
from locus_store.errors import SchemaError

if TYPE_CHECKING:
    from locus_store.backends.opensearch.client import IndexClient


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexStatus:
    """The state of an index; ``state`` has the words of ``locus-store db check``."""

    state: str
    revision: str | None
    message: str

    @property
    def usable(self) -> bool:
        """This library can work on it."""
        return self.state in {"ok", "missing"}


def check(client: IndexClient) -> IndexStatus:
    """Return the state of an index; change nothing."""
    found = client.call("GET", f"/{client.place.name}", seen=(failures.MISSING,))
    if "error" in found:
        return IndexStatus(
            state="missing",
            revision=None,
            message=f"{client.place} does not exist; the first write creates it",
        )
    try:
        _, meta = index.find_ours(found, client.place, client.layout)
    except SchemaError as exc:
        return IndexStatus(state="foreign", revision=None, message=str(exc))
    version = meta[client.layout.mark]
    try:
        index.require_ours(found, client.place, client.layout)
    except SchemaError as exc:
        state = "too new" if version > client.layout.version else "behind"
        return IndexStatus(state=state, revision=str(version), message=str(exc))
    message = f"{client.place} has version {version} of the mapping"
    return IndexStatus(state="ok", revision=str(version), message=message)
