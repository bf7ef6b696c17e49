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
decide which promises are asked for; one that is not declared must be refused. Call
``pytest.register_assert_rewrite("locus_store.testing")`` in ``conftest.py``. A test's name is its
promise.
"""

from __future__ import annotations

from locus_store.testing.backend import StorageBackendContract
from locus_store.testing.conflicts import Conflicts
from locus_store.testing.deleting import Deleting, Expiry, Retention
from locus_store.testing.effects import EffectRules
from locus_store.testing.finding import Metadata, Search, ThreadListRules
from locus_store.testing.history import HistoryRules, LineageRules
from locus_store.testing.kit import (
    CUT_TEXTS,
    HOSTILE_IDS,
    INVALID_IDS,
    INVALID_LIMITS,
    NUMBERS,
    TEXTS,
    UNSERIALISABLE,
    Kit,
    StorageProbe,
    exact,
    needs,
    probe,
    refused,
    requires,
    seam,
    tick,
)
from locus_store.testing.limits import LimitRules
from locus_store.testing.messages import MessageLogContract
from locus_store.testing.minimal import Minimal, RoundTrip
from locus_store.testing.sharing import Arguments, Concurrency, Copying, Integrity
from locus_store.testing.states import Marks, StateClasses
from locus_store.testing.store import StoreContract
from locus_store.testing.tenants import Quotas, Tenants
from locus_store.testing.turns import Turns

__all__ = [
    "CUT_TEXTS",
    "HOSTILE_IDS",
    "INVALID_IDS",
    "INVALID_LIMITS",
    "NUMBERS",
    "TEXTS",
    "UNSERIALISABLE",
    "Arguments",
    "CheckpointerContract",
    "Concurrency",
    "Conflicts",
    "Copying",
    "Deleting",
    "EffectRules",
    "Expiry",
    "HistoryRules",
    "Integrity",
    "Kit",
    "LimitRules",
    "LineageRules",
    "Marks",
    "MessageLogContract",
    "Metadata",
    "Minimal",
    "MinimalCheckpointerContract",
    "Quotas",
    "Retention",
    "RoundTrip",
    "Search",
    "StateClasses",
    "StorageBackendContract",
    "StorageProbe",
    "StoreContract",
    "Tenants",
    "ThreadListRules",
    "Turns",
    "exact",
    "needs",
    "probe",
    "refused",
    "requires",
    "seam",
    "tick",
]


class MinimalCheckpointerContract(Minimal):
    """The contract of a ``BaseCheckpointer`` with only the three abstract methods."""


class CheckpointerContract(
    Minimal, RoundTrip, HistoryRules, LineageRules, Conflicts, Deleting, Retention, Expiry,
    ThreadListRules, Metadata, Search, Copying, Arguments, Concurrency, Integrity, Marks,
    StateClasses, Tenants, Quotas, LimitRules, EffectRules, Turns,
):  # fmt: skip
    """Everything that a checkpointer of this package promises; see the module's docstring."""
