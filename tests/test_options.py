"""The options that type checkers know are those of the signatures."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

from locus_store.backends import (
    file,
    http,
    oci,
    opensearch,
    options,
    oracle,
    postgresql,
    redis,
    sqlite,
)
from locus_store.backends.http.options import HTTPOptions
from locus_store.backends.oracle.options import OracleOptions
from locus_store.backends.postgresql.options import PostgreSQLOptions
from locus_store.backends.redis.options import RedisOptions
from locus_store.backends.sqlite.options import SQLiteOptions
from locus_store.open import options_of

PLACES = {"self", "dsn", "path", "url", "directory", "base_dir", "base_url"}


def parameters(call: Any) -> dict[str, str]:
    """Names and annotations of what it takes, but the place."""
    found = inspect.signature(call).parameters.values()
    return {it.name: str(it.annotation) for it in found if it.name not in PLACES}


@pytest.mark.parametrize(
    ("named", "backend", "positional"),
    [
        (SQLiteOptions, sqlite.SQLiteBackend, {"table_name"}),
        (PostgreSQLOptions, postgresql.PostgreSQLBackend, {"table_name"}),
        (OracleOptions, oracle.OracleBackend, {"table_name", "user", "password"}),
        (RedisOptions, redis.RedisBackend, {"prefix"}),
        (HTTPOptions, http.HTTPBackend, set()),
    ],
)
def test_the_options_of_a_backend_are_its_parameters(
    named: Any, backend: Any, positional: set[str]
) -> None:
    taken = {name: kind for name, kind in parameters(backend).items() if name not in positional}
    assert {name: it.__forward_arg__ for name, it in named.__annotations__.items()} == taken


@pytest.mark.parametrize(
    ("made", "by"),
    [
        (http.HTTPCheckpointer, http.http_checkpointer),
        (file.FileCheckpointer, file.file_checkpointer),
        (oci.OCIBucketBackend, oci.oci_bucket_checkpointer),
        (opensearch.OpenSearchCheckpointer, opensearch.opensearch_checkpointer),
    ],
)
def test_a_factory_shows_the_options_of_its_class(made: Any, by: Any) -> None:
    assert parameters(by) == parameters(made)
    assert inspect.signature(by).return_annotation == f"{made.__name__}[S]"
    assert (by.__module__, by.__doc__[:6]) == (made.__module__, "Return")


def test_the_options_of_a_url_are_those_of_all_factories() -> None:
    urls = ("file:x", "http://h", "memory://", "oci://n/b", "oracle://x", "postgresql://")
    urls += ("opensearch://h", "redis://", "sqlite://")
    taken = {name for url in urls for name in options_of(url)}
    assert taken - {"state_type"} == options.CheckpointerOptions.__annotations__.keys()
