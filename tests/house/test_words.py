"""A noun of the wire has no second class, and a general noun one meaning."""

from __future__ import annotations

import ast
from collections import Counter

from penstock.wire import model
from tests.house.sources import PACKAGE, modules, tree

ELSEWHERE = {
    "core/advance/effect.py: JobRef": "a job by its numbers, where the core knows no ids of the wire",
    "core/rules/state.py: Instance": "the row that the machine moves",
    "durable/recorded_error.py: Failure": "how an error of a step stands in the journal",
    "kernel/branch.py: Branch": "the branch itself, of which the noun is what is shown",
    "store/rows/jobs.py: FailedJob": "a row, before ids are made of its numbers",
    "store/rows/jobs.py: Lease": "what names a lease in the database",
    "client/model.py: StartResult": "the noun, with what raises its error",
}
"""Classes that have the name of a noun of the wire, and why."""

SAME_MEANING = {
    "the engine's error, and what its clients raise for it": (
        "BadRequest",
        "Conflict",
        "DispatchModeConflict",
        "Forbidden",
        "IdempotencyConflict",
        "JobCancelled",
        "LeaseLost",
        "NotFound",
        "PayloadTooLarge",
        "Throttled",
        "TooManyRequests",
        "Unauthenticated",
        "Unavailable",
        "UnsupportedFormat",
    ),
    "a noun of the wire, and its message of gRPC, which is generated": (
        "Acknowledgement",
        "Attention",
        "AuditTrailRecord",
        "BulkFilter",
        "BulkRequest",
        "CodeWorkflow",
        "GetInstanceRequest",
        "InstanceStatus",
        "Run",
        "StepType",
    ),
    "a rule of starts, as it is declared and as the engine applies it": (
        "Debounce",
        "Dedupe",
        "Throttle",
    ),
    "a noun of the wire, and what a row, a journal or the core has of it": (
        "Branch",
        "ChildEnd",
        "FailedJob",
        "Failure",
        "Instance",
        "JobRef",
        "Lease",
        "Problem",
        "StartResult",
    ),
    "the error by which a user's code says that no retry helps: in a step, in a handler": ("NonRetryable",),
    "a step, of a definition or of a workflow function": ("Step",),
    "an answer: base of those of the wire, and what a stub gives for an attempt": ("Answer",),
    "the limits of a queue, as code gives them and as the wire shows them": ("Queue",),
}
"""Names of more than one public class, by why they mean the same. The list only shrinks."""

SAME_MEANING_MAX = 40


def classes() -> list[tuple[str, str]]:
    return [
        (str(path.relative_to(PACKAGE)), node.name)
        for path in modules()
        for node in ast.walk(tree(path))
        if isinstance(node, ast.ClassDef)
    ]


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
    assert found == ["kernel/operation.py: Call", "kernel/operation.py: Outcome"]


def test_a_public_class_name_has_one_meaning() -> None:
    """A prefix says what a class is about; a name of the list may stand more than once."""
    count = Counter(name for _, name in classes() if not name.startswith("_"))
    named = [name for names in SAME_MEANING.values() for name in names]
    assert sorted(named) == sorted(name for name, classes_of_it in count.items() if classes_of_it > 1)
    assert len(named) <= SAME_MEANING_MAX
