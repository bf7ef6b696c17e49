"""Stored data that may be a user's and is found by no user id: store items, and pending writes."""

from __future__ import annotations

import asyncio
import shlex
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from locus_store.cli.output import counted, note
from locus_store.cli.store import opened_store, typed_form
from locus_store.errors import InvalidArgumentError, UnsupportedError
from locus_store.transfer.archive import all_threads
from locus_store.types.items import check_namespace
from locus_store.types.thread_info import DescribesThreads, ThreadsWanted

if TYPE_CHECKING:
    from locus_store.backend import FullBackend
    from locus_store.store import BaseStore
    from locus_store.types.items import Namespace

PAGE = 1000
AT_ONCE = 8
"""Threads that are looked at together."""

USER_ID = "user_id"
"""The key of metadata and labels that names a user."""


@dataclass(frozen=True, slots=True)
class Left:
    """The data of a tenant that a deletion leaves."""

    tenant: str | None
    user: str | None
    namespaces: list[str]
    """Namespaces of the store, as they are typed, that end with the user's id."""

    pending_only: int
    """Threads that hold only pending writes."""

    unowned: int = 0
    """Threads of which neither the facts nor the newest version name a user."""

    def described(self) -> dict[str, Any]:
        """Return what the JSON of a command shows."""
        return {
            "tenant": self.tenant,
            "namespaces": self.namespaces,
            "pending_only": self.pending_only,
            "unowned": self.unowned,
        }

    def tell_unremoved(self, told: str) -> None:
        """Print a note about store items, with the command that deletes them."""
        user = shlex.quote(str(self.user))
        named = " ".join(f"--namespace {it}" for it in self._quoted)
        command = f"locus-store forget --user {user} {named}{self._tenant}"
        self._tell(told, f"If they are the user's: {command}")

    def tell_unexported(self) -> None:
        """Print a note about store items, with the commands that print them."""
        commands = (f"locus-store store search {it} --json{self._tenant}" for it in self._quoted)
        self._tell("not exported", f"To print them: {'; '.join(commands)}")

    def _tell(self, told: str, command: str) -> None:
        if self.namespaces:
            names = ", ".join(self.namespaces)
            about = f"the store items of {names}, where {self.user!r} is a segment"
            note(f"{self._where}{told}: {about}. {command}")

    @property
    def _quoted(self) -> list[str]:
        return [shlex.quote(it) for it in self.namespaces]

    @property
    def _tenant(self) -> str:
        return "" if self.tenant is None else f" --tenant {shlex.quote(self.tenant)}"

    def tell_unattributed(self) -> None:
        """Print notes about threads that no user can be found for."""
        if self.unowned:
            note(
                f"{self._where}not attributed: {counted(self.unowned, 'thread')} that"
                f" {'names' if self.unowned == 1 else 'name'} no user, as adapters without user_id="
                " write them; 'locus-store threads list' shows them, and 'threads delete' deletes"
            )
        if self.pending_only:
            note(
                f"{self._where}not attributed: {counted(self.pending_only, 'thread')} with pending"
                " writes only, which name no user; 'locus-store threads vacuum' removes old ones"
            )

    @property
    def _where(self) -> str:
        return "" if self.tenant is None else f"tenant {self.tenant!r}: "


async def left_of(
    url: str,
    backends: list[FullBackend],
    options: dict[str, Any],
    user: str | None,
    but: list[Namespace],
) -> list[Left]:
    """Return the data of each tenant that no user is found for, but some namespaces."""
    named: dict[str | None, list[Namespace]] = {}
    with suppress(InvalidArgumentError, UnsupportedError):  # no store, or an id that is no segment
        check_namespace((user,))
        async with opened_store(url, **options) as store:
            for it in backends:
                its_store = store if it.tenant is None else store.for_tenant(it.tenant)
                found = await _named(its_store, str(user))
                named[it.tenant] = [name for name in found if not _is_in(name, but)]
    return [
        Left(
            it.tenant,
            user,
            [typed_form(name) for name in named.get(it.tenant, [])],
            *await _unattributed(it, user),
        )
        for it in backends
    ]


async def _named(store: BaseStore, user: str) -> list[Namespace]:
    """Return the namespaces that end with a segment, and have items, or are above some."""
    found: list[Namespace] = []
    above: Namespace = ()
    while await store.list_namespaces((*above, "*"), limit=1):
        offset, wanted = 0, (*above, user)
        while page := await store.list_namespaces(
            wanted, max_depth=len(wanted), limit=PAGE, offset=offset
        ):
            offset += len(page)
            found += [it for it in page if it[-1] == user]  # the id may be `*`
        above = (*above, "*")
    return [it for it in found if not _is_in(it, [name for name in found if name != it])]


def _is_in(namespace: Namespace, others: list[Namespace]) -> bool:
    return any(namespace[: len(it)] == it for it in others)


async def _unattributed(backend: FullBackend, user: str | None) -> tuple[int, int]:
    """Return the numbers of threads with pending writes only, and of those that name no user.

    Scans list the former, and lists do not. The latter matter only where a user is asked for.
    """
    known: set[str] = set()
    after = None
    while page := await backend.list_threads(PAGE, after=after):
        known.update(page)
        after = page[-1]
    others = [it async for it in all_threads(backend) if it not in known]
    pending_only = sum([not await backend.exists(it) for it in others])
    return pending_only, 0 if user is None else await _unowned(backend, known)


async def _unowned(backend: FullBackend, known: set[str]) -> int:
    owned: set[str] = set()
    if isinstance(backend, DescribesThreads):
        offset = 0
        wanted = ThreadsWanted(user_id=None, needle=None, offset=0, limit=PAGE)
        while page := await backend.find_facts(replace(wanted, offset=offset)):
            offset += len(page)
            owned.update(it.thread_id for it in page if it.user_id or USER_ID in it.metadata)
    gate = asyncio.Semaphore(AT_ONCE)

    async def names_no_user(thread_id: str) -> bool:
        async with gate:
            head = await backend.version(thread_id)
        return head is None or not {*head.metadata, *head.labels} & {USER_ID}

    count, rest = 0, sorted(known - owned)
    for first in range(0, len(rest), PAGE):
        count += sum(await asyncio.gather(*map(names_no_user, rest[first : first + PAGE])))
    return count
