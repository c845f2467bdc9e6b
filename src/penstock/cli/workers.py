"""`penstock worker …`: who does the work of a running engine."""

from __future__ import annotations

import typer

from penstock.cli.engine import DEFAULT_URL, TokenFileOption, UrlOption, connected
from penstock.cli.options import JsonOption, print_json, print_table, shown_time

app = typer.Typer(name="worker", help="Workers that engines have seen.", no_args_is_help=True)


@app.command(name="list")
def list_workers(url: UrlOption = DEFAULT_URL, token_file: TokenFileOption = None, as_json: JsonOption = False) -> None:
    """List workers of a day: when they asked for work last, what they hold, and did within the last 15 minutes."""
    with connected(url, token_file) as client:
        workers = client.list_workers()
    if as_json:
        print_json(workers)
        return
    rows = [
        (
            each.id,
            shown_time(each.last_poll_at),
            str(each.leased),
            str(each.done_last_15m),
            str(each.failed_last_15m),
            str(each.engine),
            ", ".join(each.job_types),
        )
        for each in workers
    ]
    print_table(("worker", "last poll", "leased", "done", "failed", "engine", "job types"), rows)
