"""A noun of the wire has no second class, a general noun one meaning, and a word that was replaced no new name."""

from __future__ import annotations

import ast
import re
import tokenize
from collections import Counter
from pathlib import Path

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

FORMER = (
    "told tell tells telling hear hears heard look looks looked looking news"
    " noted note notes mail mails parked turn turns"
)
"""Words that the glossary has replaced: no new name of the package has one of them as a part."""

STAY = {
    "English for finding a row by its key": "_look_up look_up looked_up",
    "what users give: arguments of the client, settings": (
        "on_look start_batch_look_max_seconds poll_max_parked poll_parked_max_bytes"
    ),
    "the note that somebody gives with a change, which the wire has": (
        "note _note check_note pause_note NoteOption NOTE_MAX_CHARS"
    ),
    "notes of Python's exceptions": "add_note MAX_NOTES notes _notes",
    "how many messages a run has: a column, and a field of the wire": "mail mails _mail RunMail MAIL_MAX_ITEMS",
    "the state PARKED of a token or a job, its events, its table, its metric": (
        "PARKED ATTEMPT_PARKED ENTER_PARKED JobParked RunParked PARKED_JOBS_VERSION parked _parked parked_before"
        " parked_polls _parked_job _is_parked_job"
    ),
    "whose turn it is, as people say of a queue, a lock and a thread": (
        "turn _turn turns _turns take_turn _my_turn others_turn _next_turn _wait_turn TURN_WAIT_S TURNS_APART no_turn"
        " _NO_TURN _Turns _Turn _turn_of _since_turn TABLES_OF_TURNS _claim_turns _know_turns"
    ),
    "the flow key and the priority of a step, which a definition has": (
        "Turn TurnError read_turn turn_of_job turn_of_start _TURN _TURNS _TURNS_OF_ALL with_turns"
    ),
    "a branch's turn in the kernel, and a round of the taskless queue": (
        "TAKEN_IN_TURN _begin_turn _end_turn _in_turn _turn_away"
    ),
    "not renamed yet: records of what was seen": (
        "noted Note QueueNote WorkerNote RejectedNote rejected_notes LeftNotes left_notes forget_notes NOTE_SCOPE"
    ),
}
"""Names that have such a word, by the reason. The list only shrinks."""


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


def test_a_word_that_was_replaced_stays_with_a_reason_only() -> None:
    """Of the package's own names; a name that has gone leaves the list, too."""
    former = frozenset(FORMER.split())
    found = {
        name
        for path in modules()
        if path.name != "penstock_v1.py"
        for name in re.findall(r"[A-Za-z_]\w*", _code_of(path))
        if not former.isdisjoint(part.lower() for part in re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])", name))
    }
    assert sorted(found) == sorted(name for names in STAY.values() for name in names.split())


def _code_of(path: Path) -> str:
    """Return the names of a module, without its comments and texts."""
    with path.open("rb") as source:
        return "\n".join(token.string for token in tokenize.tokenize(source.readline) if token.type == tokenize.NAME)
