"""The language of definitions as JSON Schema, for the OpenAPI document: its fields, their forms, which type uses which.

What each type uses and needs, told as ``x-step-types``, comes from the parser (`core.parsing.draft`). The console's
modeller is made of this: its panels, and how it finds what refers to a step. Beside JSON Schema's formats there are
``step-id`` (of a step of the same definition), ``expression``, and ``template`` (text, or `${expression}`).
"""

from __future__ import annotations

from typing import Any, Final

from penstock.core.graph.definition import StepType
from penstock.core.parsing.draft import FIELDS_BY_TYPE, JOB_FIELDS, REQUIRED_BY_TYPE
from penstock.core.rules.search_attributes import AttributeType
from penstock.core.rules.start_rules import Keep, OnExcess
from penstock.rest.operation import Schema, ref
from penstock.wire.error_code import CODE_MAX_CHARS

STEP_TYPES: Final = [kind.value for kind in StepType]
_STEP_ID: Final[Schema] = {"type": "string", "format": "step-id"}
_DURATION: Final[Schema] = {"type": "string", "format": "duration"}
_EXPRESSION: Final[Schema] = {"type": "string", "format": "expression"}
_CODES: Final[Schema] = {"type": "array", "items": {"type": "string", "maxLength": CODE_MAX_CHARS}, "minItems": 1}


def _text(description: str) -> Schema:
    return {"type": "string", "description": description}


def _template(description: str) -> Schema:
    return {"type": "string", "format": "template", "description": description}


def _lasting(description: str) -> Schema:
    return {**_DURATION, "description": description}


def _leads(description: str) -> Schema:
    return {**_STEP_ID, "description": description}


def _assignments(description: str) -> Schema:
    return {"type": "object", "additionalProperties": {"format": "template"}, "description": description}


_TURN: Final[dict[str, Schema]] = {
    "flowKey": _template("Whose turn jobs come in; text or `${expression}` (addition)."),
    "priority": {
        "format": "template",
        "description": "0 to 9, lower ones first; or an `${expression}` (addition).",
        "oneOf": [{"type": "integer", "minimum": 0, "maximum": 9}, {"type": "string"}],
    },
}
_START: Final[Schema] = {
    "type": "object",
    "description": "What each of its starts asks for; texts or `${expression}` (addition).",
    "properties": {
        "startAt": _template("Begins at this time, RFC 3339."),
        "delay": _template("Begins after this time, such as `PT1H`."),
        "dedupe": {
            "type": "object",
            "description": "Within the window the answer is the first one's instance.",
            "properties": {
                "key": _template("Which starts are the same."),
                "window": _lasting("For so long, such as `PT1H`."),
            },
            "required": ["key", "window"],
        },
        "throttle": {
            "type": "object",
            "description": "So many begin in each period.",
            "properties": {
                "key": _template("Which starts are counted together."),
                "limit": {"type": "integer", "minimum": 1, "description": "How many in each period."},
                "period": _lasting("Such as `PT1M`, by default a second."),
                "burst": {
                    "type": "integer",
                    "minimum": 1,
                    "description": "So many at once after a pause; none: `limit`.",
                },
                "onExcess": {
                    "type": "string",
                    "enum": [*OnExcess],
                    "description": "What is too much is refused, or begins later; none: refused.",
                },
            },
            "required": ["key", "limit"],
        },
        "debounce": {
            "type": "object",
            "description": "Of those that come close together one begins.",
            "properties": {
                "key": _template("Which starts belong together."),
                "wait": _lasting("It begins when none has come for so long, such as `PT30S`."),
                "maxWait": _lasting("So long after the first one at the latest; none: a hundred times `wait`."),
                "keep": {
                    "type": "string",
                    "enum": [*Keep],
                    "description": "The variables of the last one, or of all, later ones over earlier; none: the last.",
                },
            },
            "required": ["key", "wait"],
        },
    },
}
_JOB: Final[dict[str, Schema]] = {
    "jobType": _text("Under which workers poll for it; of a `USER_TASK` for whom it is, by default the step's id."),
    "retryCount": {"type": "integer", "minimum": 0, "description": "How often a job that failed is tried again."},
    "retryBackoff": {
        "type": "object",
        "properties": {
            "initial": _template("The wait before the first retry; a duration, or `${expression}`."),
            "multiplier": {
                "type": "number",
                "minimum": 1,
                "maximum": 100,
                "description": "Each further wait is so many times as long; none: 2.",
            },
            "max": _template("No wait is longer; none: an hour. A duration, or `${expression}`."),
            "jitter": {
                "type": "number",
                "minimum": 0,
                "maximum": 1,
                "description": "The share of a wait that is random; none: 0.",
            },
        },
        "required": ["initial"],
        "description": "How long to wait before each retry (addition).",
    },
    "retryOn": {**_CODES, "description": "Only errors with these codes are tried again (addition)."},
    "noRetryOn": {**_CODES, "description": "Errors with these codes are not tried again (addition)."},
    "timeout": _template("How long a lease may be extended; a duration, or `${expression}` (addition)."),
    "delegateClass": _text("Any text: kept for clients, not used."),
}
assert set(_JOB) == JOB_FIELDS
_BOUNDARY_EVENT: Final[Schema] = {
    "type": "object",
    "properties": {
        "type": {"type": "string", "enum": ["TIMER", "ERROR"], "description": "What it waits for."},
        "duration": _template("`TIMER`: ISO 8601, such as `PT30S`, or `${expression}`."),
        "interrupting": {
            "type": "boolean",
            "description": "`TIMER`: whether the step ends with it, or goes on beside; none: it goes on.",
        },
        "errorCodes": {**_CODES, "description": "`ERROR`: which it takes; none: any (addition)."},
        "errorVariable": _text("`ERROR`: is set to the error (addition)."),
        "targetStepId": _leads("Where it leads."),
    },
    "required": ["type", "targetStepId"],
}
_FOR_EACH: Final[Schema] = {
    "type": "object",
    "properties": {
        "items": _template("`${expression}` that gives the list."),
        "as": _text("The variable that is the item; none: `item`."),
        "index": _text("The variable that is its place, counted from 0."),
        "parallel": {
            "type": "integer",
            "minimum": 1,
            "maximum": 1000,
            "description": "So many items are under way at once; none: 100.",
        },
        "collect": _template("`${expression}` whose value is kept of each item; `result` is what it was done with."),
        "into": _text("The variable that becomes the array of what is collected."),
        "until": _template("`${expression}`: once it is true, the other items are skipped."),
        "onError": {
            "type": "string",
            "enum": ["FAIL", "COLLECT"],
            "description": "An item that fails fails the step, or is collected as its error; none: it fails.",
        },
    },
    "required": ["items"],
    "description": "Tasks and calls: done once for each item of a list (addition).",
}
_FIELDS: Final[dict[str, Schema]] = {
    **_JOB,
    **_TURN,
    "definitionId": _text("`CALL_ACTIVITY`: the workflow that it starts (addition)."),
    "definitionVersion": {"type": "integer", "minimum": 0, "description": "`CALL_ACTIVITY`: 0, or none: the latest."},
    "input": _assignments("`CALL_ACTIVITY`: its variables; none: all (addition)."),
    "output": _assignments("`END`: the instance's result; `CALL_ACTIVITY`: what comes back (addition)."),
    "businessKey": _template("`CALL_ACTIVITY`: its key (addition)."),
    "transformations": _assignments("Name to a JSON literal or `${expression}`, in this order."),
    "duration": _template("`WAIT`: goes on after this time (addition)."),
    "until": _template("`WAIT`: goes on at this time (addition)."),
    "message": {
        "type": "object",
        "properties": {
            "name": _text("What kind of message it is."),
            "correlationKey": _template("Which one of them: text or `${expression}`."),
        },
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
    "parallelNextSteps": {
        "type": "array",
        "items": _STEP_ID,
        "minItems": 2,
        "description": "Where the branches begin that go on at the same time.",
    },
    "joinStep": _leads("The `JOIN_GATEWAY` at which the branches meet."),
    "nextStep": _leads("Where it goes on, if no condition says otherwise; none: the branch ends."),
    "steps": {"type": "array", "items": _STEP_ID, "description": "`COMPENSATE`: what is undone; none: all (addition)."},
    "boundaryEvents": {
        "type": "array",
        "items": _BOUNDARY_EVENT,
        "description": "Timers and errors on which it leads elsewhere.",
    },
    "forEach": _FOR_EACH,
    "compensation": {
        "type": "object",
        "properties": _JOB,
        "required": ["jobType"],
        "description": "The job that undoes it (addition).",
    },
    "errorCode": _text("`END`: fails the instance with it (addition)."),
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
        "id": _text("How other steps and the interfaces name it."),
        "name": _text("How people name it."),
        "type": {"type": "string", "enum": STEP_TYPES, "description": "What it does."},
        "description": _text("For people; engines do not read it."),
        **_FIELDS,
    },
    "required": ["id", "name", "type"],
    "x-step-types": _types(),
}
DEFINITION: Final[Schema] = {
    "type": "object",
    "description": "A workflow. Unknown fields are refused. The first step is where it begins.",
    "properties": {
        "id": {
            "type": "string",
            "minLength": 1,
            "maxLength": 256,
            "pattern": "^[A-Za-z0-9_:\\-]+$",
            "description": "How it is named when an instance is started; an upload makes a new version of it.",
        },
        "version": {"type": "integer", "description": "Ignored in an upload."},
        "name": _text("How people name it."),
        "description": _text("For people; engines do not read it."),
        "autoStartNextWorkflow": {
            "type": "boolean",
            "description": "Whether `nextWorkflowId` is started when this one completes.",
        },
        "nextWorkflowId": _text("Started when this one completes, if `autoStartNextWorkflow` is true."),
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
