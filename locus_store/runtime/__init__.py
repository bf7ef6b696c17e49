"""The process around a call: event loops, forks, and telemetry."""
