"""`penstock job …`: the jobs of a running engine that need somebody."""

from __future__ import annotations

from typing import Annotated

import typer

from penstock.cli.engine import DEFAULT_URL, TokenFileOption, UrlOption, connected
from penstock.cli.options import JsonOption, LimitOption, print_page, shown_time

app = typer.Typer(name="job", help="Jobs of a running engine.", no_args_is_help=True)


@app.command()
def failed(
    job_type: Annotated[str | None, typer.Option(help="Of this job type only.")] = None,
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
