"""Whatever can go wrong is told by a typed error whose message says what to do."""

from __future__ import annotations

import asyncio
import inspect
import json
import subprocess
import sys
from datetime import date
from pathlib import Path
from traceback import format_exception
from typing import Any

import pytest

from locus_store import (
    AgentState,
    ConnectionFailedError,
    InvalidArgumentError,
    LocusStoreError,
    MemoryBackend,
    MemoryCheckpointer,
    SerializationError,
    SQLiteBackend,
    StorageBackendAdapter,
    errors,
    open_checkpointer,
    open_message_log,
    open_saver,
    open_storage,
    open_store,
    sqlite_checkpointer,
)
from locus_store.sql.migrate import upgrade
from locus_store.types.arguments import check_limit, check_number

pytestmark = pytest.mark.anyio
STATE = AgentState()

# --- the tree


def test_every_error_is_in_the_tree_that_the_module_draws() -> None:
    found = [it for _, it in inspect.getmembers(errors, inspect.isclass)]
    assert all(issubclass(it, LocusStoreError) for it in found)
    assert all(it.__name__ in errors.__doc__ for it in found)
    for ours, builtin in (
        (errors.NotFoundError, LookupError), (errors.UnsupportedError, NotImplementedError),
        (errors.SerializationError, ValueError), (errors.ConnectionFailedError, ConnectionError),
        (errors.InvalidArgumentError, ValueError), (errors.MissingExtraError, ImportError),
        (errors.NotOwnerError, PermissionError),
    ):  # fmt: skip
        assert issubclass(ours, builtin)


def test_a_backend_without_its_driver_says_what_to_install() -> None:
    code = """
import sys
sys.modules["asyncpg"] = None  # as if it were not installed
import locus_store
try:
    locus_store.open_checkpointer("postgresql://user:secret@host/db")
except locus_store.MissingExtraError as error:
    assert isinstance(error, ImportError)
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip().endswith(errors.make_install_command("postgres"))
    assert "secret" not in done.stdout


@pytest.mark.parametrize(
    ("origin", "command"),
    [
        (None, 'pip install "locus-store[a,b]"'),
        ({"url": "file:///a%20b", "dir_info": {}}, 'pip install "/a b[a,b]"'),
        ({"url": "file:///x", "dir_info": {"editable": True}}, 'pip install -e "/x[a,b]"'),
        (
            {"url": "file:///x.whl", "archive_info": {}},
            'pip install "locus-store[a,b] @ file:///x.whl"',
        ),
    ],
)
def test_an_extra_is_installed_from_where_the_package_came_from(
    monkeypatch: pytest.MonkeyPatch, origin: object, command: str
) -> None:
    class Installed:
        @staticmethod
        def read_text(name: str) -> str | None:
            return json.dumps(origin) if origin and name == "direct_url.json" else None

    monkeypatch.setattr("importlib.metadata.distribution", lambda name: Installed)
    assert errors.make_install_command("a", "b") == command


# --- URLs and options


@pytest.mark.parametrize("url", ["mysql://host/db", "nonsense", "", "://", "x:y"])
def test_an_unknown_scheme_names_the_known_ones(url: str) -> None:
    with pytest.raises(InvalidArgumentError, match=r"memory://.*sqlite://"):
        open_checkpointer(url)


@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("sqlite:/file.db", "two slashes after its scheme: sqlite://$"),
        ("redis:user:s3cret@host", "two slashes after its scheme: redis://$"),
        ("SQLITE:///file.db", "'SQLITE' .did you mean 'sqlite'"),
        ("sqlite:///", "has no path: write sqlite:///file.db, or sqlite:// for memory$"),
        ("sqlite+aiosqlite:///?keep_last=3", "has no path"),
        (None, "^'None' is not a URL; known schemes: "),
        ("sqlite:///x.db?tenant=a&tenant=b", "tenant= is twice in the URL: leave one out"),
    ],
)
def test_a_slip_in_a_url_is_named(url: Any, told: str) -> None:
    with pytest.raises(InvalidArgumentError, match=told):
        open_checkpointer(url)


def test_a_password_of_keywords_may_look_like_an_escape() -> None:
    open_storage("host=h password=s%FF")


@pytest.mark.parametrize("opening", [open_checkpointer, open_message_log, open_store])
@pytest.mark.parametrize(
    "place", ["sqlite:///{}/a%FF.db", "file://{}/%FF", "redis://u:s3cret%FF@h/0", "s3://b/%ff"]
)
def test_escapes_that_are_not_utf8_are_refused_before_a_write(
    opening: Any, place: str, tmp_path: Path
) -> None:
    for call in (opening, upgrade) if place.startswith("sqlite") else (opening,):
        with pytest.raises(InvalidArgumentError, match="not UTF-8; write %25 for %") as told:
            call(place.format(tmp_path))
        assert "s3cret" not in "".join(format_exception(told.value))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("opening", [open_checkpointer, open_saver, open_store, open_storage])
def test_with_in_place_of_async_with_is_answered(opening: Any) -> None:
    with (
        pytest.raises(TypeError, match=r"takes 'async with'; locus_store.blocking"),
        opening("memory://"),
    ):
        pytest.fail("it was opened")


@pytest.mark.parametrize("opening", [open_checkpointer, open_saver, open_store])
@pytest.mark.parametrize(
    ("path", "url"),
    [
        ("x.db", "sqlite:///x.db"),
        ("data/agents.sqlite3", "sqlite:///data/agents.sqlite3"),
        ("/var/x.db", "sqlite:////var/x.db"),
    ],
)
def test_a_path_in_place_of_a_url_is_answered_by_the_url(opening: Any, path: str, url: str) -> None:
    with pytest.raises(InvalidArgumentError) as told:
        opening(path)
    assert str(told.value) == f"{path!r} is not a URL; did you mean {url}?"


def test_a_directory_in_place_of_a_url_is_answered_by_a_file_url(tmp_path: Any) -> None:
    with pytest.raises(InvalidArgumentError, match=f"did you mean file:{tmp_path}"):
        open_checkpointer(str(tmp_path))


@pytest.mark.parametrize(
    "url", ["sqlite://file.db", "sqlite://host/file.db", "memory://name", "sqlite:///a.db#x"]
)
def test_a_url_that_says_too_much_is_refused(url: str) -> None:
    with pytest.raises(InvalidArgumentError):
        open_checkpointer(url)


def test_a_secret_in_a_wrong_url_is_not_repeated() -> None:
    for url in (
        "user:s3cret@host/x.db",
        "mysql://user:s3cret@host/db",
        "sqlite://user:s3cret@host/db",
    ):
        with pytest.raises(InvalidArgumentError) as told:
            open_checkpointer(url)
        assert "s3cret" not in str(told.value)


@pytest.mark.parametrize("url", ["memory://", "sqlite://", "file:d", "postgresql://u@h/d"])
def test_an_unknown_option_in_a_url_is_named(url: str) -> None:
    with pytest.raises(InvalidArgumentError, match="colour"):
        open_checkpointer(f"{url}?colour=red")


@pytest.mark.parametrize("url", ["memory://", "sqlite://", "file:d"])
def test_an_unknown_option_in_a_url_is_told_with_those_that_there_are(url: str) -> None:
    with pytest.raises(InvalidArgumentError, match=r"keep_last.*ttl_seconds") as told:
        open_checkpointer(f"{url}?colour=red")
    assert "state_type" not in str(told.value)


@pytest.mark.parametrize("query", ["sqlite:///a?path=b", "file:a?directory=b"])
def test_a_url_names_its_place_once(query: str) -> None:
    with pytest.raises(InvalidArgumentError, match="no option"):
        open_checkpointer(query)


def test_an_unknown_argument_is_a_type_error_everywhere() -> None:
    for factory, place in {
        sqlite_checkpointer: [":memory:"],
        SQLiteBackend: [":memory:"],
        MemoryCheckpointer: [],
        open_checkpointer: ["memory://"],
    }.items():
        with pytest.raises(TypeError, match="colour"):
            factory(*place, colour="red")


@pytest.mark.parametrize("query", ["keep_last=x", "ttl_seconds=soon", "keep_last=", "keep_last=0"])
def test_an_option_in_a_url_that_makes_no_sense_is_named(query: str) -> None:
    with pytest.raises(InvalidArgumentError, match=query.partition("=")[0]):
        open_checkpointer(f"memory://?{query}")


@pytest.mark.parametrize(
    "options",
    [
        {"path": ""}, {"path": None}, {"path": 7}, {"path": "a\0b"}, {"prefix": "1x"},
        {"prefix": "x;y"}, {"table_name": "t", "prefix": "p"}, {"engine": "sqlite://"},
        {"tenant": ""}, {"tenant": None}, {"tenant": "x" * 256}, {"busy_timeout_seconds": -1},
        {"auto_migrate": "yes"}, {"state_type": int}, {"state_type": "dict"}, {"on_conflict": "x"},
    ],
    ids=str,
)  # fmt: skip
def test_an_option_that_makes_no_sense_is_refused_at_once(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgumentError):
        sqlite_checkpointer(**{"path": ":memory:", **options})


def test_an_adapter_wraps_backends_only() -> None:
    for wrong in (MemoryCheckpointer(), object(), MemoryBackend):
        with pytest.raises(TypeError, match="StorageBackend"):
            StorageBackendAdapter(wrong)


# --- what is saved


@pytest.mark.parametrize(
    ("value", "hint"),
    [
        (float("nan"), "nan"), (float("inf"), "inf"), (date(2026, 1, 1), "isoformat"),
        ({1, 2}, "list"), (b"bytes", "base64"), ({1: 2}, "str"), (2**64, "64 bits"),
        (object(), "JSON"),
    ],
    ids=lambda it: ascii(it)[:20],
)  # fmt: skip
async def test_what_json_cannot_keep_is_named_with_a_way_out(value: Any, hint: str) -> None:
    checkpointer = MemoryCheckpointer(state_type=dict)
    with pytest.raises(SerializationError) as told:
        await checkpointer.save({"messages": [{"content": value}]}, "t")
    assert "messages[0].content" in str(told.value)
    assert hint in str(told.value)
    with pytest.raises(SerializationError, match=r"metadata\.key"):
        await checkpointer.save({}, "t", metadata={"key": value})
    assert not await checkpointer.exists("t")


async def test_a_state_that_is_too_deep_or_round_is_refused() -> None:
    deep: Any = []
    for _ in range(300):
        deep = [deep]
    around: dict[str, Any] = {}
    around["self"] = around
    for value in (deep, around):
        with pytest.raises(SerializationError, match=r"deep|nested"):
            await MemoryCheckpointer(state_type=dict).save({"value": value}, "t")


async def test_a_stored_state_that_does_not_fit_the_type_says_how_to_look_at_it() -> None:
    checkpointer = MemoryCheckpointer(state_type=AgentState)
    await checkpointer.save({"messages": "not a list"}, "t")
    with pytest.raises(SerializationError, match="state_type=dict"):
        await checkpointer.load("t")


async def test_an_id_that_is_refused_is_named() -> None:
    checkpointer = MemoryCheckpointer()
    for call, name in (
        (checkpointer.save(STATE, ""), "thread_id"), (checkpointer.load("x" * 256), "255"),
        (checkpointer.save(STATE, "t", "a\0b"), "checkpoint_id.*NUL"),
        (checkpointer.delete(7), "thread_id must be a str, not int"),
        (checkpointer.save(STATE, "t", parent_checkpoint_id=""), "parent_checkpoint_id"),
    ):  # fmt: skip
        with pytest.raises(InvalidArgumentError, match=name):
            await call


def test_no_error_is_hidden_by_a_loop_that_ended() -> None:
    async def failing() -> None:
        await sqlite_checkpointer("/proc/none/file.db").save(STATE, "t")

    for _ in range(2):
        with pytest.raises(ConnectionFailedError):
            asyncio.run(failing())


@pytest.mark.parametrize(
    ("number", "shown"),
    [(-1, ", not -1"), ("5", ", not '5'"), (True, ", not True"), (-(10**5000), "")],
    ids=["negative", "text", "truth", "long"],
)
def test_a_refused_number_is_shown_unless_it_is_too_long(number: Any, shown: str) -> None:
    with pytest.raises(InvalidArgumentError) as limit:
        check_limit(number, maximum=9)
    assert str(limit.value) == f"limit must be a whole number from 0 to 9{shown}"
    with pytest.raises(InvalidArgumentError) as age:
        check_number("age", number)
    assert str(age.value) == f"age must be a number above 0{shown}"
