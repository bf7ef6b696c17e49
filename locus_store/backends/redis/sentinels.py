"""Redis Sentinel: connections that go to the primary that the sentinels name."""

from __future__ import annotations

import asyncio
import math
import re
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, NamedTuple
from urllib.parse import unquote

from redis import exceptions as driver
from redis.asyncio import Connection, Redis
from redis.asyncio.connection import SSLConnection, parse_url
from redis.asyncio.sentinel import (
    Sentinel,
    SentinelConnectionPool,
    SentinelManagedConnection,
    SentinelManagedSSLConnection,
)

from locus_store.backends.redis.connections import DRIVER_ERRORS, PING_LIMIT_SECONDS, Tried
from locus_store.backends.redis.failures import NoPrimaryError, SentinelError, get_reason, is_lost
from locus_store.errors import InvalidArgumentError
from locus_store.runtime.loops import await_to_end
from locus_store.types.facts import Fact

PORT: Final = 26379
MAX_PORT: Final = 65535

ASK_SECONDS: Final = 1.0
"""A sentinel that does not answer in this time is left out."""

PROMPT_SECONDS: Final = 0.1
"""All sentinels that were not silent before are awaited for so long, and then a majority."""

FORGET_SECONDS: Final = 30.0
"""Sentinels that know fewer failovers are believed after this: they were set up again."""

CONFIRM_SECONDS: Final = 1.0
"""The primary is confirmed by the sentinels this often, while it is in use."""

UNREACHED_SECONDS: Final = 5.0
"""The same after none could be reached: the calls wait for them each time."""

_PLACE: Final = re.compile(r"(?:\[([^]]+)\]|([^:[]+))(?::(\d{1,5}))?")
_OWN: Final = ("username", "password")
"""Options of redis-py that the sentinels have apart, with ``sentinel_`` before them."""


def split_path(path: str) -> tuple[str, str]:
    """Return the service and the database that the path of a URL names.

    Raises:
        InvalidArgumentError: It names no service.
    """
    service, _, db = path.strip("/").partition("/")
    if not service:
        raise InvalidArgumentError(
            "name the service that the sentinels monitor: redis+sentinel://host1,host2/mymaster/0"
        )
    return unquote(service), db


def parse_places(text: str) -> list[tuple[str, int]]:
    """Return the hosts and ports of the sentinels, which the place of a URL names.

    Raises:
        InvalidArgumentError: It names something else.
    """
    found = [_PLACE.fullmatch(it) for it in text.split(",")]
    places = [(it[1] or it[2], int(it[3] or PORT)) for it in found if it]
    if len(places) < len(found) or any(port > MAX_PORT for _, port in places):
        raise InvalidArgumentError("write each sentinel as host or host:port, with commas between")
    return places


def make_client(
    url: str, places: Sequence[tuple[str, int]], service: str, options: Mapping[str, Any]
) -> Redis:
    """Return a client of the primary of a service.

    Args:
        url: Of redis-py, with the users' credentials; its host and path are not used.
        places: The sentinels.
        service: The name by which they know the primary.
        options: Of redis-py, which the URL overrides.
    """
    found: dict[str, Any] = {**options, **parse_url(url)}
    is_tls = found.pop("connection_class", None) is SSLConnection
    own = {name: found.pop(f"sentinel_{name}", None) for name in _OWN}
    shared = {name: it for name, it in found.items() if name.startswith(("socket_", "ssl_"))}
    shared |= {"retry": options["retry"], "ssl": is_tls, **own}
    sentinels = Sentinels(places, sentinel_kwargs=shared)
    client: Redis = sentinels.master_for(
        service,
        redis_class=PrimaryClient,
        connection_pool_class=SentinelPrimaryPool,
        connection_class=PrimarySSLConnection if is_tls else PrimaryConnection,
        **found,
    )
    return client


class View(NamedTuple):
    """The view that a sentinel has of a service."""

    epoch: int
    """Of the last fail-over that it knows: a sentinel that was cut off has the one before."""
    is_usable: bool
    address: tuple[str, int]


class Sentinels(Sentinel):
    """The sentinels, all of which are asked at once.

    redis-py asks one after the other, and believes the first: one that is cut off together with a
    former primary still names that one. Its list of sentinels loses some when two tasks ask.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)  # type: ignore[no-untyped-call]
        self._finding: asyncio.Task[tuple[str, int]] | None = None
        self._asking: set[asyncio.Task[Any]] = set()
        self._silent: set[Redis] = set()
        self._epoch, self._epoch_at = 0, -math.inf
        """Of the last answer that counted, and when."""

    async def discover_master(self, service_name: str) -> tuple[str, int]:
        """Return the address of the primary; calls at the same time share an answer.

        Raises:
            SentinelError: No sentinel answers, or none monitors such a service.
            NoPrimaryError: They know the service, and see no healthy primary.
        """
        if self._finding is None or self._finding.done():
            self._finding = asyncio.create_task(self._find(service_name))
        return await await_to_end(self._finding)

    async def _find(self, service: str) -> tuple[str, int]:
        asked = self._ask_all(service)
        prompt = [task for task, it in asked.items() if it not in self._silent]
        # Just after a failover, one sentinel knows of it, and the others do not yet.
        await asyncio.wait(prompt or asked, timeout=PROMPT_SECONDS)
        views = _find_views([task.result() for task in asked if task.done()], service)
        if not self._is_majority(views):
            await asyncio.wait(asked)
            views = _find_views([task.result() for task in asked], service)
        self._silent |= {it for task, it in asked.items() if not task.done()}
        if not views:
            raise SentinelError(_explain([task.result() for task in asked], service))
        return self._choose(views, service)

    def _is_majority(self, views: Sequence[View]) -> bool:
        return len(views) > len(self.sentinels) // 2

    def _choose(self, views: Sequence[View], service: str) -> tuple[str, int]:
        newest, now = max(views), time.monotonic()
        if not newest.is_usable:
            raise NoPrimaryError(f"the sentinels see no healthy primary of {service!r}")
        is_new = self._is_majority(views) and now - self._epoch_at > FORGET_SECONDS
        if newest.epoch < self._epoch and not is_new:
            raise NoPrimaryError("the sentinels that answer do not know the last failover")
        self._epoch, self._epoch_at = newest.epoch, now
        return newest.address

    def _ask_all(self, service: str) -> dict[asyncio.Task[Any], Redis]:
        asked = {asyncio.create_task(self._ask(it, service)): it for it in self.sentinels}
        self._asking.update(asked)
        for task in asked:
            task.add_done_callback(self._asking.discard)
        return asked

    async def _ask(self, sentinel: Redis, service: str) -> tuple[Any, tuple[str, int] | None]:
        """Return the states of all services and the address of one; or an error, and ``None``."""
        pipe = sentinel.pipeline(transaction=False)
        pipe.execute_command("SENTINEL MASTERS")
        pipe.execute_command("SENTINEL GET-MASTER-ADDR-BY-NAME", service)
        try:
            async with asyncio.timeout(ASK_SECONDS):
                states, address = await pipe.execute()
        except (*DRIVER_ERRORS, TimeoutError) as exc:
            return exc, None
        self._silent.discard(sentinel)
        return states, address and (address[0], int(address[1]))

    async def collect_facts(self, service: str) -> list[Fact]:
        """Return how many of the sentinels know the service."""
        answers = await asyncio.gather(*self._ask_all(service))
        there, known = sum(address is not None for _, address in answers), len(answers)
        shown = f"{there} of {known} name the primary"
        if there == known:
            return [Fact("sentinels", shown)]
        return [Fact("sentinels", shown, "warn", "start the others, or change the URL")]

    async def aclose(self) -> None:
        for task in self._asking:
            task.cancel()
        await asyncio.gather(*(it.aclose() for it in self.sentinels))  # redis-py 6 closes none


def _find_views(answers: Sequence[Any], service: str) -> list[View]:
    """Return the views of the sentinels that know a service."""
    views = []
    for states, address in answers:
        if address is not None and service in states:
            state = states[service]
            # During a failover, the address is of the next primary before the state is.
            is_next = address != (state["ip"], state["port"])
            is_well = state["is_master"] and not state["is_sdown"] and not state["is_odown"]
            views.append(View(state["config-epoch"], is_next or is_well, address))
    return views


def _explain(answers: list[Any], service: str) -> str:
    """Return why no sentinel names a primary."""
    errors = [it for it, _ in answers if isinstance(it, Exception)]
    if len(errors) < len(answers):
        names = sorted({name for it, _ in answers if isinstance(it, dict) for name in it})
        return f"the sentinels monitor {', '.join(map(repr, names)) or 'nothing'}, not {service!r}"
    if any(isinstance(it, driver.AuthenticationError) for it in errors):
        options = "sentinel_username= and sentinel_password="
        return f"the sentinels refuse the user or password; give {options} in the URL"
    refused = [str(it) for it in errors if isinstance(it, driver.ResponseError)]
    if refused:
        return f"not a sentinel, or its user may not do SENTINEL MASTERS: {refused[0]}"
    reasons = {get_reason(it) or "no answer" for it in errors}
    return f"no sentinel can be reached: {', '.join(sorted(reasons))}"


class SentinelPrimaryPool(SentinelConnectionPool):
    """Connections to the primary; those to a former one are not used again."""

    _confirm_at = 0.0

    async def get_master_address(self) -> tuple[str, int]:
        """Ask the sentinels, as ``Sentinels.discover_master`` does."""
        pause = UNREACHED_SECONDS
        try:
            found: tuple[str, int] = await self.sentinel_manager.discover_master(self.service_name)
            pause = CONFIRM_SECONDS
        except NoPrimaryError:
            pause = CONFIRM_SECONDS
            raise
        finally:
            self._confirm_at = time.monotonic() + pause
        self.master_address = found
        return found

    async def confirm_address(self) -> Any:
        """Return the primary's address, which the sentinels have confirmed lately if they can."""
        if time.monotonic() >= self._confirm_at:
            with suppress(SentinelError):  # the connection is still good
                await self.get_master_address()
        return self.master_address


class PrimaryConnection(Tried, SentinelManagedConnection):
    """A connection to the primary."""

    connection_pool: SentinelPrimaryPool

    async def connect(self) -> None:
        """Connect to the primary, unless this is done."""
        if self.is_connected:
            if await self._is_to_primary():
                return
            await self.disconnect(nowait=True)
        await super().connect()  # type: ignore[no-untyped-call]

    async def _is_to_primary(self) -> bool:
        named = await self.connection_pool.confirm_address()
        return bool(named == (self.host, self.port))

    async def connect_to(self, address: tuple[str, int]) -> None:
        """Connect to a primary, which has to say that it is one.

        Raises:
            NoPrimaryError: It does not answer, or is a replica.
        """
        named = f"{address[0]}:{address[1]}, which the sentinels name,"
        try:
            async with asyncio.timeout(PING_LIMIT_SECONDS):
                await super().connect_to(address)  # type: ignore[no-untyped-call]
                await self.send_command("ROLE", check_health=False)
                role, *_ = await self.read_response()
        except (*DRIVER_ERRORS, TimeoutError) as exc:
            await self.disconnect(nowait=True)
            reason = get_reason(exc) or type(exc).__name__
            if not is_lost(exc) or reason.startswith("TLS"):
                raise
            raise NoPrimaryError(f"{named} cannot be reached: {reason}") from exc
        if role != b"master":
            await self.disconnect(nowait=True)
            raise NoPrimaryError(f"{named} is a replica")

    async def read_response(self, *args: Any, **options: Any) -> Any:
        """Read an answer, which does not count if the server is no longer the primary.

        A server that was frozen answers what it was sent before. A READONLY stays one: redis-py
        would call it a lost connection.
        """
        answer = await Connection.read_response(self, *args, **options)
        if not await self._is_to_primary():
            await self.disconnect(nowait=True)
            raise driver.ConnectionError("answered by a former primary")
        return answer


class PrimarySSLConnection(PrimaryConnection, SentinelManagedSSLConnection):
    """The same, with TLS."""


class PrimaryClient(Redis):
    """A client of the primary, which closes those of the sentinels too."""

    async def aclose(self, close_connection_pool: bool | None = None) -> None:
        pool: Any = self.connection_pool
        await super().aclose(close_connection_pool)
        await pool.sentinel_manager.aclose()
