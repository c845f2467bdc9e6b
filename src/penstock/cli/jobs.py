"""`penstock job …`: the jobs of a running engine that need somebody."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.cli.engine import DEFAULT_URL, TokenFileOption, UrlOption, connected
from penstock.cli.options import JsonOption, LimitOption, print_done, print_json, print_page, print_table, shown_time
from penstock.cli.plain import echo, echo_lines

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.client import RecordedAttempt, SyncClient
    from penstock.wire.open_work import OpenJobView
    from penstock.wire.page import Page

app = typer.Typer(name="job", help="Jobs of a running engine.", no_args_is_help=True)

IdArgument = Annotated[str, typer.Argument(help="The job's id, which is that of the execution.", metavar="ID")]
SHOWN_MAX_CHARS = 60
WAITING = "WAITING"
PAGE_MAX = 200
SCANNED_MAX = 10_000
"""Jobs that are looked at for those that fit the options."""
_AGE = re.compile(r"(\d{1,9}(?:\.\d{1,3})?) ?([smhd])", re.ASCII)
_UNITS = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}
OlderOption = Annotated[
    str | None,
    typer.Option(
        help="Only jobs that have waited this long or longer: 30s, 10m, 2h, 1d. For job types: whose oldest job has.",
        metavar="TIME",
    ),
]


@app.command()
def failed(
    job_type: Annotated[str | None, typer.Option(help="Only of this job type.")] = None,
    limit: LimitOption = 50,
    url: UrlOption = DEFAULT_URL,
    token_file: TokenFileOption = None,
    as_json: JsonOption = False,
) -> None:
    """List jobs that failed for good, newest first; `penstock instance retry` tries one again."""
    with connected(url, token_file) as client:
        page = client.list_failed_jobs(job_type=job_type, limit=limit)
    print_page(
        page,
        ("instance", "step", "job type", "failed", "code", "reason"),
        lambda each: (
            each.instance_id,
            each.step_id,
            each.job_type,
            shown_time(each.failed_at),
            each.error_code or "",
            each.reason or "",
        ),
        as_json=as_json,
        limit=limit,
        narrower="--job-type",
    )


@app.command()
def attempts(
    id: IdArgument,
    stack_traces: Annotated[
        bool, typer.Option("--stack-traces", help="Show the stack traces of workers, too. Needs the role operator.")
    ] = False,
    url: UrlOption = DEFAULT_URL,
    token_file: TokenFileOption = None,
    as_json: JsonOption = False,
) -> None:
    """List the newest attempts of a job, oldest first: what each got, last reported and returned.

    What it got is kept where the definition has `recordAttempts`, or the engine records the job type.
    """
    with connected(url, token_file) as client:
        found = client.get_attempts(id)
    if as_json:
        print_json(found)
        return
    head = ("attempt", "status", "started", "ended", "worker", "given", "progress", "result", "reason")
    print_table(head, [_row(each) for each in found])
    for each in found:
        if stack_traces and each.stack_trace:
            echo(f"attempt {each.attempt}, worker {each.worker or 'unknown'}, {shown_time(each.ended_at)}")
            echo_lines(each.stack_trace.splitlines())


@app.command(name="forget-checkpoint")
def forget_checkpoint(
    id: IdArgument,
    note: Annotated[str | None, typer.Option(help="A note for the audit trail.")] = None,
    url: UrlOption = DEFAULT_URL,
    token_file: TokenFileOption = None,
    as_json: JsonOption = False,
) -> None:
    """Take away the checkpoint of an open job: its next attempt begins anew."""
    with connected(url, token_file) as client:
        client.forget_checkpoint(id, note=note)
    print_done({"id": id, "checkpoint": None}, None, as_json=as_json)


def _row(attempt: RecordedAttempt) -> tuple[str, ...]:
    return (
        str(attempt.attempt),
        attempt.status or "",
        shown_time(attempt.started_at),
        shown_time(attempt.ended_at),
        attempt.worker or "",
        _shortened(attempt.parameters, attempt.parameters_bytes),
        _shortened(attempt.progress, None),
        _shortened(attempt.result, attempt.result_bytes),
        attempt.reason or "",
    )


def _shortened(value: Any, size_bytes: int | None) -> str:
    """JSON on one line; of what was too large the size."""
    if value is None:
        return "" if size_bytes is None else f"{size_bytes} bytes"
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= SHOWN_MAX_CHARS else f"{text[:SHOWN_MAX_CHARS]}…"


@app.command(name="list")
def list_jobs(
    status: Annotated[
        str, typer.Argument(help="Only in this state: WAITING, LOCKED, DISPATCHED or BACKOFF.", metavar="STATE")
    ],
    job_type: Annotated[
        str | None, typer.Option(help="Only of this job type, in the order in which workers get them. Needs WAITING.")
    ] = None,
    definition: Annotated[str | None, typer.Option(help="Only of instances of this definition.")] = None,
    version: Annotated[int | None, typer.Option(help="Only of this version of --definition.", min=1)] = None,
    older_than: OlderOption = None,
    limit: LimitOption = 50,
    url: UrlOption = DEFAULT_URL,
    token_file: TokenFileOption = None,
    as_json: JsonOption = False,
) -> None:
    """List open jobs in a state: who has them, since when, until when; `penstock job failed` has the others.

    WAITING without --job-type lists job types instead: those without workers first, then those whose oldest job waits
    longest.
    """
    age_s = _age_s(older_than)
    if version is not None and definition is None:
        raise typer.BadParameter("needs --definition", param_hint="--version")
    if status.upper() == WAITING and job_type is None:
        if definition is not None:
            raise typer.BadParameter("of WAITING jobs needs --job-type", param_hint="--definition")
        types(older_than, url, token_file, as_json=as_json)
        return
    before = 0 if status.upper() in ("LOCKED", "DISPATCHED") else 1  # as the console: of the others the next attempt
    until = datetime.now(UTC) - timedelta(seconds=age_s)

    def fits(job: OpenJobView) -> bool:
        return job.since <= until and definition in (None, job.definition_id) and version in (None, job.version)

    with connected(url, token_file) as client:
        page = _find_jobs(client, status.upper(), job_type, fits, limit)
    print_page(
        page,
        ("job", "job type", "instance", "definition", "step", "since", "attempt", "worker", "until"),
        lambda each: (
            each.id,
            each.job_type,
            each.instance_id,
            f"{each.definition_id}:{each.version}",
            each.step_id,
            shown_time(each.since),
            str((each.attempt or 0) + before),
            each.worker_id or "",
            shown_time(each.lease_until or each.retry_at),
        ),
        as_json=as_json,
        limit=limit,
        narrower="--job-type",
    )


def _find_jobs(
    client: SyncClient, status: str, job_type: str | None, fits: Callable[[OpenJobView], bool], limit: int
) -> Page[OpenJobView]:
    """Return those that fit, of the first `SCANNED_MAX`."""
    from penstock.wire.page import Page

    found: list[OpenJobView] = []
    cursor: str | None = None
    for _ in range(SCANNED_MAX // PAGE_MAX):
        page = client.list_open_jobs(status, job_type=job_type, cursor=cursor, limit=PAGE_MAX)
        found += filter(fits, page.items)
        cursor = page.next
        if cursor is None or len(found) > limit:
            break
    has_more = cursor is not None or len(found) > limit
    return Page(items=found[:limit], next=(cursor or "") if has_more else None)


def _age_s(text: str | None) -> float:
    """Seconds. What is none is told: exit code 2."""
    if text is None:
        return 0.0
    found = _AGE.fullmatch(text.strip())
    if found is None:
        raise typer.BadParameter(f"{text}: must be a number and a unit: 30s, 10m, 2h or 1d", param_hint="--older-than")
    return float(found[1]) * _UNITS[found[2]]


@app.command()
def types(
    older_than: OlderOption = None,
    url: UrlOption = DEFAULT_URL,
    token_file: TokenFileOption = None,
    as_json: JsonOption = False,
) -> None:
    """List job types with jobs that wait: those without workers first, then those whose oldest job waits longest."""
    age_s = _age_s(older_than)
    with connected(url, token_file) as client:
        found = [each for each in client.list_job_types() if each.waiting and each.oldest_seconds >= age_s]
    found.sort(key=lambda each: (each.workers > 0, -each.oldest_seconds))
    if as_json:
        print_json(found)
        return
    rows = [
        (
            each.job_type,
            str(each.workers) if each.workers else "none",
            f"{'' if each.waiting_exact else 'more than '}{each.waiting}",
            f"{each.oldest_seconds:.0f} s",
            str(each.locked),
            shown_time(each.last_poll_at),
        )
        for each in found
    ]
    print_table(("job type", "workers", "waiting", "oldest job age", "in progress", "last poll"), rows)
