"""The contracts as tests: subclass one and give it a fixture to test a backend completely.

::

    class TestMine(CheckpointerContract):
        @pytest.fixture
        def reopen(self, tmp_path):
            return partial(my_checkpointer, tmp_path / "mine", state_type=self.state_type)

        @pytest.fixture
        def checkpointer(self, reopen):
            return reopen()

``MinimalCheckpointerContract`` is for a subclass of ``BaseCheckpointer`` with only its three
abstract methods, ``StorageBackendContract`` for a backend's own, dict-shaped methods, and
``StoreContract`` for a ``BaseStore`` and ``MessageLogContract`` for a ``BaseMessageLog`` (they need
``reopen`` only; see their modules). Capabilities
decide which promises are asked for; one that is not declared must be refused. A test's name is its
promise.
"""

# ruff: noqa: E402  (asserts are rewritten when their module is imported)

from pkgutil import iter_modules

import pytest

pytest.register_assert_rewrite(*(f"{__name__}.{it.name}" for it in iter_modules(__path__)))

from locus_store.testing.backend import StorageBackendContract as StorageBackendContract
from locus_store.testing.conflicts import Conflicts as Conflicts
from locus_store.testing.deleting import (
    Deleting as Deleting,
    Expiry as Expiry,
    Retention as Retention,
)
from locus_store.testing.effects import EffectRules as EffectRules
from locus_store.testing.finding import (
    Metadata as Metadata,
    Search as Search,
    ThreadListRules as ThreadListRules,
)
from locus_store.testing.history import HistoryRules as HistoryRules, LineageRules as LineageRules
from locus_store.testing.kit import (
    CUT_TEXTS as CUT_TEXTS,
    HOSTILE_IDS as HOSTILE_IDS,
    INVALID_IDS as INVALID_IDS,
    INVALID_LIMITS as INVALID_LIMITS,
    NUMBERS as NUMBERS,
    TEXTS as TEXTS,
    UNSERIALISABLE as UNSERIALISABLE,
    Kit as Kit,
    StorageProbe as StorageProbe,
    exact as exact,
    needs as needs,
    probe as probe,
    refused as refused,
    requires as requires,
    seam as seam,
    tick as tick,
)
from locus_store.testing.messages import MessageLogContract as MessageLogContract
from locus_store.testing.minimal import Minimal as Minimal, RoundTrip as RoundTrip
from locus_store.testing.sharing import (
    Arguments as Arguments,
    Concurrency as Concurrency,
    Copying as Copying,
    Integrity as Integrity,
)
from locus_store.testing.states import (
    LimitRules as LimitRules,
    Marks as Marks,
    StateClasses as StateClasses,
)
from locus_store.testing.store import StoreContract as StoreContract
from locus_store.testing.tenants import Quotas as Quotas, Tenants as Tenants
from locus_store.testing.turns import Turns as Turns


class MinimalCheckpointerContract(Minimal):
    """The contract of a ``BaseCheckpointer`` with only the three abstract methods."""


class CheckpointerContract(
    Minimal, RoundTrip, HistoryRules, LineageRules, Conflicts, Deleting, Retention, Expiry,
    ThreadListRules, Metadata, Search, Copying, Arguments, Concurrency, Integrity, Marks,
    StateClasses, Tenants, Quotas, LimitRules, EffectRules, Turns,
):  # fmt: skip
    """Everything that a checkpointer of this package promises; see the module's docstring."""
