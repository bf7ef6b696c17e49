"""Spans and metrics of a checkpointer, printed: ``pip install opentelemetry-sdk`` first."""

from __future__ import annotations

import asyncio

from opentelemetry import metrics, trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import ConsoleMetricExporter, PeriodicExportingMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, ConsoleSpanExporter

from locus_store import open_checkpointer

spans = TracerProvider()
spans.add_span_processor(BatchSpanProcessor(ConsoleSpanExporter()))
trace.set_tracer_provider(spans)
measures = MeterProvider([PeriodicExportingMetricReader(ConsoleMetricExporter())])
metrics.set_meter_provider(measures)


async def main() -> None:
    """Save and load once."""
    async with open_checkpointer("sqlite:///agents.db", state_type=dict) as checkpointer:
        await checkpointer.save({"said": ["hello"]}, "order-7")
        await checkpointer.load("order-7")


asyncio.run(main())
