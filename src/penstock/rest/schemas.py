"""The schemas of the OpenAPI document: made from the structs that read and write, with words added by field name.

A struct says what is sent; that an absent field may also be null is said once for all requests, not in each schema.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, cast, get_origin

import msgspec

from penstock.core.definition import StepType
from penstock.core.schedule import CatchUp, Overlap, RunOutcome
from penstock.core.search_attributes import AttributeType
from penstock.rest.operation import VARIABLES, Kind, Schema, name_of, ref
from penstock.rest.operations import BODIES, KINDS, REQUIRED
from penstock.rest.problems import STATUS_BY_CODE, ErrorObject
from penstock.wire.error_code import CODE_MAX_CHARS

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
_STEP_TYPES: Final = [kind.value for kind in StepType]
_FIELDS: Final[Mapping[str, Schema]] = {
    "attempt": {"type": "integer", "description": "Grows by one with each lease of the job (addition)."},
    "attemptNumber": {"type": "integer", "description": "How often the step was entered, up to this entry."},
    "businessKey": {"type": "string", "description": "Yours; any number of instances may share it. 256 characters."},
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
    "stepType": {"type": "string", "enum": _STEP_TYPES},
    "total": {"type": "integer"},
    "totalIsEstimate": {"type": "boolean", "description": "Beyond 10,000 (addition)."},
    "variables": VARIABLES,
    "waitSeconds": {"type": "number", "description": "0 to 60, clamped; by default 0 (addition)."},
}


def component_schemas() -> dict[str, Schema]:
    """All schemas that the document refers to."""
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
    schemas["Definition"] = _DEFINITION
    schemas["Step"] = _STEP
    return dict(sorted(schemas.items()))


def _with_words(name: str, schema: Schema) -> Schema:
    fields = cast("dict[str, Schema]", schema.get("properties", {}))
    for field, made in fields.items():
        fields[field] = _FIELDS.get(field) or (_TIME if field.endswith(("At", "at")) else _plain(made))
    if name in _STATUS:
        fields["status"] = {"type": "string", "enum": _STATUS[name]}
    if name == "ScheduleRun":
        fields["outcome"] = {"type": "string", "enum": [outcome.name for outcome in RunOutcome]}
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


_TURN: Final[Schema] = {
    "flowKey": {"type": "string", "description": "Whose turn jobs come in; text or `${expression}` (addition)."},
    "priority": {
        "description": "0 to 9, lower ones first; or an `${expression}` (addition).",
        "oneOf": [{"type": "integer", "minimum": 0, "maximum": 9}, {"type": "string"}],
    },
}
_DEFINITION: Final[Schema] = {
    "type": "object",
    "description": "A workflow. Unknown fields are refused. The first step is where it begins.",
    "properties": {
        "id": {"type": "string", "minLength": 1, "maxLength": 256, "pattern": "^[A-Za-z0-9_:\\-]+$"},
        "version": {"type": "integer", "description": "Ignored in an upload."},
        "name": {"type": "string"},
        "description": {"type": "string"},
        "autoStartNextWorkflow": {"type": "boolean"},
        "nextWorkflowId": {"type": "string", "description": "Started when this one completes, if the above is true."},
        "steps": {"type": "array", "minItems": 1, "items": ref("Step")},
        "metadata": {"type": "object", "additionalProperties": True, "description": "Kept and returned as it is."},
        "recordAttempts": {"type": "boolean", "description": "What jobs are given is kept by attempt (addition)."},
        **_TURN,
        "searchAttributes": {
            "type": "object",
            "additionalProperties": {"type": "string", "enum": [each.value for each in AttributeType]},
            "description": "Variables by which instances are found, with their types (addition).",
        },
    },
    "required": ["id", "name", "steps"],
}
_CODES: Final[Schema] = {"type": "array", "items": {"type": "string", "maxLength": CODE_MAX_CHARS}, "minItems": 1}
_STEP: Final[Schema] = {
    "type": "object",
    "description": "A step; which fields count depends on its type.",
    "properties": {
        "id": {"type": "string"},
        "name": {"type": "string"},
        "type": {"type": "string", "enum": _STEP_TYPES},
        "description": {"type": "string"},
        "nextStep": {"type": "string"},
        "conditionalNextSteps": {
            "type": "object",
            "additionalProperties": {"type": "string"},
            "description": "Expression to step id; in this order, the first that is true wins.",
        },
        "transformations": {
            "type": "object",
            "additionalProperties": True,
            "description": "Name to a JSON literal or `${expression}`, in this order.",
        },
        "parallelNextSteps": {"type": "array", "items": {"type": "string"}, "minItems": 2},
        "joinStep": {"type": "string"},
        "jobType": {"type": "string"},
        "delegateClass": {"type": "string"},
        "retryCount": {"type": "integer", "minimum": 0},
        "boundaryEvents": {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {
                    "type": {"type": "string", "enum": ["TIMER", "ERROR"]},
                    "duration": {"type": "string", "description": "`TIMER`: ISO 8601, such as `PT30S`."},
                    "interrupting": {"type": "boolean", "description": "`TIMER`"},
                    "errorCodes": {**_CODES, "description": "`ERROR`: which it takes; none: any (addition)."},
                    "errorVariable": {"type": "string", "description": "`ERROR`: is set to the error (addition)."},
                    "targetStepId": {"type": "string"},
                },
                "required": ["type", "targetStepId"],
            },
        },
        "retryBackoff": {"type": "object", "description": "`initial`, `multiplier`, `max`, `jitter` (addition)."},
        **_TURN,
        "retryOn": {**_CODES, "description": "Only errors with these codes are tried again (addition)."},
        "noRetryOn": {**_CODES, "description": "Errors with these codes are not tried again (addition)."},
        "forEach": {
            "type": "object",
            "properties": {
                "items": {"type": "string", "description": "`${expression}` that gives the list."},
                "as": {"type": "string"},
                "index": {"type": "string"},
                "parallel": {"type": "integer", "minimum": 1, "maximum": 1000},
                "collect": {"type": "string"},
                "into": {"type": "string"},
                "until": {"type": "string"},
                "onError": {"type": "string", "enum": ["FAIL", "COLLECT"]},
            },
            "required": ["items"],
            "description": "Tasks and calls: done once for each item of a list (addition).",
        },
        "output": {
            "type": "object",
            "additionalProperties": True,
            "description": "`END`: the instance's result, as `transformations` (addition).",
        },
        "errorCode": {"type": "string", "description": "`END`: fails the instance with it (addition)."},
        "timeout": {"type": "string", "description": "How long a lease may be extended, ISO 8601 (addition)."},
        "duration": {"type": "string", "description": "`WAIT`: goes on after this time (addition)."},
        "until": {"type": "string", "description": "`WAIT`: goes on at this time (addition)."},
        "message": {
            "type": "object",
            "properties": {"name": {"type": "string"}, "correlationKey": {"type": "string"}},
            "required": ["name", "correlationKey"],
            "description": "`WAIT`: goes on with a message of this name and key, text or `${expression}` (addition).",
        },
        "buffer": {"type": "boolean", "description": "`WAIT`: signals that come early are kept (addition)."},
    },
    "required": ["id", "name", "type"],
}
