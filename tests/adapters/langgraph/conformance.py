"""LangGraph's conformance suite for savers, on a backend."""

from __future__ import annotations

COUNTS = {
    "put": 17,
    "put_writes": 10,
    "get_tuple": 10,
    "list": 16,
    "delete_thread": 5,
    "delete_for_runs": 7,
    "copy_thread": 8,
    "prune": 8,
}
"""Tests of the suite by capability, 81 in all; a later release may have more."""


async def conforms(opened, capability):
    """Run one part of the suite over the backends that ``opened`` makes."""
    from langgraph.checkpoint.conformance import checkpointer_test, validate

    from locus_store.adapters.langgraph import LangGraphSaver

    @checkpointer_test(name="LangGraphSaver")
    async def made():
        async with LangGraphSaver(opened()) as saver:
            yield saver

    report = await validate(made, capabilities={capability})
    result = report.results[capability]
    assert result.failures == []
    assert (result.detected, result.passed, result.tests_skipped) == (True, True, 0)
