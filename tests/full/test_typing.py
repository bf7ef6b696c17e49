"""Type checkers know what ``load`` returns, and every option."""

from __future__ import annotations

import re
from pathlib import Path

from mypy import api

ROOT = Path(__file__).parents[2]

PASSING = """
from pydantic import BaseModel

from locus_store import (
    BaseCheckpointer, CheckpointSaver, FileCheckpointer, MemoryCheckpointer, PostgreSQLBackend,
    PostgreSQLStore, SQLiteBackend,
    SQLiteStore, StorageBackendAdapter, blocking, file_checkpointer, http_checkpointer,
    oci_bucket_checkpointer, open_checkpointer, open_saver, open_store, postgresql_checkpointer,
    sqlite_checkpointer,
)


class MyState(BaseModel):
    total: int = 0


def made_backend() -> StorageBackendAdapter[MyState, PostgreSQLBackend]:
    return postgresql_checkpointer(host="db", state_type=MyState)


async def asks(url: str, mine: BaseCheckpointer[MyState]) -> None:
    reveal_type(await mine.load("t"))  # reveals: MyState | None
    reveal_type(await open_checkpointer(url).load("t"))  # reveals: Any | None
    by_url = open_checkpointer(url, state_type=MyState, keep_last=3, tenant="acme")
    reveal_type(by_url)  # reveals: StorageBackendAdapter[MyState, FullBackend]
    reveal_type(by_url.backend.for_tenant("a"))  # reveals: FullBackend
    reveal_type(await by_url.backend.forget_user("u"))  # reveals: dict[str, int]
    reveal_type(await made_backend().backend.read_token())  # reveals: str
    reveal_type(await by_url.load("t"))  # reveals: MyState | None
    async with by_url as opened:
        reveal_type(await opened.load("t", "v1"))  # reveals: MyState | None
    made = postgresql_checkpointer(host="db", schema_name="agents", state_type=MyState)
    reveal_type(await made.load("t"))  # reveals: MyState | None
    plain = sqlite_checkpointer(state_type=dict)
    reveal_type(await plain.load("t"))  # reveals: dict[Any, Any] | None
    reveal_type(await MemoryCheckpointer(state_type=MyState).load("t"))  # reveals: MyState | None
    file = FileCheckpointer(base_dir="x", state_type=MyState)
    reveal_type(await file.load("t"))  # reveals: MyState | None
    reveal_type(await FileCheckpointer().load("t"))  # reveals: Any | None
    served = http_checkpointer("http://h", token="s", state_type=MyState)
    reveal_type(served)  # reveals: HTTPCheckpointer[MyState]
    reveal_type(file_checkpointer("x", state_type=MyState))  # reveals: FileCheckpointer[MyState]
    reveal_type(await file_checkpointer().load("t"))  # reveals: Any | None
    bucket = oci_bucket_checkpointer("b", "n", region="r", state_type=dict)
    reveal_type(await bucket.load("t"))  # reveals: dict[Any, Any] | None
    adapter = StorageBackendAdapter(SQLiteBackend("x.db"), state_type=MyState)
    reveal_type(await adapter.load("t"))  # reveals: MyState | None
    reveal_type(await by_url.for_thread("t").load("v1"))  # reveals: MyState | None
    waits = blocking.open_checkpointer(url, state_type=MyState)
    reveal_type(waits.for_thread("t").load())  # reveals: MyState | None
    reveal_type(waits.load("t"))  # reveals: MyState | None
    reveal_type(blocking.BlockingCheckpointer(mine).load("t"))  # reveals: MyState | None
    reveal_type(open_saver(url, keep_last=1))  # reveals: CheckpointSaver
    PostgreSQLStore(backend=made.backend)
    open_store(url, dimension=3, tenant="acme")
    blocking.open_store(url, dimension=3, tenant="acme")
    assert isinstance(by_url.backend, SQLiteBackend)
    await by_url.backend.create_search_index()
    reveal_type(len(await by_url.backend.list_entries(after=0, upto=9, limit=9)))  # reveals: int
    SQLiteStore("x.db", dimension=3, tenant="acme")


class Users(BaseCheckpointer):
    async def save(self, state: object, thread_id: str, checkpoint_id: str | None = None,
                   metadata: dict[str, object] | None = None) -> str:
        return ""

    async def load(self, thread_id: str, checkpoint_id: str | None = None) -> MyState | None:
        return None

    async def list_checkpoints(self, thread_id: str, limit: int = 10) -> list[str]:
        return []


async def takes_any(checkpointer: BaseCheckpointer) -> None:
    reveal_type(await checkpointer.load("t"))  # reveals: Any | None
    reveal_type(await Users().load("t"))  # reveals: MyState | None
"""

FAILING = """
from locus_store import (
    MemoryCheckpointer, PostgreSQLCheckpointSaver, SQLiteStore, blocking, http_checkpointer,
    open_checkpointer, open_saver, open_store, sqlite_checkpointer,
)
from locus_store.backends import PostgreSQLStore

u = "sqlite:///x.db"
open_checkpointer(u, state_typo=dict)  # error: Unexpected keyword argument "state_typo"
open_checkpointer(u, keep_last="3")  # error: "keep_last"
open_checkpointer(u, on_conflict="riase")  # error: "on_conflict"
open_checkpointer(u, state_type=dict())  # error: "state_type"
open_saver(u, state_type=dict)  # error: "state_type"
open_saver(u, keep_lats=3)  # error: Unexpected keyword argument "keep_lats"
open_store(u, dimensions=3)  # error: Unexpected keyword argument "dimensions"
blocking.open_checkpointer(u, state_typo=dict)  # error: Unexpected keyword argument "state_typo"
blocking.open_checkpointer(u).for_thread("t").save({}, parent="v")  # error: "parent"
blocking.open_store(u, tennant="a")  # error: Unexpected keyword argument "tennant"
blocking.InMemoryStore(dimensions=3)  # error: Unexpected keyword argument "dimensions"
http_checkpointer("http://h", tokn="s")  # error: Unexpected keyword argument "tokn"
http_checkpointer("http://h", keep_last="3")  # error: "keep_last"
sqlite_checkpointer(pool_size=3)  # error: Unexpected keyword argument "pool_size"
MemoryCheckpointer(state_typo=dict)  # error: Unexpected keyword argument "state_typo"
PostgreSQLCheckpointSaver(shcema="x")  # error: Unexpected keyword argument "shcema"
SQLiteStore("x.db", pool_size=3)  # error: Unexpected keyword argument "pool_size"
PostgreSQLStore("x", busy_timeout_seconds=3)  # error: Unexpected keyword argument
"""


def expected(name: str, text: str) -> dict[int, str]:
    """Return the messages that are expected for each line."""
    found = enumerate(text.splitlines(), 1)
    marks = ((number, re.search(r"# (reveals|error): (.*)", line)) for number, line in found)
    return {number: mark[2] for number, mark in marks if mark}


def test_mypy_reveals_the_state_and_refuses_unknown_options(tmp_path: Path) -> None:
    """One run for all, since mypy reads this package first."""
    examples = {"passing.py": PASSING, "failing.py": FAILING}
    for name, text in examples.items():
        (tmp_path / name).write_text(text)
    config = ["--config-file", str(ROOT / "pyproject.toml"), "--cache-dir", str(tmp_path / "cache")]
    files = [str(tmp_path / name) for name in examples]
    told, problem, _ = api.run([*config, "--no-error-summary", "--hide-error-context", *files])
    assert problem == ""
    said: dict[str, dict[int, str]] = {name: {} for name in examples}
    for line in told.splitlines():
        found = re.match(r".*?(\w+\.py):(\d+): (?:error|note): (.*)", line)
        assert found, line
        text = re.sub(r"\b\w+(?:\.\w+)*\.(\w+)", r"\1", found[3])
        said[found[1]].setdefault(int(found[2]), text)
    for name, text in examples.items():
        wanted = expected(name, text)
        assert said[name].keys() == wanted.keys(), told
        for number, part in wanted.items():
            revealed = f'Revealed type is "{part}"'
            assert part in said[name][number], told
            assert name == "failing.py" or said[name][number] == revealed, told
