"""Databases of storms and kills: one that a URL names, or a server that is started for them."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

TESTS = Path(__file__).resolve().parent.parent / "tests"


def add_place(parser: argparse.ArgumentParser) -> None:
    """The options that ``place`` reads."""
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--url", help="of the backend; a temporary SQLite file if not given")
    where.add_argument(
        "--postgresql", action="store_true", help="on a PostgreSQL server of its own, with fsync"
    )
    where.add_argument("--oci", action="store_true", help="on a bucket of a double of OCI's API")


@contextmanager
def service(url: str, *options: str) -> Iterator[Any]:
    """A process of ``locus-store serve`` over a storage."""
    sys.path.insert(0, str(TESTS))
    from served import Served

    running = Served(url, *options)
    try:
        yield running
    finally:
        running.kill()


@contextmanager
def place(options: argparse.Namespace, directory: Path) -> Iterator[str]:
    """URL of the backend that was asked for; a file in ``directory`` if nothing was."""
    if options.postgresql:
        with server() as (running, database):
            yield running.url(database)
    elif options.oci:
        with bucket(directory) as made:
            yield made.url()
    else:
        yield options.url or f"sqlite:///{directory / 'storm.db'}"


@contextmanager
def bucket(directory: Path) -> Iterator[Any]:
    """An empty bucket of a double, which runs in this process."""
    sys.path[:0] = [str(TESTS), str(TESTS / "backends" / "oci")]
    from buckets import DoubleBucket
    from oci_double import running

    with running() as double:
        yield DoubleBucket(double, directory)


@contextmanager
def server() -> Iterator[tuple[Any, str]]:
    """A private PostgreSQL server that writes as a real one does, and an empty database in it."""
    sys.path.insert(0, str(TESTS))
    import servers

    running = servers.PostgreSQL("18", fsync=True)
    try:
        yield running, running.new_database()
    finally:
        running.stop()


@contextmanager
def patroni_cluster() -> Iterator[Any]:
    """Three PostgreSQL servers under Patroni, with etcd, HAProxy and PgBouncer."""
    sys.path.insert(0, str(TESTS))
    import patroni_clusters

    running = patroni_clusters.Cluster()
    try:
        yield running
    finally:
        running.stop()
