"""``--tenant`` and ``--all-tenants`` of the commands, and ``locus-store tenants``."""

from __future__ import annotations

import asyncio
import json
import shutil
from typing import TYPE_CHECKING, Any

import pytest
import test_cli
from test_cli_transfer import lines
from tiers import first_of

from locus_store import open_checkpointer, open_store

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    Run = Callable[..., tuple[int, str, str]]

run = test_cli.run
WARNING = "Not covered: 2 other tenants ('acme', 'globex'); --all-tenants covers all.\n"


async def filled(url: str) -> None:
    """Tenant ``default`` has a thread, ``acme`` two, ``globex`` one and an item."""
    async with open_checkpointer(url, state_type=dict) as default:
        acme, globex = map(default.for_tenant, ("acme", "globex"))
        for it, thread in ((default, "d"), (acme, "t"), (acme, "u"), (globex, "t")):
            told = {"user_id": "u", "of": it.backend.tenant}
            await it.save({"of": it.backend.tenant}, thread, "v", told)
    async with open_store(url, tenant="globex") as store:
        await store.put(("n",), "k", 1, {"user_id": "u"})


async def threads(url: str, tenant: str) -> dict[str, Any]:
    async with open_checkpointer(url, state_type=dict, tenant=tenant) as checkpointer:
        return {it: await checkpointer.load(it) for it in await checkpointer.list_threads()}


def held(url: str, tenant: str) -> dict[str, Any]:
    return asyncio.run(threads(url, tenant))


@pytest.fixture(params=first_of("sqlite", "postgresql", "redis"))
def url(
    request: pytest.FixtureRequest, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> str:
    if request.param == "postgresql":
        found = str(request.getfixturevalue("migrated_database"))
    elif request.param == "redis":
        found = str(request.getfixturevalue("redis_url"))
    else:
        migrated = request.getfixturevalue("migrated")
        found = f"sqlite:///{shutil.copy(migrated, tmp_path / 'here.db')}"
    monkeypatch.setenv("LOCUS_STORE_URL", found)
    asyncio.run(filled(found))
    return found


@pytest.fixture
def there(tmp_path: Path, migrated: Path) -> str:
    return f"sqlite:///{shutil.copy(migrated, tmp_path / 'there.db')}"


def test_the_tenants_are_listed_with_what_they_have(run: Run, url: str) -> None:
    assert json.loads(run("tenants", "list", "--json")[1]) == [
        {"tenant": "acme", "threads": 2, "items": 0},
        {"tenant": "default", "threads": 1, "items": 0},
        {"tenant": "globex", "threads": 1, "items": 1},
    ]
    code, out, errors = run("tenants", "list")
    assert (code, errors) == (0, "")
    assert out.split() == (
        ["tenant", "threads", "store", "items"]
        + [next(it for it in out.split() if "─" in it)] * sum("─" in it for it in out.split())
        + ["acme", "2", "0", "default", "1", "0", "globex", "1", "1"]
    )


def test_verify_names_its_tenant_and_those_it_left_out(run: Run, url: str) -> None:
    found = "1 thread, 1 version, 0 problems\n"
    assert run("verify") == (0, f"tenant 'default': {found}", WARNING)
    code, out, errors = run("verify", "--tenant", "globex")
    assert (code, out) == (0, f"tenant 'globex': {found}")
    assert "'acme', 'default'" in errors
    counts = {"threads": 1, "versions": 1, "problems": 0}
    code, out, errors = run("verify", "--json")
    assert lines(out) == [{"kind": "summary", **counts, "tenant": "default"}]
    assert errors == WARNING


def test_verify_reads_all_tenants(run: Run, url: str) -> None:
    assert run("verify", "--all-tenants") == (
        0,
        (
            "tenant 'acme': 2 threads, 2 versions, 0 problems\n"
            "tenant 'default': 1 thread, 1 version, 0 problems\n"
            "tenant 'globex': 1 thread, 1 version, 0 problems\n"
            "3 tenants: 4 threads, 4 versions, 0 problems\n"
        ),
        "",
    )
    (summary,) = lines(run("verify", "--all-tenants", "--json")[1])
    assert summary["threads"] == 4
    assert summary["tenants"]["acme"] == {"threads": 2, "versions": 2, "problems": 0}


def test_doctor_looks_at_one_tenant_or_all(run: Run, url: str) -> None:
    code, out, errors = run("doctor", "--json")
    facts = {it["name"]: it["value"] for it in json.loads(out)["facts"]}
    assert (code, facts["tenant"], errors) == (0, "'default'", WARNING)
    facts = {
        it["name"]: it for it in json.loads(run("doctor", "--all-tenants", "--json")[1])["facts"]
    }
    assert facts["tenants"]["value"] == "3"
    if not url.startswith("redis"):
        assert facts["tenant 'acme': expired threads"]["value"] == "0"


def test_a_copy_is_of_one_tenant_or_of_all(run: Run, url: str, there: str) -> None:
    moved = "1 thread copied, 0 there already\n"
    assert run("copy", "--from", url, "--to", there) == (0, f"tenant 'default': {moved}", WARNING)
    assert run("copy", "--from", url, "--to", there, "--tenant", "globex")[1] == (
        "tenant 'globex': 1 thread copied, 0 there already; 1 item, 0 there already\n"
    )
    assert held(there, "globex") == {"t": {"of": "globex"}}
    code, out, errors = run("copy", "--from", url, "--to", there, "--all-tenants")
    assert (code, errors) == (0, "")
    total = "2 threads copied, 2 there already; 0 items, 1 there already"
    assert f"3 tenants: {total}\n" in out
    for tenant in ("acme", "default", "globex"):
        assert held(there, tenant) == held(url, tenant)


def test_a_copy_into_another_tenant_says_so(run: Run, url: str, there: str) -> None:
    code, out, _ = run("copy", "--from", url, "--to", f"{there}?tenant=new", "--tenant", "acme")
    assert (code, out) == (
        0,
        "tenant 'acme': 2 threads copied, 0 there already, into tenant 'new'\n",
    )
    assert held(there, "new") == held(url, "acme")
    assert held(there, "acme") == {}


def test_a_copy_keeps_the_tenant_that_the_sources_url_names(run: Run, url: str, there: str) -> None:
    code, out, _ = run("copy", "--from", f"{url}?tenant=acme", "--to", there)
    assert (code, out) == (0, "tenant 'acme': 2 threads copied, 0 there already\n")
    assert (held(there, "acme"), held(there, "default")) == (held(url, "acme"), {})


def test_all_tenants_are_not_copied_into_one(run: Run, url: str, there: str) -> None:
    code, out, errors = run("copy", "--from", url, "--to", f"{there}?tenant=new", "--all-tenants")
    assert (code, out, "leave ?tenant= of --to out" in errors) == (1, "", True)


def test_all_tenants_are_not_merged_into_a_storage_without_tenants(
    run: Run, url: str, tmp_path: Path
) -> None:
    target = f"file://{tmp_path / 'files'}"
    code, out, errors = run("copy", "--from", url, "--to", target, "--all-tenants")
    assert (code, out) == (1, "")
    assert "FileBackend has no tenants" in errors
    assert run("copy", "--from", url, "--to", target, "--tenant", "acme")[0] == 0
    assert run("threads", "list", "--url", target, "--json")[1].count('"thread_id"') == 2


def test_an_export_of_all_tenants_is_imported_into_each(
    run: Run, url: str, there: str, tmp_path: Path
) -> None:
    file = str(tmp_path / "all.jsonl")
    code, out, errors = run("export", "--all-tenants", "-o", file)
    assert (code, out) == (0, "")
    assert errors == (
        "tenant 'acme': 2 threads exported\n"
        "tenant 'default': 1 thread exported\n"
        "tenant 'globex': 1 thread, 1 item exported\n"
    )
    last = '"kind":"complete","threads":4,"items":1}\n'
    assert (tmp_path / "all.jsonl").read_text().count(last) == 1
    code, _, errors = run("import", "file", file, "--url", there)
    assert code == 1
    assert "threads of tenant 'acme'" in errors
    assert run("tenants", "list", "--url", there, "--json")[1] == "[]\n"
    assert run("import", "file", file, "--url", there, "--all-tenants") == (
        0,
        "4 threads imported, 0 there already; 1 item, 0 there already\n",
        "",
    )
    for tenant in ("acme", "default", "globex"):
        assert held(there, tenant) == held(url, tenant)


def test_one_tenant_of_an_export_goes_where_it_is_told(
    run: Run, url: str, there: str, tmp_path: Path
) -> None:
    file = str(tmp_path / "all.jsonl")
    run("export", "--all-tenants", "-o", file)
    code, out, _ = run(
        "import", "file", file, "--url", there, "--from-tenant", "globex", "--tenant", "new"
    )
    assert code == 0
    assert out == "tenant 'new': 1 thread imported, 0 there already; 1 item, 0 there already\n"
    assert held(there, "new") == {"t": {"of": "globex"}}
    files = f"file://{tmp_path / 'files'}"
    assert run("import", "file", file, "--url", files, "--from-tenant", "acme")[1] == (
        "2 threads imported, 0 there already\n"
    )
    code, _, errors = run("import", "file", file, "--url", files, "--all-tenants")
    assert code == 1
    assert "no tenants" in errors


def test_an_export_of_one_tenant_names_none_and_goes_anywhere(
    run: Run, url: str, there: str, tmp_path: Path
) -> None:
    file = str(tmp_path / "one.jsonl")
    code, _, errors = run("export", "--all", "-o", file)
    assert (code, errors) == (0, f"tenant 'default': 1 thread exported\n{WARNING}")
    assert run("import", "file", file, "--url", there, "--tenant", "x")[0] == 0
    assert held(there, "x") == {"d": {"of": "default"}}


def test_a_user_is_forgotten_in_one_tenant_or_in_all(run: Run, url: str) -> None:
    code, out, errors = run("forget", "--user", "u", "--yes")
    assert code == 0
    assert out.startswith("tenant 'default': removed: 1 thread, 1 version")
    assert errors == WARNING
    assert len(held(url, "acme")) == 2
    is_redis = url.startswith("redis")  # items are found by their namespace there
    if is_redis:
        run("store", "delete", "n", "k", "--tenant", "globex", "--yes")
    code, out, errors = run("forget", "--user", "u", "--all-tenants", "--yes", "--json")
    assert (code, errors) == (0, "")
    found = json.loads(out)
    assert (found["threads"], found.get("store", 0)) == (3, 1 - is_redis)
    assert {name: it["threads"] for name, it in found["tenants"].items()} == {
        "acme": 2,
        "globex": 1,
    }
    assert json.loads(run("tenants", "list", "--json")[1]) == []


def test_threads_are_forgotten_by_any_metadata(run: Run, url: str) -> None:
    code, out, errors = run("forget", "--where", "of=acme", "--all-tenants", "--dry-run")
    assert (code, errors) == (0, "")
    (summary, *each_tenant) = out.splitlines()
    assert summary.endswith('of="acme": 2 threads of 3 tenants with 2 versions, 2 namespaces.')
    assert each_tenant == [
        "tenant 'acme': 2 threads with 2 versions, 2 namespaces",
        "tenant 'default': 0 threads",
        "tenant 'globex': 0 threads",
    ]
    assert len(held(url, "acme")) == 2
    code, _, errors = run("forget", "--where", "of=acme", "--tenant", "globex", "--yes")
    assert code == 4
    assert "nothing is stored with the metadata" in errors
    assert run("forget", "--where", "of=acme", "--tenant", "acme", "--yes")[0] == 0
    assert (held(url, "acme"), len(held(url, "globex"))) == ({}, 1)


def test_a_thread_of_another_tenant_is_looked_at_copied_and_deleted(run: Run, url: str) -> None:
    for command in (
        ("list",), ("show", "t"), ("history", "t"), ("diff", "t"), ("search", "globex"),
    ):  # fmt: skip
        code, out, errors = run("threads", *command, "--tenant", "globex", "--json")
        assert (code, errors) == (0, ""), command
        found = json.loads(out)
        found = found[0] if isinstance(found, list) else found
        assert found["thread_id"] == "t", command
    for command in (("fork", "t", "copy"), ("delete", "t", "--yes")):
        assert run("threads", *command, "--tenant", "globex")[0] == 0, command
    assert held(url, "globex") == {"copy": {"of": "globex"}}
    assert set(held(url, "acme")) == {"t", "u"}


def test_vacuum_and_expire_are_of_one_tenant_or_of_all(run: Run, url: str) -> None:
    assert run("threads", "vacuum", "--older-than", "0", "--yes") == (
        0,
        "tenant 'default': 1 version removed, with 1 whole thread\n",
        WARNING,
    )
    assert len(held(url, "acme")) == 2
    code, out, _ = run("threads", "vacuum", "--older-than", "0", "--yes", "--all-tenants")
    assert (code, out.splitlines()[-1]) == (
        0,
        "2 tenants: 3 versions removed, with 3 whole threads",
    )
    code, out, _ = run("threads", "expire", "--all-tenants", "--json")
    assert json.loads(out) == {"removed": 0, "tenants": {"globex": {"removed": 0}}}
    code, out, _ = run("store", "expire", "--all-tenants")
    assert (code, out) == (0, "tenant 'globex': 0 items removed\n1 tenant: 0 items removed\n")


def test_a_question_names_the_tenants(run: Run, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for option, shown in (("--all-tenants", "of 3 tenants"), ("--tenant=acme", "of tenant 'acme'")):
        monkeypatch.setattr("sys.stdin", test_cli.Terminal("n\n"))
        code, _, errors = run("threads", "vacuum", "--older-than", "0", option)
        assert code == 1
        assert shown in errors


def test_a_tenant_of_which_nothing_is_stored_is_not_found(run: Run, url: str) -> None:
    for command in (
        ("verify",), ("doctor",), ("export", "--all"), ("threads", "expire"), ("threads", "list"),
        ("threads", "show", "t"), ("threads", "delete", "t", "--yes"),
        ("forget", "--user", "u", "--yes"), ("threads", "vacuum", "--older-than", "0", "--yes"),
        ("store", "list", "n"), ("store", "get", "n", "k"), ("store", "search", "n"),
        ("store", "namespaces"), ("store", "delete", "n", "--all", "--yes"), ("store", "expire"),
    ):  # fmt: skip
        code, _, errors = run(*command, "--tenant", "acne")
        assert code == 4, command
        assert "tenants list" in errors


@pytest.mark.parametrize(
    "command",
    [
        ("verify", "t"), ("export", "t"), ("forget", "--user", "u", "--namespace", "n", "--yes"),
        ("verify", "--tenant", "acme"), ("copy", "--to", "memory://", "--thread", "t"),
        ("store", "delete", "n", "k", "--yes"),
    ],
)  # fmt: skip
def test_all_tenants_beside_what_is_of_one_is_refused(
    run: Run, url: str, command: tuple[str, ...]
) -> None:
    source = ("--from", url) if command[0] == "copy" else ()
    code, _, errors = run(*command, *source, "--all-tenants")
    assert code == 1
    assert "--tenant" in errors


@pytest.mark.parametrize("option", [("--tenant", "a"), ("--all-tenants",)])
def test_a_storage_without_tenants_refuses_the_options(
    run: Run, tmp_path: Path, option: tuple[str, ...]
) -> None:
    url = f"file://{tmp_path}"
    for command in (
        ("verify",), ("doctor",), ("export", "--all"), ("threads", "expire"),
        ("forget", "--user", "u", "--yes"), ("threads", "vacuum", "--older-than", "0", "--yes"),
    ):  # fmt: skip
        code, out, errors = run(*command, *option, "--url", url)
        assert (code, out) == (1, ""), command
        assert "has no tenants" in errors
        assert option[0] in errors
    code, _, errors = run("tenants", "list", "--url", url)
    assert code == 1
    assert "FileBackend" in errors


async def items_of(url: str, tenant: str) -> list[str]:
    async with open_store(url, tenant=tenant) as store:
        return [it.key for it in await store.search((), limit=99)]


def test_an_item_of_another_tenant_is_put_looked_at_and_deleted(run: Run, url: str) -> None:
    assert run("store", "put", "n", "mine", "1", "--tenant", "globex")[0] == 0
    for command in (("list", "n"), ("get", "n", "k"), ("search", "n"), ("namespaces",)):
        code, out, errors = run("store", *command, "--tenant", "globex", "--json")
        assert (code, errors) == (0, ""), command
        assert '"n"' in out, command
        assert '"n"' not in run("store", *command, "--json")[1], command
    code, out, errors = run("store", "delete", "n", "mine", "--yes", "--tenant", "globex")
    assert (code, out, errors) == (0, "tenant 'globex': 1 item removed\n", "")
    assert asyncio.run(items_of(url, "globex")) == ["k"]


def test_a_put_may_be_the_first_of_its_tenant(run: Run, url: str) -> None:
    assert run("store", "put", "n", "k", "1", "--tenant", "new")[0] == 0
    assert asyncio.run(items_of(url, "new")) == ["k"]


def test_a_namespace_is_deleted_in_one_tenant_or_in_all(
    run: Run, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for tenant in ("default", "acme"):
        run("store", "put", "n", "k", "1", "--tenant", tenant)
    monkeypatch.setattr("sys.stdin", test_cli.Terminal("n\n"))
    code, _, errors = run("store", "delete", "n", "--all", "--all-tenants")
    assert code == 1
    assert "This deletes 3 items of namespace n of 3 tenants." in errors
    assert run("store", "delete", "n", "--all", "--yes") == (
        0,
        "tenant 'default': 1 item removed\n",
        WARNING,
    )
    assert asyncio.run(items_of(url, "acme")) == ["k"]
    code, out, errors = run("store", "delete", "n", "--all", "--yes", "--all-tenants", "--json")
    assert (code, errors) == (0, "")
    found = json.loads(out)
    assert found["removed"] == 2
    assert found["tenants"] == {
        "acme": {"removed": 1}, "default": {"removed": 0}, "globex": {"removed": 1},
    }  # fmt: skip
    assert run("store", "delete", "n", "--all", "--yes", "--all-tenants")[0] == 4


def test_threads_that_are_named_leave_no_tenant_out(run: Run, url: str, tmp_path: Path) -> None:
    assert run("verify", "d") == (0, "tenant 'default': 1 thread, 1 version, 0 problems\n", "")
    assert run("export", "d", "-o", str(tmp_path / "d.jsonl"))[2] == (
        "tenant 'default': 1 thread exported\n"
    )
