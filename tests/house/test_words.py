"""Words that the field has terms for do not come back, and a noun of the wire has no second class (ARCHITECTURE.md)."""

from __future__ import annotations

import ast
import re

from penstock.wire import model
from tests.house.sources import PACKAGE, all_python, modules, name, tree

NOT_OURS = {
    "JobDesk": "JobIntake",
    "Demand": "Subscription",
    "take_place": "acquire",
    "ItemOutcome": "JobOutcome",
    "BeatOutcome": "HeartbeatOutcome",
    "Uncuttable": "Unsplittable",
    "cut_object": "split_object",
    "Leftovers": "DispatchMigration",
    "Blow": "Fault",
    "TokenGame": "ReferenceModel",
    "Scene": "LockedBatch",
    "open_scene": "lock_and_load",
    "LookItem": "Lookup",
    "BeatItem": "HeartbeatItem",
    "HandOver": "Delivery",
    "hand_off": "direct_to",
    "FailCommand": "ReportCommand",
}
"""Names that are gone, with what took their place."""
ELSEWHERE = {
    "core/advance/effect.py: JobRef": "a job by its numbers, where the core knows no ids of the wire",
    "core/rules/state.py: Instance": "the row that the machine moves",
    "durable/recorded_error.py: Failure": "how an error of a step stands in the journal",
    "kernel/branch.py: Branch": "the branch itself, of which the noun is what is shown",
    "kernel/operation.py: Park": "a branch among those that wait for the same",
    "store/rows/journal.py: Park": "a run of code that waits, which no worker has",
    "store/rows/jobs.py: FailedJob": "a row, before ids are made of its numbers",
    "store/rows/jobs.py: Lease": "what names a lease in the database",
    "testing/cancellation.py: Attempt": "of a cancellation at one point",
    "client/model.py: StartResult": "the noun, with what raises its error",
}
"""Classes that have the name of a noun of the wire, and why."""


def classes() -> list[tuple[str, str]]:
    return [
        (str(path.relative_to(PACKAGE)), node.name)
        for path in modules()
        for node in ast.walk(tree(path))
        if isinstance(node, ast.ClassDef)
    ]


def test_words_that_were_replaced_do_not_come_back() -> None:
    found: list[str] = []
    for path in all_python():
        if path.name == "test_words.py":
            continue
        text = path.read_text()
        if not any(word in text for word in NOT_OURS):  # to walk all trees takes ten seconds
            continue
        used: set[str] = set()
        for node in ast.walk(tree(path)):
            match node:
                case ast.Name(id=word) | ast.Attribute(attr=word):
                    used.add(word)
                case ast.ClassDef(name=word) | ast.FunctionDef(name=word) | ast.AsyncFunctionDef(name=word):
                    used.add(word)
        found += [f"{name(path)}: {word}, which is {NOT_OURS[word]}" for word in sorted(used & NOT_OURS.keys())]
    assert found == []


def test_a_noun_of_the_wire_has_one_class() -> None:
    nouns = {noun for noun, kind in vars(model).items() if isinstance(kind, type) and kind.__module__ == model.__name__}
    found = {f"{path}: {kind}" for path, kind in classes() if kind in nouns and not path.startswith("wire/")}
    assert found == set(ELSEWHERE)


def test_a_page_of_a_list_has_one_class() -> None:
    found = [
        f"{path.relative_to(PACKAGE)}: {node.name}"
        for path in modules()
        for node in ast.walk(tree(path))
        if isinstance(node, ast.ClassDef)
        and {"items", "next"}
        <= {
            each.target.id
            for each in node.body
            if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name)
        }
    ]
    assert found == ["wire/page.py: Page"]


def test_outcome_and_call_alone_have_one_meaning_each() -> None:
    """The others say which: `JobOutcome`, `PublishOutcome`, `ServerCall`, `RestRequest`."""
    found = sorted(f"{path}: {kind}" for path, kind in classes() if kind in ("Outcome", "Call"))
    assert found == ["core/expression/nodes.py: Call", "kernel/operation.py: Call", "kernel/operation.py: Outcome"]


def test_comments_say_in_doubt_of_a_commit_nobody_heard_of() -> None:
    found = [name(path) for path in modules() if re.search(r"unheard COMMIT|unheard_commit", path.read_text())]
    assert found == []
