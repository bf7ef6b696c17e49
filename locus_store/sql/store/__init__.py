"""The store of items."""
