"""`penstock bulk …`: one act on all instances of a running engine that match, counted and confirmed first."""

from __future__ import annotations

from collections.abc import Callable
from inspect import Parameter, Signature, signature
from typing import TYPE_CHECKING, Annotated, Any, Final, NamedTuple, get_type_hints

import typer

from penstock.cli.engine import DEFAULT_URL, TokenFileOption, UrlOption, connected, json_object
from penstock.cli.instances import (
    NoteOption,
    RemoveOption,
    StepArgument,
    StepsOption,
    TimersOption,
    renamed_steps,
    timers_due,
)
from penstock.cli.options import (
    FileOption,
    JsonOption,
    LimitOption,
    VariablesArgument,
    print_json,
    print_page,
    read_pairs,
    shown_time,
)
from penstock.cli.plain import echo, echo_lines, escaped

if TYPE_CHECKING:
    from penstock.client import BulkFilter, BulkPreview, BulkView, SyncClient

app = typer.Typer(
    name="bulk",
    help="Do one thing to all instances that match, in the background: retry, cancel, signal, skip, move, migrate, "
    "edit. Each command first shows how many there are, and asks.",
    no_args_is_help=True,
)

NOT_ALL_DONE = 1
SHOWN_REASONS = 10
FILTER_NAMES: Final = {
    "status": "status",
    "definition": "definitionId",
    "version": "definitionVersion",
    "business-key": "businessKey",
    "business-key-prefix": "businessKeyPrefix",
    "failed-step": "stepId",
    "cause": "cause",
    "error-contains": "errorContains",
    "started-after": "startedAfter",
    "started-before": "startedBefore",
}
"""As people write them, and as REST does."""
_AS_WRITTEN: Final = {
    f"{place}{field}": f"--{place[:-1]} {name}" if place else name
    for name, field in FILTER_NAMES.items()
    for place in ("", "filter.", "except.")
}
OF_FAILURES: Final = frozenset({"failed-step", "cause", "error-contains"})
"""They imply the status FAILED."""

FilterOption = Annotated[
    list[str] | None,
    typer.Option(
        "--filter", "-f",
        help=f"Which instances; may be given several times, and all have to fit. NAME is {', '.join(FILTER_NAMES)}.",
        metavar="NAME=VALUE",
    ),
]  # fmt: skip
ExceptOption = Annotated[
    list[str] | None,
    typer.Option(
        "--except",
        help="Leave out instances that match all of these. The names are those of --filter.",
        metavar="NAME=VALUE",
    ),
]
IdsOption = Annotated[
    list[str] | None, typer.Option("--id", help="The ids of instances, in place of a filter.", metavar="ID")
]
RateOption = Annotated[float | None, typer.Option(help="At most this many instances a second.", min=0)]
DryRunOption = Annotated[bool, typer.Option("--dry-run", help="Change nothing, and show which instances match.")]
YesOption = Annotated[bool, typer.Option("--yes", "-y", help="Don't ask.")]
DetachOption = Annotated[bool, typer.Option("--detach", help="Don't wait for its end.")]
BulkArgument = Annotated[str, typer.Argument(help="The operation's id.", metavar="ID")]


class _Options(NamedTuple):
    """What all acts have in common, as it was given."""

    filter: FilterOption = None
    besides: ExceptOption = None
    ids: IdsOption = None
    note: NoteOption = None
    per_second: RateOption = None
    dry_run: DryRunOption = False
    yes: YesOption = False
    detach: DetachOption = False
    url: UrlOption = DEFAULT_URL
    token_file: TokenFileOption = None
    as_json: JsonOption = False


def _act(own: Callable[..., dict[str, Any]]) -> Callable[..., dict[str, Any]]:
    """Return a command of the function's name: its own options, then those of all acts. It gives its part of the
    request."""

    def command(**given: Any) -> None:
        options = _Options(**{name: given.pop(name) for name in _Options._fields})
        _run(own.__name__, options, own(**given))

    hints = get_type_hints(_Options, include_extras=True)
    shared = [
        Parameter(name, Parameter.KEYWORD_ONLY, default=_Options._field_defaults[name], annotation=hint)
        for name, hint in hints.items()
    ]
    parameters = [*signature(own, eval_str=True).parameters.values(), *shared]
    command.__signature__ = Signature(parameters)  # type: ignore[attr-defined]  # typer reads it, and the annotations
    command.__annotations__ = {each.name: each.annotation for each in parameters}
    app.command(name=own.__name__, help=own.__doc__)(command)
    return own


@_act
def retry(
    from_step: Annotated[
        str | None, typer.Option("--from", help="Go on at this step instead of the failed one.", metavar="STEP")
    ] = None,
) -> dict[str, Any]:
    """Retry the failed step of all that match, or let them go on at another one."""
    return {"from_step_id": from_step}


@_act
def cancel() -> dict[str, Any]:
    """Cancel all that match."""
    return {}


@_act
def signal(step: StepArgument, variables: VariablesArgument = None, file: FileOption = None) -> dict[str, Any]:
    """Signal a wait of all that match, with variables; each acts once."""
    return {"step_id": step, "variables": json_object(variables, file)}


@_act
def skip(step: StepArgument, variables: VariablesArgument = None, file: FileOption = None) -> dict[str, Any]:
    """Let a step of all that match count as done, with variables as its result."""
    return {"step_id": step, "variables": json_object(variables, file)}


@_act
def move(
    step: StepArgument, to: Annotated[str, typer.Argument(help="The step to go on at.", metavar="TO")]
) -> dict[str, Any]:
    """Let what stands on a step of all that match go on at another step."""
    return {"step_id": step, "to_step_id": to}


@_act
def migrate(
    version: Annotated[int | None, typer.Option("--to", help="[default: the latest]", min=1)] = None,
    steps: StepsOption = None,
    timers: TimersOption = None,
) -> dict[str, Any]:
    """Let all that match go on in another version of their definition; first it says which can't, and why not."""
    rule = timers.value if timers else None
    return {"version": version, "steps": renamed_steps(steps or []) or None, "timers": rule}


@_act
def edit(variables: VariablesArgument = None, file: FileOption = None, remove: RemoveOption = None) -> dict[str, Any]:
    """Set and remove variables of all that match and wait or have failed."""
    return {"variables": json_object(variables, file), "remove": remove}


@app.command(name="list")
def list_operations(
    limit: LimitOption = 50,
    url: UrlOption = DEFAULT_URL,
    token_file: TokenFileOption = None,
    as_json: JsonOption = False,
) -> None:
    """List operations, newest first."""
    with connected(url, token_file) as client:
        page = client.list_bulk(limit=limit)
    print_page(
        page,
        ("id", "action", "state", "done", "skipped", "failed", "of", "begun", "note"),
        lambda each: (
            each.id, each.action, each.state, str(each.done), str(each.skipped), str(each.failed), _total(each),
            shown_time(each.created_at), each.note or "",
        ),
        as_json=as_json,
        limit=limit,
        narrower="--json",
    )  # fmt: skip


@app.command()
def show(
    id: BulkArgument,
    wait: Annotated[
        bool, typer.Option("--wait", help="Wait until it has ended, with a line for every change.")
    ] = False,
    url: UrlOption = DEFAULT_URL,
    token_file: TokenFileOption = None,
    as_json: JsonOption = False,
) -> None:
    """Print an operation as it stands, and the first 20 failures. With --wait exit code 1 when one failed."""
    with connected(url, token_file) as client:
        found = _followed(client, id, quiet=as_json) if wait else client.get_bulk(id)
    _print(found, as_json=as_json)
    if wait:
        _exit(found)


@app.command()
def stop(
    id: BulkArgument, url: UrlOption = DEFAULT_URL, token_file: TokenFileOption = None, as_json: JsonOption = False
) -> None:
    """Begin no more of an operation; what is done stays done."""
    with connected(url, token_file) as client:
        _print(client.stop_bulk(id), as_json=as_json)


def _run(action: str, options: _Options, act: dict[str, Any]) -> None:
    from penstock.client import BulkRequest

    if bool(options.filter) is bool(options.ids):
        raise typer.BadParameter("give --filter, or --id", param_hint="--filter")
    request = BulkRequest(
        action=action,
        filter=_filter(options.filter, "--filter"),
        besides=_filter(options.besides, "--except"),
        ids=options.ids,
        note=options.note,
        per_second=options.per_second,
        **act,
    )
    with connected(options.url, options.token_file, _AS_WRITTEN) as client:
        preview = client.preview_bulk(request)
        if options.dry_run:
            print_json(preview) if options.as_json else echo_lines(_met(preview))
            return
        echo_lines(_met(preview), err=True)
        if preview.count == 0:
            if options.as_json:
                print_json(preview)
            raise typer.Exit(NOT_ALL_DONE)
        if not options.yes:
            typer.confirm(escaped(f"{action} {_count(preview)}?"), abort=True, err=True)
        begun = client.start_bulk(request)
        echo(f"bulk operation {begun.id}", err=True)
        found = client.get_bulk(begun.id) if options.detach else _followed(client, begun.id, quiet=options.as_json)
    _print(found, as_json=options.as_json)
    if not options.detach:
        _exit(found)


def _filter(pairs: list[str] | None, option: str) -> BulkFilter | None:
    import msgspec

    from penstock.client import BulkFilter

    if not pairs:
        return None
    given = read_pairs(pairs)
    if len(given) < len(pairs):
        raise typer.BadParameter("names a NAME twice", param_hint=option)
    if unknown := sorted(given.keys() - FILTER_NAMES.keys()):
        raise typer.BadParameter(f"{unknown[0]!r} is not one of {', '.join(FILTER_NAMES)}", param_hint=option)
    if not given.keys().isdisjoint(OF_FAILURES):
        given.setdefault("status", "FAILED")
    values = {FILTER_NAMES[name]: value.upper() if name == "status" else value for name, value in given.items()}
    try:
        return msgspec.convert(values, BulkFilter, strict=False)
    except msgspec.ValidationError as error:
        name = next(name for name in given if f"`$.{FILTER_NAMES[name]}`" in str(error))
        what = "a version" if name == "version" else "a time such as 2026-01-31T12:00:00Z"
        raise typer.BadParameter(f"{name}: must be {what}", param_hint=option) from error


def _count(preview: BulkPreview) -> str:
    return f"{'' if preview.exact else 'more than '}{preview.count} instances"


def _met(preview: BulkPreview) -> list[str]:
    lines = [f"{_count(preview)} match"]
    lines += [f"  {step.count} at step {step.step_id}" for step in preview.by_step]
    lines += [f"  {cause.count} failed: {cause.text}" for cause in preview.by_cause]
    if preview.refusals is not None:
        lines.append(f"  of the newest {preview.refusals.checked} {preview.refusals.refused} can't be migrated")
        if preview.refusals.timers_due:
            lines.append(f"  {timers_due(preview.refusals.timers_due)}")
        shown = preview.refusals.instances[:SHOWN_REASONS]
        lines += [f"    {check.instance_id}: {'; '.join(check.reasons)}" for check in shown]
    return lines


def _total(view: BulkView) -> str:
    return f"{'' if view.total_exact else 'more than '}{view.total}"


def _line(view: BulkView) -> str:
    return f"{view.state}: {view.done} done, {view.skipped} skipped, {view.failed} failed, of {_total(view)}"


def _print(view: BulkView, *, as_json: bool) -> None:
    if as_json:
        print_json(view)
        return
    echo_lines([_line(view), *(f"  {error}" for error in view.errors), *_became(view)])


def _became(view: BulkView) -> list[str]:
    """How the instances stand now that it was done to, and how to list them."""
    if (found := view.outcome) is None or view.action == "cancel":
        return []
    again = " again" if view.action == "retry" else ""
    counted = f"{found.completed} completed, {found.failed} failed{again}, {found.running} still running"
    lines = [f"since then: {counted}, {found.cancelled} cancelled"]
    for which, count in (("--status FAILED", found.failed), ("--open", found.running)):
        if count:
            lines.append(f"  penstock instance list --bulk {view.id} {which}")
    return lines


def _followed(client: SyncClient, id: str, *, quiet: bool) -> BulkView:
    """To its end, which the engines reach also without this command."""
    last = ""

    def show_state(now: BulkView) -> None:
        nonlocal last
        if not quiet and now.state == "RUNNING" and _line(now) != last:
            last = _line(now)
            echo(last, err=True)

    return client.wait_for_bulk(id, on_look=show_state)


def _exit(view: BulkView) -> None:
    if view.failed or view.state != "DONE":
        raise typer.Exit(NOT_ALL_DONE)
