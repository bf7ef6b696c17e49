"""The installed library: AgentFlow, or else PyAgenity."""

from __future__ import annotations

import sys
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple

from locus_store.errors import MissingExtraError, make_install_command
from locus_store.session.models import Models

if TYPE_CHECKING:
    from types import ModuleType


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
    found = _agentflow() or _pyagenity()
    if found is None:
        raise MissingExtraError(
            f"neither AgentFlow nor PyAgenity is installed: {make_install_command('agentflow')} "
            f"or {make_install_command('pyagenity')}"
        )
    return found


def _agentflow() -> Library | None:
    checkpointers = _module("agentflow.storage.checkpointer")
    if checkpointers is None:
        return None
    state = import_module("agentflow.core.state")
    info = import_module("agentflow.utils.thread_info").ThreadInfo
    errors = import_module("agentflow.core.exceptions.storage_exceptions")
    models = Models(state.AgentState, state.Message, info)
    return Library(checkpointers.BaseCheckpointer, models, errors.StaleStateError)


def _pyagenity() -> Library | None:
    checkpointers = _module("pyagenity.checkpointer")
    if checkpointers is None:
        return None
    state = import_module("pyagenity.state")
    messages = state if hasattr(state, "Message") else import_module("pyagenity.utils")  # 0.3.3
    info = import_module("pyagenity.utils.thread_info").ThreadInfo
    models = Models(state.AgentState, messages.Message, info)
    return Library(checkpointers.BaseCheckpointer, models, None)


def _module(name: str) -> ModuleType | None:
    """Import a module of a library; ``None`` if the library is not installed."""
    try:
        return import_module(name)
    except ModuleNotFoundError as exc:
        if name.startswith(str(exc.name)):
            return None
        raise
