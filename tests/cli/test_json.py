"""Every command answers with JSON where `--json` is given: one document, or a line for each of several."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import psycopg
import pytest
from click.testing import CliRunner
from typer.main import get_command

from benchmarks.command import app as bench
from penstock import __version__
from penstock.cli.app import app
from penstock.client import SyncClient
from penstock.store.db.schema import SCHEMA_VERSION
from penstock.testing.postgres import PostgresServer, apply_schema
from tests.durable.programs import Program, ended
from tests.durable.test_app import ORDER, STARTS
from tests.runtime.waiting import wait_until
from tests.sdk.running_engine import RunningEngine

RUN_ON: Final = {"serve", "engine-process", "demo", "worker http"}
"""They run until they are stopped, or are a show for people: what they have to say is a log."""
HANDS_ON: Final = {"bench"}
"""Its options are those of the harness, whose commands are walked, too."""
SHOWN_ELSEWHERE: Final = {
    "archive list", "archive show",  # tests/runtime/test_archive.py
    "runs drop", "runs correct",  # tests/reports/test_messages_that_do_not_fit.py
    "runs retry",  # tests/durable/test_retry.py
    "runs fork",  # tests/durable/test_fork.py
    "check",  # tests/durable/test_check.py
    "debug",  # tests/durable/test_debug.py
    *(f"bench {act}" for act in ("run", "compare", "show", "size", "list", "pair", "against")),  # tests/benchmarks
}  # fmt: skip
SESSION: Final = """
    INSERT INTO session (digest, id, name, key, permissions, created_at, expires_at)
    VALUES ('x', 's-1', 'token:ann', 'k', '{}', now(), now() + interval '1 day')"""
STEPS: Final = [
    {"id": "check", "name": "Check", "type": "SERVICE_TASK", "jobType": "claim.check", "nextStep": "approve"},
    {"id": "approve", "name": "Approve", "type": "USER_TASK", "nextStep": "paid"},
    {"id": "paid", "name": "Paid", "type": "WAIT", "nextStep": "end"},
    {"id": "end", "name": "End", "type": "END"},
]


def commands(command: Any, way: tuple[str, ...] = ()) -> Iterator[tuple[str, set[str]]]:
    """All, with their options."""
    below = getattr(command, "commands", None)
    if below is None:
        yield " ".join(way), {option for each in command.params for option in getattr(each, "opts", ())}
        return
    for name, each in below.items():
        yield from commands(each, (*way, name))


COMMAND: Final = get_command(app)
FOUND: Final = dict(commands(COMMAND)) | dict(commands(get_command(bench), ("bench",)))


def test_every_command_takes_json_but_those_that_run_on() -> None:
    assert {name for name, options in FOUND.items() if "--json" not in options} == RUN_ON | HANDS_ON


class Told:
    """Runs commands with `--json` and gives what they answered; remembers which were run."""

    def __init__(self, url: str, dsn: str, directory: Path) -> None:
        self._environment = {"PENSTOCK_URL": url, "WE_POSTGRES_DSN": dsn, "PENSTOCK_AT": dsn}
        self.url = url
        self.session = "s-1"
        self.none = directory / "no-settings.yaml"
        self.none.write_text("{}\n")
        self.seen: set[str] = set()

    def lines(self, *words: object, code: int | None = 0) -> list[Any]:
        arguments = [str(each) for each in words]
        self.seen |= {name for name in FOUND if arguments[: len(name.split())] == name.split()}
        run = CliRunner().invoke(
            COMMAND,  # pyright: ignore[reportArgumentType] - typer has a copy of click of its own
            [*arguments, "--json"],
            env=self._environment,
        )
        assert code in (None, run.exit_code), (arguments, run.output)
        try:
            return [json.loads(run.stdout)]
        except ValueError:
            return [json.loads(line) for line in run.stdout.splitlines()]

    def one(self, *words: object, code: int | None = 0) -> Any:
        (document,) = self.lines(*words, code=code)
        return document

    def settled(self, *words: object, code: int | None = 0) -> Any:
        """Of a command that reads settings: those of the environment alone."""
        return self.one(*words, "--config", self.none, code=code)


@pytest.fixture(scope="module")
def dsn(postgres_server: PostgresServer) -> Iterator[str]:
    with postgres_server.database(apply_schema) as dsn:
        yield dsn


@pytest.fixture(scope="module")
def told(dsn: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Told]:
    directory = tmp_path_factory.mktemp("engine")
    running = RunningEngine(dsn, directory / "log")
    try:
        running.start()
        with psycopg.connect(dsn) as connection:
            connection.execute(SESSION)
        yield Told(running.url, dsn, directory)
    finally:
        running.close()


@pytest.mark.slow(reason="each command in a process")
def test_every_command_that_takes_json_answers_with_it(told: Told, dsn: str, tmp_path: Path) -> None:
    for drive in (_definitions, _instances, _batches, _bulk, _flow, _access, _offline):
        drive(told, tmp_path)
    _requests(told, dsn)
    _runs(told, dsn, tmp_path)
    assert told.seen == FOUND.keys() - RUN_ON - HANDS_ON - SHOWN_ELSEWHERE


def _definitions(told: Told, directory: Path) -> None:
    files = [directory / f"{name}.json" for name in ("claim", "other", "text")]
    bodies = ({"id": "claim", "name": "Claim"}, {"id": "claim", "name": "Other"}, {"id": "text", "name": "Text"})
    for file, body in zip(files, bodies, strict=True):
        file.write_text(json.dumps({**body, "steps": STEPS}))
    made = told.lines("definition", "upload", *files)
    assert [(each["id"], each["version"]) for each in made] == [("claim", 1), ("claim", 2), ("text", 1)]
    assert [each["id"] for each in told.one("definition", "list")] == ["claim", "text"]
    assert told.one("definition", "show", "claim", "--version", 1)["name"] == "Claim"
    different = told.one("definition", "diff", "claim", "--from", 1, "--to", 2, code=1)
    assert (different["same"], '+  "name": "Other",' in different["lines"]) == (False, True)
    assert told.one("definition", "diff", "claim", files[1]) == {"same": True, "lines": []}
    assert told.one("definition", "impact", files[0])["versions"] == []
    assert told.one("definition", "activate", "claim", 2)["version"] == 2
    assert told.lines("definition", "delete", "claim", code=1) == []
    exported = told.one("definition", "export", directory / "kept")
    assert [(each["id"], each["version"]) for each in exported] == [("claim", 2), ("text", 1)]
    assert [each["id"] for each in told.one("definition", "import", directory / "kept")] == ["claim", "text"]


def _instances(told: Told, directory: Path) -> None:
    def start(*more: object) -> str:
        return str(told.one("instance", "start", "claim", "--version", 1, *more)["id"])

    first, second = start("--business-key", "C-1"), start()
    assert {each["id"] for each in told.one("instance", "list")} == {first, second}
    assert told.one("instance", "show", first)["instance"]["businessKey"] == "C-1"
    assert told.one("instance", "tree", first)["id"] == first
    assert told.one("instance", "priority", first, 2)["id"] == first
    possible = told.lines("instance", "migrate", first, second, "--version", 2, "--dry-run")
    assert [each["possible"] for each in possible] == [True, True]
    assert told.one("instance", "migrate", second, "--timers", "from_now")["definitionVersion"] == 2
    assert told.one("instance", "skip", first, "check")["currentStepIds"] == ["approve"]
    assert told.one("instance", "edit", first, '{"sum": 3}')["variables"] == {"sum": 3}
    assert told.one("instance", "move", first, "approve", "check")["currentStepIds"] == ["check"]
    _jobs(told, first)
    assert told.one("instance", "retry", first)["status"] == "ACTIVE"
    told.one("instance", "skip", first, "check")
    assert told.one("instance", "complete", first, "approve")["completed"]
    assert told.one("instance", "signal", first, "paid")["signalled"]
    assert told.lines("instance", "watch", first)[-1]["status"] == "COMPLETED"
    assert [each["status"] for each in told.lines("instance", "cancel", second, start())] == ["CANCELLED"] * 2


def _jobs(told: Told, instance: str) -> None:
    """A job of the instance fails for good; those of others are given back."""
    assert instance in {each["instanceId"] for each in told.one("job", "list", "waiting", "--job-type", "claim.check")}
    with SyncClient(told.url) as client:
        polled = {each.instance_id: each for each in client.poll_jobs("w", ["claim.check"], max_jobs=10, wait_s=20)}
        job = polled[instance]
        client.heartbeat_job(job.id, "w", attempt=job.attempt, checkpoint=7)
        assert told.one("job", "forget-checkpoint", job.id) == {"id": job.id, "checkpoint": None}
        client.fail_job(job.id, "w", "no", retryable=False, attempt=job.attempt)
    assert [each["reason"] for each in told.one("job", "attempts", job.id)] == ["no"]
    assert [each["instanceId"] for each in told.one("job", "failed")] == [instance]
    assert isinstance(told.one("worker", "list"), list)
    assert isinstance(told.one("audit"), list)
    assert {each["jobType"] for each in told.one("job", "types")} <= {"claim.check"}
    [row] = [each for each in told.one("attention", "list") if each["kind"] == "failures"]
    assert told.one("attention", "acknowledge", row["key"], "--note", "seen")["acknowledged"]
    [row] = [each for each in told.one("attention", "list") if each["kind"] == "failures"]
    assert row["acknowledged"]["note"] == "seen"
    assert not told.one("attention", "withdraw", row["key"])["acknowledged"]


def _batches(told: Told, directory: Path) -> None:
    items = directory / "items.jsonl"
    items.write_text('{"definitionId": "nobody"}\n')
    made = told.one("batch", "start", items)
    assert (made["total"], told.one("batch", "show", made["id"], "--wait", code=1)["refused"]) == (1, 1)
    assert [each["id"] for each in told.one("batch", "list")] == [made["id"]]
    assert [each["state"] for each in told.lines("batch", "results", made["id"])] == ["REFUSED"]
    items.write_text('{"definitionId": "claim", "delay": "PT1H"}\n')
    assert told.one("batch", "cancel", told.one("batch", "start", items)["id"])["state"] == "CANCELLING"


def _bulk(told: Told, directory: Path) -> None:
    ids = [told.one("instance", "start", "claim")["id"] for _ in range(2)]
    which = (*(word for id in ids for word in ("--id", id)), "--yes")
    for act, words in {
        "edit": ('{"sum": 4}',),
        "migrate": ("--to", 1),
        "skip": ("check",),
        "move": ("approve", "paid"),
        "signal": ("paid",),
        "retry": (),
        "cancel": (),
    }.items():
        done = told.one("bulk", act, *words, *which, "--detach")
        assert (done["action"], done["total"]) == (act, 2)
        last = told.one("bulk", "show", done["id"])
        assert last["id"] == done["id"]
    assert told.one("bulk", "cancel", "-f", "definition=nothing", "--yes", code=1)["count"] == 0
    assert told.one("bulk", "cancel", "-f", "definition=claim", "--dry-run")["count"] > 0
    assert told.one("bulk", "stop", told.one("bulk", "list")[0]["id"])["action"] == "cancel"


def _requests(told: Told, dsn: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as program:
        told.settled("migrate", "--may-start", program.info.user)
        with program.transaction():
            ((instance,),) = program.execute("SELECT penstock_start('claim', '{\"sum\": 3}')").fetchall()
            ((number,),) = program.execute("SELECT penstock_signal(%s, 'no such step')", [instance]).fetchall()
    wait_until(lambda: told.one("requests", "list") != [])  # the engine was woken, and has carried out both
    with SyncClient(told.url) as client:
        assert client.get_instance(instance).variables == {"sum": 3}
    (failed,) = told.one("requests", "list")
    assert (failed["id"], failed["operation"], failed["error"]) == (str(number), "signal", "conflict")
    assert told.one("requests", "list", "--waiting") == []
    assert told.one("requests", "retry", number) == {"id": str(number)}
    wait_until(lambda: told.one("requests", "list") != [])
    assert told.one("requests", "drop", number) == {"id": str(number)}
    assert told.one("requests", "list") == []
    assert told.lines("requests", "drop", number, code=1) == []


def _flow(told: Told, directory: Path) -> None:
    assert told.one("queue", "set", "mail", '{"jobTypes": ["mail"], "concurrency": 5}')["name"] == "mail"
    assert [each["name"] for each in told.one("queue", "list")] == ["mail"]
    assert told.one("queue", "pause", "mail")["policy"]["paused"] is True
    assert told.one("queue", "resume", "mail")["policy"].get("paused") in (False, None)
    assert told.one("queue", "show", "mail")["policy"]["concurrency"] == 5
    assert told.one("queue", "delete", "mail") == {"name": "mail", "deleted": True}
    assert len(told.one("schedule", "preview", "--cron", "0 2 * * *", "--count", 3)["times"]) == 3
    assert told.one("schedule", "set", "nightly", "claim", "--cron", "0 2 * * *")["id"] == "nightly"
    assert [each["id"] for each in told.one("schedule", "list")] == ["nightly"]
    assert len(told.one("schedule", "next", "nightly")) == 10
    assert told.one("schedule", "pause", "nightly")["paused"] is True
    assert told.one("schedule", "resume", "nightly")["paused"] is False
    assert told.one("schedule", "trigger", "nightly")["outcome"]
    past = ("2026-01-01T00:00:00+00:00", "2026-01-01T12:00:00+00:00")
    assert told.one("schedule", "backfill", "nightly", *(each[:19] for each in past))["id"] == "nightly"
    assert told.one("schedule", "show", "nightly")["cron"] == ["0 2 * * *"]
    assert told.one("schedule", "delete", "nightly") == {"id": "nightly", "deleted": True}
    assert told.one("declaration", "list") == []
    assert told.lines("declaration", "apply", "schedule", "nightly", code=1) == []
    assert told.one("message", "publish", "paid", "C-9")["kept"] is True
    assert [each["name"] for each in told.one("message", "list")] == ["paid"]


def _access(told: Told, directory: Path) -> None:
    made = told.settled("token", "new", "ann", "--role", "viewer")
    assert (made["name"], made["roles"], made["token"].startswith("pst_")) == ("ann", "viewer", True)
    offline = told.one("token", "new", "bob", "--role", "viewer", "--offline")
    assert offline["apiTokens"].startswith("bob=viewer=sha256:")
    assert [each["id"] for each in told.settled("token", "list")] == [made["id"]]
    assert told.settled("token", "revoke", made["id"])["revoked"]
    assert [each["id"] for each in told.settled("session", "list")] == [told.session]
    assert told.settled("session", "end", told.session)["name"] == "token:ann"
    assert told.settled("migrate")["version"] == SCHEMA_VERSION
    assert told.settled("requeue") == {"returned": 0, "dispatchMode": "polling"}
    assert "ok" in {each["verdict"] for each in told.settled("doctor", code=None)}  # a test's server is no durable one
    settings = {each["name"]: each for each in told.settled("config", "show")["settings"]}
    assert settings["postgres_dsn"]["source"] == "WE_POSTGRES_DSN"


def _offline(told: Told, directory: Path) -> None:
    file = directory / "claim.json"
    assert told.settled("validate", file) == {"valid": True, "problems": []}
    assert told.one("draw", file)["picture"].startswith("flowchart TD")
    assert told.one("expr", "${a > 2}", '{"a": 3}') is True
    assert told.one("version") == {"version": __version__, "compiled": False}
    (directory / "body.py").write_text("")
    assert told.one("lint", directory / "body.py") == []
    assert "CREATE TABLE" in told.one("runs", "step-table")["sql"]


def _runs(told: Told, dsn: str, directory: Path) -> None:
    program = Program(directory, ORDER + STARTS)
    program.environment["PENSTOCK_AT"] = dsn
    assert ended(program.start())[0] == 0
    assert [each["id"] for each in told.one("runs", "list", "order")] == ["o-1"]
    assert told.one("runs", "show", "o-1")["status"] == "ACTIVE"
    assert told.one("runs", "send", "o-1", "approved", '"ann"') == {"id": "o-1", "sent": "approved"}
    call = ("runs", "ask", "o-1", "set_limit", 5, "--update-id", "u-1", "--timeout", 0)
    assert told.one(*call, code=3) == {"id": "u-1", "status": "PENDING", "value": None, "reason": None}
    assert [each["kind"] for each in told.lines("runs", "journal", "o-1")] == ["message", "asked"]
    saved = told.one("runs", "save", "o-1", directory / "kept.json")
    assert (saved["workflow"], saved["records"]) == ("order", 2)
    assert told.one("runs", "cancel", "o-1", "--force") == {"id": "o-1", "cancelled": True, "forced": True}
    assert told.lines("runs", "adopt", "order", code=1) == []  # no App without a name has served it: that is no JSON
