"""States of LangGraph's graphs for display: channels and messages without bookkeeping."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from locus_store.cli.output import json_text

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_MESSAGES: Final = "langchain_core.messages."
_BOOKKEEPING: Final = ("__", "branch:", "join:")
_ROOT: Final = "__root__"
"""The channel of a graph whose state has no keys."""

_TOLD: Final = frozenset({"parents", "counters_since_delta_snapshot"})
"""Metadata by which LangGraph finds its way."""

_PARTS: Final = 2
"""Module and class come first in what is stored of an object."""


def is_graphs(state: Mapping[str, Any]) -> bool:
    """Return whether a state is a checkpoint of LangGraph."""
    return isinstance(state.get("channel_values"), dict) and {
        "channel_versions",
        "versions_seen",
    } <= set(state)


def readable(state: dict[str, Any]) -> dict[str, Any]:
    """Return a graph's state without LangGraph's own channels; any other state unchanged."""
    if not is_graphs(state):
        return state
    return {
        name: plain(it)
        for name, it in state["channel_values"].items()
        if name == _ROOT or not name.startswith(_BOOKKEEPING)
    }


def about(metadata: dict[str, Any]) -> dict[str, Any]:
    """Return a version's metadata without the entries that only LangGraph needs."""
    if not {"source", "step"} <= set(metadata):
        return metadata
    return {name: plain(it) for name, it in metadata.items() if name not in _TOLD}


def plain(value: Any) -> Any:
    """Return a stored value without the tags of LangGraph's ``typed_values``; import nothing."""
    if isinstance(value, list):
        return [plain(it) for it in value]
    if not isinstance(value, dict):
        return value
    read = _TAGS.get(str(value.get("$")))
    if read is None:
        return {key: plain(it) for key, it in value.items()}
    try:
        return read(value)
    except (LookupError, TypeError, ValueError):  # not written by the codec: show it unchanged
        return value


def _object(value: dict[str, Any]) -> Any:
    """Return an object of a class as text or JSON, from its stored form."""
    if not isinstance(value.get("v"), list) or len(value["v"]) <= _PARTS:
        return f"<object, code {value['c']}>"
    module, name, content, *_ = value["v"]
    fields = plain(content)
    if str(module).startswith(_MESSAGES) and isinstance(fields, dict) and "content" in fields:
        return message(fields, name)
    return {str(name): fields}


def message(fields: Mapping[str, Any], kind: str = "message") -> str:
    """Return one message: ``human: Hello``."""
    role, name = str(fields.get("type") or kind), fields.get("name")
    said = [_text(fields["content"])]
    said += [_call(it) for it in fields.get("tool_calls") or () if isinstance(it, dict)]
    return f"{role}{f' ({name})' if name else ''}: {' '.join(filter(None, said))}"


def _text(content: Any) -> str:
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        return json_text(content)
    return " ".join(map(_block, content))


def _block(block: Any) -> str:
    if not isinstance(block, dict):
        return str(block)
    return str(block["text"]) if "text" in block else f"[{block.get('type', 'block')}]"


def _call(call: Mapping[str, Any]) -> str:
    return f"[calls {call.get('name')}({json_text(call.get('args'))})]"


_TAGS: Final[dict[str, Callable[[dict[str, Any]], Any]]] = {
    "d": lambda it: {key: plain(it["v"][key]) for key in it["k"]},
    "m": lambda it: {str(plain(key)): plain(value) for key, value in it["v"]},
    "b": lambda it: f"<bytes {it['v']}>",
    "f": lambda it: it["v"],
    "x": _object,
    "t": lambda it: f"<{it['t']} {it['v']}>",
}
