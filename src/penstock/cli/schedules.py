"""`penstock schedule …`: what a running engine starts by the clock."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli.engine import DEFAULT_URL, TokenFileOption, UrlOption, connected, json_object
from penstock.cli.options import (
    FileOption,
    FlowKeyOption,
    JsonOption,
    LimitOption,
    PriorityOption,
    print_done,
    print_json,
    print_page,
    print_table,
    shown_time,
)
from penstock.cli.plain import echo, echo_lines
from penstock.cli.schedule_preview import (
    AnchorOption,
    CronOption,
    EndAtOption,
    EveryOption,
    JitterOption,
    StartAtOption,
    ZoneOption,
    known_zone,
    preview,
)

if TYPE_CHECKING:
    from penstock.client import Schedule

app = typer.Typer(
    name="schedule", help="Schedules of a running engine: what it starts by the clock.", no_args_is_help=True
)

IdArgument = Annotated[str, typer.Argument(help="The schedule's id.", metavar="ID")]
OverlapOption = Annotated[
    str | None,
    typer.Option(help="What to do while the last run is open: SKIP, BUFFER_ONE, BUFFER_ALL, ALLOW or CANCEL_OTHER."),
]
CatchUpOption = Annotated[
    str | None, typer.Option(help="Which times to start that passed while no engine ran: LAST, ALL or NONE.")
]
WindowOption = Annotated[str | None, typer.Option(help="Older times are not caught up. [default: P365D]")]


@app.command(name="set")
def set_schedule(
    id: IdArgument,
    definition: Annotated[str, typer.Argument(help="The id of the definition to start.")],
    cron: CronOption = None,
    time_zone: ZoneOption = None,
    every: EveryOption = None,
    anchor: AnchorOption = None,
    jitter: JitterOption = None,
    start_at: StartAtOption = None,
    end_at: EndAtOption = None,
    overlap: OverlapOption = None,
    catch_up: CatchUpOption = None,
    catch_up_window: WindowOption = None,
    pause_on_failure: Annotated[
        bool, typer.Option("--pause-on-failure", help="Pause the schedule when a run fails.")
    ] = False,
    paused: Annotated[
        bool | None, typer.Option("--paused", help="Create it paused: nothing starts until you resume it.")
    ] = None,
    variables: Annotated[
        str | None, typer.Option(help="The variables of each instance, as a JSON object.", metavar="JSON")
    ] = None,
    file: FileOption = None,
    version: Annotated[int | None, typer.Option(help="[default: the latest when it fires]", min=1)] = None,
    business_key: Annotated[str | None, typer.Option(help="The business key of each instance.")] = None,
    priority: PriorityOption = None,
    flow_key: FlowKeyOption = None,
    note: Annotated[str | None, typer.Option(help="A note that is shown with it.")] = None,
    url: UrlOption = DEFAULT_URL,
    token_file: TokenFileOption = None,
    as_json: JsonOption = False,
) -> None:
    """Make a schedule, or change it from now on. `preview` lists beforehand when it would fire."""
    from penstock.client import ScheduleSpec

    spec = ScheduleSpec(
        definition_id=definition,
        definition_version=version,
        variables=json_object(variables, file),
        business_key=business_key,
        priority=priority,
        flow_key=flow_key,
        cron=cron or [],
        time_zone=time_zone,
        every=every,
        anchor=anchor,
        jitter=jitter,
        start_at=start_at,
        end_at=end_at,
        overlap=overlap,
        catch_up=catch_up,
        catch_up_window=catch_up_window,
        pause_on_failure=pause_on_failure,
        paused=paused,
        note=note,
    )
    with connected(url, token_file) as client:
        _print(client.put_schedule(id, spec), as_json)


app.command()(preview)


@app.command(name="list")
def list_schedules(
    limit: LimitOption = 50,
    url: UrlOption = DEFAULT_URL,
    token_file: TokenFileOption = None,
    as_json: JsonOption = False,
) -> None:
    """List schedules by id."""
    with connected(url, token_file) as client:
        page = client.list_schedules(limit=limit)
    print_page(
        page,
        ("id", "definition", "when", "next", "state"),
        lambda each: (each.id, each.definition_id, _when(each), _first(each), _state(each)),
        as_json=as_json,
        limit=limit,
        narrower="`penstock schedule show`",
    )


@app.command()
def show(
    id: IdArgument,
    url: UrlOption = DEFAULT_URL,
    token_file: TokenFileOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show a schedule and its last runs."""
    with connected(url, token_file) as client:
        _print(client.get_schedule(id), as_json)


@app.command(name="next")
def next_times(
    id: IdArgument,
    url: UrlOption = DEFAULT_URL,
    token_file: TokenFileOption = None,
    as_json: JsonOption = False,
) -> None:
    """Print the next 10 times of a schedule."""
    with connected(url, token_file) as client:
        schedule = client.get_schedule(id)
    if as_json:
        print_json(schedule.next_times)
        return
    echo_lines(_next_times(schedule))


@app.command()
def pause(
    id: IdArgument,
    note: Annotated[str | None, typer.Option(help="Why.")] = None,
    url: UrlOption = DEFAULT_URL,
    token_file: TokenFileOption = None,
    as_json: JsonOption = False,
) -> None:
    """Pause a schedule: it starts nothing until it is resumed."""
    with connected(url, token_file) as client:
        print_done(client.pause_schedule(id, note), None, as_json=as_json)


@app.command()
def resume(
    id: IdArgument, url: UrlOption = DEFAULT_URL, token_file: TokenFileOption = None, as_json: JsonOption = False
) -> None:
    """Resume a schedule from now on. Times that passed meanwhile are not caught up."""
    with connected(url, token_file) as client:
        print_done(client.resume_schedule(id), None, as_json=as_json)


@app.command()
def trigger(
    id: IdArgument,
    overlap: OverlapOption = None,
    url: UrlOption = DEFAULT_URL,
    token_file: TokenFileOption = None,
    as_json: JsonOption = False,
) -> None:
    """Start a run now. Prints its outcome, and the instance."""
    with connected(url, token_file) as client:
        run = client.trigger_schedule(id, overlap=overlap)
    print_done(run, " ".join(filter(None, (run.outcome, run.instance_id, run.reason))), as_json=as_json)


@app.command()
def backfill(
    id: IdArgument,
    since: Annotated[datetime, typer.Argument(help="The beginning of the period.", metavar="FROM")],
    until: Annotated[datetime, typer.Argument(help="The end of the period, in the past.", metavar="TO")],
    overlap: Annotated[
        str | None, typer.Option(help="ALLOW starts all at once (the default), BUFFER_ALL one after the other.")
    ] = None,
    url: UrlOption = DEFAULT_URL,
    token_file: TokenFileOption = None,
    as_json: JsonOption = False,
) -> None:
    """Start the times of a past period, in the background. Prints how many. Times without a zone are this
    machine's."""
    with connected(url, token_file) as client:
        asked = client.backfill_schedule(id, since, until, overlap=overlap)
    summary = f"{id}: {asked.hint or 'is under way'}; `penstock schedule show {id}` tells how far it is"
    print_done(asked, summary, as_json=as_json)


@app.command()
def delete(
    id: IdArgument, url: UrlOption = DEFAULT_URL, token_file: TokenFileOption = None, as_json: JsonOption = False
) -> None:
    """Delete a schedule; what it started goes on."""
    with connected(url, token_file) as client:
        client.delete_schedule(id)
    print_done({"id": id, "deleted": True}, None, as_json=as_json)


def _print(schedule: Schedule, as_json: bool) -> None:
    if as_json:
        print_json(schedule)
        return
    echo(f"{schedule.id}: starts {schedule.definition_id}, {_when(schedule)}; {_state(schedule)}")
    for text in (schedule.note, schedule.pause_note, f"hint: {schedule.hint}" if schedule.hint else None):
        if text:
            echo(text)
    echo(f"overlap {schedule.overlap}, catch-up {schedule.catch_up}")
    echo_lines(f"next: {at}" for at in _next_times(schedule)[:3] or ["never"])
    if schedule.runs:
        rows = [(shown_time(run.at), run.outcome, run.instance_id or "", run.reason or "") for run in schedule.runs]
        print_table(("time", "outcome", "instance", "reason"), rows)


def _next_times(schedule: Schedule) -> list[str]:
    """Return the next times in the schedule's zone, and in the reader's."""
    name = schedule.time_zone or "UTC"
    zone = known_zone(name)
    lines: list[str] = []
    for text in schedule.next_times:
        at = datetime.fromisoformat(text)
        own, yours = shown_time(at, zone or UTC), shown_time(at)
        lines.append(f"{own} ({name if zone else 'UTC'})" + (f", yours {yours}" if own != yours else ""))
    return lines


def _when(schedule: Schedule) -> str:
    if schedule.every:
        return f"every {schedule.every}"
    return " and ".join(schedule.cron) + f" ({schedule.time_zone or 'UTC'})"


def _first(schedule: Schedule) -> str:
    return shown_time(datetime.fromisoformat(schedule.next_times[0])) if schedule.next_times else "never"


def _state(schedule: Schedule) -> str:
    waiting = f", {schedule.buffered} waiting" if schedule.buffered else ""
    return ("paused" if schedule.paused else "active") + waiting
