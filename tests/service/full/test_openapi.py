"""Requests that are generated from the OpenAPI document: no crash, and nothing undocumented."""

from __future__ import annotations

from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)
from tiers import LONG

from locus_store import InMemoryMessageLog, InMemoryStore, MemoryBackend
from locus_store.service import app
from locus_store.service.openapi import make_document
from locus_store.wire.calls import CALLS

BACKEND = MemoryBackend()
APP = app(
    BACKEND,
    store=InMemoryStore(dimension=3),
    messages=InMemoryMessageLog(backend=BACKEND),
)
EXAMPLES = 300 if LONG else 5

schema = schemathesis.openapi.from_asgi("/openapi.json", APP)


OPERATIONS = {it.ok().label: it.ok() for it in schema.get_all_operations()}
UNSUPPORTED = {f"POST {it.path}" for it in CALLS if it.right == "audit"}
"""Memory records no calls, and answers with 501."""

CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
]


@pytest.mark.parametrize("label", [it for it in OPERATIONS if it not in UNSUPPORTED])
def test_what_is_generated_is_answered_as_documented(label: str) -> None:
    @given(case=OPERATIONS[label].as_strategy())
    @settings(
        max_examples=EXAMPLES,
        deadline=None,
        phases=[Phase.explicit, Phase.generate],
        suppress_health_check=[*HealthCheck],
    )
    def check(case: Any) -> None:
        case.call_and_validate(checks=CHECKS)

    check()


def test_each_call_is_documented() -> None:
    paths = make_document()["paths"]
    assert {it.path for it in CALLS} <= paths.keys()
    for call in CALLS:
        assert paths[call.path]["post"]["summary"]


def test_each_limit_is_documented() -> None:
    for path, operations in make_document()["paths"].items():
        for method in operations.keys() - {"parameters"}:
            answers = operations[method]["responses"].keys()
            assert answers >= {"421", "431"}, path
            assert (answers >= {"408", "413"}) is (method == "post"), path
            is_open = path in {"/health", "/ready", "/openapi.json"}
            assert (answers >= {"401", "403", "429"}) is not is_open, path


@pytest.mark.parametrize("kind", ["schemas", "securitySchemes"])
def test_every_reference_leads_somewhere(kind: str) -> None:
    import json
    import re

    text = json.dumps(make_document())
    found = set(re.findall(rf"#/components/{kind}/(\w+)", text))
    assert found <= make_document()["components"][kind].keys()
