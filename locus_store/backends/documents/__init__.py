"""Whole threads as documents behind a conditional put."""
