"""Tenants that ask for each other's ids: each is answered as if it were alone."""

from __future__ import annotations

import json
import random
import re
from collections import Counter
from contextlib import closing
from http.client import HTTPConnection
from typing import TYPE_CHECKING

import pytest
from every_call import DIMENSION, Asked, Sent, any_request, recorded
from services import Service, parts
from tiers import LONG, first_of

from locus_store.service.access import TokenFile
from locus_store.wire.calls import CALLS

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.anyio

REQUESTS = 10_000 if LONG else 1_000
TENANTS = ["acme", "umbrella"]
TWIN = {"acme": "twin of acme", "umbrella": "twin of umbrella"}
"""Tenants that send the same requests, and come when the others are done."""

PASSING = re.compile(r'"\d{4}-\d\d-\d\dT[^"]*"|"store":"[^"]*"|"(?:line|number)":\d+|left":[\d.]+')
"""Times, what is left of them, and identities that the storage counts for all tenants."""

UNORDERED = {
    *("/v1/find_threads", "/v1/tagged"),
    *("/v1/recent", "/v1/heads", "/v1/query", "/v1/find", "/v1/find_facts", "/v1/store/recent"),
    "/v1/find_statuses",
}
"""Lists in any order, or in the order of times, of which two may be equal."""

Request = tuple[str, Sent]


@pytest.fixture(params=first_of("sqlite", "postgresql"))
def service(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Service]:
    names = {"sqlite": "database_file", "postgresql": "migrated_database"}
    place = request.getfixturevalue(names[request.param])
    backend, store, messages = parts(place, dimension=DIMENSION)
    tokens = tmp_path / "tokens.json"
    TokenFile(tokens).add("unused", None, ["read"])
    made = Service(backend, store=store, messages=messages, token_file=tokens)
    yield made
    made.stop()


class Callers:
    """A connection that the tenants share."""

    def __init__(self, service: Service, tokens: TokenFile) -> None:
        self._connection = HTTPConnection("127.0.0.1", service.port, timeout=30)
        rights = ["read", "write", "admin"]
        self._secrets = {it: tokens.add(it, it, rights) for it in (*TENANTS, *TWIN.values())}
        self.found: Counter[tuple[str, int]] = Counter()

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    def answer(self, tenant: str, sent: Sent) -> str:
        """Send a request; return its status and its answer."""
        headers = {"authorization": f"Bearer {self._secrets[tenant]}"}
        if sent.body is not None:
            headers["content-type"] = "application/json"
        self._connection.request(sent.method, sent.path, sent.body, headers)
        answer = self._connection.getresponse()
        text = answer.read().decode()
        assert answer.status < 500 or answer.status == 501, (sent, text)
        self.found[sent.name, answer.status] += 1
        return f"{answer.status} {text}"


def mixed(asked: dict[str, list[Asked]], dice: random.Random) -> list[Request]:
    """Return requests of both, some of which search for what the other one said."""
    reads = [it for found in asked.values() for it in found if it.call.right == "read"]
    requests = []
    for _ in range(REQUESTS):
        tenant = dice.choice(TENANTS)
        requests.append((tenant, any_request([*asked[tenant], *reads], tenant, dice)))
    return requests


async def test_each_tenant_is_answered_as_if_it_were_alone(
    service: Service, tmp_path: Path
) -> None:
    requests = mixed({it: await recorded(it) for it in TENANTS}, random.Random(14))
    with closing(Callers(service, TokenFile(tmp_path / "tokens.json"))) as callers:
        compare(callers, requests)
    succeeded = {name for name, status in callers.found if status == 200}
    # It changes a thread with the times of the one that was recorded, which no other has.
    possible = {it.path for it in CALLS if it.right != "audit"}
    assert possible - {"/v1/replace_thread"} <= succeeded
    assert {f"{it} /threads" for it in ("GET", "POST", "DELETE")} <= succeeded


def compare(callers: Callers, requests: list[Request]) -> None:
    """Send all requests in turn, then those of each tenant again as its twin."""
    together = [callers.answer(*it) for it in requests]
    for tenant in TENANTS:
        asked = [it for it in zip(requests, together, strict=True) if it[0][0] == tenant]
        for n, ((_, sent), beside) in enumerate(asked):
            alone = callers.answer(TWIN[tenant], sent)
            assert lasting(sent, beside) == lasting(sent, alone), (n, tenant)


def lasting(sent: Sent, answer: str) -> str:
    """Return what is the same in the answers to a tenant and to its twin."""
    if sent.name in UNORDERED and answer.startswith("200 "):
        found = (json.dumps(it, separators=(",", ":")) for it in json.loads(answer[4:]))
        return str(sorted(PASSING.sub("", it) for it in found))
    return PASSING.sub("", answer)
