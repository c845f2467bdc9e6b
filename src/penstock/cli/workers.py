"""`penstock worker …`: who does the work of a running engine; a ready worker."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from penstock.cli.engine import DEFAULT_URL, TokenFileOption, UrlOption, connected, read_token
from penstock.cli.options import JsonOption, print_json, print_table, shown_time
from penstock.cli.plain import echo

app = typer.Typer(name="worker", help="List workers, and run a ready one for HTTP requests.", no_args_is_help=True)


@app.command(name="list")
def list_workers(url: UrlOption = DEFAULT_URL, token_file: TokenFileOption = None, as_json: JsonOption = False) -> None:
    """List the workers of the last day: their last poll, their jobs, and what they did within 15 minutes."""
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


@app.command(name="http")
def run_http(
    allow: Annotated[
        list[str],
        typer.Option(
            metavar="URL",
            help="An address that requests may call, with all paths below it. You may give it several times.",
        ),
    ],
    private: Annotated[
        list[str] | None,
        typer.Option(metavar="CIDR", help="A private network that may be called, such as 10.0.0.0/8."),
    ] = None,
    secret: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME[=URL]",
            help="A variable of this process's environment that headers may name as {{NAME}}; a URL limits where to.",
        ),
    ] = None,
    ca_file: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="A PEM file with the authorities to trust, instead of the well-known ones."),
    ] = None,
    concurrency: Annotated[int, typer.Option(min=1, max=1000, help="How many requests run at once.")] = 16,
    max_bytes: Annotated[int, typer.Option(min=1, help="The most bytes of an answer's body.")] = 256 * 1024,
    url: UrlOption = DEFAULT_URL,
    token_file: TokenFileOption = None,
) -> None:
    """Run a worker that makes HTTP requests: jobs of the type http.request. It runs until SIGTERM or Ctrl-C.

    A request goes only below an address that --allow gives, and to no private network unless --private gives it.
    """
    import ipaddress
    import ssl

    from penstock.worker import Worker
    from penstock.worker.http_requests import JOB_TYPE, AllowedPlace, HttpRequests, RequestSecret

    try:
        secrets: dict[str, RequestSecret] = {}
        for each in secret or []:
            name, _, place = each.partition("=")
            if name not in os.environ:
                raise ValueError(f"--secret {name}: the environment has no such variable")
            secrets[name] = RequestSecret(os.environ[name], AllowedPlace.parse(place) if place else None)
        requests = HttpRequests(
            [AllowedPlace.parse(each) for each in allow],
            private=[ipaddress.ip_network(each) for each in private or []],
            secrets=secrets,
            answer_max_bytes=max_bytes,
            tls=None if ca_file is None else ssl.create_default_context(cafile=str(ca_file)),
        )
        worker = Worker(url, token=read_token(token_file), concurrency=concurrency)
    except (OSError, ValueError) as error:
        echo(f"penstock: {error}", err=True)
        raise typer.Exit(2) from error
    worker.handler(JOB_TYPE)(requests.handle)
    worker.main()
