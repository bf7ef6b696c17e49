"""States for people: messages as ``role: text``, graphs' channels without LangGraph's bookkeeping.

Messages are those of the Locus SDK, of LangChain and of OpenAI's API. No class is imported.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import Any, Final, Literal

from locus_store.runtime.notebooks import Tabular
from locus_store.timeline.paths import CHANNELS, CLASS_PARTS, Path, Step, is_bookkeeping, is_graphs
from locus_store.types.marks import LoadedDict
from locus_store.values.encoding import are_equal, encode
from locus_store.values.frames.alignment import align, digest_elements, measure_common_ends
from locus_store.versions.sizes import SOURCES

_MESSAGES: Final = "langchain_core.messages."
_TOLD: Final = frozenset({"parents", "counters_since_delta_snapshot"})
"""Metadata by which LangGraph finds its way."""

_TEXTS: Final = ("message", "content", "contents", "text", "parts")
"""Keys under which frameworks keep the text of a message."""


def make_readable(state: dict[str, Any]) -> dict[str, Any]:
    """Return a state with its messages as text; of a graph's state only the graph's channels."""
    if not is_graphs(state):
        return {name: _with_messages(it) for name, it in state.items()}
    return {
        name: strip_tags(value)
        for name, value in state[CHANNELS].items()
        if not is_bookkeeping(name)
    }


def _with_messages(value: Any) -> Any:
    if isinstance(value, list):
        return [_with_messages(it) for it in value]
    if not isinstance(value, dict):
        return value
    if is_message(value):
        return format_message(value)
    return {key: _with_messages(it) for key, it in value.items()}


def is_message(value: Mapping[str, Any]) -> bool:
    """Return whether an object is a message: it has a role, and content or tool calls."""
    return isinstance(value.get("role"), str) and ("content" in value or "tool_calls" in value)


def select_metadata(metadata: dict[str, Any]) -> dict[str, Any]:
    """Return a version's metadata without the entries that only LangGraph needs."""
    if not metadata.keys() >= SOURCES:
        return metadata
    return {name: strip_tags(it) for name, it in metadata.items() if name not in _TOLD}


def strip_tags(value: Any) -> Any:
    """Return a stored value without the tags of LangGraph's ``typed_values``; import nothing."""
    if isinstance(value, list):
        return [strip_tags(it) for it in value]
    if not isinstance(value, dict):
        return value
    read = _TAGS.get(str(value.get("$")))
    if read is None and is_message(value):
        return format_message(value)
    if read is None:
        return {k: strip_tags(it) for k, it in value.items()}
    try:
        return read(value)
    except (LookupError, TypeError, ValueError):  # not written by the codec: show it unchanged
        return value


def _show_object(value: dict[str, Any]) -> Any:
    """Return an object of a class as text or JSON, from its stored form."""
    if not isinstance(value.get("v"), list) or len(value["v"]) <= CLASS_PARTS:
        return f"<object, code {value['c']}>"
    module, name, content, *_ = value["v"]
    fields = strip_tags(content)
    if str(module).startswith(_MESSAGES) and isinstance(fields, dict) and "content" in fields:
        return format_message(fields, name)
    return {str(name): fields}


def format_message(fields: Mapping[str, Any], kind: str = "message") -> str:
    """Return one message: ``human: Hello``."""
    role, name = str(fields.get("type") or fields.get("role") or kind), fields.get("name")
    said = [_show_text(fields.get("content"))]
    calls = fields.get("tool_calls")
    said += [_call(it) for it in calls if isinstance(it, dict)] if isinstance(calls, list) else []
    return f"{role}{f' ({name})' if name else ''}: {' '.join(filter(None, said))}"


def format_content(content: Any) -> str:
    """Return the text in the content of a message of a log, or else its JSON."""
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        return " ".join(map(format_content, content))
    if isinstance(content, dict):
        for name in _TEXTS:
            if isinstance(content.get(name), str | list | dict):
                return format_content(content[name])
    return _show_json(content)


def _show_text(content: Any) -> str:
    if isinstance(content, str) or content is None:
        return content or ""
    if not isinstance(content, list):
        return _show_json(content)
    return " ".join(map(_show_block, content))


def _show_block(block: Any) -> str:
    if not isinstance(block, dict):
        return str(block)
    return str(block["text"]) if "text" in block else f"[{block.get('type', 'block')}]"


def _call(call: Mapping[str, Any]) -> str:
    """Return a call: LangChain has ``args``, the Locus SDK ``arguments``, OpenAI a function."""
    function = call.get("function")
    made = function if isinstance(function, dict) else call
    given = made.get("args", made.get("arguments"))
    return f"[calls {made.get('name')}({given if isinstance(given, str) else _show_json(given)})]"


def _show_json(value: Any) -> str:
    return encode(value).decode()


_TAGS: Final[dict[str, Callable[[dict[str, Any]], Any]]] = {
    "d": lambda it: {key: strip_tags(it["v"][key]) for key in it["k"]},
    "m": lambda it: {str(strip_tags(key)): strip_tags(value) for key, value in it["v"]},
    "b": lambda it: f"<bytes {it['v']}>",
    "f": lambda it: it["v"],
    "x": _show_object,
    "t": lambda it: f"<{it['t']} {it['v']}>",
}

_WORDS: Final = re.compile(r"\s+|\w+|[^\w\s]")
_MOST_WORDS: Final = 400
"""Words of two strings that are compared word by word; the time grows with their square."""

_LEAST_RATIO: Final = 0.3
"""Of strings that are shown as one."""

_LEVELS = 64
"""Deeper values are shown as changed as a whole."""

_CONTEXT = 20
"""Characters around the place at which two strings differ."""


@dataclass(frozen=True, slots=True)
class Difference(Tabular):
    """One thing that was added, removed or changed."""

    COLUMNS = ("what", "path", "before", "after")
    what: Literal["added", "removed", "changed"]
    path: Path
    """Keys and list indices: in the newer state, but for what was removed."""

    before: Any = None
    after: Any = None

    def as_row(self) -> dict[str, Any]:
        return Tabular.as_row(self) | {"path": "/".join(map(str, self.path))}

    def as_json(self) -> dict[str, Any]:
        """Return the difference as JSON, without ``before`` if added, or ``after`` if removed."""
        values = {"before": self.before, "after": self.after}
        values.pop({"added": "before", "removed": "after"}.get(self.what, ""), None)
        return {"what": self.what, "path": list(self.path), **values}


def find_differences(
    old: Any, new: Any, path: Path = (), *, step: Step | None = None
) -> Iterator[Difference]:
    """Yield the differences from ``old`` to ``new``, in the order of the newer state.

    Args:
        old: A JSON value, or a state that a checkpointer has loaded as a dict.
        new: Another one.
        path: Of both.
        step: Is called before each value inside; what it raises ends the comparison.
    """
    if step is not None:
        step()
    old, new = (dict(it) if isinstance(it, LoadedDict) else it for it in (old, new))
    if are_equal(old, new):
        return
    if isinstance(old, dict) and isinstance(new, dict) and len(path) < _LEVELS:
        yield from _compare_objects(old, new, path, step)
    elif isinstance(old, list) and isinstance(new, list) and len(path) < _LEVELS:
        yield from _compare_lists(old, new, path, step)
    else:
        yield Difference("changed", path, old, new)


def _compare_objects(
    old: dict[str, Any], new: dict[str, Any], path: Path, step: Step | None
) -> Iterator[Difference]:
    for key in sorted(old.keys() | new.keys()):
        if key not in new:
            yield Difference("removed", (*path, key), before=old[key])
        elif key not in old:
            yield Difference("added", (*path, key), after=new[key])
        else:
            yield from find_differences(old[key], new[key], (*path, key), step=step)


def _compare_lists(
    old: list[Any], new: list[Any], path: Path, step: Step | None
) -> Iterator[Difference]:
    """Yield the differences of lists; equal elements are matched, runs of one length compared."""
    for start, stop, first, last in align(digest_elements(old), digest_elements(new)):
        if stop - start == last - first:
            for i, j in zip(range(start, stop), range(first, last), strict=True):
                yield from find_differences(old[i], new[j], (*path, j), step=step)
            continue
        for i in range(start, stop):
            yield Difference("removed", (*path, i), before=old[i])
        for j in range(first, last):
            yield Difference("added", (*path, j), after=new[j])


def cut_common_ends(before: str, after: str) -> tuple[str, str]:
    """Return two strings without most of the start and end that they share."""
    head, tail = measure_common_ends(before, after)
    head, tail = max(head - _CONTEXT, 0), max(tail - _CONTEXT, 0)
    marks = ("…" if head else "", "…" if tail else "")
    return tuple(  # type: ignore[return-value]  # two of them
        marks[0] + text[head : len(text) - tail] + marks[1] for text in (before, after)
    )


def compare_words(before: str, after: str) -> list[tuple[str, str]] | None:
    """Return two strings as one, in parts that are ``same``, ``removed`` or ``added``.

    ``None``: they have too many words, or little in common.
    """
    old, new = (_WORDS.findall(it) for it in (before, after))
    if len(old) + len(new) > _MOST_WORDS:
        return None
    matcher = SequenceMatcher(None, old, new, autojunk=False)
    if matcher.ratio() < _LEAST_RATIO:
        return None
    parts: list[tuple[str, str]] = []
    for kind, start, stop, first, last in matcher.get_opcodes():
        if kind == "equal":
            parts.append(("same", "".join(old[start:stop])))
            continue
        pairs = ("removed", "".join(old[start:stop])), ("added", "".join(new[first:last]))
        parts += [it for it in pairs if it[1]]
    return parts
