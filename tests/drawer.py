# drawer.py
import sqlite3
from contextlib import closing
from uuid import uuid4

from locus_store.backends.documents import Documents, Found, StaleTagError

CREATE = "INSERT INTO documents VALUES (?1, ?2, ?3) ON CONFLICT DO NOTHING RETURNING ?4"
REPLACE = "UPDATE documents SET tag = ?2, content = ?3 WHERE key = ?1 AND tag = ?4 RETURNING 1"


class Drawer(Documents):
    """Documents in a table of SQLite."""

    def __init__(self, path):
        self.path = path
        self.run("CREATE TABLE IF NOT EXISTS documents (key PRIMARY KEY, tag, content)")

    def __repr__(self):
        return f"Drawer({str(self.path)!r})"

    def run(self, statement, *values):
        with closing(sqlite3.connect(self.path, isolation_level=None)) as connection:
            return connection.execute(statement, values).fetchall()

    def get(self, key, *, known=None):
        rows = self.run("SELECT tag, content FROM documents WHERE key = ?", key)
        return Found(*rows[0]) if rows else None

    def put(self, key, body, *, tag):
        stored = self.get(key)
        new, content = uuid4().hex, body.whole(stored.content if stored else b"")
        if not self.run(CREATE if tag is None else REPLACE, key, new, content, tag):
            raise StaleTagError
        return new

    def delete(self, key, *, tag):
        if not self.run("DELETE FROM documents WHERE key = ? AND tag = ? RETURNING 1", key, tag):
            raise StaleTagError

    def keys(self, after=""):
        rows = self.run("SELECT key FROM documents WHERE key > ? ORDER BY key", after)
        return (key for (key,) in rows)
