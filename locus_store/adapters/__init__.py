"""Adapters that let other frameworks use a backend: mapping only, no storage."""
