"""What serves each operation of the table (`penstock.api`): its row, bound to a method of the engine.

A noun with a module of its own binds its rows there, next to its methods; here they are one table. Must not decide
anything.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import structs

from penstock.access.me import me
from penstock.api import audit, batches, bulk, definitions, drafts, instances, messages, repair, status, tasks, workers
from penstock.engine.definitions.drafts import language
from penstock.engine.engine import Engine
from penstock.engine.instances.batches import BatchStart
from penstock.engine.instances.definition_use import COUNTED_VERSIONS_MAX
from penstock.engine.instances.instance_filter import filter_of
from penstock.engine.instances.instances import AUDIT_PAGE_MAX
from penstock.engine.operations import runs, worker
from penstock.engine.queues import queues
from penstock.engine.repair.bulk_acts import rule_of
from penstock.engine.requests.bound import Binding, Serve, bind, needed, part, slice_of
from penstock.engine.runs import forks, updates
from penstock.engine.runs.runs import JOURNAL_PAGE_MAX
from penstock.engine.schedules import declared, schedules
from penstock.engine.sql_requests import sql_requests
from penstock.engine.status.overview import WORKERS_MAX
from penstock.engine.status.settings_shown import settings_of
from penstock.errors import BadRequest
from penstock.wire.alike import alike
from penstock.wire.attention import AcknowledgeBody
from penstock.wire.drafts import ExpressionLanguage
from penstock.wire.edits import MigrationRequest, StepSkip, TokenMove, VariablesEdit
from penstock.wire.me import Me
from penstock.wire.model import DefinitionSummary, Instance, Signal
from penstock.wire.page import Page
from penstock.wire.repair import ImpactView
from penstock.wire.repair_v1 import GetImpactRequest, MigrateInstanceRequest, RetryInstanceRequest
from penstock.wire.setting import SettingView
from penstock.wire.simulation import SimulationRequest
from penstock.wire.standing import ShownExecution, VariablesAsOf
from penstock.wire.user_task import UserTask

__all__ = ["Serve", "bound_operations"]


def bound_operations(engine: Engine) -> Mapping[str, Serve]:
    """What serves an operation, by its name."""
    return dict(
        [
            *queues.bindings(engine.queues),
            *schedules.bindings(engine.schedules),
            *updates.bindings(engine.updates),
            *declared.bindings(engine.declarations),
            *_batches(engine),
            *_bulk(engine),
            *_repair(engine),
            *_audit(engine),
            *_definitions(engine),
            *sql_requests.bindings(engine.sql_requests),
            *forks.bindings(engine.forks),
            *runs.bindings(engine),
            *worker.bindings(engine),
            *_drafts(engine),
            *_instances(engine),
            *_messages(engine),
            *_workers(engine),
            *_tasks(engine),
            *_status(engine),
        ]
    )


def _batches(engine: Engine) -> tuple[Binding, ...]:
    made = engine.batches
    return (
        bind(
            batches.START_BATCH,
            lambda ask: made.create(BatchStart(ask.items, ask.on_complete, ask.note, ask.idempotency_key)),
        ),
        bind(batches.LIST_BATCHES, lambda ask: made.list(ask.cursor, part(ask.limit))),
        bind(batches.GET_BATCH, lambda ask: made.get(ask.id, ask.wait_seconds or 0)),
        bind(batches.LIST_BATCH_RESULTS, lambda ask: made.results(ask.id, ask.state, ask.cursor, part(ask.limit))),
        bind(batches.CANCEL_BATCH, lambda ask: made.cancel(ask.id, ask.reason)),
    )


def _bulk(engine: Engine) -> tuple[Binding, ...]:
    return (
        bind(bulk.START_BULK, engine.bulk.create),
        bind(bulk.PREVIEW_BULK, engine.bulk.preview),
        bind(bulk.LIST_BULK, lambda ask: engine.bulk.list(ask.cursor, part(ask.limit))),
        bind(bulk.GET_BULK, lambda ask: engine.bulk.get(ask.id)),
        bind(bulk.STOP_BULK, lambda ask: engine.bulk.stop(ask.id)),
    )


def _repair(engine: Engine) -> tuple[Binding, ...]:
    async def retry(ask: RetryInstanceRequest) -> Instance:
        if ask.from_step_id:
            return await engine.repair.retry_from(ask.instance_id, ask.from_step_id, ask.step_id, ask.note)
        if ask.step_id:
            raise BadRequest("stepId: needs a fromStepId, too: where the instance goes on")
        return await engine.instances.retry(ask.instance_id, ask.note, again=ask.again)

    async def migrate(ask: MigrateInstanceRequest) -> Instance:
        wanted = alike(ask, MigrationRequest, timers=rule_of(ask.timers))
        await engine.migrations.migrate(ask.instance_id, wanted)
        return await engine.instances.after_change(ask.instance_id)

    return (
        bind(
            repair.EDIT_VARIABLES,
            lambda ask: engine.repair.edit_variables(ask.instance_id, alike(ask, VariablesEdit)),
        ),
        bind(repair.RETRY_INSTANCE, retry),
        bind(repair.SKIP_STEP, lambda ask: engine.repair.skip(ask.instance_id, alike(ask, StepSkip))),
        bind(repair.MOVE_TOKEN, lambda ask: engine.repair.move(ask.instance_id, alike(ask, TokenMove))),
        bind(
            repair.SET_PRIORITY,
            lambda ask: engine.repair.set_priority(ask.instance_id, needed(ask.priority, "priority")),
        ),
        bind(repair.MIGRATE_INSTANCE, migrate),
        bind(
            repair.CHECK_MIGRATION,
            lambda ask: engine.migrations.check(
                ask.instance_id, alike(ask, MigrationRequest, timers=rule_of(ask.timers))
            ),
        ),
    )


def _audit(engine: Engine) -> tuple[Binding, ...]:
    return (
        bind(audit.LIST_AUDIT, engine.audit_trail.list),
        bind(audit.LIST_ATTENTION, lambda _: engine.overview.attention()),
        bind(
            audit.ACKNOWLEDGE_ATTENTION,
            lambda ask: engine.overview.acknowledge(ask.key, AcknowledgeBody(ask.count or 0, ask.note)),
        ),
        bind(audit.WITHDRAW_ACKNOWLEDGEMENT, lambda ask: engine.overview.withdraw(ask.key)),
    )


def _definitions(engine: Engine) -> tuple[Binding, ...]:
    async def list_definitions(ask: definitions.ListDefinitions) -> Page[DefinitionSummary]:
        if (window := slice_of(ask)) is not None:
            return await engine.definitions.list_slice(ask.keyword, *window)
        return await engine.definitions.list(ask.keyword, ask.page or 0, ask.page_size or 0)

    async def upload(ask: definitions.UploadDefinition) -> DefinitionSummary:
        document = ask.document
        return await engine.definitions.upload(await engine.definitions.parse(lambda: document, len(document)))

    async def get(id: str, *version: int) -> msgspec.Raw:
        """Return it as it was given, with its version: uploading it again gives the same version again."""
        stored = await engine.definitions.get(id, *version)
        content = stored.definition.content
        assert content.endswith("}")
        return msgspec.Raw(f'{content[:-1]},"version":{stored.version}}}'.encode())

    async def impact(ask: GetImpactRequest) -> ImpactView:
        body = ask.definition
        definition = await engine.definitions.parse(lambda: body, len(body)) if body else None
        return await engine.impact.of(ask.definition_id, ask.version or 0, definition)

    return (
        bind(definitions.UPLOAD_DEFINITION, upload),
        bind(definitions.LIST_DEFINITIONS, list_definitions),
        bind(definitions.GET_DEFINITION, lambda ask: get(ask.id)),
        bind(definitions.GET_DEFINITION_VERSION, lambda ask: get(ask.id, ask.version)),
        bind(
            definitions.ACTIVATE_VERSION,
            lambda ask: engine.definitions.activate(
                ask.definition_id.replace("\0", "\N{REPLACEMENT CHARACTER}"), ask.version
            ),
        ),
        bind(definitions.DELETE_DEFINITION, lambda ask: engine.code.delete(ask.definition_id)),
        bind(definitions.GET_IMPACT, impact),
        bind(
            definitions.LIST_DEFINITION_ACTIVITY,
            lambda ask: engine.definition_use.activity(ask.keyword, ask.cursor, part(ask.limit)),
        ),
        bind(
            definitions.LIST_VERSIONS,
            lambda ask: engine.definition_use.versions(ask.id, ask.cursor, part(ask.limit)),
        ),
        bind(
            definitions.COUNT_VERSIONS,
            lambda ask: engine.definition_use.counts(ask.id, ask.cursor, part(ask.limit, COUNTED_VERSIONS_MAX)),
        ),
        bind(definitions.LIST_TOKENS, lambda ask: engine.definition_use.tokens(ask.id, ask.version)),
        bind(definitions.LIST_VARIABLES, lambda ask: engine.definition_use.variables(ask.id)),
    )


def _drafts(engine: Engine) -> tuple[Binding, ...]:
    async def simulate(ask: SimulationRequest) -> msgspec.Raw:
        return msgspec.Raw(await engine.simulations.simulate(ask))

    async def get_language(_: object) -> ExpressionLanguage:
        return language()

    return (
        bind(
            drafts.VALIDATE_DEFINITION,
            lambda ask: engine.drafts.validate(ask.document, with_reads=ask.reads),
        ),
        bind(drafts.GET_EXPRESSION_LANGUAGE, get_language),
        bind(drafts.SIMULATE, simulate),
        bind(drafts.CHECK_EXPRESSION, engine.drafts.check_expression),
    )


def _instances(engine: Engine) -> tuple[Binding, ...]:
    async def variables_after(ask: instances.GetVariablesAfter) -> VariablesAsOf:
        if ask.after is None:
            raise BadRequest("after: is required: the id of an execution, or `start`")
        return await engine.diagnosis.variables_after(ask.id, ask.after)

    async def list_instances(ask: instances.ListInstances) -> Page[Instance]:
        if (window := slice_of(ask)) is not None:
            return await engine.instances.list_slice(filter_of(ask), *window)
        return await engine.instances.list(filter_of(ask), ask.page or 0, ask.page_size or 0)

    async def list_executions(ask: instances.ListExecutions) -> Page[ShownExecution]:
        if ask.order != instances.NEWEST:
            raise BadRequest(f"order: must be {instances.NEWEST}, or be left out for all in order of entry")
        return await engine.diagnosis.history(ask.id, ask.cursor, ask.limit or 0, output=ask.output)

    return (
        bind(instances.GET_INSTANCE, lambda ask: engine.instances.get(ask.id, ask.wait_seconds or 0)),
        bind(instances.LIST_INSTANCES, list_instances),
        bind(instances.COUNT_INSTANCES, lambda ask: engine.instances.count(filter_of(ask))),
        bind(instances.GET_HISTORY, lambda ask: engine.instances.history(ask.id)),
        bind(instances.LIST_EXECUTIONS, list_executions),
        bind(
            instances.CANCEL_INSTANCE,
            lambda ask: engine.instances.cancel(ask.id, ask.reason, force=ask.force, compensate=ask.compensate),
        ),
        bind(instances.LIST_ATTEMPTS, lambda ask: engine.attempts.of(ask.execution_id)),
        bind(instances.LIST_SIGNALS, lambda ask: engine.tasks.buffered(ask.id)),
        bind(
            instances.GET_AUDIT,
            lambda ask: engine.instances.audit(ask.id, part(ask.limit, AUDIT_PAGE_MAX), ask.after or 0, ask.cursor),
        ),
        bind(
            instances.GET_JOURNAL,
            lambda ask: engine.runs.journal(
                ask.id, ask.cursor, min(max(part(ask.limit, JOURNAL_PAGE_MAX), 1), JOURNAL_PAGE_MAX)
            ),
        ),
        bind(instances.GET_TREE, lambda ask: engine.runs.tree(ask.instance_id)),
        bind(instances.GET_VARIABLES_AFTER, variables_after),
        bind(instances.GET_STATE, lambda ask: engine.diagnosis.state(ask.id)),
    )


def _messages(engine: Engine) -> tuple[Binding, ...]:
    return (
        bind(messages.PUBLISH_MESSAGE, engine.messages.publish),
        bind(
            messages.LIST_MESSAGES,
            lambda ask: engine.messages.listing(ask.name, ask.correlation_key, ask.cursor, ask.limit or 0),
        ),
    )


def _workers(engine: Engine) -> tuple[Binding, ...]:
    async def list_jobs(ask: workers.ListJobs) -> Page[Any]:
        if ask.status not in (None, workers.FAILED):
            cursor, limit = slice_of(ask) or (None, 0)
            return await engine.open_work.jobs(ask.status, ask.job_type, cursor, limit)
        if (window := slice_of(ask)) is not None:
            return await engine.jobs.failed_slice(*window, ask.job_type)
        return await engine.jobs.failed(ask.page or 0, ask.page_size or 0, ask.job_type)

    return (
        bind(
            workers.LIST_WORKERS,
            lambda ask: engine.overview.workers(ask.cursor, part(ask.limit, WORKERS_MAX), ask.job_type),
        ),
        bind(workers.LIST_JOBS, list_jobs),
        bind(workers.FORGET_CHECKPOINT, lambda ask: engine.attempts.forget_checkpoint(ask.id, ask.note)),
        bind(workers.LIST_JOB_TYPES, lambda _: engine.overview.job_types()),
        bind(workers.UNLOCK_JOB, lambda ask: engine.open_work.unlock(ask.id, ask.note)),
    )


def _tasks(engine: Engine) -> tuple[Binding, ...]:
    inbox = engine.inbox

    async def signal(ask: Signal) -> None:
        one = structs.replace(ask, definition_id=None, instance_key=None)
        if ask.definition_id and ask.instance_key:
            await engine.tasks.signal_by_key(ask.definition_id, ask.instance_key, one)
        else:
            await engine.tasks.signal(one)

    async def find(ask: tasks.ListTasks) -> Page[UserTask]:
        filters = (ask.job_type, ask.definition_id, ask.assignee, ask.instance_id, ask.execution_id)
        given = [value for value in filters if value is not None]
        by_id = ask.instance_id is not None or ask.execution_id is not None
        if by_id and (ask.unclaimed or len(given) > 1):
            raise BadRequest("instanceId, executionId: can't be combined with each other, or with another filter")
        if ask.instance_id is not None:
            return await inbox.list_of_instance(ask.instance_id, ask.cursor, part(ask.limit))
        if ask.execution_id is not None:
            return await inbox.list_execution(ask.execution_id)
        return await inbox.list_open(
            ask.job_type,
            ask.definition_id,
            ask.assignee,
            unclaimed=ask.unclaimed,
            cursor=ask.cursor,
            limit=part(ask.limit),
        )

    return (
        bind(tasks.COMPLETE_USER_TASK, engine.tasks.complete_user_task),
        bind(tasks.SIGNAL, signal),
        bind(tasks.SIGNAL_BY_KEY, signal),
        bind(tasks.LIST_TASKS, find),
        bind(tasks.COUNT_TASKS, lambda _: inbox.count()),
        bind(tasks.CLAIM_TASK, lambda ask: inbox.claim(ask.id, ask.step_id, ask.by, ask.execution_id)),
        bind(tasks.RELEASE_TASK, lambda ask: inbox.release(ask.id, ask.step_id, ask.by, ask.execution_id)),
    )


def _status(engine: Engine) -> tuple[Binding, ...]:
    async def get_caller(_: object) -> Me:
        return me()

    async def list_settings(_: object) -> list[SettingView]:
        return settings_of(engine.settings)

    return (
        bind(status.OVERVIEW, lambda ask: engine.overview.read(ask.range)),
        bind(status.LIST_FAILURES, lambda ask: engine.failures.read(ask.definition_id, ask.range)),
        bind(status.LIST_ENGINES, lambda _: engine.overview.engines()),
        bind(status.LIST_TIMERS, lambda ask: engine.open_work.timers(ask.kind, ask.cursor, part(ask.limit))),
        bind(status.LIST_SETTINGS, list_settings),
        bind(status.GET_ME, get_caller),
    )
