"""The options that type checkers know are those of the signatures."""

from __future__ import annotations

import inspect
from importlib import import_module
from typing import Any

import pytest

from locus_store import backends
from locus_store.backends.options import CheckpointerOptions
from locus_store.open import options_of

PLACES = {"self", "dsn", "path", "url", "directory", "base_dir", "base_url"}


def parameters(call: Any) -> dict[str, str]:
    """Names and annotations of what it takes, but the place."""
    found = inspect.signature(call).parameters.values()
    return {it.name: str(it.annotation) for it in found if it.name not in PLACES}


@pytest.mark.parametrize(
    ("named", "backend", "positional"),
    [
        ("SQLiteOptions", "SQLiteBackend", {"table_name"}),
        ("PostgreSQLOptions", "PostgreSQLBackend", {"table_name"}),
        ("OracleOptions", "OracleBackend", {"table_name", "user", "password"}),
        ("RedisOptions", "RedisBackend", {"prefix"}),
        ("HTTPOptions", "HTTPBackend", set()),
        ("S3Options", "S3Backend", {"bucket_name"}),
    ],
)
def test_the_options_of_a_backend_are_its_parameters(
    named: str, backend: str, positional: set[str]
) -> None:
    made = getattr(backends, backend)
    options = import_module(f"{made.__module__.rpartition('.')[0]}.options")
    taken = {name: kind for name, kind in parameters(made).items() if name not in positional}
    assert {
        name: it.__forward_arg__ for name, it in getattr(options, named).__annotations__.items()
    } == taken


@pytest.mark.parametrize(
    ("made", "by"),
    [
        ("HTTPCheckpointer", "http_checkpointer"),
        ("FileCheckpointer", "file_checkpointer"),
        ("OCIBucketBackend", "oci_bucket_checkpointer"),
        ("OpenSearchCheckpointer", "opensearch_checkpointer"),
    ],
)
def test_a_factory_shows_the_options_of_its_class(made: str, by: str) -> None:
    shown, factory = getattr(backends, made), getattr(backends, by)
    assert parameters(factory) == parameters(shown)
    assert inspect.signature(factory).return_annotation == f"{made}[S]"
    assert (factory.__module__, factory.__doc__[:6]) == (shown.__module__, "Return")


def test_the_options_of_a_url_are_those_of_all_factories() -> None:
    urls = ("file:x", "http://h", "memory://", "oci://n/b", "oracle://x", "postgresql://")
    urls += ("opensearch://h", "redis://", "s3://b", "sqlite://")
    taken = {name for url in urls for name in options_of(url)}
    assert taken - {"state_type"} == CheckpointerOptions.__annotations__.keys()
