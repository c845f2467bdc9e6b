"""Names of tests are sentences of behaviour that can be read at a glance."""

from __future__ import annotations

import ast

from tests.house.sources import TOP, all_python, name, tree

WORDS_MAX = 10


def names_of_tests() -> list[tuple[str, str]]:
    return [
        (name(path), node.name)
        for path in all_python()
        if path.is_relative_to(TOP / "tests") or path.is_relative_to(TOP / "examples")
        for node in ast.walk(tree(path))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_")
    ]


def words(test: str) -> int:
    return test.count("_")  # `test_` is none


def test_names_of_tests_have_at_most_ten_words() -> None:
    assert [f"{path}: {test}" for path, test in names_of_tests() if words(test) > WORDS_MAX] == []
