from __future__ import annotations

import asyncio
import io
import json
import os
import shutil
import sqlite3
import subprocess
import sys
from contextlib import closing
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pytest
import test_cli
from test_cli import Terminal
from test_cli_threads import CHAT, ids, parsed, save
from tiers import first_of

from locus_store import open_checkpointer
from locus_store.open import SCHEMES
from locus_store.transfer.counts import Counts
from locus_store.types import PendingWrite

if TYPE_CHECKING:
    from collections.abc import Callable

    Run = Callable[..., tuple[int, str, str]]

run = test_cli.run
STORES = ["sqlite", "postgresql", "redis", *({"file"} & SCHEMES.keys())]


def place(kind: str, name: str, request: pytest.FixtureRequest) -> str:
    if kind == "postgresql":
        return str(request.getfixturevalue("migrated_database"))
    if kind == "redis":
        return f"{request.getfixturevalue('redis_url')}?prefix={name}:"
    folder, migrated = request.getfixturevalue("tmp_path"), request.getfixturevalue("migrated")
    if kind == "file":
        return f"file://{folder / name}"
    return f"sqlite:///{shutil.copy(migrated, folder / f'{name}.db')}"


@pytest.fixture(params=first_of(*STORES))
def url(request: pytest.FixtureRequest, run: Run, monkeypatch: pytest.MonkeyPatch) -> str:
    """A store with two users' threads, one of them with a branch and a pending write."""
    found = place(request.param, "here", request)
    monkeypatch.setenv("LOCUS_STORE_URL", found)
    save(found, "t", *CHAT, with_={"metadata": {"user_id": "u"}})
    save(found, "t", {"n": 7}, name="fork", with_={"parent_id": "v0"})
    save(found, "other", CHAT[0], with_={"metadata": {"user_id": "w"}})

    async def pending() -> None:
        async with open_checkpointer(found) as checkpointer:
            await checkpointer.backend.put_writes(
                "t", "v1", [PendingWrite("task", 0, "c", "json", b"1")]
            )

    asyncio.run(pending())
    return found


@pytest.fixture
def there(tmp_path: Path) -> str:
    """An empty place."""
    return f"sqlite:///{tmp_path / 'there.db'}"


def lines(text: str) -> list[dict[str, Any]]:
    return [json.loads(it) for it in text.splitlines()]


def named(url: str) -> str:
    """Return the beginning of a summary."""
    return "tenant 'default': " if url.startswith(("sqlite", "postgresql", "redis")) else ""


def with_tenant(url: str, counts: dict[str, int]) -> dict[str, Any]:
    """The JSON of a summary."""
    return {**counts, "tenant": "default"} if named(url) else counts


def whole(url: str, thread: str) -> Any:
    async def asked() -> Any:
        async with open_checkpointer(url) as checkpointer:
            return await checkpointer.backend.read_thread(thread)

    return asyncio.run(asked())


# --- verify


def test_verify_counts_what_is_in_order(run: Run, url: str) -> None:
    assert run("verify") == (0, f"{named(url)}2 threads, 4 versions, 0 problems\n", "")
    counts = {"threads": 2, "versions": 4, "problems": 0}
    assert lines(run("verify", "--json")[1]) == [{"kind": "summary", **with_tenant(url, counts)}]
    assert run("verify", "t")[1] == f"{named(url)}1 thread, 3 versions, 0 problems\n"


def test_verify_says_that_a_named_thread_is_not_there(run: Run, url: str) -> None:
    code, _, errors = run("verify", "t", "no")
    assert code == 4
    assert "'no'" in errors


def test_verify_finds_damage_and_tells_it_by_its_exit_code(run: Run) -> None:
    run("db", "upgrade")
    save("sqlite:///locus_checkpoints.db", "t", *CHAT)
    with closing(sqlite3.connect("locus_checkpoints.db")) as connection:
        connection.execute("UPDATE locus_checkpoints SET digest = zeroblob(16) WHERE sequence = 2")
        connection.commit()
    code, out, errors = run("verify")
    assert code == 3
    assert "v1" in out
    assert "1 problem" in out
    assert "backup" in errors
    code, out, _ = run("verify", "--json")
    assert code == 3
    problem, summary = lines(out)
    assert (problem["kind"], problem["thread_id"], problem["checkpoint_id"]) == (
        "problem",
        "t",
        "v1",
    )
    assert summary["problems"] == 1


# --- copy


def test_copy_takes_everything_and_skips_what_is_there(run: Run, url: str, there: str) -> None:
    found = parsed(run, "copy", "--from", url, "--to", there)
    assert found == with_tenant(url, {"written": 2, "same": 0, "items_written": 0, "items_same": 0})
    assert whole(there, "t") == whole(url, "t")
    code, out, _ = run("copy", "--from", url, "--to", there)
    into = "" if named(url) else ", into tenant 'default'"
    assert (code, out) == (0, f"{named(url)}0 threads copied, 2 there already{into}\n")


def test_a_copy_goes_through_every_store_and_back_unchanged(
    run: Run, url: str, tmp_path: Path, database: str
) -> None:
    stores = [url, f"sqlite:///{tmp_path / 'one.db'}", f"file://{tmp_path / 'files'}", database]
    stores.append(f"sqlite:///{tmp_path / 'two.db'}")
    for item in (("memory/u", "a", '{"n": 1}', "--ttl", "3600"), ("/", "b", '"é"')):
        assert run("store", "put", *item)[0] == 0
    items = _list_items(run, url)
    new = {"written": 2, "same": 0, "items_written": 2, "items_same": 0}
    for here, next_ in pairwise(stores):
        found = parsed(run, "copy", "--from", here, "--to", next_)
        assert found == with_tenant(here, new)
    for thread in ids(url):
        assert [whole(it, thread) for it in stores] == [whole(url, thread)] * len(stores)
    assert [_list_items(run, it) for it in stores] == [items] * len(stores)
    found = parsed(run, "copy", "--from", stores[-1], "--to", url)
    same = {"written": 0, "same": 2, "items_written": 0, "items_same": 2}
    assert found == with_tenant(stores[-1], same)
    found = parsed(run, "copy", "--from", url, "--to", "memory://")
    assert found == with_tenant(url, new)


def _list_items(run: Run, url: str) -> Any:
    return json.loads(run("store", "search", "/", "--url", url, "--json")[1])


def test_a_copy_and_an_export_of_all_take_the_items(run: Run, url: str, there: str) -> None:
    for key in "abc":
        run("store", "put", "memory/u", key, "1")
    run("store", "put", "/", "d", "1")
    items = _list_items(run, url)
    copied = ("copy", "--from", url, "--to", there)
    assert run(*copied, "--thread", "t")[0] == run(*copied, "--no-items")[0] == 0
    assert _list_items(run, there) == []
    run("store", "put", "memory/u", "a", "2", "--url", there)
    code, _, errors = run(*copied)
    assert code == 5
    assert "item 'a' of namespace ('memory', 'u'): the target has another" in errors
    assert run("store", "delete", "memory/u", "a", "--url", there, "--yes")[0] == 0
    found = run(*copied)[1]
    assert "0 threads copied, 2 there already; 1 item, 3 there already" in found
    assert _list_items(run, there) == items
    assert run("export", "t", "-o", "t.jsonl")[0] == 0
    assert run("export", "--all", "--no-items", "-o", "threads.jsonl")[0] == 0
    exported = run("export", "--all", "-o", "all.jsonl")
    assert (exported[0], exported[2]) == (0, f"{named(url)}2 threads, 4 items exported\n")
    for name, count in (("t", 0), ("threads", 0), ("all", 4)):
        assert Path(f"{name}.jsonl").read_text().count('{"kind":"item"') == count
    assert run("store", "delete", "memory/u", "--all", "--yes", "--url", there)[0] == 0
    left_out = parsed(run, "import", "file", "all.jsonl", "--no-items", "--url", there)
    assert (left_out["same"], left_out["items_same"]) == (2, 0)
    taken = parsed(run, "import", "file", "all.jsonl", "--url", there)
    assert (taken["items_written"], taken["items_same"]) == (3, 1)
    assert _list_items(run, there) == items


def test_copy_takes_only_the_threads_that_are_named(run: Run, url: str, there: str) -> None:
    assert run("copy", "--from", url, "--to", there, "--thread", "t")[0] == 0
    assert ids(there) == ["t"]
    assert run("copy", "--from", url, "--to", there, "--thread", "no")[0] == 4


def test_copy_overwrites_nothing(run: Run, url: str, there: str) -> None:
    save(there, "t", {"n": 1})
    code, out, errors = run("copy", "--from", url, "--to", there)
    assert (code, out) == (5, "")
    assert errors.startswith("Error: ")
    assert run("threads", "show", "t", "--url", there, "--json")[0] == 0


def test_copy_finds_its_urls_in_the_environment(
    run: Run, url: str, there: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run("copy")[0] == 2
    monkeypatch.setenv("LOCUS_STORE_FROM", url)
    monkeypatch.setenv("LOCUS_STORE_TO", there)
    assert run("copy")[0] == 0
    assert ids(there) == ["other", "t"]


def test_copy_does_not_make_its_source(run: Run, there: str, tmp_path: Path) -> None:
    code, _, _ = run("copy", "--from", "sqlite:///typo.db", "--to", there)
    assert code == 1
    assert not (tmp_path / "typo.db").exists()


def test_no_message_repeats_a_password(run: Run, there: str) -> None:
    address = "postgresql://u:s3cret@127.0.0.1:1/d"
    for command in (
        ("copy", "--from", address, "--to", there),
        ("copy", "--from", there, "--to", address),
        ("verify", "--url", address),
        ("doctor", "--url", address),
        ("threads", "list", "--url", address),
        ("import", "langgraph", address, "--url", there),
    ):
        code, out, errors = run(*command)
        assert code in {1, 3}
        assert "s3cret" not in out + errors


# --- export and import


def test_what_is_exported_can_be_imported(run: Run, url: str, there: str) -> None:
    code, out, errors = run("export", "--all", "--output", "all.jsonl")
    assert (code, out, errors) == (0, "", f"{named(url)}2 threads exported\n")
    found = parsed(run, "import", "file", "all.jsonl", "--url", there)
    counts = {"written": 2, "same": 0, "items_written": 0, "items_same": 0}
    assert found == with_tenant(there, counts)
    assert whole(there, "t") == whole(url, "t")
    assert run("import", "file", "all.jsonl", "--url", there)[1] == (
        f"{named(there)}0 threads imported, 2 there already\n"
    )


def test_export_writes_json_lines_to_standard_output(run: Run, url: str) -> None:
    code, out, _ = run("export", "t")
    assert code == 0
    assert lines(out)[0]["thread_id"] == "t"
    assert "other" not in out


def test_standard_input_can_be_imported(
    run: Run, url: str, there: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, out, _ = run("export", "--user", "u")
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(out.encode())))
    assert run("import", "file", "-", "--url", there)[0] == 0
    assert ids(there) == ["t"]


@pytest.mark.parametrize("arguments", [(), ("t", "--all"), ("--all", "--user", "u")])
def test_export_wants_to_be_told_what(run: Run, url: str, arguments: tuple[str, ...]) -> None:
    assert run("export", *arguments)[0] == 2


def test_an_export_that_fails_leaves_no_file(run: Run, url: str, tmp_path: Path) -> None:
    there = {it.name for it in tmp_path.iterdir()}
    assert run("export", "t", "no", "--output", "some.jsonl")[0] == 4
    assert run("export", "t", "--output", "no/such/x.jsonl")[0] == 1
    assert {it.name for it in tmp_path.iterdir()} == there


def test_an_export_overwrites_no_file(run: Run, url: str) -> None:
    Path("mine.jsonl").write_text("mine")
    assert run("export", "t", "--output", "mine.jsonl")[0] == 1
    assert Path("mine.jsonl").read_text() == "mine"


def test_an_export_overwrites_no_link(run: Run, url: str) -> None:
    Path("link.jsonl").symlink_to("nowhere")
    assert run("export", "t", "--output", "link.jsonl")[0] == 1
    assert (Path("link.jsonl").readlink(), Path("nowhere").exists()) == (Path("nowhere"), False)


@pytest.mark.parametrize("has_links", [True, False])
def test_of_two_exports_to_one_file_the_slower_is_told(
    run: Run, url: str, monkeypatch: pytest.MonkeyPatch, has_links: bool
) -> None:
    before = set(Path().iterdir())
    link = os.link

    def linked(made: str, name: str) -> None:
        Path(name).write_text("the faster one's")
        if not has_links:
            raise PermissionError(1, "Operation not permitted")
        link(made, name)

    monkeypatch.setattr(os, "link", linked)
    code, _, errors = run("export", "t", "--output", "t.jsonl")
    assert (code, Path("t.jsonl").read_text()) == (1, "the faster one's")
    assert "already exists" in errors
    assert set(Path().iterdir()) == before | {Path("t.jsonl")}


def test_an_export_needs_no_hard_links(run: Run, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: str) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", refused)
    before = set(Path().iterdir())
    name = Path("t" * 255)  # the longest there is
    assert run("export", "t", "--output", str(name))[0] == 0
    assert lines(name.read_text())[-1] == {"kind": "complete", "threads": 1, "items": 0}
    assert set(Path().iterdir()) == before | {name}


def test_a_directory_is_no_file_to_import(run: Run, there: str) -> None:
    code, _, errors = run("import", "file", ".", "--url", there)
    assert (code, errors) == (1, "Error: . cannot be read: Is a directory\n")


def test_a_damaged_file_is_told_by_its_line(run: Run, url: str, there: str) -> None:
    run("export", "t", "--output", "t.jsonl")
    text = Path("t.jsonl").read_text().replace('"n"', '"m"', 1)
    Path("t.jsonl").write_text(text)
    code, out, errors = run("import", "file", "t.jsonl", "--url", there)
    assert (code, out) == (1, "")
    assert errors.startswith("Error: ")
    assert ids(there) == []


@pytest.mark.parametrize("at", [0, -1])
def test_a_file_that_is_cut_off_is_reported(run: Run, url: str, there: str, at: int) -> None:
    run("export", "--all", "--output", "all.jsonl")
    Path("cut.jsonl").write_text("".join(Path("all.jsonl").read_text().splitlines(True)[:at]))
    code, out, errors = run("import", "file", "cut.jsonl", "--url", there)
    assert (code, out) == (1, "")
    assert "the file is cut off: its last line" in errors
    assert len(ids(there)) == (2 if at else 0)


def test_a_file_that_is_not_there_is_told(run: Run, there: str) -> None:
    code, _, errors = run("import", "file", "no.jsonl", "--url", there)
    assert code == 1
    assert "no.jsonl" in errors


@pytest.mark.full
def test_a_reader_of_an_export_may_go_away(tmp_path: Path, migrated: Path) -> None:
    store = shutil.copy(migrated, tmp_path / "store.db")
    save(f"sqlite:///{store}", "t", *({"n": number, "x": "y" * 5000} for number in range(50)))
    reader, writer = os.pipe()
    os.close(reader)
    with open(writer, "wb") as closed:
        ran = subprocess.run(
            [sys.executable, "-m", "locus_store", "export", "--all"],
            cwd=test_cli.ROOT,
            env={**os.environ, "LOCUS_STORE_URL": f"sqlite:///{store}"},
            stdout=closed,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert "Traceback" not in ran.stderr
    assert "Broken" not in ran.stderr


# --- from other software


@pytest.mark.parametrize("name", ["locus", "langgraph"])
def test_import_hands_on_what_it_was_told(
    run: Run, there: str, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    told: list[Any] = []

    async def take(
        backend: Any, source: str, *, thread_ids: Any = None, progress: Any = None
    ) -> Counts:
        told.extend((repr(backend), source, thread_ids))
        progress("t", True)
        return Counts(written=2, same=1)

    module = ModuleType("taken")
    setattr(module, f"import_{name}", take)
    monkeypatch.setitem(sys.modules, f"locus_store.adapters.{name}.import_threads", module)
    found = parsed(run, "import", name, "sqlite:///old.db", "--url", there, "--thread", "t")
    assert found == with_tenant(there, {"written": 2, "same": 1})
    assert told[1:] == ["sqlite:///old.db", ["t"]]
    assert "there.db" in told[0]
    monkeypatch.setenv("LOCUS_STORE_FROM", "sqlite:///from.db")
    assert run("import", name, "--url", there)[1] == (
        f"{named(there)}2 threads imported, 1 there already\n"
    )
    assert told[-2:] == ["sqlite:///from.db", None]


def test_an_encrypted_database_is_imported_with_its_key(
    run: Run, there: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    savers = pytest.importorskip("langgraph.checkpoint.sqlite")
    from langgraph.checkpoint.base import empty_checkpoint
    from langgraph.checkpoint.serde.encrypted import EncryptedSerializer

    monkeypatch.setenv("LANGGRAPH_AES_KEY", "0123456789abcdef")
    with savers.SqliteSaver.from_conn_string("old.db") as saver:
        saver.serde = EncryptedSerializer.from_pycryptodome_aes()
        place = {"configurable": {"thread_id": "t", "checkpoint_ns": ""}}
        saver.put(place, empty_checkpoint(), {}, {})
    code, _, told = run("import", "langgraph", "sqlite:///old.db", "--url", there)
    assert code == 1
    assert "--decrypt" in told
    monkeypatch.delenv("LANGGRAPH_AES_KEY")
    command = ("import", "langgraph", "sqlite:///old.db", "--decrypt", "--url", there)
    code, _, told = run(*command)
    assert code == 1
    assert "LANGGRAPH_AES_KEY" in told
    monkeypatch.setenv("LANGGRAPH_AES_KEY", "0123456789abcdef")
    assert parsed(run, *command) == {"written": 1, "same": 0, "tenant": "default"}


def test_langgraphs_tables_are_imported(run: Run, there: str) -> None:
    pytest.importorskip("ormsgpack")
    savers = pytest.importorskip("langgraph.checkpoint.sqlite")
    from langgraph.checkpoint.base import empty_checkpoint

    with savers.SqliteSaver.from_conn_string("old.db") as saver:
        where = {"configurable": {"thread_id": "t", "checkpoint_ns": ""}}
        saver.put(where, empty_checkpoint(), {"source": "input", "step": 0}, {})
    found = parsed(run, "import", "langgraph", "sqlite:///old.db", "--url", there)
    assert found == with_tenant(there, {"written": 1, "same": 0})
    assert ids(there) == ["t"]
    assert run("import", "langgraph", "sqlite:///no.db", "--url", there)[0] == 1


def test_the_sdks_files_are_imported(run: Run, there: str) -> None:
    pytest.importorskip("locus_store.adapters.locus.import_threads")
    from locus.core.state import AgentState
    from locus.memory.backends.file import FileCheckpointer

    asyncio.run(FileCheckpointer("old").save(AgentState(agent_id="a"), "t"))
    found = parsed(run, "import", "locus", "old", "--url", there)
    assert found == with_tenant(there, {"written": 1, "same": 0})
    assert parsed(run, "threads", "show", "t", "--url", there)["state"]["agent_id"] == "a"
    assert run("import", "locus", "no-such-folder", "--url", there)[0] == 1


# --- forget


def test_forget_asks_names_what_goes_and_leaves_the_others(
    run: Run, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for answer, left in (("n\n", ["other", "t"]), ("yes\n", ["other"])):
        monkeypatch.setattr("sys.stdin", Terminal(answer))
        code, _, errors = run("forget", "--user", "u")
        assert code == (0 if left == ["other"] else 1)
        assert "1 thread" in errors
        assert "with 3 versions, 1 namespace, 1 pending write" in errors
        assert ids(url) == left


def test_forget_counts_what_it_removed(run: Run, url: str) -> None:
    found = parsed(run, "forget", "--user", "u", "--yes")
    assert (found["threads"], found["checkpoints"], found["writes"]) == (1, 3, 1)


def test_a_dry_run_of_forget_prints_json_and_removes_nothing(run: Run, url: str) -> None:
    before = ids(url)
    found = parsed(run, "forget", "--user", "u", "--dry-run")
    assert (found["threads"], found["checkpoints"], found["writes"]) == (1, 3, 1)
    assert [it["unowned"] for it in found["left"]] == [0]
    assert ids(url) == before


def test_forget_says_in_words_what_it_removed(run: Run, url: str) -> None:
    _, out, _ = run("forget", "--user", "u", "--yes")
    assert out == f"{named(url)}removed: 1 thread, 3 versions, 1 pending write\n"


@pytest.mark.parametrize(
    "arguments", [("forget", "--yes"), ("forget", "--yes", "--json"), ("export",)], ids=" ".join
)
def test_a_user_of_whom_there_is_nothing_is_exit_code_four(
    run: Run, url: str, arguments: tuple[str, ...]
) -> None:
    code, out, errors = run(*arguments, "--user", "nobody")
    assert (code, out) == (4, "")
    assert "'nobody'" in errors


def test_an_export_of_a_user_without_threads_leaves_no_file(run: Run, url: str) -> None:
    before = set(Path().iterdir())
    assert run("export", "--user", "nobody", "-o", "nobody.jsonl")[0] == 4
    assert set(Path().iterdir()) == before
