"""The client's calls that repair an instance which stands where it should not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from penstock.api import repair as api
from penstock.client.call import RowCall
from penstock.client.caller import Caller
from penstock.client.encoding import optional_object
from penstock.wire import repair_v1 as w
from penstock.wire.model import Instance
from penstock.wire.repair import MigrationCheck


class RepairCalls(Caller):
    """Retry, skip, move, change variables. ``note`` goes into the audit trail. None is repeated on a lost answer."""

    async def retry_instance(
        self,
        instance_id: str,
        *,
        from_step: str | None = None,
        step: str | None = None,
        note: str | None = None,
        again: bool = False,
    ) -> Instance:
        """Reopen the failed step of a failed instance, with a full count of retries.

        With ``from_step`` it goes on there instead, with the variables that it has now. ``step`` names which of the
        steps that the failure closed is given up for it, where it is not the one that failed. ``again``: also where
        work would be done again that was done already, and whose result was not kept.

        Raises:
            NotFound: no such instance.
            Conflict: it has not failed, a join would never end, or work would be done again.
            BadRequest: it has no such step.
        """
        return await self.call(
            RowCall(api.RETRY_INSTANCE, w.RetryInstanceRequest(instance_id, from_step, step, note, again))
        )

    async def set_priority(self, instance_id: str, priority: int) -> Instance:
        """Change how early the jobs of an instance come: those that wait now, and those that come to wait later. 0 to
        9, lower ones first.

        Raises:
            NotFound: no such instance.
            Conflict: it has ended.
            BadRequest: no such priority.
        """
        return await self.call(RowCall(api.SET_PRIORITY, w.SetPriorityRequest(instance_id, priority)))

    async def skip_step(
        self,
        instance_id: str,
        step_id: str,
        variables: object = None,
        *,
        execution_id: str | None = None,
        note: str | None = None,
    ) -> Instance:
        """Let a step count as done, with variables as its result, of an instance that is open or has failed.

        Of several open executions the oldest, unless ``execution_id`` names another one. Whoever has the job loses it;
        an instance that a call waits for is cancelled.

        Raises:
            NotFound: no such instance.
            Conflict: the step is not open, or has no result; the instance has ended, or is a durable run.
            BadRequest: it has no such step.
        """
        given = bytes(optional_object(variables) or b"")
        return await self.call(
            RowCall(api.SKIP_STEP, w.SkipStepRequest(instance_id, step_id, given, execution_id, note))
        )

    async def move_token(
        self,
        instance_id: str,
        step_id: str,
        to_step_id: str,
        *,
        execution_id: str | None = None,
        note: str | None = None,
    ) -> Instance:
        """Move what stands on a step to another one, of an instance that is open or has failed.

        ``step_id`` may be a parallel gateway whose join has not fired: its branches are given up.

        Raises:
            NotFound: no such instance.
            Conflict: the step is not open, a join would never end, the instance has ended, or is a durable run.
            BadRequest: it has no such step.
        """
        return await self.call(
            RowCall(api.MOVE_TOKEN, w.MoveTokenRequest(instance_id, step_id, to_step_id, execution_id, note))
        )

    async def migrate_instance(
        self,
        instance_id: str,
        version: int | None = None,
        *,
        steps: Mapping[str, str] | None = None,
        timers: str | None = None,
        note: str | None = None,
    ) -> Instance:
        """Let an open or failed instance go on in another version of its definition, by default the latest one.

        It stays on the steps on which it stands; ``steps`` names those whose ids are others in that version. What was
        begun (leases, timers, instances that were called, kept signals) goes on. ``timers`` says when a boundary timer
        fires that has another duration in that version: ``"FROM_ENTRY"``, so long after its step was entered (the
        default; it is due at once where that is over), ``"KEEP_DEADLINE"`` or ``"FROM_NOW"``.

        Raises:
            NotFound: no such instance, or version.
            Conflict: it can't, with every reason why not; see ``check_migration``.
            BadRequest: the version has no such step.
        """
        request = w.MigrateInstanceRequest(instance_id, version, dict(steps or {}), note, timers)
        return await self.call(RowCall(api.MIGRATE_INSTANCE, request))

    async def check_migration(
        self,
        instance_id: str,
        version: int | None = None,
        *,
        steps: Mapping[str, str] | None = None,
        timers: str | None = None,
    ) -> MigrationCheck:
        """Check what ``migrate_instance`` would do now: whether it is possible, if not, every reason, and how many
        boundary timers would be due at once.

        Raises:
            NotFound: no such instance, or version.
            BadRequest: the version has no such step.
        """
        request = w.CheckMigrationRequest(instance_id, version, dict(steps or {}), timers)
        return await self.call(RowCall(api.CHECK_MIGRATION, request))

    async def edit_variables(
        self,
        instance_id: str,
        variables: object = None,
        *,
        remove: Sequence[str] = (),
        if_version: str | None = None,
        note: str | None = None,
    ) -> Instance:
        """Set and remove variables (top-level names) of an instance that waits or has failed.

        ``note`` goes into the audit trail. ``if_version``: only if nobody has written any since. Not repeated on a lost
        answer.

        Raises:
            NotFound: no such instance.
            Conflict: it neither waits nor has failed, it is a durable run, or ``if_version`` is not the newest.
        """
        given = bytes(optional_object(variables) or b"{}")
        return await self.call(
            RowCall(api.EDIT_VARIABLES, w.EditVariablesRequest(instance_id, given, list(remove), if_version, note))
        )
