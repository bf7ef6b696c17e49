"""LangGraph's conformance suite on the double of Oracle."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from conformance import COUNTS, conforms
from storages.oracle import PLACE

from locus_store import OracleBackend

if TYPE_CHECKING:
    from oracle_twin import TwinServer


@pytest.mark.anyio
@pytest.mark.parametrize("capability", COUNTS)
async def test_the_conformance_suite_passes_over_the_double(
    capability: str, twin: TwinServer
) -> None:
    await conforms(lambda: OracleBackend(**PLACE), capability)
