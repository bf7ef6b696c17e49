"""The plan of the package: folders, sizes and names.

A number here may only fall, and a list may only get shorter.
"""

from __future__ import annotations

import ast
from collections import Counter, defaultdict
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

PACKAGE = Path(__file__).parent.parent / "locus_store"
ROOT = {
    *(
        "__init__",
        "__main__",
        "backend",
        "blocking",
        "checkpointer",
        "effects",
        "errors",
        "messages",
        "open",
        "saver",
    ),
    "turns",
    *("store", "store_backends"),  # the last one: a place of the Locus SDK
}
MOST_LINES = 500
LONG_FILES = {
    "backend.py": 1_096,
    "backends/postgresql/statements.py": 577,
    "checkpointer.py": 638,
    "effects.py": 577,
    "encryption/backend.py": 506,
    "encryption/values.py": 558,
    "sql/quotas.py": 539,
    "sql/schema/tables.py": 509,
    "store.py": 602,
    "testing/steps.py": 641,
    "types/records.py": 505,
    "values/sealing.py": 512,
}
MOST_METHODS = 30
LARGE_CLASSES = {
    "BaseStore": 43,
    "DocumentBackend": 40,
    "Items": 37,
    "Repository": 48,
    "Sealing": 34,
    "SqlBackend": 42,
    "SqlStore": 33,
    "Statements": 31,
}
SHARED_NAMES = {
    *("AgentState", "InMemoryStore", "Message"),  # two: of the Locus SDK and of a session
    # A session's and the adapter's, because users of PyAgenity change an import only.
    *("InMemoryCheckpointer", "PgCheckpointer", "SessionCheckpointer", "SqliteCheckpointer"),
}
MOST_FILES = 398
MOST_LINES_OF_ALL = 101347
MOST_FILES_OF_A_FOLDER = 25
TECHNOLOGIES = {"sqlite", "postgresql", "oracle"}
MOST_WORDS = {"README.md": 1_100, "docs": 60_000}


@cache
def texts() -> dict[str, str]:
    """The modules of the package, by their paths."""
    paths = sorted(PACKAGE.rglob("*.py"))
    return {it.relative_to(PACKAGE).as_posix(): it.read_text("utf-8") for it in paths}


def lengths() -> dict[str, int]:
    """The lines of each module."""
    return {name: len(text.splitlines()) for name, text in texts().items()}


@cache
def classes() -> list[tuple[str, ast.ClassDef]]:
    """Each class, and the module it is in."""
    return [(name, it) for name, text in texts().items() for it in find_classes(ast.parse(text))]


def find_classes(node: ast.AST) -> Iterator[ast.ClassDef]:
    """Yield the classes below a node, without a look into expressions."""
    for it in ast.iter_child_nodes(node):
        if isinstance(it, ast.ClassDef):
            yield it
        if isinstance(it, ast.stmt | ast.ExceptHandler):
            yield from find_classes(it)


def test_the_root_holds_the_contracts_and_the_entrances_only() -> None:
    assert {path.stem for path in PACKAGE.glob("*.py")} == ROOT


def test_no_folder_holds_more_than_a_fifth_of_the_package() -> None:
    folders: Counter[str] = Counter()
    for name, count in lengths().items():
        folders[str(Path(name).parent)] += count
    assert max(folders.values()) <= sum(lengths().values()) / 5


def test_the_package_does_not_grow() -> None:
    assert len(texts()) <= MOST_FILES
    assert sum(lengths().values()) <= MOST_LINES_OF_ALL


def test_no_folder_has_too_many_files_of_its_own() -> None:
    folders = Counter(str(Path(name).parent) for name in texts())
    assert [it for it, count in folders.items() if count > MOST_FILES_OF_A_FOLDER] == []


def test_no_file_is_too_long() -> None:
    found = {name: count for name, count in lengths().items() if count > MOST_LINES}
    assert found.keys() == LONG_FILES.keys(), "take what is short enough off the list"
    assert [it for it in found if found[it] > LONG_FILES[it]] == []


def test_no_class_has_too_many_methods() -> None:
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    found = {it.name: sum(isinstance(b, functions) for b in it.body) for _, it in classes()}
    found = {name: count for name, count in found.items() if count > MOST_METHODS}
    assert found.keys() == LARGE_CLASSES.keys(), "take what is small enough off the list"
    assert [it for it in found if found[it] > LARGE_CLASSES[it]] == []


def test_no_test_module_lies_beside_the_folders_of_adapters() -> None:
    """pytest would put their folder on the path, where they pass for frameworks."""
    assert not list((PACKAGE.parent / "tests" / "adapters").glob("*.py"))


def test_one_class_has_one_name() -> None:
    places = defaultdict(set)
    for name, it in classes():
        if not it.name.startswith("_"):
            places[it.name].add(name)
    assert {name for name, found in places.items() if len(found) > 1} == SHARED_NAMES


def test_one_module_spawns_greenlets() -> None:
    """The others use it, as a greenlet cannot continue in another thread."""
    spawning = {it.stem for it in PACKAGE.rglob("*.py") if "util.greenlet_spawn" in it.read_text()}
    assert spawning == {"lending"}


def test_shared_sql_asks_for_no_database_by_its_name() -> None:
    compared = [
        f"{name}:{node.lineno}"
        for name, text in texts().items()
        if name.startswith("sql/")
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Compare)
        for it in ast.walk(node)
        if isinstance(it, ast.Constant) and it.value in TECHNOLOGIES
    ]
    assert compared == []


def test_shared_sql_has_no_module_or_class_named_after_a_database() -> None:
    names = [name for name in texts() if name.startswith("sql/")]
    names += [it.name for name, it in classes() if name.startswith("sql/")]
    assert [it for it in names if any(name in it.lower() for name in TECHNOLOGIES)] == []


def test_the_documentation_is_not_too_long() -> None:
    """Words between spaces; the records of decisions and the changelog are not of the site."""
    docs = PACKAGE.parent / "docs"
    pages = [*docs.glob("*.md"), *docs.glob("*.rst"), *(docs / "frameworks").glob("*.md")]
    words = {"README.md": words_of(PACKAGE.parent / "README.md"), "docs": sum(map(words_of, pages))}
    assert [name for name, count in words.items() if count > MOST_WORDS[name]] == []


def words_of(page: Path) -> int:
    return len(page.read_text("utf-8").split())
