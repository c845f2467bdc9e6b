"""The language of definitions as JSON Schema, for the OpenAPI document: its fields, their forms, which type uses which.

What each type uses and needs, told as ``x-step-types``, comes from the parser (`core.draft`). The console's modeller is
made of this: its panels, and how it finds what refers to a step. Beside JSON Schema's formats there are ``step-id`` (of
a step of the same definition), ``expression``, and ``template`` (text, or `${expression}`).
"""

from __future__ import annotations

from typing import Any, Final

from penstock.core.definition import StepType
from penstock.core.draft import FIELDS_BY_TYPE, JOB_FIELDS, REQUIRED_BY_TYPE
from penstock.core.search_attributes import AttributeType
from penstock.core.start_rules import Keep, OnExcess
from penstock.rest.operation import Schema, ref
from penstock.wire.error_code import CODE_MAX_CHARS

STEP_TYPES: Final = [kind.value for kind in StepType]
_STEP_ID: Final[Schema] = {"type": "string", "format": "step-id"}
_DURATION: Final[Schema] = {"type": "string", "format": "duration"}
_EXPRESSION: Final[Schema] = {"type": "string", "format": "expression"}
_CODES: Final[Schema] = {"type": "array", "items": {"type": "string", "maxLength": CODE_MAX_CHARS}, "minItems": 1}


def _assignments(description: str) -> Schema:
    return {"type": "object", "additionalProperties": {"format": "template"}, "description": description}


_TURN: Final[dict[str, Schema]] = {
    "flowKey": {
        "type": "string",
        "format": "template",
        "description": "Whose turn jobs come in; text or `${expression}` (addition).",
    },
    "priority": {
        "format": "template",
        "description": "0 to 9, lower ones first; or an `${expression}` (addition).",
        "oneOf": [{"type": "integer", "minimum": 0, "maximum": 9}, {"type": "string"}],
    },
}
_TEMPLATE: Final[Schema] = {"type": "string", "format": "template"}
_START: Final[Schema] = {
    "type": "object",
    "description": "What each of its starts asks for; texts or `${expression}` (addition).",
    "properties": {
        "startAt": _TEMPLATE,
        "delay": _TEMPLATE,
        "dedupe": {
            "type": "object",
            "properties": {"key": _TEMPLATE, "window": {"type": "string"}},
            "required": ["key", "window"],
        },
        "throttle": {
            "type": "object",
            "properties": {
                "key": _TEMPLATE,
                "limit": {"type": "integer", "minimum": 1},
                "period": {"type": "string"},
                "burst": {"type": "integer", "minimum": 1},
                "onExcess": {"type": "string", "enum": [*OnExcess]},
            },
            "required": ["key", "limit"],
        },
        "debounce": {
            "type": "object",
            "properties": {
                "key": _TEMPLATE,
                "wait": {"type": "string"},
                "maxWait": {"type": "string"},
                "keep": {"type": "string", "enum": [*Keep]},
            },
            "required": ["key", "wait"],
        },
    },
}
_JOB: Final[dict[str, Schema]] = {
    "jobType": {"type": "string"},
    "retryCount": {"type": "integer", "minimum": 0},
    "retryBackoff": {
        "type": "object",
        "properties": {
            "initial": _DURATION,
            "multiplier": {"type": "number", "minimum": 1, "maximum": 100},
            "max": _DURATION,
            "jitter": {"type": "number", "minimum": 0, "maximum": 1},
        },
        "required": ["initial"],
        "description": "How long to wait before each retry (addition).",
    },
    "retryOn": {**_CODES, "description": "Only errors with these codes are tried again (addition)."},
    "noRetryOn": {**_CODES, "description": "Errors with these codes are not tried again (addition)."},
    "timeout": {**_DURATION, "description": "How long a lease may be extended, ISO 8601 (addition)."},
    "delegateClass": {"type": "string"},
}
assert set(_JOB) == JOB_FIELDS
_BOUNDARY_EVENT: Final[Schema] = {
    "type": "object",
    "properties": {
        "type": {"type": "string", "enum": ["TIMER", "ERROR"]},
        "duration": {**_DURATION, "description": "`TIMER`: ISO 8601, such as `PT30S`."},
        "interrupting": {"type": "boolean", "description": "`TIMER`"},
        "errorCodes": {**_CODES, "description": "`ERROR`: which it takes; none: any (addition)."},
        "errorVariable": {"type": "string", "description": "`ERROR`: is set to the error (addition)."},
        "targetStepId": _STEP_ID,
    },
    "required": ["type", "targetStepId"],
}
_FOR_EACH: Final[Schema] = {
    "type": "object",
    "properties": {
        "items": {"type": "string", "format": "template", "description": "`${expression}` that gives the list."},
        "as": {"type": "string"},
        "index": {"type": "string"},
        "parallel": {"type": "integer", "minimum": 1, "maximum": 1000},
        "collect": {"type": "string", "format": "template"},
        "into": {"type": "string"},
        "until": {"type": "string", "format": "template"},
        "onError": {"type": "string", "enum": ["FAIL", "COLLECT"]},
    },
    "required": ["items"],
    "description": "Tasks and calls: done once for each item of a list (addition).",
}
_FIELDS: Final[dict[str, Schema]] = {
    **_JOB,
    **_TURN,
    "definitionId": {"type": "string", "description": "`CALL_ACTIVITY`: the workflow that it starts (addition)."},
    "definitionVersion": {"type": "integer", "minimum": 0, "description": "`CALL_ACTIVITY`: 0, or none: the latest."},
    "input": _assignments("`CALL_ACTIVITY`: its variables; none: all (addition)."),
    "output": _assignments("`END`: the instance's result; `CALL_ACTIVITY`: what comes back (addition)."),
    "businessKey": {"type": "string", "format": "template", "description": "`CALL_ACTIVITY`: its key (addition)."},
    "transformations": _assignments("Name to a JSON literal or `${expression}`, in this order."),
    "duration": {"type": "string", "format": "template", "description": "`WAIT`: goes on after this time (addition)."},
    "until": {"type": "string", "format": "template", "description": "`WAIT`: goes on at this time (addition)."},
    "message": {
        "type": "object",
        "properties": {"name": {"type": "string"}, "correlationKey": {"type": "string", "format": "template"}},
        "required": ["name", "correlationKey"],
        "description": "`WAIT`: goes on with a message of this name and key, text or `${expression}` (addition).",
    },
    "buffer": {"type": "boolean", "description": "`WAIT`: signals that come early are kept (addition)."},
    "conditionalNextSteps": {
        "type": "object",
        "propertyNames": _EXPRESSION,
        "additionalProperties": _STEP_ID,
        "description": "Expression to step id; in this order, the first that is true wins.",
    },
    "parallelNextSteps": {"type": "array", "items": _STEP_ID, "minItems": 2},
    "joinStep": _STEP_ID,
    "nextStep": _STEP_ID,
    "steps": {"type": "array", "items": _STEP_ID, "description": "`COMPENSATE`: what is undone; none: all (addition)."},
    "boundaryEvents": {"type": "array", "items": _BOUNDARY_EVENT},
    "forEach": _FOR_EACH,
    "compensation": {
        "type": "object",
        "properties": _JOB,
        "required": ["jobType"],
        "description": "The job that undoes it (addition).",
    },
    "errorCode": {"type": "string", "description": "`END`: fails the instance with it (addition)."},
}


def _types() -> dict[str, Any]:
    return {
        kind.value: {
            "uses": [name for name in _FIELDS if name in FIELDS_BY_TYPE[kind]],
            "needs": [name for name in _FIELDS if name in REQUIRED_BY_TYPE[kind]],
        }
        for kind in StepType
    }


STEP: Final[Schema] = {
    "type": "object",
    "description": "A step; which fields count depends on its type.",
    "properties": {
        "id": {"type": "string"},
        "name": {"type": "string"},
        "type": {"type": "string", "enum": STEP_TYPES},
        "description": {"type": "string"},
        **_FIELDS,
    },
    "required": ["id", "name", "type"],
    "x-step-types": _types(),
}
DEFINITION: Final[Schema] = {
    "type": "object",
    "description": "A workflow. Unknown fields are refused. The first step is where it begins.",
    "properties": {
        "id": {"type": "string", "minLength": 1, "maxLength": 256, "pattern": "^[A-Za-z0-9_:\\-]+$"},
        "version": {"type": "integer", "description": "Ignored in an upload."},
        "name": {"type": "string"},
        "description": {"type": "string"},
        "autoStartNextWorkflow": {"type": "boolean"},
        "nextWorkflowId": {"type": "string", "description": "Started when this one completes, if the above is true."},
        "onFailure": {
            "type": "string",
            "enum": ["COMPENSATE"],
            "description": "What completed is undone before an instance fails (addition).",
        },
        "steps": {"type": "array", "minItems": 1, "items": ref("Step")},
        "metadata": {"type": "object", "additionalProperties": True, "description": "Kept and returned as it is."},
        "recordAttempts": {"type": "boolean", "description": "What jobs are given is kept by attempt (addition)."},
        **_TURN,
        "start": _START,
        "searchAttributes": {
            "type": "object",
            "additionalProperties": {"type": "string", "enum": [each.value for each in AttributeType]},
            "description": "Variables by which instances are found, with their types (addition).",
        },
    },
    "required": ["id", "name", "steps"],
}
