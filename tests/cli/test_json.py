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


class Reported:
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
def reported(dsn: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Reported]:
    directory = tmp_path_factory.mktemp("engine")
    running = RunningEngine(dsn, directory / "log")
    try:
        running.start()
        with psycopg.connect(dsn) as connection:
            connection.execute(SESSION)
        yield Reported(running.url, dsn, directory)
    finally:
        running.close()


@pytest.mark.slow(reason="each command in a process")
def test_every_command_that_takes_json_answers_with_it(reported: Reported, dsn: str, tmp_path: Path) -> None:
    for drive in (_definitions, _instances, _batches, _bulk, _flow, _access, _offline):
        drive(reported, tmp_path)
    _requests(reported, dsn)
    _runs(reported, dsn, tmp_path)
    assert reported.seen == FOUND.keys() - RUN_ON - HANDS_ON - SHOWN_ELSEWHERE


def _definitions(reported: Reported, directory: Path) -> None:
    files = [directory / f"{name}.json" for name in ("claim", "other", "text")]
    bodies = ({"id": "claim", "name": "Claim"}, {"id": "claim", "name": "Other"}, {"id": "text", "name": "Text"})
    for file, body in zip(files, bodies, strict=True):
        file.write_text(json.dumps({**body, "steps": STEPS}))
    made = reported.lines("definition", "upload", *files)
    assert [(each["id"], each["version"]) for each in made] == [("claim", 1), ("claim", 2), ("text", 1)]
    assert [each["id"] for each in reported.one("definition", "list")] == ["claim", "text"]
    assert reported.one("definition", "show", "claim", "--version", 1)["name"] == "Claim"
    different = reported.one("definition", "diff", "claim", "--from", 1, "--to", 2, code=1)
    assert (different["same"], '+  "name": "Other",' in different["lines"]) == (False, True)
    assert reported.one("definition", "diff", "claim", files[1]) == {"same": True, "lines": []}
    assert reported.one("definition", "impact", files[0])["versions"] == []
    assert reported.one("definition", "activate", "claim", 2)["version"] == 2
    assert reported.lines("definition", "delete", "claim", code=1) == []
    exported = reported.one("definition", "export", directory / "kept")
    assert [(each["id"], each["version"]) for each in exported] == [("claim", 2), ("text", 1)]
    assert [each["id"] for each in reported.one("definition", "import", directory / "kept")] == ["claim", "text"]


def _instances(reported: Reported, directory: Path) -> None:
    def start(*more: object) -> str:
        return str(reported.one("instance", "start", "claim", "--version", 1, *more)["id"])

    first, second = start("--business-key", "C-1"), start()
    assert {each["id"] for each in reported.one("instance", "list")} == {first, second}
    assert reported.one("instance", "show", first)["instance"]["businessKey"] == "C-1"
    assert reported.one("instance", "tree", first)["id"] == first
    assert reported.one("instance", "priority", first, 2)["id"] == first
    possible = reported.lines("instance", "migrate", first, second, "--version", 2, "--dry-run")
    assert [each["possible"] for each in possible] == [True, True]
    assert reported.one("instance", "migrate", second, "--timers", "from_now")["definitionVersion"] == 2
    assert reported.one("instance", "skip", first, "check")["currentStepIds"] == ["approve"]
    assert reported.one("instance", "edit", first, '{"sum": 3}')["variables"] == {"sum": 3}
    assert reported.one("instance", "move", first, "approve", "check")["currentStepIds"] == ["check"]
    _jobs(reported, first)
    assert reported.one("instance", "retry", first)["status"] == "ACTIVE"
    reported.one("instance", "skip", first, "check")
    assert reported.one("instance", "complete", first, "approve")["completed"]
    assert reported.one("instance", "signal", first, "paid")["signalled"]
    assert reported.lines("instance", "watch", first)[-1]["status"] == "COMPLETED"
    assert [each["status"] for each in reported.lines("instance", "cancel", second, start())] == ["CANCELLED"] * 2


def _jobs(reported: Reported, instance: str) -> None:
    """A job of the instance fails for good; those of others are given back."""
    assert instance in {
        each["instanceId"] for each in reported.one("job", "list", "waiting", "--job-type", "claim.check")
    }
    with SyncClient(reported.url) as client:
        polled = {each.instance_id: each for each in client.poll_jobs("w", ["claim.check"], max_jobs=10, wait_s=20)}
        job = polled[instance]
        client.heartbeat_job(job.id, "w", attempt=job.attempt, checkpoint=7)
        assert reported.one("job", "forget-checkpoint", job.id) == {"id": job.id, "checkpoint": None}
        client.fail_job(job.id, "w", "no", retryable=False, attempt=job.attempt)
    assert [each["reason"] for each in reported.one("job", "attempts", job.id)] == ["no"]
    assert [each["instanceId"] for each in reported.one("job", "failed")] == [instance]
    assert isinstance(reported.one("worker", "list"), list)
    assert isinstance(reported.one("audit"), list)
    assert {each["jobType"] for each in reported.one("job", "types")} <= {"claim.check"}
    [row] = [each for each in reported.one("attention", "list") if each["kind"] == "failures"]
    assert reported.one("attention", "acknowledge", row["key"], "--note", "seen")["acknowledged"]
    [row] = [each for each in reported.one("attention", "list") if each["kind"] == "failures"]
    assert row["acknowledged"]["note"] == "seen"
    assert not reported.one("attention", "withdraw", row["key"])["acknowledged"]


def _batches(reported: Reported, directory: Path) -> None:
    items = directory / "items.jsonl"
    items.write_text('{"definitionId": "nobody"}\n')
    made = reported.one("batch", "start", items)
    assert (made["total"], reported.one("batch", "show", made["id"], "--wait", code=1)["refused"]) == (1, 1)
    assert [each["id"] for each in reported.one("batch", "list")] == [made["id"]]
    assert [each["state"] for each in reported.lines("batch", "results", made["id"])] == ["REFUSED"]
    items.write_text('{"definitionId": "claim", "delay": "PT1H"}\n')
    assert reported.one("batch", "cancel", reported.one("batch", "start", items)["id"])["state"] == "CANCELLING"


def _bulk(reported: Reported, directory: Path) -> None:
    ids = [reported.one("instance", "start", "claim")["id"] for _ in range(2)]
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
        done = reported.one("bulk", act, *words, *which, "--detach")
        assert (done["action"], done["total"]) == (act, 2)
        last = reported.one("bulk", "show", done["id"])
        assert last["id"] == done["id"]
    assert reported.one("bulk", "cancel", "-f", "definition=nothing", "--yes", code=1)["count"] == 0
    assert reported.one("bulk", "cancel", "-f", "definition=claim", "--dry-run")["count"] > 0
    assert reported.one("bulk", "stop", reported.one("bulk", "list")[0]["id"])["action"] == "cancel"


def _requests(reported: Reported, dsn: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as program:
        reported.settled("migrate", "--may-start", program.info.user)
        with program.transaction():
            ((instance,),) = program.execute("SELECT penstock_start('claim', '{\"sum\": 3}')").fetchall()
            ((number,),) = program.execute("SELECT penstock_signal(%s, 'no such step')", [instance]).fetchall()
    wait_until(lambda: reported.one("requests", "list") != [])  # the engine was woken, and has carried out both
    with SyncClient(reported.url) as client:
        assert client.get_instance(instance).variables == {"sum": 3}
    (failed,) = reported.one("requests", "list")
    assert (failed["id"], failed["operation"], failed["error"]) == (str(number), "signal", "conflict")
    assert reported.one("requests", "list", "--waiting") == []
    assert reported.one("requests", "retry", number) == {"id": str(number)}
    wait_until(lambda: reported.one("requests", "list") != [])
    assert reported.one("requests", "drop", number) == {"id": str(number)}
    assert reported.one("requests", "list") == []
    assert reported.lines("requests", "drop", number, code=1) == []


def _flow(reported: Reported, directory: Path) -> None:
    assert reported.one("queue", "set", "mail", '{"jobTypes": ["mail"], "concurrency": 5}')["name"] == "mail"
    assert [each["name"] for each in reported.one("queue", "list")] == ["mail"]
    assert reported.one("queue", "pause", "mail")["policy"]["paused"] is True
    assert reported.one("queue", "resume", "mail")["policy"].get("paused") in (False, None)
    assert reported.one("queue", "show", "mail")["policy"]["concurrency"] == 5
    assert reported.one("queue", "delete", "mail") == {"name": "mail", "deleted": True}
    assert len(reported.one("schedule", "preview", "--cron", "0 2 * * *", "--count", 3)["times"]) == 3
    assert reported.one("schedule", "set", "nightly", "claim", "--cron", "0 2 * * *")["id"] == "nightly"
    assert [each["id"] for each in reported.one("schedule", "list")] == ["nightly"]
    assert len(reported.one("schedule", "next", "nightly")) == 10
    assert reported.one("schedule", "pause", "nightly")["paused"] is True
    assert reported.one("schedule", "resume", "nightly")["paused"] is False
    assert reported.one("schedule", "trigger", "nightly")["outcome"]
    past = ("2026-01-01T00:00:00+00:00", "2026-01-01T12:00:00+00:00")
    assert reported.one("schedule", "backfill", "nightly", *(each[:19] for each in past))["id"] == "nightly"
    assert reported.one("schedule", "show", "nightly")["cron"] == ["0 2 * * *"]
    assert reported.one("schedule", "delete", "nightly") == {"id": "nightly", "deleted": True}
    assert reported.one("declaration", "list") == []
    assert reported.lines("declaration", "apply", "schedule", "nightly", code=1) == []
    assert reported.one("message", "publish", "paid", "C-9")["kept"] is True
    assert [each["name"] for each in reported.one("message", "list")] == ["paid"]


def _access(reported: Reported, directory: Path) -> None:
    made = reported.settled("token", "new", "ann", "--role", "viewer")
    assert (made["name"], made["roles"], made["token"].startswith("pst_")) == ("ann", "viewer", True)
    offline = reported.one("token", "new", "bob", "--role", "viewer", "--offline")
    assert offline["apiTokens"].startswith("bob=viewer=sha256:")
    assert [each["id"] for each in reported.settled("token", "list")] == [made["id"]]
    assert reported.settled("token", "revoke", made["id"])["revoked"]
    assert [each["id"] for each in reported.settled("session", "list")] == [reported.session]
    assert reported.settled("session", "end", reported.session)["name"] == "token:ann"
    assert reported.settled("migrate")["version"] == SCHEMA_VERSION
    assert reported.settled("requeue") == {"returned": 0, "dispatchMode": "polling"}
    assert "ok" in {
        each["verdict"] for each in reported.settled("doctor", code=None)
    }  # a test's server is no durable one
    settings = {each["name"]: each for each in reported.settled("config", "show")["settings"]}
    assert settings["postgres_dsn"]["source"] == "WE_POSTGRES_DSN"


def _offline(reported: Reported, directory: Path) -> None:
    file = directory / "claim.json"
    assert reported.settled("validate", file) == {"valid": True, "problems": []}
    assert reported.one("draw", file)["picture"].startswith("flowchart TD")
    assert reported.one("expr", "${a > 2}", '{"a": 3}') is True
    assert reported.one("version") == {"version": __version__, "compiled": False}
    (directory / "body.py").write_text("")
    assert reported.one("lint", directory / "body.py") == []
    assert "CREATE TABLE" in reported.one("runs", "step-table")["sql"]


def _runs(reported: Reported, dsn: str, directory: Path) -> None:
    program = Program(directory, ORDER + STARTS)
    program.environment["PENSTOCK_AT"] = dsn
    assert ended(program.start())[0] == 0
    assert [each["id"] for each in reported.one("runs", "list", "order")] == ["o-1"]
    assert reported.one("runs", "show", "o-1")["status"] == "ACTIVE"
    assert reported.one("runs", "send", "o-1", "approved", '"ann"') == {"id": "o-1", "sent": "approved"}
    call = ("runs", "ask", "o-1", "set_limit", 5, "--update-id", "u-1", "--timeout", 0)
    assert reported.one(*call, code=3) == {"id": "u-1", "status": "PENDING", "value": None, "reason": None}
    assert [each["kind"] for each in reported.lines("runs", "journal", "o-1")] == ["message", "asked"]
    saved = reported.one("runs", "save", "o-1", directory / "kept.json")
    assert (saved["workflow"], saved["records"]) == ("order", 2)
    assert reported.one("runs", "cancel", "o-1", "--force") == {"id": "o-1", "cancelled": True, "forced": True}
    assert (
        reported.lines("runs", "adopt", "order", code=1) == []
    )  # no App without a name has served it: that is no JSON
