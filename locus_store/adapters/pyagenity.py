"""Sessions for the graphs of PyAgenity, and of AgentFlow: instances of their own base class."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from datetime import UTC
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any, ClassVar, Generic, NamedTuple, TypeVar

from locus_store import session
from locus_store.errors import ConflictError, MissingExtraError, TurnError, make_install_command
from locus_store.session.config import VERSION_KEY
from locus_store.session.models import Models

if TYPE_CHECKING:
    from types import ModuleType

    from pydantic import BaseModel

    from locus_store.types.marks import LoadedVersion

__all__ = ["InMemoryCheckpointer", "PgCheckpointer", "SessionCheckpointer", "SqliteCheckpointer"]


class Library(NamedTuple):
    """The names that the adapter needs of a library."""

    base: Any
    """The class of every checkpointer."""

    models: Models
    stale: type[Exception] | None
    """Its error for a save that lost a race, if it has one."""


@cache
def find_installed() -> Library:
    """Return the library that is installed; AgentFlow if both are.

    Raises:
        MissingExtraError: Neither is, or this Python is too old for both.
    """
    if sys.version_info < (3, 12):
        raise MissingExtraError(
            "PyAgenity and AgentFlow need Python 3.12 or later; this is "
            f"{'.'.join(map(str, sys.version_info[:2]))}. locus_store.session has the same "
            "methods with classes of its own"
        )
    found = _find_agentflow() or _find_pyagenity()
    if found is None:
        raise MissingExtraError(
            f"neither AgentFlow nor PyAgenity is installed: {make_install_command('agentflow')} "
            f"or {make_install_command('pyagenity')}"
        )
    return found


def _find_agentflow() -> Library | None:
    checkpointers = _import_module("agentflow.storage.checkpointer")
    if checkpointers is None:
        return None
    state = import_module("agentflow.core.state")
    info = import_module("agentflow.utils.thread_info").ThreadInfo
    errors = import_module("agentflow.core.exceptions.storage_exceptions")
    models = Models(state.AgentState, state.Message, info)
    return Library(checkpointers.BaseCheckpointer, models, errors.StaleStateError)


def _find_pyagenity() -> Library | None:
    checkpointers = _import_module("pyagenity.checkpointer")
    if checkpointers is None:
        return None
    state = import_module("pyagenity.state")
    messages = state if hasattr(state, "Message") else import_module("pyagenity.utils")  # 0.3.3
    info = import_module("pyagenity.utils.thread_info").ThreadInfo
    models = Models(state.AgentState, messages.Message, info)
    return Library(checkpointers.BaseCheckpointer, models, None)


def _import_module(name: str) -> ModuleType | None:
    """Import a module of a library; ``None`` if the library is not installed."""
    try:
        return import_module(name)
    except ModuleNotFoundError as exc:
        if name.startswith(str(exc.name)):
            return None
        raise


StateT = TypeVar("StateT")
LIBRARY = find_installed()

if TYPE_CHECKING:

    class _LibraryCheckpointer(Generic[StateT]):
        """Stands for the library's class, which only Python 3.12 can read."""

else:
    _LibraryCheckpointer = LIBRARY.base


def _make_conflict_class() -> type[ConflictError]:
    """Return the class of a lost race: also the library's, if it has one."""
    if LIBRARY.stale is None:
        return ConflictError

    class StaleThreadError(ConflictError, LIBRARY.stale):  # type: ignore[name-defined,misc]
        """Another writer moved the thread on; see both bases."""

    return StaleThreadError


LOST_RACE = _make_conflict_class()


class SessionCheckpointer(session.SessionCheckpointer, _LibraryCheckpointer[StateT]):
    """A session with the library's states, messages and facts of threads.

    A state remembers the version that it was made from, as those of ``locus_store.session`` do: of
    two runs on one thread, the second to save raises ``ConflictError``, which is AgentFlow's
    ``StaleStateError`` too. The configuration of a run that begins a thread says that there was
    no version; other configurations are changed only if they have the key ``_checkpoint_version``.
    """

    models: ClassVar[Models] = LIBRARY.models

    async def aput_state(self, config: Mapping[str, Any], state: Any) -> Any:
        try:
            return await super().aput_state(config, state)
        except TurnError:
            raise
        except ConflictError as exc:
            raise LOST_RACE(str(exc), head_id=exc.head_id, parent_id=exc.parent_id) from exc

    async def aput_thread(self, config: Mapping[str, Any], thread_info: Any) -> None:
        await super().aput_thread(config, _with_zone(thread_info))

    def bind_state_type(self, state_type: type[BaseModel] | None) -> None:
        checked = getattr(LIBRARY.base, "bind_state_type", None)
        if checked is not None:
            checked(self, state_type)  # a second class for one checkpointer is refused
        super().bind_state_type(state_type)

    def _hand_on(self, config: Mapping[str, Any], origin: LoadedVersion) -> None:
        if "is_stream" not in config or not isinstance(config, dict):
            super()._hand_on(config, origin)
        elif origin.made_from is None:  # a graph's own, whose next state is a new one
            config[VERSION_KEY] = origin.to_token()


class PgCheckpointer(SessionCheckpointer[StateT], session.PgCheckpointer):
    """See ``locus_store.session.PgCheckpointer``."""


class SqliteCheckpointer(SessionCheckpointer[StateT], session.SqliteCheckpointer):
    """See ``locus_store.session.SqliteCheckpointer``."""


class InMemoryCheckpointer(SessionCheckpointer[StateT], session.InMemoryCheckpointer):
    """See ``locus_store.session.InMemoryCheckpointer``."""


def _with_zone(info: Any) -> Any:
    """Return facts whose time has a zone: the library's own is that of the local clock."""
    at = getattr(info, "updated_at", None)
    if at is None or at.tzinfo is not None:
        return info
    return info.model_copy(update={"updated_at": at.astimezone(UTC)})
