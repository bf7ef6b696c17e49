"""Commands of ``locus-store`` as users with the rights that docs/redis.md lists."""

from __future__ import annotations

import asyncio
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import redis_servers
from test_redis import OPERATOR_RIGHTS, RIGHTS, started

from locus_store import open_storage

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

WARNING = (
    "doctor",
    "verify",
    "threads expire",
    "threads vacuum --older-than 1 --yes",
    "threads prune --keep-last 1 --yes",
    "export --all --no-items -o a.jsonl",
    "copy --from {url} --to sqlite:///copy.db --no-items",
)
"""Commands that name the tenants which they leave out."""

COMMANDS = (
    "threads list",
    "threads history t",
    "threads show t",
    "threads turns",
    "verify t",
    "export t -o b.jsonl",
    "import file b.jsonl",
    "copy --from {url} --to sqlite:///copy.db --thread t",
    "threads delete t --yes",
)
OPERATOR_COMMANDS = (
    "tenants list",
    "verify --all-tenants",
    "store namespaces",
    "forget --user zoe --namespace memory/zoe --yes",
)

ALLOWED = {"client|setinfo", "ping"}
"""Redis-py sends the first, and the library the second after a pause; neither is needed."""

LOOKS = {"smembers"}
"""Refused looks at other tenants."""


@pytest.fixture(scope="module")
def guarded() -> Iterator[redis_servers.Redis]:
    users = {"app": RIGHTS, "operator": f"{RIGHTS} {OPERATOR_RIGHTS}"}
    yield from started(redis_servers.Redis, has_password=True, users=users)


@pytest.fixture
def run(
    guarded: redis_servers.Redis,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> Callable[[str, str], tuple[int, str]]:
    """Calls a command as a user: exit code, errors. A thread and an item are stored before."""

    from locus_store.cli import main

    async def fill() -> None:
        async with open_storage(guarded.url()) as storage:
            await storage.backend.save("t", {"n": 1}, metadata={"user_id": "zoe"})
            await storage.store().put(("memory", "zoe"), "k", 1)

    def call(user: str, command: str) -> tuple[int, str]:
        monkeypatch.setenv("LOCUS_STORE_URL", guarded.url(user))
        arguments = [it.format(url=guarded.url(user)) for it in command.split()]
        monkeypatch.setattr(sys, "argv", ["locus-store", *arguments])
        code = 0
        try:
            main()
        except SystemExit as stop:
            code = int(stop.code or 0)
        return code, capsys.readouterr().err

    monkeypatch.chdir(tmp_path)
    guarded.flush()
    guarded.ask("ACL", "LOG", "RESET")
    asyncio.run(fill())
    return call


def test_commands_on_one_tenant_need_the_rights_of_an_application(
    run: Callable[[str, str], tuple[int, str]], guarded: redis_servers.Redis
) -> None:
    for command in (*WARNING, *COMMANDS):
        code, errors = run("app", command)
        is_of_one = command in COMMANDS
        assert (code, "were not looked for" in errors) == (0, not is_of_one), (command, errors)
        refused = {it["object"] for it in guarded.ask("ACL", "LOG")}
        assert refused <= ALLOWED | (set() if is_of_one else LOOKS), command
        guarded.ask("ACL", "LOG", "RESET")
    for command in ("export --all -o c.jsonl", "copy --from {url} --to sqlite:///copy.db"):
        code, errors = run("app", command)
        assert (code, "the items of the store cannot be read" in errors) == (1, True)
        assert "--no-items" in errors


def test_commands_on_all_tenants_need_the_rights_of_an_operator(
    run: Callable[[str, str], tuple[int, str]], guarded: redis_servers.Redis
) -> None:
    for command in (*WARNING, *OPERATOR_COMMANDS):
        code, errors = run("operator", command)
        assert (code, "Other tenants" in errors) == (0, False), (command, errors)
    assert {it["object"] for it in guarded.ask("ACL", "LOG")} <= ALLOWED
    with guarded.client() as client:
        used = set(client.info("commandstats"))
    assert used >= {f"cmdstat_{it}" for it in re.findall(r"\+(\S+)", OPERATOR_RIGHTS)}
    code, errors = run("app", "tenants list")
    assert (code, "docs/redis.md lists its rights" in errors) == (1, True)
