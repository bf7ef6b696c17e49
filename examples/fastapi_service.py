"""A chat service: one checkpointer for all requests, and 409 when two of them race.

    pip install fastapi uvicorn ".[postgres]"
    uvicorn --app-dir examples fastapi_service:app --workers 2
    curl --json '{"text": "Hello."}' http://127.0.0.1:8000/threads/order-7/messages

``LOCUS_STORE_URL`` names the database.
"""

import os
from contextlib import asynccontextmanager
from typing import Annotated

from fastapi import Depends, FastAPI, HTTPException, Request
from fastapi.responses import JSONResponse
from pydantic import BaseModel

from locus_store import (
    BaseCheckpointer,
    ConflictError,
    ConnectionFailedError,
    InvalidArgumentError,
    open_checkpointer,
)


@asynccontextmanager
async def lifespan(app: FastAPI):
    """Open the checkpointer before the first request, and close it after the last."""
    url = os.environ.get("LOCUS_STORE_URL", "sqlite:///agents.db")
    async with open_checkpointer(url, state_type=dict) as checkpointer:
        await checkpointer.open()  # a wrong URL or a missing schema fails here
        app.state.checkpointer = checkpointer
        yield


app = FastAPI(lifespan=lifespan)


def get_checkpointer(request: Request) -> BaseCheckpointer[dict]:
    """Return the checkpointer of the application; a test can replace it."""
    return request.app.state.checkpointer


Checkpointer = Annotated[BaseCheckpointer[dict], Depends(get_checkpointer)]


@app.exception_handler(ConflictError)
async def conflict(request: Request, error: ConflictError) -> JSONResponse:
    """Another request saved the thread first. Nothing was written: the client may retry."""
    detail = "the thread has changed, send the message again"
    return JSONResponse({"detail": detail, "head": error.head_id}, status_code=409)


@app.exception_handler(InvalidArgumentError)
async def invalid(request: Request, error: InvalidArgumentError) -> JSONResponse:
    """The thread id is too long, say."""
    return JSONResponse({"detail": str(error)}, status_code=422)


@app.exception_handler(ConnectionFailedError)
async def unavailable(request: Request, error: ConnectionFailedError) -> JSONResponse:
    """The database cannot be reached."""
    headers = {"Retry-After": "1"}
    return JSONResponse({"detail": "the database is unavailable"}, 503, headers=headers)


class Turn(BaseModel):
    """A message of a user."""

    text: str


async def answer(messages: list[str]) -> str:
    """Return the reply to the last message. Call your model here."""
    return f"That was message {len(messages)}."


@app.post("/threads/{thread_id}/messages")
async def post_message(thread_id: str, turn: Turn, checkpointer: Checkpointer) -> dict:
    """Hold one turn of a conversation."""
    state = await checkpointer.load(thread_id) or {"messages": []}
    state["messages"].append(turn.text)
    reply = await answer(state["messages"])
    state["messages"].append(reply)
    return {"reply": reply, "version": await checkpointer.save(state, thread_id)}


@app.get("/threads/{thread_id}")
async def get_thread(thread_id: str, checkpointer: Checkpointer) -> dict:
    """Return the state of a thread."""
    state = await checkpointer.load(thread_id)
    if state is None:
        raise HTTPException(404, "no such thread")
    return state


@app.get("/ready")
async def ready(checkpointer: Checkpointer) -> dict:
    """Answer 200 if the database answers."""
    await checkpointer.exists("any")
    return {"ready": True}
