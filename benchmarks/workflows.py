"""The workflows that are measured, and what their workers answer.

Job types carry a tag of the run, so that nothing left in a database by an earlier run is polled.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

START_VARIABLES_BYTES = 200
OUTPUT_BYTES = 45


@dataclass(frozen=True)
class Workflow:
    """A definition, and the output (JSON object) for each of its job types in the order in which they come."""

    definition: dict[str, Any]
    outputs: dict[str, bytes]
    jobs_per_instance: int

    @property
    def id(self) -> str:
        return str(self.definition["id"])

    @property
    def job_types(self) -> tuple[str, ...]:
        return tuple(self.outputs)

    def start_body(self, variables: bytes) -> bytes:
        """The request that starts one instance."""
        return b'{"definitionId":"%b","variables":%b}' % (self.id.encode(), variables)


def variables_of(size_bytes: int) -> bytes:
    """Start variables of about that size: a few short values, the rest in lines of an order."""
    head: dict[str, object] = {"orderId": 4711001, "customer": "C-20931-EU", "country": "DE", "amount": 1290.5}
    missing = size_bytes - len(json.dumps(head, separators=(",", ":"))) - len(',"lines":[]')
    line = '{"sku":"A-100-%04d","quantity":%d,"price":19.99}'
    lines: list[str] = []
    while missing > 0:
        text = line % (len(lines) % 10_000, len(lines) % 9 + 1)
        lines.append(text)
        missing -= len(text) + 1
    text = json.dumps(head, separators=(",", ":"))
    return f'{text[:-1]},"lines":[{",".join(lines)}]}}'.encode() if lines else text.encode()


def output_of(key: str, size_bytes: int = OUTPUT_BYTES) -> bytes:
    """What a worker answers: one key, so that each step changes one."""
    filler = "r" * max(1, size_bytes - len(key) - len('{"":""}'))
    return json.dumps({key: filler}, separators=(",", ":")).encode()


def service_task(id: str, job_type: str, **fields: object) -> dict[str, object]:
    return {"id": id, "name": id, "type": "SERVICE_TASK", "jobType": job_type, **fields}


END: dict[str, object] = {"id": "end", "name": "end", "type": "END"}


def definition(tag: str, name: str, steps: list[dict[str, object]]) -> dict[str, Any]:
    return {"id": f"bench-{name}-{tag}", "name": f"Benchmark: {name}", "steps": steps}


def linear(tag: str, length: int) -> Workflow:
    """``length`` service tasks, one after the other."""
    types = [f"bench.{tag}.step-{number}" for number in range(1, length + 1)]
    steps: list[dict[str, object]] = [
        service_task(f"step-{number}", job_type, nextStep=f"step-{number + 1}" if number < length else "end")
        for number, job_type in enumerate(types, 1)
    ]
    outputs = {job_type: output_of(f"result{number}") for number, job_type in enumerate(types, 1)}
    return Workflow(definition(tag, f"linear-{length}", [*steps, END]), outputs, length)


def fork_join(tag: str, branches: int) -> Workflow:
    """A service task on each of the branches, and one behind the join."""
    names = [f"branch-{number}" for number in range(1, branches + 1)]
    types = {name: f"bench.{tag}.{name}" for name in [*names, "after"]}
    steps: list[dict[str, object]] = [
        {"id": "fork", "name": "fork", "type": "PARALLEL_GATEWAY", "parallelNextSteps": names, "joinStep": "join"},
        *(service_task(name, types[name], nextStep="join") for name in names),
        {"id": "join", "name": "join", "type": "JOIN_GATEWAY", "nextStep": "after"},
        service_task("after", types["after"], nextStep="end"),
        END,
    ]
    outputs = {job_type: output_of(f"result_{name[-1]}") for name, job_type in types.items()}
    return Workflow(definition(tag, f"fork-{branches}", steps), outputs, branches + 1)


def items(tag: str, number: int, parallel: int) -> Workflow:
    """One instance with that many items of a service task, whose results are collected."""
    job_type = f"bench.{tag}.item"
    each = {"items": f"${{1..{number}}}", "parallel": parallel, "collect": "${result.price}", "into": "prices"}
    steps: list[dict[str, object]] = [service_task("each", job_type, forEach=each, nextStep="end"), END]
    return Workflow(definition(tag, f"items-{number}", steps), {job_type: output_of("price")}, number)


def decisions(tag: str) -> Workflow:
    """Three service tasks, with a transformation and a decision behind the first two."""
    types = [f"bench.{tag}.step-{number}" for number in (1, 2, 3)]
    steps: list[dict[str, object]] = [
        service_task("step-1", types[0], nextStep="rate"),
        {
            "id": "rate",
            "name": "rate",
            "type": "TRANSFORMATION",
            "transformations": {"rate": "${amount * 0.19}", "region": "eu"},
            "nextStep": "route",
        },
        {
            "id": "route",
            "name": "route",
            "type": "DECISION",
            "conditionalNextSteps": {
                "amount > 10000": "end",
                "country in ['DE', 'FR'] && rate < 1000": "step-2",
                "true": "end",
            },
        },
        service_task("step-2", types[1], nextStep="check"),
        {
            "id": "check",
            "name": "check",
            "type": "DECISION",
            "conditionalNextSteps": {"len(result2) > 3": "step-3", "true": "end"},
        },
        service_task("step-3", types[2], nextStep="end"),
        END,
    ]
    outputs = {job_type: output_of(f"result{number}") for number, job_type in enumerate(types, 1)}
    return Workflow(definition(tag, "decisions", steps), outputs, 3)


def loop(tag: str, rounds: int) -> Workflow:
    """A service task and a decision that goes back to it, ``rounds`` times: twice as many steps."""
    job_type = f"bench.{tag}.round"
    steps: list[dict[str, object]] = [
        service_task("round", job_type, nextStep="more"),
        {
            "id": "more",
            "name": "more",
            "type": "DECISION",
            "conditionalNextSteps": {f"n < {rounds}": "round", "true": "end"},
        },
        END,
    ]
    return Workflow(definition(tag, "loop", steps), {job_type: b'{"n":0}'}, rounds)


def waiting(tag: str, duration: str) -> Workflow:
    """Waits, then ends."""
    steps: list[dict[str, object]] = [
        {"id": "pause", "name": "pause", "type": "WAIT", "duration": duration, "nextStep": "end"},
        END,
    ]
    return Workflow(definition(tag, f"wait-{duration.lower()}", steps), {}, 0)
