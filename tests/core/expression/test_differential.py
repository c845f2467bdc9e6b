"""Every builtin, operator and form of expr does what expr does, or the table of docs/expressions.md tells of the
difference: random expressions (differential.py), some with recorded answers, more where Go is."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path

import pytest

from tests.core.expression.differential import (
    CALLS,
    DIFFERENCES,
    PREDICATES,
    RECORDED,
    Case,
    ask_ours,
    explained,
    run,
    same,
)

PAGE = (Path(__file__).parents[3] / "docs" / "expressions.md").read_text()
BY_SUBJECT: dict[str, list[dict[str, object]]] = defaultdict(list)
for row in json.loads(RECORDED.read_text())["cases"]:
    BY_SUBJECT[row["about"]].append(row)


def case_of(row):
    theirs = {key: row[key] for key in ("value", "refused") if key in row}
    return Case(row["source"], row["about"], theirs, ask_ours(row["source"]))


@pytest.mark.parametrize("subject", BY_SUBJECT)
def test_recorded_answers_of_expr_are_ours_or_reported(subject):
    cases = [case_of(row) for row in BY_SUBJECT[subject]]
    unexplained = [case for case in cases if not same(case) and explained(case) is None]
    assert unexplained == []


def test_the_recording_has_every_builtin():
    assert BY_SUBJECT.keys() >= {*CALLS, *PREDICATES}
    answers = [row for rows in BY_SUBJECT.values() for row in rows]
    assert len(answers) >= 1_500
    assert sum("value" in row for row in answers) > len(answers) / 2


@pytest.fixture(scope="module")
def different():
    cases = [case_of(each) for rows in BY_SUBJECT.values() for each in rows]
    return [case for case in cases if not same(case)]


@pytest.mark.parametrize("row", DIFFERENCES)
def test_the_page_tells_of_a_difference_that_there_is(row, different):
    assert row in PAGE.partition("## Where it differs from expr")[2].partition("\n## ")[0]
    assert any(DIFFERENCES[row](case) for case in different)


@pytest.mark.go
@pytest.mark.slow(reason="builds expr and asks it 6,000 questions")
def test_expr_itself_agrees_on_new_expressions():
    unexplained = [case for case in run(6_000, seed=40) if not same(case) and explained(case) is None]
    assert unexplained == []
