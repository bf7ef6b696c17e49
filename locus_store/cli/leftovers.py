"""Stored data that may be a user's and is found by no user id: store items, and pending writes."""

from __future__ import annotations

import shlex
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from locus_store.cli.output import counted, note
from locus_store.cli.store import opened_store, typed_form
from locus_store.errors import InvalidArgumentError, UnsupportedError
from locus_store.transfer.archive import all_threads
from locus_store.types.items import check_namespace

if TYPE_CHECKING:
    from locus_store.backend import FullBackend
    from locus_store.store import BaseStore
    from locus_store.types.items import Namespace

PAGE = 1000


@dataclass(frozen=True, slots=True)
class Left:
    """The data of a tenant that a deletion leaves."""

    tenant: str | None
    user: str | None
    namespaces: list[str]
    """Namespaces of the store, as they are typed, that end with the user's id."""

    pending_only: int
    """Threads that hold only pending writes."""

    def described(self) -> dict[str, Any]:
        """Return what the JSON of a command shows."""
        return {
            "tenant": self.tenant,
            "namespaces": self.namespaces,
            "pending_only": self.pending_only,
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

    def tell_pending(self) -> None:
        """Print a note about threads that no user can be found for."""
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
            await _pending_only(it),
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


async def _pending_only(backend: FullBackend) -> int:
    """Return the number of threads that hold only pending writes: scans list them, lists do not."""
    known: set[str] = set()
    after = None
    while page := await backend.list_threads(PAGE, after=after):
        known.update(page)
        after = page[-1]
    others = [it async for it in all_threads(backend) if it not in known]
    return sum([not await backend.exists(it) for it in others])
