"""The OpenAPI 3.1 document, made from the table of calls."""

from __future__ import annotations

from functools import cache
from inspect import getdoc
from typing import Any, Final

from pydantic.json_schema import GenerateJsonSchema

from locus_store import __version__
from locus_store.wire import bodies
from locus_store.wire.calls import CALLS, DESCRIPTION, VERSION, WireCall
from locus_store.wire.forms import Validator

ERROR: Final = {
    "type": "object",
    "properties": {
        "error": {"type": "string"},
        "message": {"type": "string"},
        "fields": {"type": "object"},
    },
    "required": ["error", "message", "fields"],
}

ALWAYS: Final = {
    "421": "Without tokens: the header `Host` names a host that the service does not answer for",
    "431": "The URL and the headers are too long, or too many; the connection is closed",
}
"""The statuses that any request may be answered with."""

REFUSALS: Final = {
    "401": "No valid token",
    "403": "The token does not have the right, or the thread is another user's",
    "429": "Too many requests; `Retry-After` says when to come back",
}
"""The statuses of a request that needs a token."""

BODIES: Final = {
    "408": "The body took too long; the connection is closed",
    "413": "The body exceeds `max_body` of `GET /v1`; the connection is closed",
    "415": "The body has a `Content-Encoding`",
}
"""The statuses of a request with a body."""

FAILURES: Final = {
    "404": "There is no such thread or checkpoint, where the call needs one",
    "409": "Another writer was faster; nothing was written",
    "422": "An argument is not valid, or stored data is damaged",
    "428": "The save needs the whole state; nothing was written",
    "501": "The storage does not have this power",
    "503": "The storage failed, or cannot be reached",
}

ID: Final = {"type": "string", "minLength": 1, "maxLength": 255}


@cache
def make_document() -> dict[str, Any]:
    """Return the document."""
    schemas = _Schemas()
    described = _as_json(schemas.make(DESCRIPTION))
    paths = {
        **{it.path: {"post": _describe_operation(it, schemas)} for it in CALLS},
        VERSION: {"get": _describe("What this service can do", described, REFUSALS)},
        "/health": {"get": _describe("The process is alive", _STATUS, {}, security=[])},
        "/ready": {
            "get": _describe("The storage answers", _STATUS, {"503": FAILURES["503"]}, security=[])
        },
        "/metrics": {"get": _describe("Counts for Prometheus", _TEXT, REFUSALS)},
        "/openapi.json": {
            "get": _describe("This document", _as_json({"type": "object"}), {}, security=[])
        },
        **_describe_sdk_paths(),
    }
    return {
        "openapi": "3.1.0",
        "info": {"title": "locus-store", "version": __version__},
        "security": [{"token": []}, {}],
        "paths": paths,
        "components": {
            "schemas": {**schemas.records, "Error": ERROR},
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }


class _Schemas(GenerateJsonSchema):
    """The JSON Schemas of the wire's schemas; records are components."""

    def __init__(self) -> None:
        super().__init__(by_alias=False)
        self.records: dict[str, Any] = {}

    def make(self, validator: Validator) -> dict[str, Any]:
        """Return the JSON Schema of what a validator reads."""
        return self.generate_inner(validator.schema)

    def field_title_should_be_set(self, schema: Any) -> bool:
        """Return ``False``: a title would repeat the name."""
        return False

    def function_plain_schema(self, schema: Any) -> dict[str, Any]:
        """Return the schema that the function was given with."""
        found: dict[str, Any] = schema["metadata"]["json"]
        return found

    def function_after_schema(self, schema: Any) -> dict[str, Any]:
        """Return the schema of what the function gets; a reference for a record."""
        made = self.generate_inner(schema["schema"])
        name = schema.get("metadata", {}).get("name")
        if name is None:
            return made
        self.records[name] = made
        return {"$ref": f"#/components/schemas/{name}"}

    def handle_ref_overrides(self, json_schema: dict[str, Any]) -> dict[str, Any]:
        """Return a reference as it is."""
        return json_schema

    def tuple_schema(self, schema: Any) -> dict[str, Any]:
        """Return the schema of an array, without ``prefixItems``, which few tools read."""
        made = super().tuple_schema(schema)
        each = made.pop("prefixItems", None)
        if each is not None:
            distinct = [it for at, it in enumerate(each) if it not in each[:at]]
            made["items"] = distinct[0] if len(distinct) == 1 else {"anyOf": distinct}
        return made


def _as_json(schema: dict[str, Any]) -> dict[str, Any]:
    return {bodies.JSON: {"schema": schema}}


_STATUS: Final = _as_json({"type": "object", "properties": {"status": {"type": "string"}}})
_TEXT: Final = {"text/plain": {"schema": {"type": "string"}}}


def _describe_operation(call: WireCall, schemas: _Schemas) -> dict[str, Any]:
    """Return the operation of a call. Payloads are base64 in plain JSON."""
    return {
        "operationId": f"{call.part}_{call.name}",
        "summary": (getdoc(getattr(call.contract, call.name)) or "").partition("\n")[0],
        "tags": [call.part, call.right],
        "requestBody": {"required": True, "content": _as_json(schemas.make(call.arguments))},
        "responses": _list_responses(
            _as_json(schemas.make(call.answer)), {**BODIES, **REFUSALS, **FAILURES}
        ),
    }


def _describe(
    summary: str, content: dict[str, Any], failures: dict[str, str], **more: Any
) -> dict[str, Any]:
    return {"summary": summary, "responses": _list_responses(content, failures), **more}


def _list_responses(content: dict[str, Any], failures: dict[str, str]) -> dict[str, Any]:
    error = _as_json({"$ref": "#/components/schemas/Error"})
    described = {**ALWAYS, **failures}.items()
    refused = {name: {"description": text, "content": error} for name, text in described}
    return {"200": {"description": "Done", "content": content}, **refused}


def _describe_sdk_paths() -> dict[str, Any]:
    state = _as_json({"type": "object", "properties": {"state": {"type": "object"}}})
    saved = _as_json({"type": "object", "properties": {"checkpoint_id": ID}})
    save = {
        "type": "object",
        "properties": {
            "checkpoint_id": ID,
            "thread_id": ID,
            "created_at": {"type": "string"},
            "state": {"type": "object"},
            "metadata": {"type": ["object", "null"]},
        },
        "required": ["state"],
    }
    failures = {**REFUSALS, **FAILURES}
    thread, checkpoint = _as_parameter("thread_id"), _as_parameter("checkpoint_id")
    limit = {
        "name": "limit",
        "in": "query",
        "schema": {"type": "integer", "minimum": 0, "maximum": 2**31 - 1},
    }
    checkpoints = {"type": "array", "items": ID}
    ids = _as_json({"type": "object", "properties": {"checkpoints": checkpoints}})
    return {
        "/threads/{thread_id}/checkpoints": {
            "parameters": [thread],
            "post": {
                **_describe("Save a state", saved, {**BODIES, **failures}),
                "requestBody": {"required": True, "content": _as_json(save)},
            },
            "get": {**_describe("List checkpoints", ids, failures), "parameters": [limit]},
            "delete": _describe("Delete a thread", _STATUS, failures),
        },
        "/threads/{thread_id}/checkpoints/{checkpoint_id}": {
            "parameters": [thread, checkpoint],
            "get": _describe("Load a state", state, failures),
            "delete": _describe("Delete a checkpoint", _STATUS, failures),
        },
    }


def _as_parameter(name: str) -> dict[str, Any]:
    return {"name": name, "in": "path", "required": True, "schema": ID}
