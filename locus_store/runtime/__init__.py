"""Support for event loops, forks and telemetry."""
