"""A chat service with a LangGraph graph in which a double click gets one answer.

    pip install fastapi uvicorn langgraph ".[langgraph]"
    uvicorn --app-dir examples turns:app --workers 2
    curl --json '{"id": "click-1", "text": "Hello."}' http://127.0.0.1:8000/threads/order-7

Each request is a turn of its thread, so one run at a time works on it, in whichever worker. With
``WAIT=queue`` the second request waits, and finds that its message has been answered. With
``WAIT=reject`` it gets 409. ``LOCUS_STORE_URL`` names the database.
"""

import asyncio
import os
from contextlib import asynccontextmanager
from typing import Annotated, TypedDict

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse
from langgraph.graph import START, StateGraph
from pydantic import BaseModel

from locus_store import TurnError
from locus_store.adapters.langgraph import LangGraphSaver

URL = os.environ.get("LOCUS_STORE_URL", "sqlite:///chats.db")
WAIT = os.environ.get("WAIT", "queue")


class Chat(TypedDict, total=False):
    """The state of a thread."""

    asked: tuple[str, str]
    answers: Annotated[dict[str, str], lambda old, new: {**old, **new}]


async def answer(state: Chat) -> Chat:
    """Reply to a message. Call your model here."""
    await asyncio.sleep(0.5)
    click, text = state["asked"]
    return {"answers": {click: f"Answer {len(state['answers']) + 1}, to {text!r}"}}


@asynccontextmanager
async def lifespan(app: FastAPI):
    """Open the saver before the first request, and close it after the last."""
    async with LangGraphSaver.from_url(URL) as saver:
        await saver.asetup()
        graph = StateGraph(Chat).add_node(answer).add_edge(START, "answer")
        app.state.saver, app.state.graph = saver, graph.compile(checkpointer=saver)
        yield


app = FastAPI(lifespan=lifespan)


@app.exception_handler(TurnError)
async def busy(request: Request, error: TurnError) -> JSONResponse:
    """Another request is being answered, or it has taken too long to wait for it."""
    return JSONResponse({"detail": str(error)}, 409, headers={"Retry-After": "1"})


class Message(BaseModel):
    """A message of a user; both requests of a double click have the same id."""

    id: str
    text: str


@app.post("/threads/{thread_id}")
async def post_message(thread_id: str, message: Message, request: Request) -> dict:
    """Answer a message once."""
    saver, graph = request.app.state.saver, request.app.state.graph
    config = {"configurable": {"thread_id": thread_id}}
    async with saver.turn(thread_id, wait=WAIT, timeout_seconds=60):
        found = (await graph.aget_state(config)).values
        if message.id not in found.get("answers", {}):
            asked = {"asked": (message.id, message.text)}
            found = await graph.ainvoke(asked, config, durability="sync")
        return {"reply": found["answers"][message.id]}
