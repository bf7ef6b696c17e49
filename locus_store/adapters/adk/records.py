"""Forms of Google ADK's events and states in message logs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from hashlib import sha256
from typing import Any, Final, NamedTuple, Self, TypeAlias

from google.adk.events import Event
from google.adk.sessions import State
from google.adk.sessions.base_session_service import GetSessionConfig
from pydantic import BaseModel, TypeAdapter
from pydantic_core import PydanticSerializationError, to_jsonable_python

from locus_store.adapters.logs import (
    choose_text,
    has_null,
    make_thread_id,
    restore_floats,
    tag_numbers,
    untag_numbers,
)
from locus_store.errors import IntegrityError, SerializationError
from locus_store.types.messages import ROLE, KeptMessages, LogName, LogSnapshot, NewMessage
from locus_store.types.state import dump_with_keys
from locus_store.values.text import Readable

SCHEME: Final = "locus+"
"""Begins a URI that ADK must not take for one of its own services."""

STATE: Final = "adk-state"
"""Namespace of the logs of the state of a session or user."""

APP: Final = "adk-app"
"""Namespace of the log of an app's state."""

READABLE: Final = Readable(
    said=frozenset(
        {"content", "parts", "text", "inline_data", "file_data", "display_name", "error_message"}
        | {"function_call", "function_response", "tool_call", "tool_response", "name"}
        | {"executable_code", "code", "code_execution_result"}
        | {"input_transcription", "output_transcription"}
    ),
    given=frozenset({"args", "response", "output"}),
)

_EVENTS: Final = TypeAdapter(list[Event])

Document: TypeAlias = dict[str, Any]


class SessionRecord(NamedTuple):
    """The one message of the log of a session's state."""

    state: Document
    updated: float
    """Time of the newest event, or else of the creation."""

    @classmethod
    def parse(cls, log: LogSnapshot) -> Self:
        """Return the record of a log.

        Raises:
            IntegrityError: The log holds something else.
        """
        match untag_numbers([it.content for it in log.messages]):
            case [{"state": dict(state), "updated": int() | float() as updated}]:
                return cls(state, updated)
        raise IntegrityError(f"the state of session {log.info.thread_id!r} is damaged")

    def to_message(self) -> NewMessage:
        """Return the record as a message, which replaces the one before."""
        return NewMessage(tag_numbers(self._asdict()), "state", "session", text="")


class Scopes(NamedTuple):
    """A state, or changes of it, by whom it belongs to."""

    app: Document
    user: Document
    session: Document

    @classmethod
    def divide(cls, state: Mapping[str, Any]) -> Self:
        """Divide a state by the prefixes of its keys; ``temp:`` is left out."""
        scopes = cls({}, {}, {})
        for key, value in state.items():
            scope, colon, name = key.partition(":")
            if scope + colon == State.APP_PREFIX:
                scopes.app[name] = value
            elif scope + colon == State.USER_PREFIX:
                scopes.user[name] = value
            elif scope + colon != State.TEMP_PREFIX:
                scopes.session[key] = value
        return scopes

    def add_prefixes(self) -> Document:
        """Return the shared states as a session has them."""
        app = {State.APP_PREFIX + key: value for key, value in self.app.items()}
        return {**app, **{State.USER_PREFIX + key: value for key, value in self.user.items()}}

    def make_messages(self, app_name: str, user_id: str) -> dict[str | LogName, KeptMessages]:
        logs = {
            name_app_log(app_name): (self.app, None),
            name_user_log(app_name, user_id): (self.user, user_id or None),
        }
        return {
            log: KeptMessages([make_value_message(*it) for it in state.items()], user_id=owner)
            for log, (state, owner) in logs.items()
            if state
        }


def name_app_log(app_name: str) -> tuple[str, str]:
    """Return the thread and the namespace of an app's state."""
    return make_thread_id(app_name, "", ""), APP


def name_user_log(app_name: str, user_id: str) -> tuple[str, str]:
    """Return the thread and the namespace of a user's state; no session has an empty id."""
    return make_thread_id(app_name, user_id, ""), STATE


def convert_state(state: Document) -> Document:
    """Return a state as the framework's SQL services store it, but with NaN and infinities."""
    made: Document = dump_with_keys(
        state, lambda it: to_jsonable_python(it, serialize_unknown=True, inf_nan_mode="constants")
    )
    return made


def make_value_message(key: str, value: Any) -> NewMessage:
    """Return the message of one key of a shared state, which replaces the one before."""
    # Keys may be of any length.
    name = sha256(key.encode(errors="surrogatepass")).hexdigest()
    return NewMessage(tag_numbers({key: value}), "state", name, text="")


def collect_values(thread_id: str, contents: Iterable[Any], prefix: str = "") -> Document:
    """Return the state of an app or user, of the contents of its log.

    Raises:
        IntegrityError: A message holds something else.
    """
    state: Document = {}
    for content in map(untag_numbers, contents):
        if not isinstance(content, dict):
            raise IntegrityError(f"the shared state in thread {thread_id!r} is damaged")
        state.update((prefix + key, value) for key, value in content.items())
    return state


def as_json(model: BaseModel, what: str) -> Document:
    """Return a model as JSON, with the numbers that JSON does not have.

    Raises:
        SerializationError: JSON cannot keep a value or key of it.
    """
    try:
        made: Document = dump_with_keys(
            model, lambda it: it.model_dump(mode="json", exclude_none=True)
        )
    except (PydanticSerializationError, UnicodeError) as exc:
        raise SerializationError(f"JSON cannot keep {what}: {exc}") from exc
    return restore_floats(made, model.model_dump(exclude_none=True)) if has_null(made) else made


def make_event_message(event: Event) -> tuple[NewMessage, Scopes]:
    """Return an event as a message without ``temp:`` keys, and the changes that it makes.

    Raises:
        SerializationError: JSON cannot keep a value or key of it.
    """
    content = as_json(event, f"event {event.id!r}")
    delta = content.get("actions", {}).get("state_delta", {})
    scopes = Scopes.divide(delta)
    for key in [it for it in delta if it.startswith(State.TEMP_PREFIX)]:
        del delta[key]
    author, event_id = choose_text(event.author, ROLE), choose_text(event.id, None)
    text = READABLE.get_text(content)
    return NewMessage(tag_numbers(content), author, event_id, text=text), scopes


def select_events(contents: Sequence[Any], config: GetSessionConfig) -> list[Event]:
    """Return the events that a configuration asks for, oldest first.

    Raises:
        ValidationError: One is not an event; its place is the first of the ``loc``.
    """
    found = _EVENTS.validate_python(untag_numbers(contents))
    if config.after_timestamp is not None:
        found = [it for it in found if it.timestamp >= config.after_timestamp]
    newest = config.num_recent_events
    return found if newest is None else found[max(0, len(found) - newest) :]
