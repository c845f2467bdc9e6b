"""Names of tests are sentences of behaviour that can be read at a glance."""

from __future__ import annotations

import ast

from tests.house.sources import TOP, all_python, name, tree

WORDS_MAX = 15
"""No further test has more."""
STILL_LONGER = 6
"""Ratchet, as the next one."""
WORDS_AIM = 10
LONG_SHARE_MAX = 0.28
"""So many may be longer than the aim. Ratchet: lower it whenever there are fewer, never raise it."""


def names_of_tests() -> list[tuple[str, str]]:
    return [
        (name(path), node.name)
        for path in all_python()
        if path.is_relative_to(TOP / "tests")
        for node in ast.walk(tree(path))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_")
    ]


def words(test: str) -> int:
    return test.count("_")  # `test_` is none


def test_no_name_of_a_test_is_a_paragraph() -> None:
    found = [test for _, test in names_of_tests() if words(test) > WORDS_MAX]
    assert len(found) <= STILL_LONGER, found


def test_fewer_and_fewer_tests_have_long_names() -> None:
    found = names_of_tests()
    long = [test for _, test in found if words(test) > WORDS_AIM]
    assert len(long) <= LONG_SHARE_MAX * len(found), f"{len(long)} of {len(found)}; at most {WORDS_AIM} words each"
