"""`penstock runs …`: runs of durable workflows from a terminal, on the database that an `App` without `at` has, too.

On a database it runs an engine of its own that only asks, so nothing else needs to run; on an engine it needs a token
where that asks for one, and its roles. Errors are a line, with exit code 1.
"""

from __future__ import annotations

import json
import time
from collections.abc import Awaitable, Callable
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeVar
from uuid import uuid4

import typer

from penstock.cli.engine import TokenFileOption, read_token
from penstock.cli.options import (
    BLOCKED,
    JsonAnyway,
    JsonOption,
    LimitOption,
    print_done,
    print_json,
    print_table,
    shown_time,
)
from penstock.cli.plain import echo

if TYPE_CHECKING:
    from penstock.durable.local import LocalRuns
    from penstock.durable.remote_runs import RemoteRuns
    from penstock.engine.runs.runs import Raised
    from penstock.wire.update import RunUpdate

    AnyRuns = LocalRuns | RemoteRuns

T = TypeVar("T")
SHOWN_MAX_CHARS = 200
ENGINE_AWAY_S: Final = 5.0
"""So long an engine is waited for: people do."""
ASK_WAIT_S: Final = 15
"""Of one request for the answer of an update."""
_ENDED: Final = {"REFUSED": "was refused:", "FAILED": "failed:", "UNANSWERED": "was not answered: the run is"}

app = typer.Typer(
    name="runs",
    help="Runs of durable workflows: list, show, send, ask, drop, correct, cancel, retry, fork, adopt, journal. On the "
    "engine (grpc://host:port) or the database (postgresql://…) that `--at` or PENSTOCK_AT names, else on the database "
    "of the settings (WE_POSTGRES_DSN), else on the embedded one of WE_DATA_DIR. An engine asks for a token, whose "
    "roles count.",
    no_args_is_help=True,
)

NONE_FOUND: Final = "no such run in this database (`--at` names another)"
NONE_OF: Final = "no such run of {} in this database (`--at` names another)"
AtOption = Annotated[
    str | None, typer.Option(help="The database, or the engine (grpc://host:port), as for an App.", metavar="DSN")
]
IdArgument = Annotated[str, typer.Argument(help="The id that the run was started with, or its instance's.")]

PositionArgument = Annotated[
    str, typer.Argument(help="The position of a rejected message, as `show` prints it.", metavar="POSITION")
]
ForceOption = Annotated[
    bool, typer.Option("--force", help="Send it even if it does not fit the type that the run waits for.")
]


@app.command(name="list")
def list_runs(
    workflow: Annotated[
        str | None, typer.Argument(help="Only runs of this workflow, as `order` or `shop:order`.")
    ] = None,
    status: Annotated[
        str | None, typer.Option(help="Only in this status: ACTIVE, WAITING, COMPLETED, FAILED or CANCELLED.")
    ] = None,
    blocked: Annotated[bool, typer.Option("--blocked", help="Only runs that are blocked on code.")] = False,
    limit: LimitOption = 50,
    at: AtOption = None,
    token_file: TokenFileOption = None,
    as_json: JsonOption = False,
) -> None:
    """List the latest runs, newest first, with what those that are open wait for."""

    owner, _, name = (workflow or "").rpartition(":")

    async def read(runs: AnyRuns) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = []
        wanted = None if status is None else status.upper()
        for found in await runs.latest(name or None, wanted, limit, blocked=blocked):
            waits = await runs.waits_for(found.id) if found.completed_at is None else None
            row: dict[str, Any] = {
                "id": found.business_key or found.id,
                "instanceId": found.id,
                "workflow": found.definition_id,
            }
            row |= {"status": found.status, "startedAt": found.started_at}
            row |= {"blocked": bool(found.blocked), "blockedSince": found.blocked_since}
            row["blockedReason"] = found.blocked_reason
            rows.append(row | {"waitsFor": waits, "failureReason": found.failure_reason})
        return rows

    found = ask_anywhere(at, token_file, read, owner)
    if as_json:
        print_json(found)
        return
    if not found:
        echo("no run is blocked" if blocked else NONE_FOUND if workflow is None else NONE_OF.format(workflow), err=True)
    print_table(
        ("id", "workflow", "started", "status", "waits for, or why it failed"),
        [
            (
                row["id"],
                row["workflow"],
                shown_time(row["startedAt"]),
                BLOCKED if row["blocked"] else row["status"],
                row["blockedReason"] if row["blocked"] else _cut(row["waitsFor"] or row["failureReason"] or ""),
            )
            for row in found
        ],
    )


def _shown(errors: list[Raised]) -> list[Raised]:
    """Those that a person should read; calls without an await are among the branches."""
    errors = [each for each in errors if each.path or each.type_name != "NotAwaited"]
    if len(errors) > 1 and errors[-1].type_name != "StepFailed" and errors[0].message != errors[-1].message:
        return errors[1:]  # that step's error was dealt with
    return errors


@app.command()
def show(id: IdArgument, at: AtOption = None, token_file: TokenFileOption = None, as_json: JsonOption = False) -> None:
    """A run: how it stands, what it waits for, what it shows, and its branches with file and line. Of one that failed
    the reason, and the traceback."""

    async def read(runs: AnyRuns) -> dict[str, Any]:
        instance_id = await runs.find(id, {})
        tree, run = await runs.tree(instance_id), await runs.read_run(instance_id)
        if run.failure_reason:
            tree["failureReason"] = run.failure_reason
        raised = getattr(runs, "raised", None)  # an engine tells the reason only
        if run.status == "FAILED" and raised is not None:
            errors = _shown(await raised(instance_id))
            tree["errors"] = [
                {"path": each.path, "name": each.name, "type": each.type_name, "message": each.message}
                | {"traceback": each.traceback}
                for each in errors
            ]
        return tree

    tree = ask_anywhere(at, token_file, read)
    if as_json:
        print_json(tree)
        return
    status = tree["status"]
    if tree.get("blocked"):
        status = f"{BLOCKED} since {shown_time(datetime.fromisoformat(tree['blockedSince']))}"
    echo(f"{id}  {tree['workflow']}@{tree['version']}  {status}")
    for line in _about(tree):
        echo(line)
    for error in tree.get("errors") or ():
        where = f"step {error['name']} at {error['path']}" if error["path"] else "the workflow function"
        echo(f"{where} raised:")
        echo("\n".join(f"    {line}" for line in error["traceback"].rstrip().splitlines()))
    if tree.get("waitsFor"):
        echo(f"waits for {tree['waitsFor']}")
    for line in _rejected(tree):
        echo(line)
    for line in _views(tree):
        echo(line)
    for line in _branches(tree.get("branches") or [], 1):
        echo(line)


@app.command()
def send(
    id: IdArgument,
    name: Annotated[str, typer.Argument(help="The name of the message, as the workflow function receives it.")],
    payload: Annotated[
        str, typer.Argument(help="The value, as JSON. Anything else is sent as text.", metavar="JSON")
    ] = "null",
    dedup: Annotated[
        str | None, typer.Option(help="A second message with the same text here is the same message.")
    ] = None,
    force: ForceOption = False,
    at: AtOption = None,
    token_file: TokenFileOption = None,
    as_json: JsonOption = False,
) -> None:
    """Send a message. It is kept until the body receives it. What does not fit what the run waits for is refused."""
    text = _payload(payload)

    on_run(id, at, token_file, lambda runs, found: runs.send(found, name, text, dedup, id=id, force=force))
    print_done({"id": id, "sent": name}, f"sent {name} to {id}", as_json=as_json)


@app.command(name="ask")
def call_update(
    id: IdArgument,
    name: Annotated[str, typer.Argument(help="Of the update: its handler in the workflow function.")],
    arguments: Annotated[
        list[str] | None,
        typer.Argument(help="By position, as JSON. A word that is not JSON is a text.", metavar="[JSON]…"),
    ] = None,
    update_id: Annotated[
        str | None, typer.Option(help="A second call with it is the same one, and gets the same answer.")
    ] = None,
    timeout: Annotated[int, typer.Option(help="Seconds to wait for the answer. The call is kept.", min=0)] = 15,
    at: AtOption = None,
    token_file: TokenFileOption = None,
    as_json: JsonOption = False,
) -> None:
    """Call an update of a run, and print its answer. Exit code 1 for a call that is refused, has failed, or will not be
    answered; 3 for one that has no answer yet."""
    given = f"[{', '.join(map(_payload, arguments or ()))}]"
    call_id = update_id or uuid4().hex

    async def made(runs: AnyRuns, found: str) -> tuple[RunUpdate, Any]:
        import msgspec

        from penstock.wire.update import UpdateCall

        call = UpdateCall(name, msgspec.Raw(given.encode()), call_id, min(timeout, ASK_WAIT_S))
        answer = await runs.ask(found, call, id=id)
        ends = time.monotonic() + timeout
        while answer.status == "PENDING" and (left_s := ends - time.monotonic()) > 0:
            answer = await runs.find_update(found, call_id, max(1, min(round(left_s), ASK_WAIT_S)), id=id)
        return answer, msgspec.json.decode(msgspec.json.encode(answer.value))

    answer, value = on_run(id, at, token_file, made)
    if as_json:
        print_json({"id": call_id, "status": answer.status, "value": value, "reason": answer.reason})
    elif answer.status == "DONE":
        echo(json.dumps(value, ensure_ascii=False))
    elif answer.status == "PENDING":
        echo(f"no answer yet: ask again with --update-id {call_id}", err=True)
    else:
        echo(f"penstock: update {name} {_ENDED[answer.status]} {answer.reason}", err=True)
    if answer.status != "DONE":
        raise typer.Exit(3 if answer.status == "PENDING" else 1)


@app.command()
def drop(
    id: IdArgument,
    position: PositionArgument,
    note: Annotated[str | None, typer.Option(help="A note for the audit trail.")] = None,
    at: AtOption = None,
    token_file: TokenFileOption = None,
    as_json: JsonOption = False,
) -> None:
    """Drop a message that the run rejected. No receive has had it."""

    on_run(
        id, at, token_file, lambda runs, found: runs.resolve_message(found, position, None, note, force=False, id=id)
    )
    print_done({"id": id, "dropped": position}, f"dropped {position} of {id}", as_json=as_json)


@app.command()
def correct(
    id: IdArgument,
    position: PositionArgument,
    payload: Annotated[str, typer.Argument(help="The value, as JSON. Anything else is sent as text.", metavar="JSON")],
    note: Annotated[str | None, typer.Option(help="A note for the audit trail.")] = None,
    force: ForceOption = False,
    at: AtOption = None,
    token_file: TokenFileOption = None,
    as_json: JsonOption = False,
) -> None:
    """Send another message in the place of one that the run rejected, with the same name."""
    text = _payload(payload)

    on_run(
        id, at, token_file, lambda runs, found: runs.resolve_message(found, position, text, note, force=force, id=id)
    )
    print_done({"id": id, "corrected": position}, f"corrected {position} of {id}", as_json=as_json)


@app.command()
def cancel(
    id: IdArgument,
    reason: Annotated[str | None, typer.Option(help="The reason, for the journal and the error.")] = None,
    force: Annotated[bool, typer.Option(help="End it at once, without clean-up.")] = False,
    at: AtOption = None,
    token_file: TokenFileOption = None,
    as_json: JsonOption = False,
) -> None:
    """Cancel a run: its body cleans up, then it has ended."""

    on_run(id, at, token_file, lambda runs, found: runs.cancel(found, reason, force=force, id=id))
    done = f"ended {id}" if force else f"asked {id} to end"
    print_done({"id": id, "cancelled": True, "forced": force}, done, as_json=as_json)


@app.command()
def retry(
    id: IdArgument,
    from_: Annotated[
        str | None,
        typer.Option(
            "--from",
            help="Go on at this operation instead of the step that failed: a path of the journal, `start`, or `end`.",
            metavar="PATH",
        ),
    ] = None,
    note: Annotated[str | None, typer.Option(help="A note for the audit trail.")] = None,
    at: AtOption = None,
    token_file: TokenFileOption = None,
    as_json: JsonOption = False,
) -> None:
    """Let a failed run go on. What came after is forgotten, but for messages, and done again."""

    on_run(id, at, token_file, lambda runs, found: runs.retry(found, from_, note, id=id))
    print_done({"id": id, "retried": True}, f"retried {id}", as_json=as_json)


@app.command()
def fork(
    id: IdArgument,
    path: Annotated[
        str,
        typer.Argument(
            help="The operation that the new run does again: a path of the journal, `start`, or `end`.", metavar="PATH"
        ),
    ],
    fork_id: Annotated[str | None, typer.Option("--id", help="Of the new run, which is started once under it.")] = None,
    later_messages: Annotated[
        bool, typer.Option("--later-messages", help="The new run gets the messages that came after that, too.")
    ] = False,
    at: AtOption = None,
    token_file: TokenFileOption = None,
    as_json: JsonOption = False,
) -> None:
    """Start another run with this run's journal up to an operation. The run itself stays as it is."""

    started = on_run(
        id, at, token_file, lambda runs, found: runs.fork(found, path, fork_id, later_messages=later_messages, id=id)
    )
    new = fork_id or started.instance_id
    print_done(
        {"id": new, "instanceId": started.instance_id, "forkedFrom": id}, f"forked {id} as {new}", as_json=as_json
    )


@app.command()
def adopt(
    workflow: Annotated[
        str, typer.Argument(help="The workflow's name, as in `penstock runs list`.", metavar="WORKFLOW")
    ],
    at: AtOption = None,
    token_file: TokenFileOption = None,
    as_json: JsonOption = False,
) -> None:
    """Let the program that serves a workflow next have its runs, when its file or module was moved or renamed.

    Stop the program that served it before. An App with a `name` needs none of this."""

    found = ask_anywhere(at, token_file, lambda runs: runs.adopt(workflow))
    done = f"the next program that serves {workflow} has its runs"
    print_done({"workflow": workflow, "jobTypes": found}, done, as_json=as_json)


@app.command()
def save(
    id: IdArgument,
    file: Annotated[Path, typer.Argument(help="The file to write, as JSON.", metavar="FILE")],
    at: AtOption = None,
    token_file: TokenFileOption = None,
    as_json: JsonOption = False,
) -> None:
    """Keep a run with its whole journal, for `penstock.testing.assert_replays`. It holds what steps gave."""
    from penstock.durable.check import save_run

    saved = on_run(id, at, token_file, save_run)
    try:
        file.write_bytes(saved.text())
    except OSError as error:
        echo(f"penstock: {file}: {error.strerror}", err=True)
        raise typer.Exit(1) from error
    about = {"file": str(file), "workflow": saved.workflow, "version": saved.version, "records": len(saved.records)}
    done = f"{file}: {len(saved.records):,} records of {saved.workflow}@{saved.version}"
    print_done(about, done, as_json=as_json)


@app.command(name="step-table")
def step_table(as_json: JsonOption = False) -> None:
    """Print the table that `@step.transaction(at=…)` needs in a database that is not Penstock's."""
    from penstock.durable.transaction import STEP_TABLE

    print_done({"sql": STEP_TABLE + ";"}, STEP_TABLE + ";", as_json=as_json)


@app.command()
def journal(
    id: IdArgument, at: AtOption = None, token_file: TokenFileOption = None, as_json: JsonAnyway = False
) -> None:
    """The records of a run, oldest first, a JSON object each."""

    async def read(runs: AnyRuns) -> None:
        instance_id, cursor = await runs.find(id, {}), None
        while True:
            records, cursor = await runs.journal(instance_id, cursor)
            for record in records:
                typer.echo(json.dumps(record, ensure_ascii=False))
            if cursor is None:
                return

    ask_anywhere(at, token_file, read)


def on_run(id: str, at: str | None, token_file: Path | None, call: Callable[[AnyRuns, str], Awaitable[T]]) -> T:
    """What ``call`` gives for the run with this id, which it is told by its instance's. As `ask_anywhere`."""

    async def read(runs: AnyRuns) -> T:
        return await call(runs, await runs.find(id, {}))

    return ask_anywhere(at, token_file, read)


def ask_anywhere(
    at: str | None, token_file: Path | None, call: Callable[[AnyRuns], Awaitable[T]], owner: str = ""
) -> T:
    """The answer of the runs of an engine, with a token, or on the database; an error is told in a line."""
    from penstock.client.errors import ClientError
    from penstock.client.grpc import GrpcTransport
    from penstock.client.grpc.connection import GrpcLimits
    from penstock.durable.app import find_at, run_ungrouped
    from penstock.durable.remote_runs import ANSWER_MAX_BYTES, RemoteRuns

    async def ask_engine(url: str, token: str | None) -> T:
        transport = GrpcTransport(url, token=token, limits=GrpcLimits(max_message_bytes=ANSWER_MAX_BYTES))
        try:
            return await call(RemoteRuns(transport.channel, owner, outage_wait_s=ENGINE_AWAY_S))
        finally:
            await transport.aclose()

    try:
        place = find_at(at)
        if place is None or not place.startswith("grpc"):
            return ask(at, call, owner)
        answer: T = run_ungrouped(ask_engine, place, read_token(token_file))
    except (ClientError, ValueError, OSError) as error:
        echo(f"penstock: {getattr(error, 'reason', None) or error}", err=True)
        raise typer.Exit(1) from error
    return answer


def ask(at: str | None, call: Callable[[LocalRuns], Awaitable[T]], owner: str = "") -> T:
    """The answer of the runs on the database, of the App with the name ``owner``; an error is told in a line."""
    from penstock.client.errors import ClientError
    from penstock.durable.app import find_at, run_ungrouped
    from penstock.durable.local import LocalRuns
    from penstock.durable.own_engine import open_engine
    from penstock.errors import PenstockError
    from penstock.log.log import configure_logging
    from penstock.store.db.database import DatabaseError, first_line

    configure_logging("error")

    async def ask() -> T:
        database = find_at(at)
        if database is not None and database.startswith("grpc"):
            raise ValueError("at: this command needs the database (postgresql://…), not an engine over gRPC")
        async with open_engine(database, serves=False, migrate=False) as (engine, _, _):
            return await call(LocalRuns(engine, owner))

    try:
        answer: T = run_ungrouped(ask)
    except (ClientError, PenstockError, DatabaseError, ValueError) as error:
        echo(f"penstock: {getattr(error, 'reason', None) or first_line(error)}", err=True)
        raise typer.Exit(1) from error
    return answer


def _branches(branches: list[dict[str, Any]], depth: int) -> list[str]:
    lines: list[str] = []
    for branch in branches:
        what = [branch["path"], branch["status"], branch.get("kind"), branch.get("name")]
        place = f"({branch['where']})" if branch.get("where") else None
        due = f"until {shown_time(datetime.fromisoformat(branch['dueAt']))}" if branch.get("dueAt") else None
        progress = _json(branch["progress"]) if branch.get("progress") is not None else None
        lines.append("  " * depth + " ".join(str(word) for word in (*what, due, place, progress) if word))
        lines += _branches(branch.get("children") or [], depth + 1)
    return lines


def _views(tree: dict[str, Any]) -> list[str]:
    """Return what the run shows, as a whole and by key."""
    whole = [] if tree.get("view") is None else [f"shows {_json(tree['view'])}"]
    keyed: dict[str, Any] = tree.get("views") or {}
    return whole + [f"shows {key}: {_json(value)}" for key, value in keyed.items()]


def _about(tree: dict[str, Any]) -> list[str]:
    """Say from where a run comes, and why it failed."""
    forked, reason = tree.get("forkedFrom"), tree.get("failureReason")
    lines = [f"forked from {forked['id']} at {forked['path']}"] if forked else []
    return [*lines, f"because {reason}"] if reason else lines


def _rejected(tree: dict[str, Any]) -> list[str]:
    """The messages that fit nothing of what the run waits for."""
    lines: list[str] = []
    for each in tree.get("rejected") or ():
        sent = f"sent {shown_time(datetime.fromisoformat(each['at']))}"
        by = f" by {each['sender']}" if each.get("sender") else ""
        field = f"{each['path']}: " if each.get("path") else ""
        lines.append(f"rejected message {each['name']!r} at {each['position']}, {sent}{by}: {field}{each['reason']}")
        payload = _json(each["payload"]) if "payload" in each else "too large to show: it is in the journal"
        lines.append(f"    {payload}")
    left = (tree.get("rejectedCount") or 0) - len(lines) // 2
    if left > 0:
        lines.append(f"and {left:,} rejected messages more")
    return lines


def _payload(text: str) -> str:
    try:
        json.loads(text)
    except ValueError:
        return json.dumps(text)
    return text


def _json(value: Any) -> str:
    return _cut(json.dumps(value, ensure_ascii=False))


def _cut(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= SHOWN_MAX_CHARS else text[:SHOWN_MAX_CHARS] + " …"
