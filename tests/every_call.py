"""Every call of a service, recorded once and sent again with other ids."""

from __future__ import annotations

import json
import re
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from services import Service, parts

from locus_store import HTTPBackend, UnsupportedError
from locus_store.backends.http.backend import HTTPMessageLog, HTTPStore
from locus_store.backends.http.connections import HTTPClient
from locus_store.types import PendingWrite, VersionsWanted
from locus_store.types.turns import TurnStep
from locus_store.versions.sizes import StatusesWanted
from locus_store.wire import bodies
from locus_store.wire.calls import CALLS

if TYPE_CHECKING:
    import random
    from collections.abc import AsyncIterator

    from locus_store.wire.calls import WireCall

DIMENSION = 3
AUDIT_CALLS = {
    "read_audited": (),
    "read_last_seal": (),
    "list_seals": (0, 9),
    "list_entries": (0, 9, 9),
}
FAR = 1e6
"""Seconds: nothing expires during a test."""

IDS = 4
_ID = re.compile(rf'"([CKNSTU])([0-{IDS - 1}])"')
"""Ids in the recorded calls: checkpoints, keys, namespaces, scopes, threads, users."""


@dataclass(frozen=True)
class Asked:
    """A request that was recorded."""

    call: WireCall
    arguments: dict[str, Any]
    is_building: bool
    """It is one of those that make what the others find."""

    @property
    def body(self) -> str:
        """Return the arguments as JSON."""
        return bodies.encode_json(self.arguments).decode()


@dataclass(frozen=True)
class Sent:
    """A request as it is sent."""

    method: str
    path: str
    body: str | None = None

    @property
    def name(self) -> str:
        """Return the route."""
        return self.path if self.path.startswith("/v1") else f"{self.method} /threads"


def renamed(text: str, dice: random.Random) -> str:
    """Return a body with other ids; those that differ still do."""
    others = {it: dice.sample(range(IDS), IDS) for it in "CKNSTU"}
    return _ID.sub(lambda found: f'"{found[1]}{others[found[1]][int(found[2])]}"', text)


def any_request(asked: list[Asked], said: str, dice: random.Random) -> Sent:
    """Return one of the recorded calls, or one of the SDK's wire, with ids at random."""
    thread, checkpoint = (f"{it}{dice.randrange(IDS)}" for it in "TC")
    of_thread = f"/threads/{thread}/checkpoints"
    state = {"state": {"said": said, "n": dice.randrange(9)}, "checkpoint_id": checkpoint}
    ours = dice.choice(asked)
    others = [
        Sent("POST", of_thread, json.dumps(state)),
        Sent("GET", of_thread),
        Sent("GET", f"{of_thread}/{checkpoint}"),
        Sent("DELETE", dice.choice([of_thread, f"{of_thread}/{checkpoint}"])),
    ]
    if dice.random() < 0.2:
        return dice.choice(others)
    return Sent("POST", ours.call.path, renamed(ours.body, dice))


@asynccontextmanager
async def clients(url: str, **options: Any) -> AsyncIterator[tuple[Any, Any, Any]]:
    """Yield a backend, a store and a message log over a service."""
    async with (
        HTTPBackend(url, **options) as backend,
        HTTPStore(url, dimension=DIMENSION, **options) as store,
        HTTPMessageLog(url, **options) as log,
    ):
        yield backend, store, log


async def recorded(said: str) -> list[Asked]:
    """Return every call with valid arguments, each text of which has ``said``."""
    found: list[Asked] = []
    is_building = True
    original = HTTPClient.ask

    async def ask(self: Any, call: WireCall, arguments: Any) -> Any:
        found.append(Asked(call, dict(arguments), is_building))
        return await original(self, call, arguments)

    service = Service(
        **dict(zip(("backend", "store", "messages"), parts(dimension=DIMENSION), strict=True))
    )
    HTTPClient.ask = ask  # type: ignore[method-assign]
    try:
        async with clients(service.url) as them:
            await build(service.url, *them, said)
            is_building = False
            await use(*them, said)
    finally:
        HTTPClient.ask = original  # type: ignore[method-assign]
        service.stop()
    assert {it.call.path for it in found} == {it.path for it in CALLS}
    return found


async def build(url: str, backend: Any, store: Any, log: Any, said: str) -> None:
    """Store something of each kind."""
    facts = {"tag": said, "user_id": "U0"}
    for n in range(4):
        texts = [f"{said} {it} " * 9 for it in range(n + 1)]
        state = {"said": texts, "metadata": facts}
        async with HTTPBackend(url) as new:  # sends whole states: it knows no version
            await new.save("T0", state, checkpoint_id=f"C{n}", metadata=facts)
    await backend.put_thread("T0", user_id="U0", name=said, metadata=facts)
    await backend.put_writes("T0", "C3", [PendingWrite("task", 0, "said", "text", said.encode())])
    await store.put_with_embedding(("S0", "S1"), "K0", {"said": said}, [1, 0, 0], facts)
    await store.put(("S0",), "K1", said, ttl_seconds=FAR)
    await log.append("T0", [(said, "user", "M0"), (said, "tool", "M1")], namespace="N0")
    await log.append("T1", [(said, "user", "M2")], also={"N0": [(said, "user", "M3")]})


async def use(backend: Any, store: Any, log: Any, said: str) -> None:
    """Make each other call."""
    await read_threads(backend, said)
    await store.get(("S0",), "K1")
    await store.list(("S0",))
    await store.search(("S0",), query=said)
    await store.search_by_embedding(("S0",), [1, 0, 0])
    await store.get_embedding(("S0", "S1"), "K0")
    await store.list_namespaces(prefix=("S0",))
    await log.load("T0", namespace="N0")
    await log.contents("T0", namespace="N0")
    await log.logs()
    await log.heads()
    await log.page("T0", namespace="N0", role="tool", metadata_filter={"tag": {"$ne": said}})
    await change(backend, store, log, said)


async def read_threads(backend: Any, said: str) -> None:
    """Make each read of threads."""
    stored = await backend.fetch("T0", with_writes=True)
    await backend.fetch("T0", checkpoint_id="C1")
    await backend.fetch_head("T0", known=stored.head)
    await backend.history("T0")
    await backend.version("T0", "C2")
    await backend.has_thread("T0")
    await backend.damage()
    await backend.recent()
    await backend.heads()
    await backend.find(said)
    await backend.query("tag", said)
    await backend.tagged("tag", said)
    await backend.writes_of("T0", ["C2", "C3"])
    await backend.scan()
    await backend.namespaces("T0")
    found = await backend.newest(VersionsWanted(thread_id="T0"), 3)
    await backend.newest(VersionsWanted(metadata=(("tag", said),), after=found[0]), 3)
    await backend.contents(found)
    await backend.records("T0", first=1, last=9)
    await backend.find_threads("tag", said)
    await backend.facts_of("T0")
    await backend.find_threads("user_id", "U0", user_id="U0")
    await backend.threads_by_activity("U0")
    await backend.list_turns("T0")
    await backend.list_writes("T0", "")
    for name, arguments in AUDIT_CALLS.items():
        with suppress(UnsupportedError):
            await getattr(backend, name)(*arguments)
    await backend.find_statuses(StatusesWanted(limit=9, metadata=("tag", said), user_id="U0"))


async def change(backend: Any, store: Any, log: Any, said: str) -> None:
    """Make each change that is not repeated, the least first."""
    archived = await backend.read_thread("T0")
    await backend.replace_thread(archived, archived)
    await backend.renew("T0", FAR)
    step = TurnStep(
        thread_id="T4", turn_key="K4", owner="U0", lease_seconds=FAR / 100, entry="reject"
    )
    await backend.step_turn(step)
    await backend.end_turn("T4", "K4")
    await backend.expire()
    await backend.vacuum_report(30)
    await backend.copy_thread("T0", "T2")
    await backend.copy_thread("T0", "T3")
    await backend.remove("T0", ["C1"])
    await backend.prune("T2")
    await backend.clear_versions("T2")
    await backend.remove_thread("T2")
    await backend.remove_thread("T3")
    await backend.restore(replace(archived, thread_id="T3"))
    await backend.forget_where("tag", said)
    await backend.forget_user("U0")
    await store.touch(("S0",), "K1")
    await store.sweep(9)
    await store.delete(("S0",), "K1")
    await store.clear_namespace(("S0",), recursive=True)
    await log.pop("T1")
    await log.drop("T0", "N0", None)
    await log.drop("T1", None, None)
