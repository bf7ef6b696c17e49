"""Databases, their connections and the runners of transactions."""
