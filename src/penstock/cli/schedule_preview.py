"""`penstock schedule preview`: when a schedule would fire that nobody has put yet, also around changes of the clock.

The times are the engine's; here they are only shown in the schedule's zone.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Annotated, Any, Final, NamedTuple

import typer

from penstock.cli.engine import DEFAULT_URL, TokenFileOption, UrlOption, connected
from penstock.cli.options import JsonOption, print_json, print_table, shown_time
from penstock.cli.plain import echo

if TYPE_CHECKING:
    from zoneinfo import ZoneInfo

    from penstock.client import ScheduleSpec, ScheduleTime
    from penstock.client.blocking import SyncClient

CronOption = Annotated[
    list[str] | None,
    typer.Option(help="A cron expression, such as '0 2 * * *'. You may give it several times.", metavar="CRON"),
]
ZoneOption = Annotated[
    str | None, typer.Option(help="The time zone of the cron expressions. [default: UTC]", metavar="ZONE")
]
EveryOption = Annotated[str | None, typer.Option(help="An interval in place of --cron, such as PT15M.")]
AnchorOption = Annotated[
    str | None, typer.Option(help="The time at which --every begins. [default: 1970]", metavar="RFC3339")
]
JitterOption = Annotated[str | None, typer.Option(help="Start up to this much later, such as PT2M.")]
StartAtOption = Annotated[str | None, typer.Option(help="No times before this one.", metavar="RFC3339")]
EndAtOption = Annotated[str | None, typer.Option(help="No times after this one.", metavar="RFC3339")]

AROUND: Final = timedelta(hours=36)
"""Of a change of the clock times within so long are shown."""
ASKED_MAX: Final = 100
CHANGES: Final = 2
CHANGES_WITHIN_DAYS: Final = 400
LAST_DAY: Final = datetime(9999, 12, 30, tzinfo=UTC)
"""Of which every zone has the time."""
BEFORE, AFTER = 2, 3
"""As many times are shown before a change, and from it on."""


class _Change(NamedTuple):
    """The clock of a zone goes forward, or back."""

    at: datetime
    before: timedelta
    after: timedelta


def preview(
    id: Annotated[str, typer.Argument(help="The schedule's id. The jitter follows from it.", metavar="[ID]")] = "",
    cron: CronOption = None,
    time_zone: ZoneOption = None,
    every: EveryOption = None,
    anchor: AnchorOption = None,
    jitter: JitterOption = None,
    start_at: StartAtOption = None,
    end_at: EndAtOption = None,
    count: Annotated[int, typer.Option(help="How many times to show.", min=1, max=ASKED_MAX)] = 10,
    url: UrlOption = DEFAULT_URL,
    token_file: TokenFileOption = None,
    as_json: JsonOption = False,
) -> None:
    """Print when a schedule would fire, in its time zone, and what the next two changes of the clock do to it.

    Nothing is stored.
    """
    from penstock.client import ScheduleSpec

    spec = ScheduleSpec(
        definition_id="preview",
        cron=cron or [],
        time_zone=time_zone,
        every=every,
        anchor=anchor,
        jitter=jitter,
        start_at=start_at,
        end_at=end_at,
    )
    with connected(url, token_file) as client:
        times = client.preview_schedule(spec, schedule_id=id, count=count)
        zone = known_zone(time_zone)
        first = times[0].at if times else None
        changes = [] if zone is None or first is None else clock_changes(zone, first)
        around = [(change, _around(client, id, spec, change)) for change in changes]
    if as_json:
        shown_changes = [{"at": change.at, "times": met} for change, met in around]
        print_json({"times": times, "clockChanges": shown_changes})
        return
    _print(times, zone)
    for change, met in around:
        if met and zone is not None:
            local = change.at.astimezone(zone)
            was = (change.at + change.before).replace(tzinfo=None)
            echo()
            echo(f"On {local:%Y-%m-%d} the clock goes from {was:%H:%M} to {local:%H:%M}:")
            _print(met, zone)


def known_zone(name: str | None) -> ZoneInfo | None:
    """Return a zone by its name. None without one, or where this machine does not know it: times are in UTC then."""
    from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

    try:
        return ZoneInfo(name) if name else None
    except ZoneInfoNotFoundError:
        echo(f"this machine does not know {name}: times are in UTC", err=True)
        return None


def clock_changes(zone: ZoneInfo, after: datetime) -> list[_Change]:
    """Return the next two of a zone, those within 400 days."""
    found: list[_Change] = []
    day = after.astimezone(UTC)
    for _ in range(min(CHANGES_WITHIN_DAYS, (LAST_DAY - day).days)):
        low, high = day, day + timedelta(days=1)
        before, day = _offset(zone, low), high
        if before == _offset(zone, high):
            continue
        while high - low > timedelta(seconds=1):
            middle = low + (high - low) / 2
            low, high = (middle, high) if _offset(zone, middle) == before else (low, middle)
        at = high.replace(microsecond=0)
        found.append(_Change(at, before, _offset(zone, at)))
        if len(found) == CHANGES:
            break
    return found


def _offset(zone: ZoneInfo, at: datetime) -> timedelta:
    return at.astimezone(zone).utcoffset() or timedelta()


def _around(client: SyncClient, id: str, spec: ScheduleSpec, change: _Change) -> list[ScheduleTime]:
    """Return the last times before a change of the clock, and the first from it on."""
    import msgspec

    from penstock.client import BadRequest

    start = datetime.min.replace(tzinfo=UTC) if spec.start_at is None else datetime.fromisoformat(spec.start_at.upper())

    def since(begin: datetime) -> list[tuple[datetime, ScheduleTime]]:
        asked = msgspec.structs.replace(spec, start_at=max(begin, start).isoformat())
        try:
            times = client.preview_schedule(asked, schedule_id=id, count=ASKED_MAX)
        except BadRequest:  # it ends before
            return []
        return [(each.at, each) for each in times if each.at is not None and each.at <= change.at + AROUND]

    earlier: list[ScheduleTime] = []
    for span in (AROUND, timedelta(hours=1), timedelta(minutes=1)):  # of what fires often a shorter one holds the last
        earlier = [each for at, each in since(change.at - span) if at < change.at]
        if len(earlier) < ASKED_MAX:
            break
    return earlier[-BEFORE:] + [each for _, each in since(change.at)][:AFTER]


def _print(times: list[ScheduleTime], zone: ZoneInfo | None) -> None:
    late = any(each.fires_at != each.at for each in times)
    foreign = any(yours(each.at, zone) for each in times)
    head = [*([str(zone)] if zone else []), "UTC", *(["yours"] if foreign else []), *(["fires"] if late else [])]
    rows: list[list[str]] = []
    for each in times:
        at: Any = each.at
        local = [at.astimezone(zone).isoformat(" ")] if zone else []
        fires: Any = each.fires_at
        own = [shown_time(at)] if foreign else []
        rows.append([*local, _utc(at), *own, *([_utc(fires)] if late else [])])
    print_table(head, rows)


def yours(at: datetime | None, zone: ZoneInfo | None) -> str:
    """Return a time in the reader's zone; empty where that is UTC, or as in ``zone``."""
    text = shown_time(at)
    return "" if at is None or text in (shown_time(at, UTC), shown_time(at, zone or UTC)) else text


def _utc(at: datetime) -> str:
    return at.astimezone(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
