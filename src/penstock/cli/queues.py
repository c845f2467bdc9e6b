"""`penstock queue …`: policies that limit the jobs of some types, on a running engine."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from penstock.cli.engine import DEFAULT_URL, TokenFileOption, UrlOption, connected, json_object
from penstock.cli.options import JsonOption, LimitOption, print_done, print_json, print_page, print_table
from penstock.cli.plain import echo

if TYPE_CHECKING:
    from penstock.wire.queue import Queue, QueuePolicy, Rate

app = typer.Typer(
    name="queue", help="Queues of a running engine: limits, fairness and pauses for job types.", no_args_is_help=True
)
KEY_COUNTED_MAX: Final = 1_000
"""Jobs of a flow key that an engine counts."""
NameArgument = Annotated[str, typer.Argument(help="The queue's name.", metavar="NAME")]


@app.command(name="set")
def set_queue(
    name: NameArgument,
    policy: Annotated[
        str | None,
        typer.Argument(help='The policy, such as {"jobTypes": ["mail"], "concurrency": 5}.', metavar="[JSON]"),
    ] = None,
    file: Annotated[
        Path | None, typer.Option(help="Read the policy from a file; - is standard input.", metavar="FILE")
    ] = None,
    url: UrlOption = DEFAULT_URL,
    token_file: TokenFileOption = None,
    as_json: JsonOption = False,
) -> None:
    """Make a queue, or give it another policy, which applies from the next claim on. A limit that is left out is
    none. A pause stays unless `"paused": false` ends it."""
    import msgspec

    from penstock.wire.queue import QueuePolicy

    try:
        wanted = msgspec.convert(json_object(policy, file) or {}, QueuePolicy)
    except msgspec.ValidationError as error:
        raise typer.BadParameter(str(error)) from error
    with connected(url, token_file) as client:
        queue = client.put_queue(name, wanted)
    print_done(queue, f"{name}: {_limits(queue)}", as_json=as_json)


@app.command()
def show(
    name: NameArgument,
    url: UrlOption = DEFAULT_URL,
    token_file: TokenFileOption = None,
    as_json: JsonOption = False,
) -> None:
    """Print a queue's policy and how it stands: what runs, what waits, and its flow keys."""
    with connected(url, token_file) as client:
        queue = client.get_queue(name)
    if as_json:
        print_json(queue)
        return
    echo(f"{queue.name}: {_limits(queue)}")
    echo(f"job types: {', '.join(queue.policy.job_types)}")
    running = _counted(queue.running)
    if queue.open_runs is not None:
        running += f"; open runs: {queue.open_runs}"
    oldest = "" if queue.oldest_s is None else f", the first for {queue.oldest_s:.0f} s"
    echo(f"running: {running}; waiting: {queue.waiting}{oldest}")
    if queue.keys:
        rows = [(key.flow_key, _counted(key.running), shown_waiting(key.waiting)) for key in queue.keys]
        print_table(("flow key", "running", "waiting"), rows)


@app.command(name="list")
def list_queues(
    limit: LimitOption = 50,
    url: UrlOption = DEFAULT_URL,
    token_file: TokenFileOption = None,
    as_json: JsonOption = False,
) -> None:
    """List queues with their policies, by name."""
    with connected(url, token_file) as client:
        page = client.list_queues(limit=limit)
    print_page(
        page,
        ("name", "policy", "job types"),
        lambda each: (each.name, _limits(each), ", ".join(each.policy.job_types)),
        as_json=as_json,
        limit=limit,
        narrower="--json",
    )


@app.command()
def pause(
    name: NameArgument, url: UrlOption = DEFAULT_URL, token_file: TokenFileOption = None, as_json: JsonOption = False
) -> None:
    """Let none of its jobs begin; what runs goes on."""
    with connected(url, token_file) as client:
        print_done(client.pause_queue(name), None, as_json=as_json)


@app.command()
def resume(
    name: NameArgument, url: UrlOption = DEFAULT_URL, token_file: TokenFileOption = None, as_json: JsonOption = False
) -> None:
    """Let its jobs begin again."""
    with connected(url, token_file) as client:
        print_done(client.resume_queue(name), None, as_json=as_json)


@app.command()
def delete(
    name: NameArgument, url: UrlOption = DEFAULT_URL, token_file: TokenFileOption = None, as_json: JsonOption = False
) -> None:
    """Delete a queue. Its jobs are free at once."""
    with connected(url, token_file) as client:
        client.delete_queue(name)
    print_done({"name": name, "deleted": True}, None, as_json=as_json)


def _counted(running: int | None) -> str:
    return "not counted" if running is None else str(running)


def shown_waiting(count: int) -> str:
    """How many jobs of a flow key wait, as far as an engine counts them."""
    return f"{count} or more" if count >= KEY_COUNTED_MAX else str(count)


def _limits(queue: Queue) -> str:
    policy: QueuePolicy = queue.policy
    said = [
        "paused" if policy.paused else "",
        "" if policy.concurrency is None else f"{policy.concurrency} at once",
        "" if policy.concurrency_per_key is None else f"{policy.concurrency_per_key} per key",
        "" if policy.rate is None else _pace(policy.rate),
        "" if policy.rate_per_key is None else f"{_pace(policy.rate_per_key)} per key",
        "" if policy.runs is None else f"{policy.runs} runs open",
        "" if policy.fair else "first in, first out",
        f"weights {' '.join(f'{key}={weight}' for key, weight in policy.weights.items())}" if policy.weights else "",
    ]
    return ", ".join(filter(None, said)) or "no limits"


def _pace(rate: Rate) -> str:
    from penstock.wire.queue import burst_of

    burst = "" if burst_of(rate) == rate.limit else f" (burst {burst_of(rate)})"
    return f"{rate.limit} in {'any ' if rate.window else ''}{rate.period}{burst}"
