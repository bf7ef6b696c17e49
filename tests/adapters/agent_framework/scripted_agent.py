"""An agent of Agent Framework whose answers are given; run by tests, and in another process."""

from __future__ import annotations

from typing import Any

from agent_framework import (
    Agent,
    AgentSession,
    BaseChatClient,
    ChatResponse,
    FunctionInvocationLayer,
    Message,
)


class Scripted(FunctionInvocationLayer, BaseChatClient):
    """A client that gives the answers of a list, and keeps what it was asked."""

    def __init__(self, *answers: Any) -> None:
        super().__init__()
        self.answers = list(answers)
        self.asked: list[list[Message]] = []

    async def _inner_get_response(self, *, messages: Any, **_: Any) -> ChatResponse:
        self.asked.append(list(messages))
        return ChatResponse(messages=[Message(role="assistant", contents=[self.answers.pop(0)])])


async def turn(provider: Any, client: Scripted, text: str, **options: Any) -> str:
    agent = Agent(client=client, name="a", context_providers=[provider], **options)
    return (await agent.run(text, session=AgentSession(session_id="s"))).text


def texts(messages: list[Message]) -> list[str]:
    return [it.text for it in messages]
