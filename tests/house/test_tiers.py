"""Which tests a run leaves out, and why, is said where each stands."""

from __future__ import annotations

import ast
from collections.abc import Iterator

import pytest

from tests.house.sources import TOP, all_python, name, tree

MIN_WORDS = 2


def marks(module: ast.AST) -> Iterator[tuple[int, str]]:
    """(line, reason) of each ``mark.slow``; "" where none is given in words."""
    given = {id(node.func): node for node in ast.walk(module) if isinstance(node, ast.Call)}
    for node in ast.walk(module):
        if isinstance(node, ast.Attribute) and node.attr == "slow" and ast.unparse(node.value).endswith("mark"):
            call = given.get(id(node))
            words = call.keywords if call is not None else []
            reasons = [word.value for word in words if word.arg == "reason"]
            reason = reasons[0] if reasons else None
            yield node.lineno, str(reason.value) if isinstance(reason, ast.Constant) else ""


@pytest.mark.parametrize(
    ("source", "reasons"),
    [
        ("@pytest.mark.slow\ndef test_a(): ...", [""]),
        ("@pytest.mark.slow()\ndef test_a(): ...", [""]),
        ("pytestmark = [pytest.mark.go, pytest.mark.slow('compiles')]", [""]),
        ("pytest.param(1, marks=pytest.mark.slow(reason='compiles a program'))", ["compiles a program"]),
    ],
)
def test_a_slow_test_without_a_reason_would_be_found(source, reasons):
    assert [reason for _, reason in marks(ast.parse(source))] == reasons


def test_every_slow_test_gives_its_reason():
    tests = [path for path in all_python() if path.is_relative_to(TOP / "tests")]
    found = [(f"{name(path)}:{line}", reason) for path in tests for line, reason in marks(tree(path))]
    assert found
    assert [where for where, reason in found if len(reason.split()) < MIN_WORDS] == []
