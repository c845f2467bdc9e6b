"""Files that import each other in a loop can only be understood together: those there are, are few and named.

Imports for type checking and within functions count, too, and those of the console for types alone or by a press: a
reader follows them all the same.
"""

from __future__ import annotations

import ast
import os.path
import re
from collections.abc import Iterator, Mapping

from tests.house.sources import SRC, TOP, modules

CYCLES = {
    "durable": {"app", "blocking", "console"},  # one `App` with its blocking and its command-line form
    "http": {
        "connection",
        "cycle",
        "inline_connection",
        "server",
    },  # a request, in one of two ways, its connection, its server
    "kernel": {
        "branch",
        "current",
        "drive",
        "nursery",
        "operation",
        "scope",
        "unawaited",
        "updates",
    },  # one machine in eight files
    "rpc": {
        "call",
        "inbox",
        "methods",
        "request",
        "server",
        "taskless",
        "transport",
    },  # a call, its connection, its server
}
"""Within one package each. Another one is to be cut: hand over what is needed (a function, a Protocol), or move it."""

_CONSOLE_IMPORT = re.compile(r"""\b(?:from|import)\s*\(?\s*["'](\.[^"']+)["']""")


def _module(parts: tuple[str, ...]) -> str:
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _imports(module: str, tree: ast.Module, known: dict[str, ast.Module]) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names if name.name in known)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            for name in node.names:
                found = f"{node.module}.{name.name}"
                found = found if found in known else node.module
                if found in known and found != module:
                    yield found


def _imports_of_console(name: str, text: str, known: Mapping[str, str]) -> Iterator[str]:
    """Of a file of the console; names are without their endings."""
    for there in _CONSOLE_IMPORT.findall(text):
        found = os.path.normpath(os.path.join(os.path.dirname(name), there))
        yield from (each for each in (found, f"{found}/index") if each in known)


def _cycles(graph: dict[str, set[str]]) -> list[set[str]]:
    """Those that reach each other. Each module's reach is walked: a second for some 400 of them."""
    reach: dict[str, set[str]] = {}
    for start in graph:
        seen: set[str] = set()
        left = [start]
        while left:
            for one in graph[left.pop()] - seen:
                seen.add(one)
                left.append(one)
        reach[start] = seen
    found = {frozenset(other for other in reach[one] if one in reach[other]) for one in graph if one in reach[one]}
    return [set(cycle) for cycle in found]


def test_files_import_each_other_in_few_named_circles() -> None:
    trees = {_module(path.relative_to(SRC).with_suffix("").parts): ast.parse(path.read_text()) for path in modules()}
    graph = {module: set(_imports(module, tree, trees)) for module, tree in trees.items()}
    known = {frozenset(f"penstock.{package}.{name}" for name in names) for package, names in CYCLES.items()}
    found = [cycle for cycle in _cycles(graph) if not any(cycle <= names for names in known)]
    assert not [sorted(cycle) for cycle in found]


def test_a_circle_is_found() -> None:
    graph = {"a": {"b"}, "b": {"c"}, "c": {"b", "d"}, "d": set[str]()}
    assert _cycles(graph) == [{"b", "c"}]


def _console() -> dict[str, str]:
    sources = TOP / "console" / "src"
    files = [path for path in sources.rglob("*") if path.suffix in (".ts", ".tsx") and not path.name.endswith(".d.ts")]
    return {path.relative_to(sources).with_suffix("").as_posix(): path.read_text() for path in files}


def test_files_of_the_console_import_each_other_in_no_circle() -> None:
    files = _console()
    graph = {name: set(_imports_of_console(name, text, files)) for name, text in files.items()}
    assert sum(map(len, graph.values())) > len(graph)  # imports are found
    assert [sorted(cycle) for cycle in _cycles(graph)] == []


def test_a_circle_in_the_console_is_found() -> None:
    files = {
        "a": 'import { type B,\n  C } from "./parts/b";',
        "parts/b": 'const a = loaded(() => import("../a"));\nimport "./b.css";',
        "c": 'export type { A } from "./a";\nimport "./c";',
    }
    graph = {name: set(_imports_of_console(name, text, files)) for name, text in files.items()}
    assert graph == {"a": {"parts/b"}, "parts/b": {"a"}, "c": {"a", "c"}}
    assert sorted(map(sorted, _cycles(graph))) == [["a", "parts/b"], ["c"]]
