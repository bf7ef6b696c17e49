"""The state of a session, and the facts of its thread."""

from __future__ import annotations

from datetime import datetime  # noqa: TC003  (pydantic evaluates it)
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, PrivateAttr

from locus_store.session.messages import Message  # noqa: TC001  (as above)
from locus_store.types.marks import Provenance


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


class AgentState(BaseModel):
    """The working memory of an agent; subclass it to add fields.

    A state remembers the version that it was made from, so that a save that lost a race raises
    ``ConflictError``. Fields that this class does not name are kept.
    """

    model_config = ConfigDict(extra="allow", ser_json_inf_nan="constants")

    context: list[Message] = Field(default_factory=list)
    context_summary: str | None = None
    execution_meta: ExecutionState = Field(default_factory=ExecutionState)
    _version: Provenance = PrivateAttr(default_factory=Provenance)


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
