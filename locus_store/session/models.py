"""The state of a session, and the facts of its thread."""

from __future__ import annotations

from datetime import datetime  # noqa: TC003  (pydantic evaluates it)
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, ValidationError

from locus_store.errors import InvalidArgumentError
from locus_store.session.messages import Message
from locus_store.types.marks import Lineage, Provenance

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


class ExecutionState(BaseModel):
    """The position of a run in its graph. Fields that this class does not name are kept."""

    model_config = ConfigDict(extra="allow", ser_json_inf_nan="constants")

    current_node: str | None = None
    step: int = 0
    status: str = "idle"
    interrupted_node: str | None = None
    interrupt_reason: str | None = None
    interrupt_data: dict[str, Any] | None = None
    internal_data: dict[str, Any] = Field(default_factory=dict)


class StateProvenance(Provenance):
    """The version that a session's state was made from.

    A deep copy or a pickled copy is saved by itself: of two copies of one state, the second save
    raises ``ConflictError``.
    """

    __slots__ = ()

    def __reduce__(self) -> tuple[Callable[[str | None], StateProvenance], tuple[str | None]]:
        return _copied, (self.token,)


def _copied(token: str | None) -> StateProvenance:
    lineage = Lineage.from_token(token) if token else None
    return StateProvenance(lineage.another().token() if lineage else None)


class AgentState(BaseModel):
    """The working memory of an agent; subclass it to add fields.

    A state remembers the version that it was made from, so that a save that lost a race raises
    ``ConflictError``. Fields that this class does not name are kept.
    """

    model_config = ConfigDict(extra="allow", ser_json_inf_nan="constants")

    context: list[Message] = Field(default_factory=list)
    context_summary: str | None = None
    execution_meta: ExecutionState = Field(default_factory=ExecutionState)
    _version: StateProvenance = PrivateAttr(default_factory=StateProvenance)


class ThreadInfo(BaseModel):
    """The facts of a thread. Fields that this class does not name are refused."""

    model_config = ConfigDict(extra="forbid")

    thread_id: str | int
    thread_name: str | None = None
    user_id: str | int | None = None
    metadata: dict[str, Any] | None = None
    updated_at: datetime | None = None
    """The given time, until a later save or message; without a time zone, in UTC."""

    run_id: str | None = None


class Models(NamedTuple):
    """The classes that a session takes and returns: its own, or those of a framework."""

    state: type[BaseModel]
    """A state comes back in this class, or in the loaded subclass of it that was saved."""

    message: type[Any]
    """A pydantic model with ``message_id``, ``role``, ``metadata`` and ``text()``."""

    thread_info: type[BaseModel]
    """A pydantic model with fields of ``ThreadInfo``."""


MODELS: Final = Models(AgentState, Message, ThreadInfo)
"""The classes of this package."""


def info_of(info: BaseModel | Mapping[str, Any]) -> ThreadInfo:
    """Return the facts of a thread as this package's class.

    Raises:
        InvalidArgumentError: A field is not valid, or is none of ``ThreadInfo``.
    """
    if isinstance(info, ThreadInfo):
        return info
    try:
        return ThreadInfo.model_validate(info.model_dump() if isinstance(info, BaseModel) else info)
    except ValidationError as exc:
        raise InvalidArgumentError(
            f"thread_info must be a ThreadInfo, or a dict of its fields: {exc.error_count()} "
            "field(s) are not valid"
        ) from exc
