"""Two grammars of Oracle's SQL to ask, where no Oracle server can be had.

Neither is of Oracle 26ai: ``Grammar`` knows about what 21c knew; ``second_errors`` knows much of
23ai, and took more than it should until some nodes of its tree were denied. What each does not know
stands in its list, and a statement with it is not put to it.

IslandSQL's and ZPA's grammars are of 26ai and would be better first ones: no registry that the
tests reach had them when this was written.

A statement that a grammar accepts is not a statement that ran.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import shutil
import subprocess
import tempfile
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import servers

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

JAVA = Path(__file__).parent / "java"
JARS = Path(__file__).parents[3] / "build" / "oracle-grammar"
FETCH_SECONDS = 300
# It lives for seconds.
FAST = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xshare:auto")

# Words (upper case) and signs that follow each other in a statement, and what they are of.
Unknown = dict[tuple[str, ...], str]

UNKNOWN: Unknown = {
    ("(", "VALUES"): "(VALUES …) as rows (23ai)",
    ("RETURNING", "OLD"): "RETURNING OLD … NEW … (23ai)",
    ("PASSING",): "SQL/JSON with values",
    ("JSON_SERIALIZE",): "SQL/JSON",
    ("FETCH", "APPROX"): "approximate search (23ai)",
    ("<", "=>"): "vector operators (23ai)",
    ("VECTOR", "("): "vector columns (23ai)",
    ("VECTOR", "INDEX"): "vector indexes (23ai)",
    ("SEARCH", "INDEX"): "search indexes (23ai)",
    ("IF", "NOT", "EXISTS"): "IF NOT EXISTS in definitions (23ai)",
    ("IF", "EXISTS"): "IF EXISTS in definitions (23ai)",
    ("CASCADE", "CONSTRAINTS"): "DROP TABLE … CASCADE CONSTRAINTS",
    ("ONLINE",): "CREATE INDEX … ONLINE",
}
"""Of ``Grammar``; also INSERT with several rows, UPDATE with a second FROM and MERGE with RETURNING
(all 23ai), which no run of words tells apart."""

SECOND_UNKNOWN: Unknown = {
    ("SET", "("): "UPDATE … SET (a, b) = (SELECT …)",
    ("OFFSET",): "OFFSET … ROWS",
    ("PASSING",): "SQL/JSON with values",
    ("WITH", "WRAPPER"): "JSON_QUERY … WITH WRAPPER",
    ("IS", "JSON"): "IS JSON",
    ("FETCH", "APPROX"): "approximate search (23ai)",
    ("<", "=>"): "vector operators (23ai)",
    ("IDENTITY", "PRIMARY"): "a constraint after AS IDENTITY",
    ("(", "CASE"): "indexes on CASE",
    ("INDEXTYPE",): "domain indexes",
    ("SEARCH", "INDEX"): "search indexes (23ai)",
    ("VECTOR", "INDEX"): "vector indexes (23ai)",
    ("LOCK", "TABLE"): "LOCK TABLE",
    ("SET", "TRANSACTION"): "SET TRANSACTION",
    ("SAVEPOINT",): "SAVEPOINT",
}
"""Of ``second_errors``."""


def unknown(statement: str, listed: Unknown) -> list[str]:
    """Return the entries of the list that occur in the statement."""
    words = [it.raw_upper for it in _tokens(statement) if it.is_code]
    found = []
    for run, what in listed.items():
        starts = range(len(words) - len(run) + 1)
        if any(tuple(words[at : at + len(run)]) == run for at in starts):
            found.append(what)
    return found


# --- the first: ANTLR's collection's of PL/SQL, in Java


class Grammar:
    """A Java process that parses, until it is stopped.

    Raises:
        servers.UnavailableError: No Java, no Maven, or Maven cannot have the grammar.
    """

    def __init__(self) -> None:
        java = _program("java")
        classes = f"{_jars()}/*"
        self._process = subprocess.Popen(
            [java, *FAST, "-cp", classes, str(JAVA / "ParseServer.java")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            encoding="utf-8",
        )

    def errors(self, statement: str) -> list[str]:
        """The grammar's words against the statement: none if it is accepted.

        Args:
            statement: One, as the driver gets it: no semicolon after SQL, one after PL/SQL.
        """
        sent, received = self._process.stdin, self._process.stdout
        assert sent is not None
        assert received is not None
        sent.write(json.dumps(_named_binds(statement)) + "\n")
        sent.flush()
        answer = received.readline()
        assert answer, f"the parser ended ({self._process.poll()})"
        return list(json.loads(answer))

    def stop(self) -> None:
        """End the process."""
        self._process.communicate()


def _program(name: str) -> str:
    found = shutil.which(name)
    if found is None:
        raise servers.UnavailableError(f"no {name} (Debian: default-jdk-headless, maven)")
    return found


def _jars() -> Path:
    """The folder of what ``java/pom.xml`` names, fetched once."""
    version = hashlib.sha256((JAVA / "pom.xml").read_bytes()).hexdigest()[:12]
    kept = JARS / version
    if not kept.exists():
        JARS.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=JARS) as made:
            _fetch(Path(made) / "jars")
            with contextlib.suppress(OSError):  # another process of the tests was faster
                (Path(made) / "jars").rename(kept)
    return kept


def _fetch(folder: Path) -> None:
    goal = "dependency:copy-dependencies"
    ran = subprocess.run(
        [_program("mvn"), "-B", "-q", "-f", JAVA / "pom.xml", goal, f"-DoutputDirectory={folder}"],
        capture_output=True,
        text=True,
        check=False,
        timeout=FETCH_SECONDS,
    )
    if ran.returncode != 0:
        raise servers.UnavailableError(f"Maven has no Oracle grammar: {ran.stdout[-500:]}")


# --- the second: sqlfluff's, in Python


def second_errors(statement: str) -> list[str]:
    """As ``Grammar.errors``, of sqlfluff's grammar with nodes denied that Oracle has not."""
    return second_errors_undenied(statement) or [*_denied(_parsed(statement).tree)]


def second_errors_undenied(statement: str) -> list[str]:
    """As ``second_errors``, of sqlfluff's grammar as it comes."""
    return [it.desc() for it in _parsed(statement).violations]


@cache  # it takes a third of a second, and some statements are asked about twice
def _parsed(statement: str) -> Any:
    return _linter().parse_string(_named_binds(statement))


@cache
def _linter() -> Any:
    from sqlfluff.core import FluffConfig, Linter

    logging.getLogger("sqlfluff").setLevel(logging.CRITICAL)
    return Linter(config=FluffConfig(overrides={"dialect": "oracle", "templater": "raw"}))


@cache
def _tokens(statement: str) -> tuple[Any, ...]:
    from sqlfluff.core.parser import Lexer

    tokens, _ = Lexer(config=_linter().config).lex(statement)
    return tuple(tokens)


def _named_binds(statement: str) -> str:
    """``:b1`` for ``:1``, which the second grammar does not know."""
    words = []
    before = ""
    for token in _tokens(statement):
        is_number = before == ":" and token.raw.isdigit()
        before = token.raw
        words.append(f"b{token.raw}" if is_number else token.raw)
    return "".join(words)


def _denied(tree: Any) -> Iterator[str]:
    """Return descriptions of the tree's nodes that Oracle's manuals do not have."""
    for node in tree.recursive_crawl_all():
        for why, is_denied in DENIED.items():
            if is_denied(node):
                yield f"{why}: {node.raw[:60]}"


def _code(node: Any) -> list[Any]:
    return [it for it in node.segments if it.is_code]


def _keywords(node: Any) -> list[str]:
    return [it.raw_upper for it in _code(node) if it.is_type("keyword")]


def _has(types: str | Iterable[str], *words: str) -> Callable[[Any], bool]:
    """Return whether the node has one of the types and these keywords."""
    wanted = {types} if isinstance(types, str) else set(types)
    return lambda it: it.get_type() in wanted and set(words) <= set(_keywords(it))


def _is_table_alias_with_as(node: Any) -> bool:
    if node.is_type("select_clause_element"):
        return False
    inside = _code(node)
    pairs = pairwise(inside)
    return any(_has_operator(after) and not _is_rows(before) for before, after in pairs)


def _has_operator(node: Any) -> bool:
    return node.is_type("alias_expression") and _code(node)[0].is_type("alias_operator")


def _is_rows(node: Any) -> bool:
    """``(VALUES …)``, which alone takes AS before its alias (23ai)."""
    return node.raw_upper.lstrip("( ").startswith("VALUES")


def _is_reserved_function(node: Any) -> bool:
    return node.is_type("function_name") and node.raw_upper == "ON"


def _is_default_after_constraint(node: Any) -> bool:
    if not node.is_type("column_definition"):
        return False
    constraints = [_keywords(it)[:1] for it in node.segments if it.is_type(_CONSTRAINT)]
    return ["DEFAULT"] in constraints[1:]


def _is_fetch_for_update(node: Any) -> bool:
    types = [it.get_type() for it in node.segments]
    return "fetch_clause" in types and "FOR" in _keywords(node)


def _is_bind_path(node: Any) -> bool:
    if not node.is_type("function") or not node.raw_upper.startswith("JSON_"):
        return False
    brackets = next(node.recursive_crawl("bracketed"), None)
    arguments = [it for it in _code(brackets) if it.is_type("expression")] if brackets else []
    return any(it.is_type("bind_variable") for path in arguments[1:2] for it in path.segments)


def _is_bare_interval(node: Any) -> bool:
    return node.is_type("data_type") and node.raw_upper == "INTERVAL"


def _is_open_block(node: Any) -> bool:
    """A file whose last node is a block, without the semicolon that ends it."""
    if not node.is_type("batch"):
        return False
    last = _code(node)[-1]
    return last.is_type("statement") and last.segments[0].is_type("begin_end_block")


_CONSTRAINT = "column_constraint_segment"

DENIED: dict[str, Callable[[Any], bool]] = {
    "LIMIT": _has("limit_clause"),
    "a cast with colons": _has("cast_expression"),
    "AS before a table's alias": _is_table_alias_with_as,
    "ILIKE": _has("expression", "ILIKE"),
    "DISTINCT ON": _is_reserved_function,
    "an interval without a unit after it": _has("interval_expression"),
    "INTERVAL as a whole type": _is_bare_interval,
    "WITHOUT TIME ZONE": _has("data_type", "WITHOUT"),
    "DEFAULT after a constraint": _is_default_after_constraint,
    "FOR UPDATE after FETCH": _is_fetch_for_update,
    "a path that is a bind": _is_bind_path,
    "a condition in WHEN MATCHED": _has(
        ("merge_when_matched_clause", "merge_when_not_matched_clause"), "AND"
    ),
    "a block without its semicolon": _is_open_block,
}
