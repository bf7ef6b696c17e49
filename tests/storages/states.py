"""States of other classes: what a contract's test needs of each."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel


class DictStates:
    state_type: type[Any] = dict

    def new(self, *texts: str) -> Any:
        return {"messages": list(texts)}

    def said(self, state: Any, text: str) -> Any:
        state = state.copy()
        state["messages"] = [*state["messages"], text]
        return state

    def texts(self, state: Any) -> list[str]:
        found: list[str] = state["messages"]
        return found

    def holding(self, value: Any) -> Any:
        return {"value": value}

    def held(self, state: Any) -> Any:
        return state["value"]


class Note(BaseModel):
    """A pydantic model with no room for a mark."""

    texts: list[str] = []
    value: Any = None


class PydanticStates:
    state_type: type[Any] = Note
    carries_marks = False

    def new(self, *texts: str) -> Any:
        return Note(texts=list(texts))

    def said(self, state: Any, text: str) -> Any:
        return Note(texts=[*state.texts, text])

    def texts(self, state: Any) -> list[str]:
        found: list[str] = state.texts
        return found

    def holding(self, value: Any) -> Any:
        return Note(value=value)

    def held(self, state: Any) -> Any:
        return state.value


class Plain:
    """A class with the two methods and no room for a mark."""

    def __init__(self, texts: list[str], value: Any = None) -> None:
        self.texts = texts
        self.value = value

    def to_checkpoint(self) -> dict[str, Any]:
        return {"texts": self.texts, "value": self.value}

    @classmethod
    def from_checkpoint(cls, data: dict[str, Any]) -> Plain:
        return cls(data["texts"], data["value"])


class PlainStates(PydanticStates):
    state_type: type[Any] = Plain

    def new(self, *texts: str) -> Any:
        return Plain(list(texts))

    def said(self, state: Any, text: str) -> Any:
        return Plain([*state.texts, text])

    def holding(self, value: Any) -> Any:
        return Plain([], value)


class LocusStates:
    """The real ``AgentState`` of the Locus SDK."""

    @property
    def state_type(self) -> Any:
        from locus.core.state import AgentState

        return AgentState

    def new(self, *texts: str) -> Any:
        from locus.core.messages import Message

        return self.state_type(messages=tuple(map(Message.user, texts)))

    def said(self, state: Any, text: str) -> Any:
        from locus.core.messages import Message

        return state.with_message(Message.user(text))

    def texts(self, state: Any) -> list[str]:
        return [it.content for it in state.messages]

    def holding(self, value: Any) -> Any:
        return self.state_type(metadata={"value": value})

    def held(self, state: Any) -> Any:
        return state.metadata["value"]
