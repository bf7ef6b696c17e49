"""A cluster of Redis or Valkey for the tests: failover, slots that move, a network that splits."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any

from redis_servers import Kind, Redis, Server
from servers import DEADLINE_SECONDS, LOOPBACK, Proxy, _Side, free_port, wait_until

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Collection, Iterator, Mapping

SLOTS = 16384


class Door(Proxy):
    """The way to one port of a node; it knows the other nodes by the address they call from."""

    def __init__(self, port: int) -> None:
        self.is_shut_for: Callable[[str], bool] = lambda _: False
        super().__init__(port)

    def shut(self, is_shut_for: Callable[[str], bool]) -> None:
        """Hold what those callers send and what they are answered; let the others through."""
        self._call(self._shut(is_shut_for))

    async def _shut(self, is_shut_for: Callable[[str], bool]) -> None:
        self.is_shut_for = is_shut_for
        for side in list(self._sides):
            side.flow()

    def _accept(self) -> asyncio.Protocol:
        self.accepted += 1
        return _Caller(self, is_client=True)


class _Caller(_Side):
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        address: str = transport.get_extra_info("peername")[0]
        self.proxy = _Way(self.proxy, address)  # type: ignore[assignment]
        super().connection_made(transport)


class _Way:
    """The door, as one caller finds it."""

    def __init__(self, door: Any, address: str) -> None:
        self._door, self._address = door, address

    @property
    def is_held(self) -> bool:
        held: bool = self._door.is_held or self._door.is_shut_for(self._address)
        return held

    def __getattr__(self, name: str) -> Any:
        return getattr(self._door, name)


@dataclass
class Place:
    """The address of a node that is not started yet."""

    name: str
    """The 40 digits by which the cluster knows it."""
    address: str
    """From which it calls the others."""
    port: int
    bus_port: int
    doors: tuple[Door, ...] = ()

    @property
    def public_ports(self) -> tuple[int, ...]:
        """The ports for clients and for other nodes."""
        return tuple(it.port for it in self.doors) or (self.port, self.bus_port)

    @property
    def settings(self) -> dict[str, object]:
        port, bus_port = self.public_ports
        settings: dict[str, object] = {
            "cluster-enabled": "yes",
            "cluster-config-file": "nodes.conf",
            "cluster-port": self.bus_port,
            "cluster-announce-ip": LOOPBACK,
            "cluster-announce-port": port,
            "cluster-announce-tls-port": port,
            "cluster-announce-bus-port": bus_port,
            "cluster-replica-validity-factor": 0,
            "repl-diskless-sync-delay": 0,
            # A replica that has heard nothing yet is not shown to clients.
            "repl-ping-replica-period": 1,
        }
        return settings | ({"bind-source-addr": self.address} if self.doors else {})


class Node(Redis):
    """A server of a cluster; its ``url``, ``client`` and ``ask`` go past its proxies."""

    def __init__(self, kind: Kind, place: Place, **options: Any) -> None:
        self.name, self.address, self.doors = place.name, place.address, place.doors
        super().__init__(kind, port=place.port, **options)
        public_port = place.public_ports[0]
        self.public = Server(self.url().replace(f":{self.port}/", f":{public_port}/"))
        """The same, by its proxy if it has one."""

    def view(self) -> dict[tuple[int, int], list[str]]:
        """By the first and the last slot, the names of the master and then of its replicas."""
        slots = self.ask("CLUSTER", "SLOTS")
        return {(first, last): [it[2] for it in nodes] for first, last, *nodes in slots}

    def is_ok(self) -> bool:
        """Return whether the node serves requests and, as a replica, has its master's data."""
        with self.client() as client:
            state = client.execute_command("CLUSTER", "INFO")
            link = client.info("replication").get("master_link_status", "up")
        return "cluster_state:ok" in state and link == "up"


class Network:
    """Servers that can be cut off from each other, if each has a proxy before it."""

    def __init__(self) -> None:
        self.nodes: list[Node] = []
        self._places: list[Place] = []
        self._away: set[str] = set()

    def cut(self, nodes: Collection[Node], *, are_clients_along: bool = False) -> None:
        """Split the network: nothing passes between these nodes and the others, or the clients.

        Connections stay, and new ones are taken; what is sent waits for ``heal``.

        Args:
            are_clients_along: Clients reach both parts.
        """
        assert all(it.doors for it in self.nodes), "what is_proxied=True can be cut"
        self._away = {it.name for it in nodes}
        away = {it.address for it in nodes}
        beyond = {it.address for it in self.nodes} - away
        for node in self.nodes:
            if node.name not in self._away:
                _shut(node, lambda address: address in away)
            elif are_clients_along:
                _shut(node, lambda address: address in beyond)
            else:
                _shut(node, lambda address: address not in away)

    def heal(self) -> None:
        """Join the parts again."""
        self._away = set()
        for node in self.nodes:
            _shut(node, lambda _: False)

    def _present(self) -> list[Node]:
        return [it for it in self.nodes if it.is_running and it.name not in self._away]

    def stop(self) -> None:
        """Stop all for good, and remove them."""
        with contextlib.ExitStack() as all_of_it:
            for place in self._places:
                for door in place.doors:
                    all_of_it.callback(door.close)
            for node in self.nodes:
                all_of_it.callback(node.stop)


class Cluster(Network):
    """Three masters and three replicas, on loopback.

    Args:
        kind: As of ``Redis``.
        is_proxied: Put a proxy before each port of each node, so that ``cut`` works; what clients
            and nodes send each other then goes through this process.
        node_timeout_ms: After which a node that does not answer is held to be down.
        options: As of ``Redis``, for each node.

    Raises:
        UnavailableError: No such binary.
    """

    def __init__(
        self,
        kind: Kind = "valkey",
        *,
        is_proxied: bool = False,
        node_timeout_ms: int = 2000,
        settings: Mapping[str, object] | None = None,
        **options: Any,
    ) -> None:
        super().__init__()
        self._moves: dict[int, tuple[Node, Node]] = {}
        try:
            self._find_places(is_proxied=is_proxied)
            for place in self._places:
                given = place.settings | {"cluster-node-timeout": node_timeout_ms}
                given |= {"tls-cluster": "yes"} if options.get("tls") else {}
                given |= settings or {}
                files = {"nodes.conf": self._known_to(place)}
                self.nodes.append(Node(kind, place, settings=given, files=files, **options))
                if tls := self.nodes[0].tls:
                    options["tls"] = tls  # one authority for all
            self.wait_until_ok()
        except BaseException:
            self.stop()
            raise

    def _find_places(self, *, is_proxied: bool) -> None:
        ports: set[int] = set()
        while len(ports) < 12:
            ports.add(free_port())
        for number in range(6):
            place = Place(f"{number:040x}", f"127.0.0.{11 + number}", ports.pop(), ports.pop())
            self._places.append(place)
            if is_proxied:
                place.doors = (Door(place.port), Door(place.bus_port))

    def _known_to(self, myself: Place) -> str:
        """The cluster as one that has long been there: no node has to be introduced."""
        lines = []
        for number, place in enumerate(self._places):
            master, is_replica = number % 3, number >= 3
            port, bus_port = place.public_ports
            role = f"slave {self._places[master].name}" if is_replica else "master -"
            flags = f"myself,{role}" if place is myself else role
            line = f"{place.name} {LOOPBACK}:{port}@{bus_port} {flags} 0 0 {master + 1} connected"
            if not is_replica:
                line += f" {master * SLOTS // 3}-{(master + 1) * SLOTS // 3 - 1}"
            lines.append(line)
        return "\n".join([*lines, "vars currentEpoch 3 lastVoteEpoch 0", ""])

    def url(self, user: str | None = None, **query: object) -> str:
        """``redis+cluster://`` or ``rediss+cluster://`` of a node that is there."""
        one = self._present()[0].public.url(user, **query)
        return one.replace("://", "+cluster://", 1).replace("/0", "", 1)

    def _named(self, name: str) -> Node:
        return next(it for it in self.nodes if it.name == name)

    def wait_until_ok(self) -> None:
        """All nodes that are there, and are not cut off, serve, and agree who serves what."""
        wait_until(self._is_ok, "the cluster to serve")

    def _is_ok(self) -> bool:
        import redis

        present = self._present()
        names = {it.name for it in present}
        try:
            if not all(it.is_ok() for it in present):
                return False
            views = [node.view() for node in present]
        except redis.RedisError:
            return False
        masters = [{slots: nodes[0] for slots, nodes in view.items()} for view in views]
        return (
            all(it == masters[0] for it in masters)
            and names.issuperset(masters[0].values())
            and all(names.issubset(chain.from_iterable(view.values())) for view in views)
        )

    def _serving(self, slot: int) -> list[Node]:
        for (first, last), names in self._present()[0].view().items():
            if first <= slot <= last:
                return [self._named(it) for it in names]
        raise LookupError(f"no node serves slot {slot}")

    def master_of(self, slot: int) -> Node:
        """Of those that are there: what the first of them believes."""
        return self._serving(slot)[0]

    def replicas_of(self, slot: int) -> list[Node]:
        """As ``master_of``."""
        return self._serving(slot)[1:]

    def masters(self) -> list[Node]:
        """All that serve slots, as ``master_of``."""
        return [self._named(it) for it in {it[0] for it in self._present()[0].view().values()}]

    def flush(self) -> None:
        """Remove everything, of every node."""
        for node in self.masters():
            node.flush()

    def kill(self, node: Node) -> None:
        """SIGKILL; ``wait_until_ok`` gives back when its replica has taken its place."""
        node.kill()

    def restart(self, node: Node) -> None:
        """Bring a killed node back: with no ``appendonly`` it is empty, until it is a replica."""
        node.start()

    def begin_migration(self, slot: int, to: Node) -> None:
        """From now on the slot's master answers ``ASK`` for keys that it does not have."""
        source = self.master_of(slot)
        self._moves[slot] = (source, to)
        to.ask("CLUSTER", "SETSLOT", slot, "IMPORTING", source.name)
        source.ask("CLUSTER", "SETSLOT", slot, "MIGRATING", to.name)

    def move_keys(self, slot: int, count: int) -> int:
        """Move so many of the slot's keys at most: how many there were to move."""
        source, to = self._moves[slot]
        keys = source.ask("CLUSTER", "GETKEYSINSLOT", slot, count)
        if keys:
            limit_ms = int(DEADLINE_SECONDS * 1000)
            source.ask("MIGRATE", LOOPBACK, to.port, "", 0, limit_ms, "KEYS", *keys)
        return len(keys)

    def end_migration(self, slot: int) -> None:
        """Move what is left; from now on the old master answers ``MOVED``."""
        while self.move_keys(slot, 100):
            pass
        source, to = self._moves.pop(slot)
        for node in dict.fromkeys([to, source, *self.masters()]):
            node.ask("CLUSTER", "SETSLOT", slot, "NODE", to.name)

    @contextlib.contextmanager
    def moving(self, slot: int) -> Iterator[None]:
        """While a slot is being moved, and none of its keys is gone yet."""
        source = self.master_of(slot)
        self.begin_migration(slot, next(it for it in self.masters() if it is not source))
        try:
            yield
        finally:
            self.end_migration(slot)

    def migrate(self, slot: int, to: Node) -> None:
        """All three steps."""
        self.begin_migration(slot, to)
        self.end_migration(slot)


def _shut(node: Node, is_shut_for: Callable[[str], bool]) -> None:
    for door in node.doors:
        door.shut(is_shut_for)
