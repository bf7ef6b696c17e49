"""The options of storages: one table for each technology, and what is made of it."""

from __future__ import annotations

import inspect
from importlib import import_module
from typing import Any, get_type_hints

import pytest

from locus_store import InvalidArgumentError, backends, open_checkpointer, sqlite_checkpointer
from locus_store.backends.options import CheckpointerOptions
from locus_store.open import TECHNOLOGIES, list_options
from locus_store.types.options import (
    IN_PYTHON,
    URL_EXTRAS,
    CheckpointOptions,
    fill_defaults,
    read_options,
    read_query,
    split_url,
)

PLACES = {"self", "dsn", "path", "url", "directory", "base_dir", "base_url", "options"}


def options(folder: str) -> type:
    """The class of all options of a technology."""
    return import_module(f"locus_store.backends.{folder}.options").URL_OPTIONS


def parameters(call: Any) -> dict[str, str]:
    """Names and annotations of what it takes."""
    return {it.name: str(it.annotation) for it in inspect.signature(call).parameters.values()}


@pytest.mark.parametrize("folder", [*TECHNOLOGIES, "checkpoints"])
def test_every_default_is_a_value_that_is_taken_and_every_option_has_a_meaning(folder: str) -> None:
    kind = CheckpointOptions if folder == "checkpoints" else options(folder)
    defaults = fill_defaults(kind, {}, "f")
    assert defaults == {name: it.default for name, it in read_options(kind).items()}
    assert fill_defaults(kind, defaults, "f") == defaults
    assert all(it.description for it in read_options(kind).values())


def test_the_options_that_type_checkers_know_of_a_url_are_those_of_all_technologies() -> None:
    taken = {name for folder in TECHNOLOGIES for name in read_options(options(folder))}
    taken |= {name for kind in URL_EXTRAS for name in read_options(kind)}
    assert taken == CheckpointerOptions.__annotations__.keys()


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


def test_an_option_that_there_is_not_is_told_with_the_most_similar_one() -> None:
    for option, meant in (("tennant", "tenant"), ("keeplast", "keep_last")):
        with pytest.raises(TypeError, match=rf"'{option}' \(did you mean '{meant}'"):
            sqlite_checkpointer("x.db", **{option: 1})  # type: ignore[call-arg]


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"pool_size": 0}, r"pool_size=0: it must be greater than or equal to 1"),
        ({"pool_size": True}, r"pool_size=True: it must be a valid integer"),
        ({"pool_timeout_seconds": "1"}, r"pool_timeout_seconds=str: it must be a valid number"),
        ({"password": 5}, r"password=5: it must be a valid string or it must be callable"),
        ({"auto_migrate": "maybe"}, r"auto_migrate=str: .*'upgrade'"),
    ],
)
def test_a_value_that_makes_no_sense_is_told_and_no_string_is_repeated(
    given: dict[str, Any], told: str
) -> None:
    with pytest.raises(InvalidArgumentError, match=told) as caught:
        fill_defaults(options("postgresql"), given, "f")
    assert "maybe" not in str(caught.value)


def test_a_query_string_is_read_by_the_types_of_the_options() -> None:
    query = "pool_size=3&pool_timeout_seconds=2.5&pgbouncer=true&schema=a%20b&auto_migrate=upgrade"
    assert read_query((options("postgresql"), CheckpointOptions), f"{query}&keep_last=7") == {
        "pool_size": 3,
        "pool_timeout_seconds": 2.5,
        "pgbouncer": True,
        "schema": "a b",
        "auto_migrate": "upgrade",
        "keep_last": 7,
    }
    assert read_query((options("sqlite"),), "") == {}


@pytest.mark.parametrize(
    ("query", "told"),
    [
        ("keep_lats=3", "no option 'keep_lats'.*did you mean 'keep_last'.*known options: audit"),
        ("engine=x", "engine= cannot be in a URL"),
        ("keep_last=x", "keep_last='x': it must be a valid integer"),
        ("keep_last", "name=value"),
    ],
)
def test_a_query_string_that_makes_no_sense_is_refused(query: str, told: str) -> None:
    with pytest.raises(InvalidArgumentError, match=told):
        open_checkpointer(f"sqlite:///x.db?{query}")


def test_a_url_is_parted_from_the_options_of_this_library() -> None:
    url = "postgresql://h/d?sslmode=require&pool_size=3&password=a%26b&keep_last=1"
    found = split_url(url, options("postgresql"))
    assert found == ("postgresql://h/d?sslmode=require&password=a%26b", "pool_size=3&keep_last=1")
    assert list_options(url) > {"pool_size", "keep_last"}


def test_options_of_a_class_with_objects_are_marked() -> None:
    marked = {
        name for name, it in read_options(options("postgresql")).items() if IN_PYTHON in it.metadata
    }
    assert marked == {"engine", "pool", "password", "host", "port", "database", "user"}
    assert get_type_hints(options("sqlite"))
