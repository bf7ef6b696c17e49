"""The options of a session, and the configuration of a call: what a caller's dict may say."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from pydantic import BaseModel

from locus_store.backend import StorageBackend
from locus_store.errors import InvalidArgumentError
from locus_store.session.cache import StateCache
from locus_store.types import Mark
from locus_store.types.arguments import check_choice, check_id, check_mapping
from locus_store.types.marks import LoadedVersion, make_thread_key
from locus_store.types.state_classes import is_model
from locus_store.types.thread_info import UserIdType, format_user

VERSION_KEY: Final = "_checkpoint_version"
"""A config that has this key is given the version that a state was made from."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """A checked configuration; ``thread_id`` is empty where none is needed."""

    thread_id: str
    user_id: str | None
    state_class: type[BaseModel] | None
    thread_name: str | None
    thread_meta: Mapping[str, Any] | None
    meta: Mapping[str, Any] | None
    origin: LoadedVersion | None
    """Of the state that the caller saves, where the configuration has it."""

    def select_for_thread(self, origin: LoadedVersion | None) -> LoadedVersion | None:
        """Return the origin if it is of this call's thread: a state may be saved elsewhere."""
        return origin if origin and origin.thread == make_thread_key(self.thread_id) else None

    def make_origin(self, mark: Mark | None, before: LoadedVersion | None = None) -> LoadedVersion:
        """Return the origin of a state that was made from, or saved as, a version."""
        load_id = {"load_id": before.load_id} if before else {}
        return LoadedVersion(
            thread=make_thread_key(self.thread_id), made_from=mark, head=mark, **load_id
        )


def to_call(config: Mapping[str, Any], users: UserIdType, *, needs_thread: bool = True) -> Call:
    """Return a configuration, checked; the caller's dict is not changed.

    Raises:
        InvalidArgumentError: It has no thread, or an entry is not valid.
    """
    check_mapping("config", config)
    if needs_thread and config.get("thread_id") is None:
        raise InvalidArgumentError('config has no "thread_id"')
    thread_id = config.get("thread_id")
    return Call(
        thread_id="" if thread_id is None else check_id("thread_id", thread_id),
        user_id=format_user(config.get("user_id"), users),
        state_class=check_state_class(config.get("state_class")),
        thread_name=config.get("thread_name"),
        thread_meta=config.get("thread_meta"),
        meta=config.get("meta"),
        origin=_parse_origin(config.get(VERSION_KEY)),
    )


def _parse_origin(token: object) -> LoadedVersion | None:
    """Return the version that a caller's dict names, if any; a read or write has set it."""
    origin = None if token is None else LoadedVersion.from_token(token)
    if origin is None and token is not None:
        raise InvalidArgumentError(
            f"{VERSION_KEY} is not a version that a read or write has set: {token!r:.80}; "
            "set it to None, and load the state again"
        )
    return origin


def check_state_class(kind: object) -> type[BaseModel] | None:
    """Return the class that states come back as; refuse what is not a pydantic model."""
    if kind is None or (isinstance(kind, type) and is_model(kind)):
        return kind
    raise InvalidArgumentError(f"state_class must be a pydantic model, not {kind!r}")


def check_options(
    backend: object, cache: object, on_conflict: object, release_resources: object
) -> None:
    """Refuse options of a session that are not valid.

    Raises:
        InvalidArgumentError: One is not.
        TypeError: ``backend`` is not a backend.
    """
    if not isinstance(backend, StorageBackend) and not callable(backend):
        raise TypeError(
            f"a session keeps its data in a StorageBackend, not {type(backend).__name__}"
        )
    if not (cache is None or isinstance(cache, StateCache) or callable(cache)):
        raise InvalidArgumentError(
            f"cache must be a LocalCache, RedisCache or other StateCache, not {cache!r:.80}"
        )
    check_choice("on_conflict", on_conflict, Literal["raise", "overwrite"])  # no side branches
    if not isinstance(release_resources, bool):
        raise InvalidArgumentError(
            f"release_resources must be True or False, not {release_resources!r:.80}"
        )
