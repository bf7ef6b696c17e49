"""A primary of Redis or Valkey, its replicas and the sentinels that replace it, for the tests."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, ClassVar
from urllib.parse import quote, urlencode

from redis_clusters import Door, Network, Node, Place
from redis_servers import PASSWORD, Kind, _quoted
from servers import LOOPBACK, free_port, wait_until

if TYPE_CHECKING:
    from collections.abc import Mapping

NAME = "mymaster"
CUT_SECONDS = 3.0
"""For which a cut lasts after a fail-over."""
INFO_MS = 500
"""The sentinels ask servers for their state this often, in place of every ten seconds: they find
new replicas by it. During a fail-over it is every second anyway."""


class Sentinel(Node):
    """A sentinel."""

    arguments: ClassVar[tuple[str, ...]] = ("--sentinel",)

    def state(self) -> dict[str, Any]:
        """Return what it knows of the primary."""
        with self.client() as client:
            found: dict[str, Any] = client.sentinel_masters().get(NAME, {})
            return found


class Group(Network):
    """A primary, replicas and sentinels, on loopback.

    Args:
        kind: As of ``Redis``.
        replicas: How many.
        sentinels: How many; more than half of them decide.
        is_proxied: As of ``Cluster``.
        down_after_ms: After which a server that does not answer is held to be down.
        settings: Of the primary and its replicas.
        has_password: Of the servers and of the sentinels.
        options: As of ``Redis``, for each process.

    Raises:
        UnavailableError: No such binary.
    """

    def __init__(
        self,
        kind: Kind = "valkey",
        *,
        replicas: int = 2,
        sentinels: int = 3,
        is_proxied: bool = False,
        down_after_ms: int = 1000,
        settings: Mapping[str, object] | None = None,
        has_password: bool = False,
        **options: Any,
    ) -> None:
        super().__init__()
        self.sentinels: list[Sentinel] = []
        self.struck_at = 0.0
        """When the last fault began."""
        options["has_password"] = has_password
        try:
            for number in range(1 + replicas + sentinels):
                self._places.append(self._place(number, is_proxied=is_proxied))
            port = self._places[0].public_ports[0]
            for number, place in enumerate(self._places):
                own = {"bind-source-addr": place.address} if is_proxied else {}
                if number <= replicas:
                    own |= _of_server(place) | dict(settings or {})
                    own |= {"replicaof": f"{LOOPBACK} {port}"} if number else {}
                    self.nodes.append(Node(kind, place, settings=own, **options))
                else:
                    wait_until(self._is_replicated, "the replicas")  # or it hears of them late
                    quorum = sentinels // 2 + 1
                    own |= _of_sentinel(place, port, quorum, down_after_ms)
                    own |= _secrets() if has_password else {}
                    self.sentinels.append(Sentinel(kind, place, settings=own, **options))
                    self.nodes.append(self.sentinels[-1])
                    self.sentinels[-1].ask("SENTINEL", "DEBUG", "INFO-PERIOD", INFO_MS)
                if tls := self.nodes[0].tls:
                    options["tls"] = tls  # one authority for all
            self.wait_until_ok()
        except BaseException:
            self.stop()
            raise

    def _place(self, number: int, *, is_proxied: bool) -> Place:
        port, taken = free_port(), {it.port for it in self._places}
        while port in taken:
            port = free_port()
        doors = (Door(port),) if is_proxied else ()
        return Place(f"{number}", f"127.0.0.{31 + number}", port, 0, doors)

    @property
    def servers(self) -> list[Node]:
        """The primary and the replicas."""
        return self.nodes[: len(self.nodes) - len(self.sentinels)]

    def url(self, db: int = 0, **query: object) -> str:
        """``redis+sentinel://`` or ``rediss+sentinel://`` of all sentinels."""
        scheme, user = ("rediss" if self.nodes[0].tls else "redis"), ""
        if self.nodes[0]._parts.password:
            user, query = f":{quote(PASSWORD, safe='')}@", {"sentinel_password": PASSWORD, **query}
        places = ",".join(f"{LOOPBACK}:{it.public.port}" for it in self.sentinels)
        asked = f"?{urlencode(query)}" if query else ""
        return f"{scheme}+sentinel://{user}{places}/{NAME}/{db}{asked}"

    def primary(self) -> Node:
        """Return the server that the last fail-over made the primary, also behind a cut."""
        state = max((it.state() for it in self.sentinels), key=lambda it: it["config-epoch"])
        return next(it for it in self.servers if it.public.port == state["port"])

    def await_replication(self) -> None:
        """Wait until each replica has all that the primary has at the beginning."""
        offset = _role(self.primary())[1]
        wait_until(lambda: self._have_reached(offset), "the replicas")

    def _have_reached(self, offset: int) -> bool:
        replicas = [role for role in map(_role, self.servers) if role[0] != "master"]
        return all(role[0] == "slave" and role[4] >= offset for role in replicas)

    def request_failover(self, *options: str) -> None:
        """Make a replica the primary; the former one hears of it eight seconds later."""
        old = self.primary()
        wait_until(lambda: self._accepts_failover(*options), "a replica that can be promoted")
        self.await_failover(old)

    def _accepts_failover(self, *options: str) -> bool:
        import redis

        try:
            self.sentinels[0].ask("SENTINEL", "FAILOVER", NAME, *options)
        except redis.ResponseError as exc:
            if not str(exc).startswith("NOGOODSLAVE"):  # its last look at the replicas is old
                raise
            return False
        return True

    def await_failover(self, old: Node) -> None:
        """Wait until another server than the one that a fault has just hit is the primary."""
        self.struck_at = time.monotonic()
        wait_until(lambda: self._has_moved(old), "a fail-over")

    def _has_moved(self, old: Node) -> bool:
        primary = self.primary()
        return primary is not old and _role(primary)[0] == "master"

    def wait_until_ok(self) -> None:
        """All are there, and the sentinels see that."""
        wait_until(lambda: self._is_replicated() and self._is_watched(), "the group to serve")

    def _is_replicated(self) -> bool:
        roles = [_role(it) for it in self.servers]
        replicas = [it for it in roles if it[0] == "slave"]
        return len(replicas) == len(roles) - 1 and all(it[3] == "connected" for it in replicas)

    def _is_watched(self) -> bool:
        states = [it.state() for it in self.sentinels]
        return all(
            it.get("flags") in ("master", {"master"})
            and it["num-slaves"] == len(self.servers) - 1
            and it["num-other-sentinels"] == len(states) - 1
            and it["port"] == states[0]["port"]
            for it in states
        )


def _role(server: Node) -> list[Any]:
    """Return the answer to ``ROLE``; while the server closes connections, an empty name."""
    import redis

    try:
        found: list[Any] = server.ask("ROLE")
    except redis.ConnectionError:  # it takes another role just now
        return [""]
    return found


# --- faults: each waits for the fail-over, and then until all is well again


def kill(group: Group) -> None:
    """SIGKILL of the primary, which returns as a replica."""
    old = group.primary()
    old.kill()
    group.await_failover(old)
    old.start()
    group.wait_until_ok()


def freeze(group: Group) -> None:
    """SIGSTOP of the primary, which wakes up believing that it still is the primary."""
    old = group.primary()
    old.pause()
    group.await_failover(old)
    old.resume()
    group.wait_until_ok()


def isolate(group: Group) -> None:
    """A cut between the primary and all others; clients reach both sides."""
    old = group.primary()
    group.cut([old], are_clients_along=True)
    group.await_failover(old)
    time.sleep(CUT_SECONDS)
    group.heal()
    group.wait_until_ok()


def strand(group: Group) -> None:
    """As ``isolate``, and the clients reach only the primary and a sentinel beside it."""
    old = group.primary()
    group.cut([it for it in group.nodes if it not in (old, group.sentinels[0])])
    group.await_failover(old)
    time.sleep(CUT_SECONDS)
    group.heal()
    group.wait_until_ok()


def switch(group: Group) -> None:
    """A fail-over on request: the former primary serves on until it is made a replica."""
    group.request_failover()
    group.wait_until_ok()


def hand_over(group: Group) -> None:
    """A fail-over on request of Valkey 9, in which the primary waits for the replica."""
    group.request_failover("COORDINATED")
    group.wait_until_ok()


def _of_server(place: Place) -> dict[str, object]:
    return {
        "replica-announce-ip": LOOPBACK,
        "replica-announce-port": place.public_ports[0],
        "repl-diskless-sync-delay": 0,
        "repl-ping-replica-period": 1,
        "repl-timeout": 5,
    }


def _of_sentinel(place: Place, port: int, quorum: int, down_after_ms: int) -> dict[str, object]:
    return {
        f"sentinel monitor {NAME}": f"{LOOPBACK} {port} {quorum}",
        f"sentinel down-after-milliseconds {NAME}": down_after_ms,
        f"sentinel failover-timeout {NAME}": 5000,
        f"sentinel parallel-syncs {NAME}": 2,
        "sentinel announce-ip": LOOPBACK,
        "sentinel announce-port": place.public_ports[0],
    }


def _secrets() -> dict[str, object]:
    names = (f"sentinel auth-pass {NAME}", "sentinel sentinel-pass")
    return dict.fromkeys(names, _quoted(PASSWORD))
