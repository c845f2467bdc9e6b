"""`penstock instance …`: start instances on a running engine, look at them, act on them."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from penstock.cli.engine import DEFAULT_URL, TokenFileOption, UrlOption, as_in_rest, connected, json_object
from penstock.cli.options import (
    BLOCKED,
    NOT_COMPLETED,
    FileOption,
    JsonOption,
    LimitOption,
    VariablesArgument,
    instance_line,
    print_done,
    print_json,
    print_page,
    print_table,
    read_pairs,
    shown_step,
    shown_time,
)
from penstock.cli.plain import echo
from penstock.cli.starts import start

if TYPE_CHECKING:
    from penstock.client import Branch, Instance, StepExecution, SyncClient
    from penstock.wire.why import Why

app = typer.Typer(
    name="instance", help="Instances of a running engine: start, list, show, watch, act on them.", no_args_is_help=True
)

INDENT = "  "
IdArgument = Annotated[str, typer.Argument(help="The instance's id.", metavar="ID")]
StepArgument = Annotated[str, typer.Argument(help="The step's id.", metavar="STEP")]
NoteOption = Annotated[str | None, typer.Option(help="A note for the audit trail.")]
ExecutionOption = Annotated[
    str | None, typer.Option(help="The execution, if the step has several open ones. [default: the oldest]")
]
RemoveOption = Annotated[
    list[str] | None,
    typer.Option("--remove", help="A variable to remove. You may give it several times.", metavar="NAME"),
]
StepsOption = Annotated[
    list[str] | None, typer.Option("--step", help="A step that has another id in the other version.", metavar="OLD=NEW")
]
BlockedOption = Annotated[bool, typer.Option("--blocked", help="Only durable runs that are blocked on code.")]
BulkOption = Annotated[str | None, typer.Option(help="Only instances of this bulk operation.", metavar="ID")]
OpenOption = Annotated[bool, typer.Option("--open", help="Only instances of --bulk that have not ended.")]
CauseOption = Annotated[
    str | None, typer.Option(help="Only FAILED instances with this cause. Parts that differ within a cause may differ.")
]
ContainsOption = Annotated[
    str | None,
    typer.Option(help="Only FAILED instances with this text in the error code or the reason.", metavar="TEXT"),
]
FailedStepOption = Annotated[
    str | None, typer.Option(help="Only instances that FAILED at this step of --definition.", metavar="STEP")
]
CurrentStepOption = Annotated[
    str | None, typer.Option(help="Only open instances at this step of --definition.", metavar="STEP")
]
FILTERS: Final = {
    "status": "status",
    "definition": "definition_id",
    "version": "definition_version",
    "business-key": "business_key",
    "business-key-prefix": "business_key_prefix",
    "flow-key": "flow_key",
    "parent": "parent_instance_id",
    "current-step": "current_step_id",
    "failed-step": "step_id",
    "cause": "cause",
    "error-contains": "error_contains",
    "bulk": "bulk_id",
    "started-after": "started_after",
    "started-before": "started_before",
}
"""Of a list, as people write them, and as the client does."""
_AS_WRITTEN: Final = {as_in_rest(field): name for name, field in FILTERS.items()}
ATTRIBUTE_FILTER: Final = "attr."
OF_FAILURES: Final = ("step_id", "cause", "error_contains")
"""They imply the status FAILED."""
FilterOption = Annotated[
    list[str] | None,
    typer.Option(
        "--filter", "-f",
        help=f"The same as options, and more; may be given several times, and all have to fit. NAME is "
        f"{', '.join(FILTERS)}, or attr.NAME for a variable that is a search attribute.",
        metavar="NAME=VALUE",
    ),
]  # fmt: skip
AfterOption = Annotated[datetime | None, typer.Option(help="Only from this time on.", metavar="TIME")]
BeforeOption = Annotated[datetime | None, typer.Option(help="Only before this time.", metavar="TIME")]


class Order(StrEnum):
    """How a list is sorted."""

    NEWEST = "newest"
    OLDEST = "oldest"
    BUSINESS_KEY = "businessKey"
    ENDED = "ended"
    CHANGED = "changed"


OrderOption = Annotated[
    Order | None,
    typer.Option(
        case_sensitive=False,
        help="By the time of the start, by business key (only those that have one), or those first that ended or "
        "changed last: of 10,000 at most. [default: newest]",
    ),
]


class TimerChoice(StrEnum):
    """When boundary timers with another duration fire after a migration."""

    FROM_ENTRY = "FROM_ENTRY"
    KEEP_DEADLINE = "KEEP_DEADLINE"
    FROM_NOW = "FROM_NOW"


TimersOption = Annotated[
    TimerChoice | None,
    typer.Option(
        "--timers",
        case_sensitive=False,
        help="When boundary timers with another duration there fire: so long after their step was entered, "
        "at once where that is over; when they would have; or so long from now. [default: FROM_ENTRY]",
    ),
]


def timers_due(count: int) -> str:
    """How many boundary timers a migration would make due, in words."""
    return f"{count} boundary {'timer' if count == 1 else 'timers'} would be due at once (--timers)"


app.command()(start)


@app.command(name="list")
def list_instances(
    definition: Annotated[str | None, typer.Option(help="Only of this definition.")] = None,
    status: Annotated[
        str | None,
        typer.Option(help="Only in this status: ACTIVE, WAITING, COMPLETED, FAILED or CANCELLED.", metavar="STATUS"),
    ] = None,
    business_key: Annotated[str | None, typer.Option(help="Only with this business key.")] = None,
    flow_key: Annotated[str | None, typer.Option(help="Only with this flow key.")] = None,
    attribute: Annotated[
        list[str] | None,
        typer.Option(
            help="Only with this search attribute. You may give it several times. Bounds are NAME.from and NAME.to.",
            metavar="NAME=VALUE",
        ),
    ] = None,
    delayed: Annotated[bool, typer.Option("--delayed", help="Only instances that have not begun.")] = False,
    blocked: BlockedOption = False,
    version: Annotated[int | None, typer.Option(help="Only of this version of --definition.", min=1)] = None,
    filters: FilterOption = None,
    current_step: CurrentStepOption = None,
    failed_step: FailedStepOption = None,
    cause: CauseOption = None,
    error_contains: ContainsOption = None,
    bulk: BulkOption = None,
    unended: OpenOption = False,
    started_after: AfterOption = None,
    started_before: BeforeOption = None,
    order: OrderOption = None,
    limit: LimitOption = 50,
    url: UrlOption = DEFAULT_URL,
    token_file: TokenFileOption = None,
    as_json: JsonOption = False,
) -> None:
    """List instances, newest first."""
    options = {
        "definition_id": definition,
        "definition_version": version,
        "current_step_id": current_step,
        "step_id": failed_step,
        "cause": cause,
        "error_contains": error_contains,
        "bulk_id": bulk,
        "started_after": started_after,
        "started_before": started_before,
        "status": status,
        "business_key": business_key,
        "flow_key": flow_key,
        "attributes": read_pairs(attribute or []),
    }
    wanted = _all_filters({name: value for name, value in options.items() if value}, filters or [])
    sorted_by = None if order is None else order.value
    with connected(url, token_file, _AS_WRITTEN) as client:
        page = client.list_instances(
            **wanted, open=unended, delayed=delayed, blocked=blocked, order=sorted_by, limit=limit
        )
    print_page(
        page,
        ("id", "status", "definition", "started", "business key", "at"),
        _listed,
        as_json=as_json,
        limit=limit,
        narrower="or a narrower filter",
    )


def _listed(each: Instance) -> tuple[str, ...]:
    begins = f"begins {shown_time(each.start_at)}" if each.start_at else None
    return (
        each.id,
        BLOCKED if each.blocked else each.status,
        f"{each.definition_id}:{each.definition_version}",
        shown_time(each.started_at),
        each.business_key or "",
        each.failure_reason or each.blocked_reason or begins or ", ".join(map(shown_step, each.current_step_ids)),
    )


def _all_filters(options: dict[str, Any], pairs: list[str]) -> dict[str, Any]:
    """Return those of options and of --filter. What is given twice, or is none, is told: exit code 2."""
    found: dict[str, Any] = {"attributes": {}, **options}
    for name, value in read_pairs(pairs).items():
        if name.startswith(ATTRIBUTE_FILTER):
            found["attributes"] = found["attributes"] | {name.removeprefix(ATTRIBUTE_FILTER): value}
            continue
        field = FILTERS.get(name)
        if field is None:
            raise typer.BadParameter(
                f"{name}: must be one of {', '.join(FILTERS)}, or attr.NAME for a variable that its definition "
                "declares in searchAttributes: no other variable filters",
                param_hint="--filter",
            )
        if field in found:
            raise typer.BadParameter(f"{name}: is given as an option, too", param_hint="--filter")
        found[field] = _filter_value(name, value)
    if "status" in found:
        found["status"] = found["status"].upper()
    elif any(name in found for name in OF_FAILURES):
        found["status"] = "FAILED"
    return found


def _filter_value(name: str, value: str) -> Any:
    try:
        if name == "version":
            if (version := int(value)) < 1:  # 0 would be none, and list all
                raise ValueError
            return version
        return datetime.fromisoformat(value) if name in ("started-after", "started-before") else value
    except ValueError:
        what = "a version" if name == "version" else "a time such as 2026-01-31T12:00:00Z"
        raise typer.BadParameter(f"{name}: must be {what}", param_hint="--filter") from None


@app.command()
def show(
    id: IdArgument,
    variables: Annotated[bool, typer.Option("--variables", help="Show its variables, too.")] = False,
    url: UrlOption = DEFAULT_URL,
    token_file: TokenFileOption = None,
    as_json: JsonOption = False,
) -> None:
    """Print an instance and its timeline: each entry into a step, how long it took, its retries and why it failed.

    Of an open one also, in a sentence, why it stands where it stands.
    """
    with connected(url, token_file) as client:
        instance = client.get_instance(id)
        history = client.get_history(id)
        why = None if instance.ended or as_json else _why(client, id)
    if as_json:
        print_json({"instance": instance, "history": history})
        return
    echo(instance_line(instance))
    if why is not None:
        echo(why.text + (f" (next: {shown_time(why.next)})" if why.next else ""))
    if instance.business_key:
        echo(f"business key {instance.business_key}")
    if instance.flow_key:
        echo(f"flow key {instance.flow_key}")
    if instance.priority is not None:
        echo(f"priority {instance.priority}")
    if instance.start_at is not None:
        echo(f"begins {shown_time(instance.start_at)}: its start waits (a time, a delay, throttle or debounce)")
    print_table(("step", "status", "entered", "took", "attempts", "about"), _rows(instance, history))
    if instance.result is not None:
        echo("result")
        print_json(instance.result)
    if variables:
        print_json(instance.variables)


def _why(client: SyncClient, id: str) -> Why | None:
    """None where it can't be had now: the rest is shown."""
    from penstock.client import ClientError

    try:
        return client.get_why(id)
    except ClientError:
        return None


@app.command()
def tree(
    id: IdArgument, url: UrlOption = DEFAULT_URL, token_file: TokenFileOption = None, as_json: JsonOption = False
) -> None:
    """Print an instance and those that it called, and they called; of a durable run its branches."""
    with connected(url, token_file) as client:
        found = client.get_tree(id)
    if as_json:
        print_json(found)
        return
    echo(f"{found.id}  {found.status}  {found.workflow}:{found.version}")
    for branch in found.branches:
        _print_branch(branch, INDENT)


def _print_branch(branch: Branch, indent: str) -> None:
    """What the tree has below is bounded, and so is its depth."""
    about = "  ".join(
        part for part in (branch.status, branch.name, branch.instance_id, shown_time(branch.ended_at)) if part
    )
    echo(f"{indent}{branch.path}  {about}")
    for child in branch.children:
        _print_branch(child, indent + INDENT)


@app.command()
def watch(
    id: IdArgument,
    timeout: Annotated[float | None, typer.Option(help="How many seconds to wait. [default: no limit]", min=0)] = None,
    url: UrlOption = DEFAULT_URL,
    token_file: TokenFileOption = None,
    as_json: JsonOption = False,
) -> None:
    """Print a line for every change of an instance until it has ended; with --json each is the instance.

    Exit code 0 when it completed, 1 when it failed, was cancelled or has not ended within the time.
    """
    with connected(url, token_file) as client:
        ended = client.wait_until_ended(
            id, timeout_s=timeout, on_change=lambda now: _print_instance(now, as_json=as_json)
        )
    if ended.status != "COMPLETED":
        raise typer.Exit(NOT_COMPLETED)


@app.command()
def cancel(
    ids: Annotated[list[str], typer.Argument(help="Instances.", metavar="ID")],
    reason: Annotated[str | None, typer.Option(help="A note for the audit trail.")] = None,
    compensate: Annotated[bool, typer.Option("--compensate", help="Compensate their completed steps first.")] = False,
    url: UrlOption = DEFAULT_URL,
    token_file: TokenFileOption = None,
    as_json: JsonOption = False,
) -> None:
    """Cancel instances, one after another; the first that can't be ends it. `--json`: a line for each."""
    with connected(url, token_file) as client:
        for each in ids:
            _print_instance(client.cancel_instance(each, reason=reason, compensate=compensate), as_json=as_json)


@app.command()
def retry(
    ids: Annotated[list[str], typer.Argument(help="The ids of failed instances.", metavar="ID")],
    from_step: Annotated[
        str | None, typer.Option("--from", help="Go on at this step instead of the failed one.", metavar="STEP")
    ] = None,
    note: NoteOption = None,
    again: Annotated[bool, typer.Option("--again", help="Retry even if work would be done again.")] = False,
    url: UrlOption = DEFAULT_URL,
    token_file: TokenFileOption = None,
    as_json: JsonOption = False,
) -> None:
    """Retry the failed step of instances, one after another; the first that can't be ends it.

    `--json`: a line for each.
    """
    with connected(url, token_file) as client:
        for each in ids:
            _print_instance(client.retry_instance(each, from_step=from_step, note=note, again=again), as_json=as_json)


@app.command()
def priority(
    id: IdArgument,
    priority: Annotated[int, typer.Argument(min=0, max=9, help="The priority, 0 to 9. Lower ones come first.")],
    url: UrlOption = DEFAULT_URL,
    token_file: TokenFileOption = None,
    as_json: JsonOption = False,
) -> None:
    """Change how early the jobs of an instance come, those that wait now among them."""
    with connected(url, token_file) as client:
        _print_instance(client.set_priority(id, priority), as_json=as_json)


@app.command()
def skip(
    id: IdArgument,
    step: StepArgument,
    variables: VariablesArgument = None,
    file: FileOption = None,
    execution: ExecutionOption = None,
    note: NoteOption = None,
    url: UrlOption = DEFAULT_URL,
    token_file: TokenFileOption = None,
    as_json: JsonOption = False,
) -> None:
    """Let a step of an open or failed instance count as done, with variables as its result."""
    given = json_object(variables, file)
    with connected(url, token_file) as client:
        _print_instance(client.skip_step(id, step, given, execution_id=execution, note=note), as_json=as_json)


@app.command()
def move(
    id: IdArgument,
    step: StepArgument,
    to: Annotated[str, typer.Argument(help="The step to go on at.", metavar="TO")],
    execution: ExecutionOption = None,
    note: NoteOption = None,
    url: UrlOption = DEFAULT_URL,
    token_file: TokenFileOption = None,
    as_json: JsonOption = False,
) -> None:
    """Let what stands on a step of an open or failed instance go on at another step."""
    with connected(url, token_file) as client:
        _print_instance(client.move_token(id, step, to, execution_id=execution, note=note), as_json=as_json)


@app.command()
def edit(
    id: IdArgument,
    variables: VariablesArgument = None,
    file: FileOption = None,
    remove: RemoveOption = None,
    note: NoteOption = None,
    url: UrlOption = DEFAULT_URL,
    token_file: TokenFileOption = None,
    as_json: JsonOption = False,
) -> None:
    """Set and remove variables of an instance that waits or has failed."""
    given = json_object(variables, file)
    with connected(url, token_file) as client:
        _print_instance(client.edit_variables(id, given, remove=remove or (), note=note), as_json=as_json)


@app.command()
def migrate(
    ids: Annotated[list[str], typer.Argument(help="Instances.", metavar="ID")],
    version: Annotated[int | None, typer.Option(help="[default: the latest]", min=1)] = None,
    steps: StepsOption = None,
    timers: TimersOption = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Change nothing, and say whether they can be migrated, and why not.")
    ] = False,
    note: NoteOption = None,
    url: UrlOption = DEFAULT_URL,
    token_file: TokenFileOption = None,
    as_json: JsonOption = False,
) -> None:
    """Let open or failed instances go on in another version of their definition, one after another.

    The command ends at the first one that can't. With --dry-run it checks all, and the exit code is 1 if one can't.
    `--json`: a line for each.
    """
    renamed, rule = renamed_steps(steps or []), timers.value if timers else None
    possible = True
    with connected(url, token_file) as client:
        for each in ids:
            if not dry_run:
                made = client.migrate_instance(each, version, steps=renamed, timers=rule, note=note)
                _print_instance(made, as_json=as_json)
                continue
            check = client.check_migration(each, version, steps=renamed, timers=rule)
            possible = possible and check.possible
            versions = f"{check.instance_id}  version {check.from_version} to {check.to_version}"
            due = f", {timers_due(check.timers_due)}" if check.timers_due else ""
            summary = f"{versions}  {f'possible{due}' if check.possible else '; '.join(check.reasons)}"
            print_done(check, summary, as_json=as_json)
    if not possible:
        raise typer.Exit(NOT_COMPLETED)


@app.command()
def signal(
    id: IdArgument,
    step: StepArgument,
    variables: VariablesArgument = None,
    file: FileOption = None,
    keep: Annotated[bool, typer.Option("--keep", help="Keep the signal if the wait is not open yet.")] = False,
    url: UrlOption = DEFAULT_URL,
    token_file: TokenFileOption = None,
    as_json: JsonOption = False,
) -> None:
    """Signal a wait, with variables."""
    given = json_object(variables, file)
    with connected(url, token_file) as client:
        client.signal(id, step, given, buffer=keep)
    print_done({"instanceId": id, "stepId": step, "signalled": True}, None, as_json=as_json)


@app.command()
def complete(
    id: IdArgument,
    step: StepArgument,
    variables: VariablesArgument = None,
    file: FileOption = None,
    execution: ExecutionOption = None,
    by: Annotated[str | None, typer.Option(help="The person who did it, for the audit trail.")] = None,
    url: UrlOption = DEFAULT_URL,
    token_file: TokenFileOption = None,
    as_json: JsonOption = False,
) -> None:
    """Complete a user task, with variables."""
    given = json_object(variables, file)
    with connected(url, token_file) as client:
        client.complete_user_task(id, step, given, completed_by=by, execution_id=execution)
    print_done({"instanceId": id, "stepId": step, "completed": True}, None, as_json=as_json)


def _print_instance(instance: Instance, *, as_json: bool) -> None:
    print_done(instance, instance_line(instance), as_json=as_json)


def renamed_steps(pairs: list[str]) -> dict[str, str]:
    """Ids of steps, and what they are in another version."""
    found = dict(pair.split("=", 1) for pair in pairs if "=" in pair)
    if len(found) < len(pairs):
        raise typer.BadParameter("must be OLD=NEW, each OLD once", param_hint="--step")
    return found


PROGRESS_MAX_CHARS = 200


def _rows(instance: Instance, history: list[StepExecution]) -> list[tuple[str, ...]]:
    """Return one for each entry. The progress of a step stands at its latest entry that is open."""
    latest = {each.step_id: each.id for each in history if each.status == "RUNNING"}
    shown = {
        latest[step]: f"progress {json.dumps(summary, ensure_ascii=False)[:PROGRESS_MAX_CHARS]}"
        for step, summary in instance.progress.items()
        if step in latest
    }
    return [_row(each, shown.get(each.id, "")) for each in history]


def _row(execution: StepExecution, progress: str) -> tuple[str, ...]:
    begun, ended = execution.started_at, execution.ended_at
    took = "" if begun is None else f"{((ended or datetime.now(UTC)) - begun).total_seconds():.3f} s"
    return (
        shown_step(execution.step_id, execution.item),
        execution.status,
        shown_time(begun),
        took,
        str(len(execution.attempts) or ""),
        _about(execution) or progress,
    )


def _about(execution: StepExecution) -> str:
    """Why it failed, or its last attempt did; of a forEach how its items stand."""
    if reason := execution.failure_reason:
        return reason
    if (items := execution.items) is not None:
        return f"{items.completed} of {items.total} done, {items.running} running, {items.failed} failed"
    return next((each.reason for each in reversed(execution.attempts) if each.reason), "")
