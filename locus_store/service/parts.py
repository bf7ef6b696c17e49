"""The storages that a service stands over, and their form for each tenant."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeVar

from locus_store.backend import StorageBackend, needs
from locus_store.errors import UnsupportedError
from locus_store.types.thread_info import DescribesThreads

if TYPE_CHECKING:
    from locus_store.messages import BaseMessageLog
    from locus_store.store import BaseStore
    from locus_store.types.tenants import ForTenants
    from locus_store.wire.calls import WireCall

P = TypeVar("P", bound="ForTenants")

TENANTS: Final = 1000
"""Tenants whose objects are kept; another one's are made again."""


@dataclass(frozen=True, slots=True)
class Parts:
    """The objects that a service stands over."""

    threads: StorageBackend
    store: BaseStore | None
    messages: BaseMessageLog | None

    def target(self, call: WireCall) -> Any:
        """Return the object that has the method of a call.

        Raises:
            UnsupportedError: There is none, or it does not declare the power.
        """
        found = getattr(self, call.part)
        if found is None:
            raise UnsupportedError(f"this service has no part {call.part!r}")
        if issubclass(call.contract, StorageBackend):
            return needs(found, call.contract)
        if call.contract is DescribesThreads and not isinstance(found, DescribesThreads):
            raise UnsupportedError("the storage of this service keeps no facts of threads")
        return found

    def of(self, tenant: str) -> Parts:
        """Return the same parts for a tenant."""
        return Parts(
            self.threads.for_tenant(tenant), _of(self.store, tenant), _of(self.messages, tenant)
        )


def _of(part: P | None, tenant: str) -> P | None:
    return None if part is None else part.for_tenant(tenant)


class PartsOfTenants:
    """The parts of each tenant."""

    def __init__(self, parts: Parts) -> None:
        self.parts: Final = parts
        self._of: OrderedDict[str, Parts] = OrderedDict()

    def of(self, tenant: str | None) -> Parts:
        """Return the parts of a tenant; ``None`` is the one that they were opened for."""
        if tenant is None:
            return self.parts
        found = self._of.get(tenant)
        if found is None:
            found = self._of[tenant] = self.parts.of(tenant)
            if len(self._of) > TENANTS:
                self._of.popitem(last=False)
        self._of.move_to_end(tenant)
        return found
