"""Statements of message logs."""
