"""The schemas of the OpenAPI document: made from the structs that read and write, with words added by field name.

A struct says what is sent; that an absent field may also be null is said once for all requests, not in each schema.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, cast, get_origin

import msgspec

from penstock.core.time.schedule import CatchUp, Overlap, RunOutcome
from penstock.rest.definition_schema import DEFINITION, STEP, STEP_TYPES
from penstock.rest.operation import VARIABLES, Kind, Schema, name_of, ref
from penstock.rest.operations import BODIES, KINDS, REQUIRED
from penstock.rest.problems import STATUS_BY_CODE, ErrorObject

_TIME: Final[Schema] = {"type": "string", "format": "date-time"}
_STATUS: Final[Mapping[str, list[str]]] = {
    "Instance": ["ACTIVE", "WAITING", "COMPLETED", "FAILED", "CANCELLED"],
    "InstanceSummary": ["ACTIVE", "WAITING", "COMPLETED", "FAILED", "CANCELLED"],
    "StepExecution": ["RUNNING", "COMPLETED", "FAILED", "SKIPPED"],
    "ShownExecution": ["RUNNING", "COMPLETED", "FAILED", "SKIPPED"],
    "Job": ["LOCKED"],
}
_OUTCOMES: Final = [
    "ok", "already-completed", "lease-lost", "cancelled", "not-found", "invalid", "unavailable",
]  # fmt: skip
_FIELDS: Final[Mapping[str, Schema]] = {
    "attempt": {"type": "integer", "description": "Grows by one with each lease of the job (addition)."},
    "attemptNumber": {"type": "integer", "description": "How often the step was entered, up to this entry."},
    "businessKey": {"type": "string", "description": "Yours; any number of instances may share it. 512 characters."},
    "checkpoint": {"description": "JSON up to 256 kB, handed to the next attempt (addition)."},
    "currentStepIds": {"type": "array", "items": {"type": "string"}, "description": "Open steps, each once."},
    "definitionVersion": {"type": "integer", "description": "0, or none in a request: the latest."},
    "degraded": {"type": "array", "items": {"type": "string"}, "description": "What is away, such as `kafka`."},
    "errorCode": {"type": "string", "description": "1 to 100 of letters, digits, `_`, `.` and `-` (addition)."},
    "errorMessage": {"type": "string", "description": "Cut at 4 KiB; never a reason to refuse."},
    "failureCode": {"type": "string", "description": "Of the error that failed it (addition)."},
    "instanceKey": {"type": "string", "description": "Unique among the open instances of a definition id (addition)."},
    "keepInstanceKey": {"type": "boolean", "description": "`instanceKey` stays taken after the end (addition)."},
    "jobTypes": {"type": "array", "items": {"type": "string"}, "minItems": 1},
    "leaseSeconds": {"type": "integer", "description": "5 to 3,600, clamped; by default 30."},
    "maxJobs": {"type": "integer", "description": "1 to 1,000, clamped; by default 10."},
    "outcome": {"type": "string", "enum": _OUTCOMES},
    "progress": {"description": "JSON, shown per open step of the instance (addition)."},
    "result": {**VARIABLES, "description": "Read where `variables` is absent."},
    "rowsAside": {
        "type": "object",
        "additionalProperties": {"type": "integer"},
        "description": "How many rows wait aside that the database refused, by service.",
    },
    "retryAfterSeconds": {"type": "number", "description": "When the retry may begin (addition)."},
    "stepType": {"type": "string", "enum": STEP_TYPES},
    "total": {"type": "integer"},
    "totalIsEstimate": {"type": "boolean", "description": "Beyond 10,000 (addition)."},
    "variables": VARIABLES,
    "waitSeconds": {
        "type": "number",
        "description": "0 to 60, of a call of an update 0 to 20, clamped; by default 0 (addition).",
    },
}

_WORDS: Final[Mapping[str, str]] = {
    "anchor": "The time from which `every` counts; by default 1970.",
    "by": "The assignee.",
    "catchUp": "Which times to start that passed while no engine ran.",
    "catchUpWindow": "ISO 8601: older times are not caught up; by default P365D.",
    "completedBy": "Who did it, for the audit trail.",
    "correlationKey": "The key that a wait for the message has to have.",
    "cron": "Cron expressions, in `timeZone`.",
    "cursor": "The `next` of the slice before.",
    "debounce": "Starts only the last of several with one key (addition).",
    "dedupe": "Starts once for a key in a window (addition).",
    "definitionId": "The id of the definition.",
    "delay": "ISO 8601: how much later it begins (addition).",
    "endAt": "No times after this one.",
    "every": "ISO 8601: an interval, in place of `cron`.",
    "executionId": "One of several open executions of the step.",
    "flowKey": "What limits per key and fairness of queues go by, such as a tenant (addition).",
    "fromStepId": "The step, or the path in a journal, to go on at.",
    "jitter": "ISO 8601: starts come up to this much later.",
    "jobType": "The type of a job.",
    "messageId": "The sender's own id of the message.",
    "next": "The `cursor` of the next slice; absent in the last one.",
    "note": "Why, for those who look later.",
    "overlap": "What to do while the last run is open.",
    "pauseOnFailure": "Pauses the schedule when a run fails.",
    "priority": "0 to 9 for jobs, lower first; by default 5 (addition).",
    "reason": "Why.",
    "retryable": "Whether another attempt may succeed; by default false.",
    "startAt": "When it begins, or the first time of a schedule (addition).",
    "stepId": "The id of the step.",
    "throttle": "Starts at most so many with one key in a period (addition).",
    "timeZone": "The time zone of `cron`; by default UTC.",
    "toStepId": "The step to go on at.",
    "ttl": "ISO 8601: how long the message is kept.",
    "workerId": "The worker: the same text in all of its calls.",
}
"""What a field means, where its schema has no words of its own."""


def component_schemas() -> dict[str, Schema]:
    """Return all schemas that the document refers to."""
    kinds: list[Kind] = [*KINDS, ErrorObject]
    refs, components = msgspec.json.schema_components(kinds, ref_template="#/components/schemas/{name}")
    for kind, schema in zip(kinds, refs, strict=True):
        if get_origin(kind) is not None:  # of a page it has a name of its own
            page = components[name_of(kind)] = components.pop(schema["$ref"].rpartition("/")[2])
            page["title"] = name_of(kind)
    schemas = {name: _with_words(name, cast(Schema, schema)) for name, schema in components.items()}
    for name, (kind, elsewhere) in BODIES.items():
        made = schemas[kind.__name__]
        kept = {field: schema for field, schema in made["properties"].items() if field not in elsewhere}
        schemas[name] = {**made, "title": name, "properties": kept}
    for kind, _ in BODIES.values():
        schemas.pop(kind.__name__, None)
    for name, fields in REQUIRED.items():
        schemas[name]["required"] = list(fields)
    error = schemas["Error"] = schemas.pop("ErrorObject")
    error["properties"]["error"] = {"type": "string", "enum": sorted(STATUS_BY_CODE)}
    schemas["Definition"] = DEFINITION
    schemas["Step"] = STEP
    return dict(sorted(schemas.items()))


def _with_words(name: str, schema: Schema) -> Schema:
    fields = cast("dict[str, Schema]", schema.get("properties", {}))
    for field, made in fields.items():
        fields[field] = _FIELDS.get(field) or (_TIME if field.endswith(("At", "at")) else _plain(made))
        if field in _WORDS and "description" not in fields[field]:
            fields[field] = {**fields[field], "description": _WORDS[field]}
    if name in _STATUS:
        fields["status"] = {"type": "string", "enum": _STATUS[name]}
    if name == "ScheduleRun":
        fields["outcome"] = {"type": "string", "enum": [outcome.name for outcome in RunOutcome]}
    if name == "BulkView":
        fields["outcome"] = ref("BulkOutcome")
    if name in ("ScheduleSpec", "Schedule"):
        fields["overlap"] = {"type": "string", "enum": [*Overlap]}
        fields["catchUp"] = {"type": "string", "enum": [*CatchUp]}
    if name == "Instance":
        fields["result"] = {**VARIABLES, "description": "What its `END` gave as `output` (addition)."}
        fields["progress"] = {"type": "object", "additionalProperties": True, "description": "By step id (addition)."}
    if "description" in schema:
        schema["description"] = schema["description"].replace("``", "`")
    if not schema.get("required"):
        schema.pop("required", None)
    return schema


def _plain(schema: Schema) -> Schema:
    """Without null and defaults: a field is there or it is not."""
    choices: list[Any] = [choice for choice in schema.get("anyOf", [schema]) if choice.get("type") != "null"]
    found = dict(choices[-1])
    found.pop("default", None)
    return found
