"""The double of Oracle, encrypted: in a module of its own, as it needs a newer SQLAlchemy."""

from __future__ import annotations

from typing import Any

from locus_store import OracleBackend, OracleMessageLog, OracleStore
from storages import oracle
from storages.encrypted import Each, FileProbe


class OnDouble(Each, oracle.Double):
    """Oracle's dialect over a double."""

    kinds = (OracleBackend, OracleStore, OracleMessageLog)

    def build(self, construct: Any, kind: Any, **options: Any) -> Any:
        return construct(kind, **oracle.PLACE, **options)

    def probe(self) -> FileProbe:
        return FileProbe(self.server.path)
