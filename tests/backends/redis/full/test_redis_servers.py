"""The servers of Redis's tests do what tests rely on."""

from __future__ import annotations

import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
import redis
import redis_clusters
import redis_servers
import servers
from redis.crc import key_slot
from servers import started

HERE = Path(__file__).parents[3]
KINDS = pytest.mark.parametrize("kind", ["valkey", "redis"])


@KINDS
def test_a_killed_server_comes_back_with_what_it_had_written(kind: str) -> None:
    settings = {"appendonly": "yes", "appendfsync": "always"}
    with started(redis_servers.Redis, kind, settings=settings) as server:
        port = server.port
        server.ask("SET", "k", "v")
        server.kill()
        with pytest.raises(redis.ConnectionError):
            server.ask("GET", "k")
        server.start()
        assert (server.port, server.ask("GET", "k")) == (port, "v")
        server.restart()
        assert server.ask("GET", "k") == "v"


def test_a_server_answers_while_it_loads_if_the_test_does_not_wait() -> None:
    settings = {"appendonly": "yes", "loading-process-events-interval-bytes": 1024}
    with started(redis_servers.Redis, "valkey", settings=settings) as server:
        server.ask("MSET", *(part for n in range(2000) for part in (n, "v" * 100)))
        server.ask("BGREWRITEAOF")
        servers.wait_until(lambda: not _is_rewriting(server), "the file to be written anew")
        server.kill()
        with (server.directory / "conf").open("a") as conf:
            conf.write("key-load-delay 2000\n")  # in microseconds
        server.start(is_loaded=False)
        with pytest.raises(redis.BusyLoadingError):
            server.ask("GET", "1")
        server.kill()


def _is_rewriting(server: redis_servers.Server) -> bool:
    with server.client() as client:
        info = client.info("persistence")
    return bool(info["aof_rewrite_in_progress"] or info["aof_rewrite_scheduled"])


@KINDS
def test_an_acl_user_may_what_its_rules_say(kind: str) -> None:
    users = {"reader": "~locus:* -@all +get"}
    with started(redis_servers.Redis, kind, has_password=True, users=users) as server:
        server.ask("SET", "locus:k", "v")
        with redis.Redis.from_url(server.url("reader"), decode_responses=True) as reader:
            assert reader.get("locus:k") == "v"
            for forbidden in (("SET", "locus:k", "w"), ("GET", "other")):
                with pytest.raises(redis.exceptions.NoPermissionError):
                    reader.execute_command(*forbidden)
        place = f"redis://{servers.LOOPBACK}:{server.port}"
        with (
            redis.Redis.from_url(place) as stranger,
            pytest.raises(redis.AuthenticationError),
        ):
            stranger.ping()


def test_a_server_with_tls_is_verified_by_its_authority() -> None:
    with started(redis_servers.Redis, "redis", tls=True) as server:
        assert server.ask("PING")
        with (
            redis.Redis.from_url(server.url(ssl_ca_certs=server.tls.other_ca)) as client,
            pytest.raises(redis.ConnectionError, match="certificate verify failed"),
        ):
            client.ping()


def test_a_paused_server_goes_on_where_it_was() -> None:
    with started(redis_servers.Redis) as server:
        server.ask("SET", "k", "v")
        server.pause()
        with server.client(socket_timeout=0.1) as client, pytest.raises(redis.TimeoutError):
            client.get("k")
        server.resume()
        assert server.ask("GET", "k") == "v"


def test_a_server_does_not_outlive_tests_that_were_killed() -> None:
    script = "import redis_servers, sys; s = redis_servers.Redis(); s.pause();"
    script += "print(s.process.pid, s.directory); sys.stdout.flush(); sys.stdin.read()"
    with subprocess.Popen(
        [sys.executable, "-c", script],
        cwd=HERE,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as tests:
        pid, directory = tests.stdout.readline().split()
        assert not servers.is_gone(int(pid))
        tests.kill()
    servers.wait_until(lambda: servers.is_gone(int(pid)), "the server to end")
    servers.wait_until(lambda: not Path(directory).exists(), "its files to go")


def test_the_servers_of_the_session_are_of_two_lines(
    redis_url: str, debian_redis: redis_servers.Redis
) -> None:
    with redis.Redis.from_url(redis_url) as client:
        assert client.dbsize() == 0
    with debian_redis.client() as client:
        assert str(client.info("server")["redis_version"]).startswith(("6.", "7.", "8."))


# --- a cluster


def cluster_client(cluster: redis_clusters.Cluster) -> redis.RedisCluster:
    port = cluster.masters()[0].public.port
    return redis.RedisCluster(host=servers.LOOPBACK, port=port, decode_responses=True)


def test_a_cluster_serves_all_slots_with_a_replica_each(
    redis_cluster: redis_clusters.Cluster,
) -> None:
    redis_cluster.flush()
    assert len(redis_cluster.masters()) == 3
    with closing(cluster_client(redis_cluster)) as client:
        assert all(client.set(f"k{n}", n) for n in range(30))
        slots = [client.keyslot(f"k{n}") for n in range(30)]
    assert sum(it.ask("DBSIZE") for it in redis_cluster.masters()) == 30
    assert all(len(redis_cluster.replicas_of(it)) == 1 for it in slots)
    redis_cluster.flush()


def test_the_replica_of_a_killed_master_takes_its_place() -> None:
    slot = key_slot(b"k")
    with started(redis_clusters.Cluster, "valkey", node_timeout_ms=1000) as cluster:
        master, (replica,) = cluster.master_of(slot), cluster.replicas_of(slot)
        with master.client() as client:
            client.set("k", "v")
            assert client.wait(1, 0) == 1
        cluster.kill(master)
        cluster.wait_until_ok()
        assert cluster.master_of(slot) is replica
        assert replica.ask("GET", "k") == "v"
        cluster.restart(master)
        cluster.wait_until_ok()
        assert cluster.replicas_of(slot) == [master]


def test_a_slot_that_moves_answers_ask_then_tryagain_then_moved(
    redis_cluster: redis_clusters.Cluster,
) -> None:
    one, two, slot = "{a}1", "{a}2", key_slot(b"a")
    source = redis_cluster.master_of(slot)
    to = next(it for it in redis_cluster.masters() if it is not source)
    source.ask("MSET", one, "1", two, "2")
    redis_cluster.begin_migration(slot, to)
    assert source.ask("MGET", one, two) == ["1", "2"]
    assert redis_cluster.move_keys(slot, 1) == 1
    with pytest.raises(redis.exceptions.TryAgainError):
        source.ask("MGET", one, two)
    assert redis_cluster.move_keys(slot, 1) == 1
    with pytest.raises(redis.exceptions.AskError):
        source.ask("GET", one)
    redis_cluster.end_migration(slot)
    with pytest.raises(redis.exceptions.MovedError):
        source.ask("GET", one)
    assert to.ask("MGET", one, two) == ["1", "2"]
    redis_cluster.migrate(slot, source)
    redis_cluster.wait_until_ok()
    assert redis_cluster.master_of(slot) is source
    redis_cluster.flush()


def test_a_master_that_is_cut_off_is_replaced_and_comes_back_as_a_replica() -> None:
    slot = key_slot(b"k")
    options = {"is_proxied": True, "node_timeout_ms": 1000}
    with started(redis_clusters.Cluster, "redis", **options) as cluster:
        master, (replica,) = cluster.master_of(slot), cluster.replicas_of(slot)
        cluster.cut([master])
        with master.public.client(socket_timeout=0.5) as client, pytest.raises(redis.TimeoutError):
            client.ping()
        cluster.wait_until_ok()
        assert cluster.master_of(slot) is replica
        cluster.heal()
        cluster.wait_until_ok()
        assert master.public.ask("PING")
        assert cluster.replicas_of(slot) == [master]


def test_clients_may_be_cut_off_with_a_master_that_still_takes_what_will_be_lost() -> None:
    slot = key_slot(b"k")
    with started(redis_clusters.Cluster, "valkey", is_proxied=True) as cluster:
        master = cluster.master_of(slot)
        cluster.cut([master], are_clients_along=True)
        assert master.public.ask("SET", "k", "taken")
        cluster.wait_until_ok()
        assert cluster.master_of(slot).public.ask("GET", "k") is None
        cluster.heal()
        cluster.wait_until_ok()
        assert cluster.master_of(slot).ask("EXISTS", "k") == 0
