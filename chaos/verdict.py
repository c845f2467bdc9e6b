"""Whether the guarantees held: from the rows of the database, and from what workers and load saw with their own eyes.

Each rule is a function that yields what breaks it, as a sentence. Written from docs/guarantees.md. Must not know what
was attacked; ``lenient`` names the invariants that an attack makes void by itself (a clock that went back).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg

from chaos.journal import read_journals
from chaos.worker_process import STRANGER
from chaos.workflows import GATHERED, LIMITED, LIMITS, WORKFLOWS
from penstock.core.graph.definition import StepType
from penstock.core.parsing.parsing import parse_definition
from penstock.testing.invariants import find_broken

COMPLETED, FAILED, CANCELLED = 1, 2, 3
SKIPPED, COMPENSATED = 3, 6
"""Kinds of history rows, as COMPLETED is one."""
EMPTY_AT_END = (
    "token", "ready", "parked", "timer", "buffered_signal", "instance_key", "message", "subscription",
)  # fmt: skip
STEPS = {name: parse_definition(workflow.definition).steps for name, workflow in WORKFLOWS.items()}
JOB_STEPS = {
    (name, step.id)
    for name, steps in STEPS.items()
    for step in steps
    if step.type is StepType.SERVICE_TASK and step.compensates is None
}
HANDLER = "/compensation"
"""What handlers have behind the id of the step that they undo."""
PERMITTED = {
    "complete": {"ok", "already-completed", "lease-lost", "cancelled", "unknown"},
    "fail": {"ok", "already-completed", "lease-lost", "cancelled", "unknown"},
    "heartbeat": {"ok", "lease-lost", "cancelled", "unknown"},
    "release": {"ok", "already-completed", "lease-lost", "cancelled", "unknown"},
}
_CLOSED = """
SELECT to_hex(h.instance_id), to_hex(h.instance_id) || '-' || to_hex(h.token_id) || '-' || to_hex(x.seq), d.id,
  x.step, h.kind, h.attempt, h.worker, CASE WHEN x.seq = h.seq THEN h.item END, x.seq = h.seq AND h.items IS NOT NULL
FROM history h JOIN instance i ON i.id = h.instance_id JOIN definition d ON d.key = i.definition
CROSS JOIN LATERAL (SELECT h.seq, h.step::int UNION ALL
  SELECT h.pos, h.end_step::int WHERE h.end_step IS NOT NULL) x (seq, step)
WHERE d.id NOT LIKE 'fault-%'
"""
_SPANS = """
SELECT h.claimed_at, h.ended_at FROM history h
JOIN instance i ON i.id = h.instance_id JOIN definition d ON d.key = i.definition
WHERE d.content::jsonb -> 'steps' -> h.step::int ->> 'jobType' = %s AND h.claimed_at IS NOT NULL AND h.attempt > 0
  AND NOT EXISTS (SELECT FROM history e
    WHERE e.instance_id = h.instance_id AND e.token_id = h.token_id AND e.seq = h.seq
      AND e.attempt = h.attempt AND e.kind = 11)
"""
_INSTANCES = """
SELECT to_hex(i.id), d.id, i.status, i.business_key, to_hex(i.parent_id), i.failure,
  i.vars || coalesce(i.overlay, '{}')
    || coalesce((SELECT jsonb_merge(h.output ORDER BY h.pos) FROM history h
        WHERE h.instance_id = i.id AND h.output IS NOT NULL AND h.pos > i.folded_pos), '{}')
FROM instance i JOIN definition d ON d.key = i.definition
WHERE d.id NOT LIKE 'fault-%'
"""


@dataclass
class Row:
    """One row of the history."""

    instance: str
    job: str
    workflow: str
    place: int
    kind: int
    attempt: int
    worker: str | None
    item: int | None
    whole: bool
    """Of a forEach, which is no job itself."""

    @property
    def step(self) -> str:
        """Its id, also of what no definition shows: handlers."""
        return STEPS[self.workflow][self.place].id


@dataclass
class Ended:
    """One instance."""

    id: str
    workflow: str
    status: int
    key: str | None
    parent: str | None
    failure: str | None
    variables: Mapping[str, Any]


class Evidence:
    """All that there is to judge by."""

    def __init__(self, dsn: str, journals: Path) -> None:
        self.events = read_journals(journals)
        with psycopg.connect(dsn) as connection:
            connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            self.history = [Row(*row) for row in connection.execute(_CLOSED)]
            self.instances = {row[0]: Ended(*row) for row in connection.execute(_INSTANCES)}
            self.left = {
                table: connection.execute(f"SELECT count(*) FROM {table}".encode()).fetchall()[0][0]
                for table in EMPTY_AT_END
            }
        self.closed = {row.job: row for row in self.history if row.kind < 10}
        self.completed = {job: row for job, row in self.closed.items() if row.kind in (COMPLETED, COMPENSATED)}

    def of(self, event: str) -> list[dict[str, Any]]:
        """The journals' events of one kind."""
        return [each for each in self.events if each["event"] == event]


def judge(dsn: str, journals: Path, lenient: frozenset[str] = frozenset()) -> tuple[list[str], dict[str, int]]:
    """What is not as promised (nothing, if all is well), and how much was looked at."""
    broken = [str(each) for each in find_broken(dsn) if each.sentence not in lenient]
    evidence = Evidence(dsn, journals)
    for rule in RULES:
        broken += rule(evidence)
    if not lenient:  # else the times say nothing
        broken += limits_kept(dsn)
    counts = {
        "histories": len(evidence.instances),
        "steps completed": len(evidence.completed),
        "items completed": sum(row.item is not None for row in evidence.completed.values()),
        "steps undone": sum(row.kind == COMPENSATED for row in evidence.completed.values()),
        "steps mended": len(evidence.of("mended")),
        "effects": len(evidence.of("effect")),
        "answers": len(evidence.of("answer")),
        "attempts ended otherwise": sum(row.kind >= 10 for row in evidence.history),
    }
    return broken, counts


def limits_kept(dsn: str) -> Iterator[str]:
    """Never were more attempts under way than the queue has places. Those whose lease ended may have come back late,
    which is no fault; their places are counted in the invariants."""
    with psycopg.connect(dsn) as connection:
        spans = connection.execute(_SPANS.encode(), (LIMITED,)).fetchall()
    most = now = 0
    for _, step in sorted([(ended, -1) for _, ended in spans] + [(began, 1) for began, _ in spans]):
        now += step
        most = max(most, now)
    if most > (LIMITS.concurrency or 0):
        yield f"{most} attempts were under way at once in a queue of {LIMITS.concurrency}"
    if not spans:
        yield "no attempt of a limited job is in the history"


def started_once(evidence: Evidence) -> Iterator[str]:
    """Every start that was asked for is one instance; every answer to it named that one."""
    by_key: defaultdict[Any, set[Any]] = defaultdict(set)
    for instance in evidence.instances.values():
        if instance.parent is None:
            by_key[instance.key].add(instance.id)
    answered: defaultdict[Any, set[Any]] = defaultdict(set)
    for event in evidence.of("started"):
        answered[event["key"]].add(event["instance"])
    for event in evidence.of("starting"):
        key = event["key"]
        if len(by_key[key]) != 1:
            yield f"key {key} started {len(by_key[key])} instances: {sorted(by_key[key])}"
        if answered[key] != by_key[key]:
            yield f"key {key} was answered with {sorted(answered[key])}, in the database is {sorted(by_key[key])}"


def everything_ended(evidence: Evidence) -> Iterator[str]:
    """Ended as it had to, with nothing left: terminal means quiet."""
    for table, count in evidence.left.items():
        if count:
            yield f"{count} rows are left in {table}"
    cancelling = {event["instance"] for event in evidence.of("cancelling")}
    cancelled = {event["instance"] for event in evidence.of("cancelled")}
    for instance in evidence.instances.values():
        if instance.status == CANCELLED and instance.id not in cancelling:
            yield f"nobody cancelled {instance.workflow} {instance.id}"
        if instance.status != CANCELLED and instance.id in cancelled:
            yield f"{instance.id} was answered as cancelled and has status {instance.status}"
        undone = instance.status == FAILED and WORKFLOWS[instance.workflow].undoes
        if instance.status not in (COMPLETED, CANCELLED) and not undone:
            yield f"{instance.workflow} {instance.id} has status {instance.status}: {instance.failure}"


def nothing_after_the_end(evidence: Evidence) -> Iterator[str]:
    """No poll that was sent after a cancel was answered brings a job of that instance."""
    ended_at = {event["instance"]: event["at"] for event in evidence.of("cancelled")}
    for event in evidence.of("effect"):
        waited_s = event["waited_s"]
        if event["step"].endswith(HANDLER):  # what a cancel undoes, it undoes after its answer
            continue
        if waited_s is not None and event["at"] - waited_s > ended_at.get(event["instance"], float("inf")):
            yield f"job {event['job']} was handed out after its instance was cancelled"


def steps_done_once(evidence: Evidence) -> Iterator[str]:
    """A completed instance has gone through its steps, each once; joins too."""
    done: dict[str, Counter[str]] = defaultdict(Counter)
    for row in evidence.completed.values():
        done[row.instance][row.step if row.item is None else f"{row.step} {row.item}"] += 1
    for instance in evidence.instances.values():
        steps = done[instance.id]
        doubled = {step: count for step, count in steps.items() if count > 1}
        if doubled:
            yield f"{instance.workflow} {instance.id} did steps more than once: {doubled}"
        if instance.status == COMPLETED and not WORKFLOWS[instance.workflow].always <= steps.keys():
            yield f"{instance.workflow} {instance.id} completed with {sorted(steps)} only"


def effects_at_least_once(evidence: Evidence) -> Iterator[str]:
    """What the history calls a completed job, a worker did: that worker, in that attempt."""
    effects = {(event["job"], event["attempt"], event["worker"]) for event in evidence.of("effect")}
    for job, row in evidence.completed.items():
        is_job = (row.workflow, row.step) in JOB_STEPS or row.kind == COMPENSATED
        if is_job and not row.whole and (job, row.attempt, row.worker) not in effects:
            yield f"job {job} was completed by {row.worker} in attempt {row.attempt}, which nobody did"


def answers_are_durable(evidence: Evidence) -> Iterator[str]:
    """Who was told that the completion was taken finds it, and no other attempt's, in the history."""
    for event in evidence.of("answer"):
        job, worker, outcome = event["job"], event["worker"], event["outcome"]
        if outcome not in PERMITTED[event["call"]]:
            yield f"{event['call']} of job {job} by {worker} was answered with {outcome}"
        if event["call"] != "complete" or outcome not in ("ok", "already-completed"):
            continue
        if worker.startswith(STRANGER):  # without an attempt: success once the instance has ended, and no effect
            continue
        row = evidence.completed.get(job)
        if row is None:
            yield f"the completion of {job} was answered with {outcome} and is not in the history"
        elif (row.attempt, row.worker) != (event["attempt"], worker):
            yield (
                f"{worker} was told that its attempt {event['attempt']} completed {job};"
                f" in the history it is attempt {row.attempt} of {row.worker}"
            )


def answers_agree(evidence: Evidence) -> Iterator[str]:
    """One attempt's completion is not taken and refused; of several attempts one is taken at most."""
    taken: dict[str, set[int]] = defaultdict(set)
    refused: set[tuple[str, int]] = set()
    for event in evidence.of("answer"):
        if event["call"] == "complete" and not event["worker"].startswith(STRANGER):
            if event["outcome"] in ("ok", "already-completed"):
                taken[event["job"]].add(event["attempt"])
            elif event["outcome"] in ("lease-lost", "cancelled"):
                refused.add((event["job"], event["attempt"]))
    for job, attempts in taken.items():
        if len(attempts) > 1:
            yield f"the completions of attempts {sorted(attempts)} of {job} were all taken"
        for attempt in attempts:
            if (job, attempt) in refused:
                yield f"the completion of {job}, attempt {attempt}, was taken and refused"


def attempts_are_one_workers(evidence: Evidence) -> Iterator[str]:
    """No attempt of a job is handed to two workers."""
    holders: defaultdict[Any, set[Any]] = defaultdict(set)
    for event in evidence.of("effect"):
        holders[event["job"], event["attempt"]].add(event["worker"])
    for (job, attempt), workers in holders.items():
        if len(workers) > 1:
            yield f"attempt {attempt} of job {job} was handed to {sorted(workers)}"


def variables_are_what_was_reported(evidence: Evidence) -> Iterator[str]:
    """Each job's variable is that of the attempt which completed it; jobs saw what came before them, as it stayed."""
    for row in evidence.completed.values():
        if row.whole or row.item is not None:
            continue  # what items give is no variable
        found = evidence.instances[row.instance].variables.get(row.step)
        if (row.workflow, row.step) in JOB_STEPS and found != f"{row.worker}:{row.attempt}":
            yield f"variable {row.step} of {row.instance} is {found!r}, completed by {row.worker}:{row.attempt}"
    for event in evidence.of("effect"):
        instance = evidence.instances.get(event["instance"])
        if instance is None:
            yield f"job {event['job']} is of an instance that does not exist"
            continue
        before = WORKFLOWS[instance.workflow].before.get(event["step"], ())
        missing = [step for step in before if step not in event["seen"]]
        other = {step: value for step, value in event["seen"].items() if instance.variables.get(step) != value}
        if missing or other:
            yield f"job {event['job']} ({event['step']}) did not see {missing}, saw {other}"


def outside_events_took_effect(evidence: Evidence) -> Iterator[str]:
    """Signals and user tasks that were answered with success moved their instance on."""
    done = {(row.instance, row.step) for row in evidence.completed.values()}
    for event in evidence.of("signalled") + evidence.of("task finished"):
        if (event["instance"], event["step"]) not in done:
            yield f"step {event['step']} of {event['instance']} was answered as done and is not in the history"
    for event in evidence.of("task found done"):
        if not event["again"]:
            yield f"the user task of {event['instance']} was refused at first: {event['outcome']}"


def undone_once(evidence: Evidence) -> Iterator[str]:
    """What an instance did is undone before it ends otherwise than completed, each step once; else nothing is."""
    done: dict[str, Counter[str]] = defaultdict(Counter)
    for row in evidence.completed.values():
        done[row.instance][row.step] += 1
    for instance in evidence.instances.values():
        steps = done[instance.id]
        for step in WORKFLOWS[instance.workflow].undoes:
            expected = 0 if instance.status == COMPLETED else steps[step]
            if steps[f"{step}{HANDLER}"] != expected:
                found = f"{step} was done {steps[step]} times and undone {steps[f'{step}{HANDLER}']} times"
                yield f"{instance.workflow} {instance.id} has status {instance.status}: {found}"


def items_gathered(evidence: Evidence) -> Iterator[str]:
    """A list has been worked through: what was gathered of it is there, once and in order."""
    for instance in evidence.instances.values():
        items = WORKFLOWS[instance.workflow].gathers
        if not items or instance.status != COMPLETED:
            continue
        expected = [int(instance.variables["number"]) + 1 + item for item in range(items)]
        if instance.variables.get(GATHERED) != expected:
            yield f"{instance.id} gathered {instance.variables.get(GATHERED)}, not {expected}"


def repaired_once(evidence: Evidence) -> Iterator[str]:
    """Whoever was helped past a step was helped once."""
    skipped = Counter((row.instance, row.step) for row in evidence.closed.values() if row.kind == SKIPPED)
    for event in evidence.of("mended"):
        count = skipped[event["instance"], event["step"]]
        if count != 1:
            yield f"step {event['step']} of {event['instance']} was mended, and skipped {count} times"


def chains_once(evidence: Evidence) -> Iterator[str]:
    """A completed instance that is to start another one has started one."""
    children = Counter(instance.parent for instance in evidence.instances.values())
    for instance in evidence.instances.values():
        chains = bool(WORKFLOWS[instance.workflow].definition.get("autoStartNextWorkflow"))
        expected = 1 if chains and instance.status == COMPLETED else 0
        if children[instance.id] != expected:
            yield f"{instance.workflow} {instance.id} started {children[instance.id]} other workflows"


def nobody_was_surprised(evidence: Evidence) -> Iterator[str]:
    """No call was refused that had to be taken, and none was answered with an internal error."""
    for event in evidence.of("surprise"):
        yield f"{event['call']}: {event['outcome']}"


RULES = (
    started_once,
    everything_ended,
    nothing_after_the_end,
    steps_done_once,
    effects_at_least_once,
    answers_are_durable,
    answers_agree,
    attempts_are_one_workers,
    variables_are_what_was_reported,
    outside_events_took_effect,
    undone_once,
    items_gathered,
    repaired_once,
    chains_once,
    nobody_was_surprised,
)
