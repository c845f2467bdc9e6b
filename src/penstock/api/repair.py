"""The operations that repair one instance."""

from __future__ import annotations

from typing import Final

from penstock.api.operation import Body, DeclaredOperation, Grpc, Repeat, Rest
from penstock.api.permission import Permission
from penstock.wire import repair_v1 as w
from penstock.wire.edits import MigrationRequest, PriorityBody, RetryBody, StepSkip, TokenMove, VariablesEdit
from penstock.wire.model import Instance
from penstock.wire.repair import MigrationCheck

_PATH: Final = "/v1/instances/{id}"
_SERVICE: Final = "/penstock.v1.Repair/"
_ID: Final = {"instance_id": "id"}

EDIT_VARIABLES: Final = DeclaredOperation(
    name="editVariables",
    summary="Change variables of an instance that waits or has failed (addition)",
    description=(
        "You set or remove whole top-level variables. The instance must wait, or have failed. With `ifVersion` "
        "nothing is changed if somebody has written variables since that version. 409: it does neither, it is a "
        "run of a durable workflow, or `ifVersion` is not the newest version."
    ),
    tag="instances",
    request=w.EditVariablesRequest,
    answer=Instance,
    needs=Permission.OPERATE,
    rest=Rest("POST", _PATH + "/variables", body=Body(kind=VariablesEdit), names=_ID),
    grpc=Grpc(_SERVICE + "EditVariables"),
    errors=(400, 404, 409, 413),
    repeat=Repeat.IF_NOT_APPLIED,
)
RETRY_INSTANCE: Final = DeclaredOperation(
    name="retryInstance",
    summary="Retry a failed instance (addition)",
    description=(
        "Reopens the failed step and every step that its failure closed, with full retries. If conditions after a"
        " completed task were at fault, or the mapping of a call's or an item's result, only they are evaluated "
        "again. With `fromStepId` the instance goes on there, in place of the failed step or of `stepId`. For a "
        "run of a durable workflow that is a path of its journal, `start` or `end`. 409: the instance is not "
        "`FAILED`, or work would be done again whose result an older engine did not keep, unless `again` is true."
    ),
    tag="instances",
    request=w.RetryInstanceRequest,
    answer=Instance,
    needs=Permission.OPERATE,
    rest=Rest("POST", _PATH + "/retry", body=Body(kind=RetryBody, required=False), names=_ID),
    grpc=Grpc(_SERVICE + "RetryInstance"),
    errors=(400, 404, 409),
    repeat=Repeat.IF_NOT_APPLIED,
)
SKIP_STEP: Final = DeclaredOperation(
    name="skipStep",
    summary="Skip a step, with a result (addition)",
    description=(
        "The step counts as done, with these variables. The instance is open, or has failed and goes on by it. A "
        "worker that has the job loses it. 409: the step is not open, or has no result."
    ),
    tag="instances",
    request=w.SkipStepRequest,
    answer=Instance,
    needs=Permission.OPERATE,
    rest=Rest("POST", _PATH + "/skip", body=Body(kind=StepSkip), names=_ID),
    grpc=Grpc(_SERVICE + "SkipStep"),
    errors=(400, 404, 409, 413),
    required=("step_id",),
    repeat=Repeat.IF_NOT_APPLIED,
)
MOVE_TOKEN: Final = DeclaredOperation(
    name="moveToken",
    summary="Move an instance to another step (addition)",
    description=(
        "A branch that stands on one step goes on at another one. The instance is open, or has failed and goes on"
        " by it. All branches of a gateway are moved together. 409: the step is not open, or a join would wait "
        "for ever."
    ),
    tag="instances",
    request=w.MoveTokenRequest,
    answer=Instance,
    needs=Permission.OPERATE,
    rest=Rest("POST", _PATH + "/move", body=Body(kind=TokenMove), names=_ID),
    grpc=Grpc(_SERVICE + "MoveToken"),
    errors=(400, 404, 409),
    required=("step_id", "to_step_id"),
    repeat=Repeat.IF_NOT_APPLIED,
)
SET_PRIORITY: Final = DeclaredOperation(
    name="setPriority",
    summary="Change the priority of an instance's jobs (addition)",
    description=(
        "0 to 9, lower ones first. Applies to jobs that wait now and to later ones, except those of steps with a "
        "priority of their own. 409: the instance has ended."
    ),
    tag="instances",
    request=w.SetPriorityRequest,
    answer=Instance,
    needs=Permission.OPERATE,
    rest=Rest("POST", _PATH + "/priority", body=Body(kind=PriorityBody), names=_ID),
    grpc=Grpc(_SERVICE + "SetPriority"),
    errors=(400, 404, 409),
)
MIGRATE_INSTANCE: Final = DeclaredOperation(
    name="migrateInstance",
    summary="Migrate an instance to another version (addition)",
    description=(
        "An open or failed instance goes on in another version of its definition, by default the latest, on the "
        'steps on which it stands. `steps` names those whose ids differ there: `{"old": "new"}`. `timers` says '
        "when boundary timers with another duration fire. 409: it can't, with every reason. With `dryRun` nothing"
        " is changed, and you get whether it can, every reason why not, and how many boundary timers would be due"
        " at once."
    ),
    tag="instances",
    request=w.MigrateInstanceRequest,
    answer=Instance,
    needs=Permission.OPERATE,
    rest=Rest("POST", _PATH + "/migrate", body=Body(kind=MigrationRequest), names=_ID),
    grpc=Grpc(_SERVICE + "MigrateInstance"),
    errors=(400, 404, 409),
    repeat=Repeat.IF_NOT_APPLIED,
)
CHECK_MIGRATION: Final = DeclaredOperation(
    name="checkMigration",
    summary="Tell whether an instance could go on in another version",
    tag="instances",
    request=w.CheckMigrationRequest,
    answer=MigrationCheck,
    needs=Permission.OPERATE,
    rest=Rest("POST", _PATH + "/migrate", body=Body(kind=MigrationRequest), names=_ID, when="dry_run"),
    grpc=Grpc(_SERVICE + "CheckMigration"),
)
