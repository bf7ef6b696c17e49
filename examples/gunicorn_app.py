"""One checkpointer for all workers of gunicorn, opened before they are forked.

    gunicorn --preload --workers 2 gunicorn_app:blocking
    gunicorn --preload --workers 2 --worker-class asgi gunicorn_app:asynchronous

``curl --data hello http://127.0.0.1:8000/order-7`` appends a line to a thread and answers with all
of it.
"""

from __future__ import annotations

import asyncio
import json
import os
from typing import Any

from locus_store import ConflictError, open_checkpointer
from locus_store.blocking import BlockingCheckpointer

checkpointer = open_checkpointer(
    os.environ.get("LOCUS_STORE_URL", "sqlite:///locus_checkpoints.db"), state_type=dict
)
in_threads = BlockingCheckpointer(checkpointer)

asyncio.run(checkpointer.exists("any"))  # creates the tables, if necessary, before the first fork


def blocking(environ: dict[str, Any], start_response: Any) -> list[bytes]:
    """A WSGI application."""
    size = int(environ.get("CONTENT_LENGTH") or 0)
    said = environ["wsgi.input"].read(size).decode()
    thread_id = environ["PATH_INFO"].strip("/")
    while True:
        state = in_threads.load(thread_id) or {"said": []}
        state["said"].append(said)
        try:
            in_threads.save(state, thread_id)
            break
        except ConflictError:  # another request saved first: load again
            continue
    start_response("200 OK", [("Content-Type", "application/json")])
    return [answer(state)]


async def asynchronous(scope: dict[str, Any], receive: Any, send: Any) -> None:
    """An ASGI application."""
    if scope["type"] != "http":
        return
    body, more = b"", True
    while more:
        event = await receive()
        body, more = body + event.get("body", b""), event.get("more_body", False)
    thread_id = scope["path"].strip("/")
    while True:
        state = await checkpointer.load(thread_id) or {"said": []}
        state["said"].append(body.decode())
        try:
            await checkpointer.save(state, thread_id)
            break
        except ConflictError:
            continue
    headers = [(b"content-type", b"application/json")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": answer(state)})


def answer(state: dict[str, Any]) -> bytes:
    """Return the messages and the id of the worker as JSON."""
    return json.dumps({"worker": os.getpid(), "said": state["said"]}).encode()
