"""Facts of an Oracle database, for ``locus-store doctor``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import sqlalchemy as sa

from locus_store.sql.connections.diagnostics import Examination, package_version
from locus_store.types.facts import Fact

if TYPE_CHECKING:
    from collections.abc import Iterator

OLDEST_ORACLE: Final = 23


class OracleExamination(Examination):
    """A server, and the driver's thin mode."""

    def software(self) -> Iterator[Fact]:
        """See ``Examination``."""
        yield Fact("SQLAlchemy", sa.__version__)
        yield Fact("oracledb", package_version("oracledb"))
        driver: Any = self.connection.connection.driver_connection
        number = int(str(driver.version).partition(".")[0])
        is_fine = number >= OLDEST_ORACLE
        yield Fact(
            "server",
            f"Oracle Database {driver.version}",
            "ok" if is_fine else "fail",
            "" if is_fine else f"upgrade the server to {OLDEST_ORACLE}ai or later",
        )
