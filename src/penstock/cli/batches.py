"""`penstock batch …`: many starts as one, followed together."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from penstock.cli.engine import DEFAULT_URL, TokenFileOption, UrlOption, connected
from penstock.cli.options import JsonAnyway, JsonOption, LimitOption, print_json, print_page, shown_time
from penstock.cli.plain import echo

if TYPE_CHECKING:
    from penstock.client import Batch, BatchResult, StartRequest
    from penstock.client.blocking import SyncClient

app = typer.Typer(name="batch", help="Start and follow up to 10,000 instances as one batch.", no_args_is_help=True)

NOT_ALL_COMPLETED = 1
REASONS_MAX: Final = 3
"""Items of each state that are told with their reason when a batch was waited for."""

BatchArgument = Annotated[str, typer.Argument(help="The batch's id.", metavar="ID")]
WaitOption = Annotated[
    bool, typer.Option("--wait", help="Wait until it has ended. Exit code 1 if not all are COMPLETED.")
]


@app.command()
def start(
    file: Annotated[
        Path,
        typer.Argument(
            help="A file with a JSON object a line: a start as in REST, or with -d its variables.", metavar="FILE"
        ),
    ],
    definition: Annotated[
        str | None, typer.Option("--definition", "-d", help="The definition of all items.", metavar="ID")
    ] = None,
    on_complete: Annotated[
        str | None, typer.Option(help="The definition to start when all have ended.", metavar="ID")
    ] = None,
    note: Annotated[str | None, typer.Option(help="A note that is shown with it.")] = None,
    key: Annotated[
        str | None,
        typer.Option("--idempotency-key", "--key", help="The same key with the same request gives the same batch."),
    ] = None,
    wait: WaitOption = False,
    url: UrlOption = DEFAULT_URL,
    token_file: TokenFileOption = None,
    as_json: JsonOption = False,
) -> None:
    """Start a batch and print its id."""
    items = _items(file, definition)
    with connected(url, token_file) as client:
        made = client.start_batch(items, on_complete=on_complete, note=note, idempotency_key=key)
        if wait:
            echo(made.id, err=True)
            made = _wait(client, made.id, as_json=as_json)
    if wait:
        _exit(made)
    elif as_json:
        _print(made, as_json=True)
    else:
        echo(made.id)


@app.command(name="list")
def list_batches(
    limit: LimitOption = 50,
    url: UrlOption = DEFAULT_URL,
    token_file: TokenFileOption = None,
    as_json: JsonOption = False,
) -> None:
    """List batches, newest first."""
    with connected(url, token_file) as client:
        page = client.list_batches(limit=limit)
    print_page(
        page,
        ("id", "state", "items", "begun", "note"),
        lambda each: (each.id, each.state, str(each.total), shown_time(each.created_at), each.note or ""),
        as_json=as_json,
        limit=limit,
        narrower="--json",
    )


@app.command()
def show(
    id: BatchArgument,
    wait: WaitOption = False,
    url: UrlOption = DEFAULT_URL,
    token_file: TokenFileOption = None,
    as_json: JsonOption = False,
) -> None:
    """Print a batch as it stands."""
    with connected(url, token_file) as client:
        if wait:
            found = _wait(client, id, as_json=as_json)
        else:
            _print(found := client.get_batch(id), as_json=as_json)
    if wait:
        _exit(found)


@app.command()
def results(
    id: BatchArgument,
    state: Annotated[
        str | None,
        typer.Option(
            help="Only items in this state: COMPLETED, FAILED, REFUSED, ACTIVE, PENDING, CANCELLED or REMOVED."
        ),
    ] = None,
    url: UrlOption = DEFAULT_URL,
    token_file: TokenFileOption = None,
    as_json: JsonAnyway = False,
) -> None:
    """Print what became of all items, one JSON object a line."""
    import msgspec

    with connected(url, token_file) as client:
        for result in client.iterate_batch_results(id, state=None if state is None else state.upper()):
            typer.echo(msgspec.json.encode(result).decode())


@app.command()
def cancel(
    id: BatchArgument,
    reason: Annotated[str | None, typer.Option(help="A note that is shown with it.")] = None,
    url: UrlOption = DEFAULT_URL,
    token_file: TokenFileOption = None,
    as_json: JsonOption = False,
) -> None:
    """Start nothing more of a batch, and cancel what it started."""
    with connected(url, token_file) as client:
        _print(client.cancel_batch(id, reason), as_json=as_json)


def _items(file: Path, definition: str | None) -> list[StartRequest]:
    import msgspec

    from penstock.client import StartRequest

    items: list[StartRequest] = []
    try:
        for number, line in enumerate(file.read_bytes().splitlines(), 1):
            if not line.strip():
                continue
            try:
                if definition is None:
                    items.append(msgspec.json.decode(line, type=StartRequest))
                else:
                    msgspec.json.decode(line, type=dict[str, msgspec.Raw])
                    items.append(StartRequest(definition_id=definition, variables=msgspec.Raw(line)))
            except (msgspec.MsgspecError, UnicodeDecodeError) as error:
                raise typer.BadParameter(f"line {number}: {error}", param_hint="FILE") from error
    except OSError as error:
        raise typer.BadParameter(str(error), param_hint="FILE") from error
    return items


def _print(batch: Batch, *, as_json: bool) -> None:
    if as_json:
        print_json(batch)
        return
    counts = {
        "pending": batch.pending, "active": batch.active, "completed": batch.completed, "failed": batch.failed,
        "cancelled": batch.cancelled, "refused": batch.refused, "removed": batch.removed,
    }  # fmt: skip
    counted = ", ".join(f"{count} {name}" for name, count in counts.items() if count)
    echo(f"{batch.state}: {counted or 'nothing'}, of {batch.total}")
    if batch.on_complete is not None:
        then = batch.completion_id or batch.completion_error
        echo(f"then {batch.on_complete}" + (f": {then}" if then else ""))
    for text in (batch.note, batch.reason):
        if text:
            echo(text)


def _wait(client: SyncClient, id: str, *, as_json: bool) -> Batch:
    """Print it as it ended; the first that did not complete, with their reasons, on standard error."""
    batch = client.wait_for_batch(id)
    _print(batch, as_json=as_json)
    for state, count in (("FAILED", batch.failed), ("REFUSED", batch.refused)):
        if not count:
            continue
        for result in client.list_batch_results(id, state=state, limit=REASONS_MAX).items:
            echo(_described(result), err=True)
        if count > REASONS_MAX:
            echo(f"… {count - REASONS_MAX} more: penstock batch results {id} --state {state}", err=True)
    return batch


def _described(result: BatchResult) -> str:
    instance = result.instance
    if instance is None:
        return f"item {result.index} {result.state}: {result.error}: {result.reason}"
    return f"item {result.index} {result.state}: {instance.id}: {instance.failure_reason or 'no reason was given'}"


def _exit(batch: Batch) -> None:
    if batch.completed + batch.removed < batch.total:
        raise typer.Exit(NOT_ALL_COMPLETED)
