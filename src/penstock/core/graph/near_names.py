"""Which field is meant by one that is unknown: one that is written alike, or what other engines call it."""

from __future__ import annotations

from collections.abc import Collection
from difflib import get_close_matches
from typing import Final

ASKED_MAX: Final = 200
"""Names for which a near one is looked for, of one upload: 0.2 s at most."""
_COMPARED_MAX_CHARS: Final = 32
_ALIKE: Final = 0.75
_ELSEWHERE: Final[dict[str, str]] = {
    "retryCount": "retries retry maxretries retrylimit maxattempts attempts maximumattempts numretries retrytimes",
    "retryBackoff": "backoff retrydelay retrydelayseconds retryinterval "
    "retrypolicy retrylogic backoffpolicy retrytimecycle",
    "initial": "initialinterval delay start seconds",
    "max": "maxinterval maxdelay maximum maximuminterval",
    "multiplier": "factor backoffcoefficient coefficient rate",
    "jobType": "topic task taskname tasktype taskqueue worker "
    "activity activitytype handler action function jobname queue",
    "timeout": "timeoutseconds starttoclosetimeout scheduletoclosetimeout "
    "timelimit deadline heartbeat responsetimeoutseconds",
    "definitionId": "workflowid workflow workflowname processid process processdefinitionkey calledelement subworkflow "
    "subworkflowparam child childid childworkflow definition calls",
    "definitionVersion": "workflowversion processversion calledversion childversion",
    "input": "inputs inputparameters variables arguments args parameters payload inputmapping",
    "output": "outputs outputparameters result results outputmapping returns",
    "businessKey": "key correlationid",
    "nextStep": "next then goto to nextstepid nexttask target targetstepid outgoing transition",
    "conditionalNextSteps": "conditions condition when branches cases "
    "decisioncases if choices nextsteps conditional rules",
    "parallelNextSteps": "branches parallel forktasks fork next nextsteps parallelsteps",
    "joinStep": "join joinon joinid joinstepid until",
    "transformations": "set assign assignments variables transform mapping values",
    "boundaryEvents": "boundary events timers timer onerror catch errors errorhandler onfailure",
    "targetStepId": "target targetstep nextstep next then goto to step stepid",
    "interrupting": "interrupt cancelactivity cancel interrupts isinterrupting",
    "errorCodes": "errorcode codes code error errors on",
    "errorVariable": "variable errorvar into as",
    "duration": "after timer delay time wait seconds timeout in for",
    "until": "at date time datetime timedate",
    "message": "event messagename messageref signal",
    "correlationKey": "key correlation correlationid",
    "compensation": "compensate undo rollback onrollback compensationhandler compensatewith",
    "forEach": "foreach each loop items multiinstance map iterate dynamictask",
    "items": "list over inputcollection collection in array each",
    "as": "item inputelement variable element name var",
    "collect": "outputelement result output map",
    "into": "outputcollection to target results",
    "parallel": "concurrency maxparallel limit batch sequential issequential maxconcurrency",
    "onError": "onfailure errors erroraction",
    "noRetryOn": "nonretryable nonretryableerrortypes nonretryableerrors ignoreerrors",
    "retryOn": "retryable retryableerrors",
    "errorCode": "error code fails",
    "name": "title label displayname",
    "id": "stepid ref reference taskreferencename key",
    "type": "kind steptype",
    "steps": "tasks states nodes activities elements",
    "description": "documentation comment notes doc",
    "nextWorkflowId": "nextworkflow next then",
    "onFailure": "failure failureworkflow onerror",
    "metadata": "meta annotations labels tags properties",
    "searchAttributes": "attributes searchable indexed",
}
_MEANT: Final[dict[str, list[str]]] = {}
for _field, _names in _ELSEWHERE.items():
    for _name in _names.split():
        _MEANT.setdefault(_name, []).append(_field)
_FORMS: Final = frozenset(
    {"form", "forms", "formkey", "formid", "formschema", "formdata", "fields", "schema", "summary"}
)


def meant(name: str, known: Collection[str]) -> str | None:
    """What to say after "unknown field", None where nothing is like it. ``known``: the fields that there are."""
    plain = "".join(char for char in name[:_COMPARED_MAX_CHARS] if char.isalnum()).lower()
    same = next((field for field in known if field.lower() == plain), None)
    found = same or next((field for field in _MEANT.get(plain, ()) if field in known), None)
    if found is None and plain in _FORMS and "boundaryEvents" in known:
        return "the form of a user task stands in `metadata.forms` of the definition, under the step's id"
    if found is None and len(name) <= _COMPARED_MAX_CHARS:
        found = next(iter(get_close_matches(name, known, 1, _ALIKE)), None)
    return None if found is None else f"did you mean `{found}`?"
