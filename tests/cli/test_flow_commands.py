"""`penstock instance start` with all that a start may ask for, `queue`, `schedule`, `batch`: on an engine that runs."""

from __future__ import annotations

import json
import re
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Final
from zoneinfo import ZoneInfo

import msgspec
import pytest

from penstock.cli.options import print_utc
from penstock.cli.queues import shown_waiting
from penstock.cli.schedule_preview import clock_changes
from penstock.durable import App, workflow
from penstock.wire.model import StartRequest
from penstock.wire.schedule import ScheduleSpec
from tests.cli.shell import CLAIM, Shell
from tests.cli.test_json import FOUND
from tests.sdk.running_engine import RunningEngine

pytestmark = pytest.mark.slow(reason="commands in processes")


OF_ARGUMENTS: Final = {"definitionId", "definitionVersion", "variables"}


def as_options(kind: type[msgspec.Struct]) -> set[str]:
    """The fields of a request, as options are called."""
    fields = set(kind.__struct_encode_fields__) - OF_ARGUMENTS
    return {"--" + re.sub("[A-Z]", lambda found: f"-{found[0].lower()}", field) for field in fields}


def test_all_that_rest_takes_has_an_option_of_its_name() -> None:
    assert as_options(StartRequest) <= FOUND["instance start"]
    assert as_options(ScheduleSpec) <= FOUND["schedule set"]
    assert {"--idempotency-key", "--on-complete", "--note"} <= FOUND["batch start"]


def test_a_start_on_the_command_line_has_all_rules(shell: Shell) -> None:
    key = ("--instance-key", "K-1", "--keep-instance-key")
    rules = ("--priority", 2, "--flow-key", "gold", "--start-at", "2031-05-05T08:00:00+02:00")
    made = json.loads(shell.out("instance", "start", "claim", *key, *rules, "--json"))
    assert {name: made[name] for name in ("priority", "flowKey", "instanceKey", "startAt")} == {
        "priority": 2, "flowKey": "gold", "instanceKey": "K-1", "startAt": "2031-05-05T06:00:00Z",
    }  # fmt: skip
    shown = shell.out("instance", "show", made["id"]).splitlines()
    assert shown[0] == f"{made['id']}  ACTIVE  claim:1  begins 2031-05-05 06:00:00Z"
    assert "begins 2031-05-05 06:00:00Z: its start waits (a time, a delay, throttle or debounce)" in shown
    shell.out("instance", "cancel", made["id"])
    assert shell.start(*key) == made["id"], "the key was kept"


def test_a_repeated_call_is_answered_as_the_first_time(shell: Shell) -> None:
    first = shell.start('{"a": 1}', "--idempotency-key", "once")
    again = shell.run("instance", "start", "claim", '{"a": 1}', "--idempotency-key", "once")
    assert (again.stdout, again.stderr) == (f"{first}\n", "")
    other = shell.run("instance", "start", "claim", '{"a": 2}', "--idempotency-key", "once")
    assert (other.exit_code, "was used with another request" in other.stderr) == (1, True)


def test_who_was_there_before_is_reported_beside_its_id(shell: Shell) -> None:
    for rule in (
        ("--dedupe", '{"key": "told", "window": "PT1H"}'),
        ("--debounce", '{"key": "told", "wait": "P1D"}'),
        ("--instance-key", "told"),
    ):
        runs = [shell.run("instance", "start", "claim", *rule) for _ in range(2)]
        id = runs[0].stdout
        assert [(run.exit_code, run.stdout) for run in runs] == [(0, id)] * 2
        assert runs[0].stderr == ""
        assert runs[1].stderr == f"{id.strip()} was there before, ACTIVE: nothing else was started\n"


def test_a_start_waits_so_long_for_the_end(shell: Shell, tmp_path: Path) -> None:
    late = shell.run("instance", "start", "claim", "--wait-seconds", 0.2)
    assert (late.exit_code, late.stdout.split()[1:]) == (1, ["ACTIVE", "claim:1", "at", "check"])
    (tmp_path / "end.json").write_text(json.dumps({**CLAIM, "id": "brief", "steps": CLAIM["steps"][-1:]}))
    shell.out("definition", "upload", tmp_path / "end.json")
    assert shell.out("instance", "start", "brief", "--wait-seconds", 30).split()[1:] == ["COMPLETED", "brief:1"]


def test_a_rule_with_a_mistyped_name_is_refused(shell: Shell) -> None:
    refused = shell.run("instance", "start", "claim", "--throttle", '{"key": "k", "limit": 1, "burts": 1}')
    assert (refused.exit_code, "there is no burts" in refused.stderr) == (2, True)
    garbled = shell.run("instance", "start", "claim", '{"a": "\udcff"}')  # bytes of the shell that are no UTF-8
    assert (garbled.exit_code, "no JSON object" in garbled.stderr) == (2, True)


def test_starts_say_when_they_begin_and_share_keys(shell: Shell) -> None:
    first, later = shell.start("--dedupe", '{"key": "k", "window": "PT1H"}'), shell.start("--delay", "P1D")
    assert shell.start("--dedupe", '{"key": "k", "window": "PT1H"}') == first
    rule = ("--debounce", '{"key": "k", "wait": "P1D"}', "--json")
    assert [json.loads(shell.start("{}", *rule)).get("deduplicated") for _ in range(2)] == [None, True]
    throttled = ("instance", "start", "claim", "--throttle", '{"key": "k", "limit": 1, "period": "P1D"}')
    assert [shell.run(*throttled).exit_code for _ in range(2)] == [0, 1]
    [shown] = [line for line in shell.out("instance", "list").splitlines() if later in line]
    assert "begins " in shown
    shell.out("instance", "cancel", later)
    for wrong in (["--dedupe", "{"], ["--throttle", '{"limit": "1"}']):
        assert shell.run("instance", "start", "claim", *wrong).exit_code == 2


def test_queues_are_set_shown_paused_and_deleted(engine: RunningEngine, shell: Shell, tmp_path: Path) -> None:
    policy = {"jobTypes": ["cli.a", "cli.b"], "concurrency": 5, "ratePerKey": {"limit": 10, "period": "PT1M"}}
    assert shell.out("queue", "set", "cli", json.dumps(policy)) == "cli: 5 at once, 10 in PT1M per key\n"
    assert "cli: 5 at once, 10 in PT1M per key" in shell.out("queue", "show", "cli")
    shell.out("queue", "pause", "cli")
    assert json.loads(shell.out("queue", "show", "cli", "--json"))["policy"]["paused"] is True
    assert "cli: paused, 5 at once" in shell.out("queue", "set", "cli", json.dumps(policy)), "a pause stays"
    assert "cli: paused, 5 at once" in shell.out("queue", "show", "cli")
    shell.out("queue", "set", "cli", json.dumps(policy | {"paused": False}))
    assert "cli: 5 at once" in shell.out("queue", "show", "cli")
    shell.out("queue", "pause", "cli")
    shell.out("queue", "resume", "cli")
    (tmp_path / "policy.json").write_text(json.dumps({"jobTypes": ["cli.a"]}))
    shell.out("queue", "set", "cli", "--file", tmp_path / "policy.json")
    assert "no limits" in shell.out("queue", "list")
    assert "unknown field" in shell.run("queue", "set", "cli", '{"jobTypes": ["cli.a"], "limit": 1}').output
    limits = {"rate": {"limit": 5, "period": "PT1M", "burst": 1}, "runs": 9, "weights": {"gold": 4}}
    shell.out("queue", "set", "cli", json.dumps({"jobTypes": ["claim.check"], **limits}))
    shell.start("--flow-key", "gold")
    shown = shell.out("queue", "show", "cli").splitlines()
    assert shown[0] == "cli: 5 in PT1M (burst 1), 9 runs open, weights gold=4"
    paused = shell.start("--flow-key", "gold")
    shell.out("queue", "pause", "cli")
    assert "Check waits: its queue 'cli' is paused" in shell.out("instance", "show", paused).splitlines()[1]
    shell.out("queue", "resume", "cli")
    assert shown[2].startswith("running: not counted; open runs: 0; waiting: ")
    assert "gold      not counted  1" in shown
    shell.out("queue", "delete", "cli")
    assert shell.run("queue", "show", "cli").exit_code == 1


def test_waiting_jobs_of_a_key_are_counted_so_far() -> None:
    assert [shown_waiting(count) for count in (999, 1_000)] == ["999", "1000 or more"]


def test_a_schedule_is_made_shown_paused_run_and_deleted(shell: Shell) -> None:
    when = ("--cron", "0 2 * * *", "--time-zone", "Europe/Berlin")
    assert shell.out("schedule", "set", "nightly", "claim", *when).startswith(
        "nightly: starts claim, 0 2 * * * (Europe/Berlin); active\noverlap SKIP, catch-up LAST\nnext: "
    )
    assert len(shell.out("schedule", "next", "nightly").splitlines()) == 10
    outcome, instance = shell.out("schedule", "trigger", "nightly").split()
    assert outcome == "STARTED"
    assert json.loads(shell.out("instance", "show", instance, "--json"))["instance"]["scheduleId"] == "nightly"
    shell.out("schedule", "pause", "nightly", "--note", "holidays")
    shown = shell.out("schedule", "show", "nightly")
    assert "paused\nholidays\n" in shown
    assert instance in shown
    shell.out("schedule", "resume", "nightly")
    [listed] = [line for line in shell.out("schedule", "list").splitlines() if line.startswith("nightly")]
    assert listed.split()[-1] == "active"
    shell.out(
        "schedule", "backfill", "nightly", "2026-01-01T00:00:00", "2026-01-02T23:00:00", "--overlap", "BUFFER_ALL"
    )
    assert json.loads(shell.out("schedule", "set", "nightly", "claim", *when, "--json"))["backfillUntil"]
    shell.out("schedule", "delete", "nightly")
    gone = shell.run("schedule", "show", "nightly")
    assert (gone.exit_code, "schedule 'nightly' is unknown" in gone.stderr) == (1, True)
    wrong = shell.run("schedule", "set", "nightly", "claim", "--cron", "0 2 * *")
    assert (wrong.exit_code, "cron[0]: '0 2 * *' is not a cron expression" in wrong.stderr) == (1, True)


def test_times_of_schedules_are_in_their_zone_and_in_the_readers(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    when = ("--cron", "0 2 * * *", "--time-zone", "Europe/Berlin", "--start-at", "2031-01-01T00:00:00Z")
    shell.out("schedule", "set", "zoned", "claim", *when)
    try:
        with monkeypatch.context() as elsewhere:
            elsewhere.setenv("TZ", "Asia/Kathmandu")
            time.tzset()
            first, *_ = shell.out("schedule", "next", "zoned").splitlines()
            assert first == "2031-01-01 02:00:00+01:00 (Europe/Berlin), yours 2031-01-01 06:45:00+05:45"
            [listed] = [line for line in shell.out("schedule", "list").splitlines() if line.startswith("zoned")]
            assert "2031-01-01 06:45:00+05:45" in listed
            head, first, *_ = shell.out("schedule", "preview", *when, "--count", 1).splitlines()
            assert head.split() == ["Europe/Berlin", "UTC", "yours"]
            assert first == "2031-01-01 02:00:00+01:00  2031-01-01T01:00:00Z  2031-01-01 06:45:00+05:45"
            told = shell.out("--utc", "schedule", "preview", *when, "--count", 1).splitlines()
            assert told[0].split() == ["Europe/Berlin", "UTC"]
            assert "yours 2031-01-01 01:00:00Z" in shell.out("--utc", "schedule", "next", "zoned")
    finally:
        time.tzset()
        print_utc(False)
        shell.out("schedule", "delete", "zoned")


def test_what_code_has_is_listed_and_put_again(shell: Shell, engine: RunningEngine) -> None:
    @workflow(schedule="0 8 * * mon")
    async def reminds() -> None: ...

    @workflow(schedule="0 9 * * mon")
    async def reports() -> None: ...

    with App(reminds, reports, name="cli", at=engine.grpc_url).in_thread():
        pass

    def listed() -> list[list[str]]:
        return [line.split()[:4] for line in shell.out("declaration", "list").splitlines() if " cli:" in line]

    shell.out("schedule", "set", "cli:reminds", "cli:reminds", "--cron", "0 9 * * mon")
    shell.out("schedule", "delete", "cli:reports")
    assert listed() == [
        ["schedule", "cli:reminds", "CHANGED", "cli:reminds@1"],
        ["schedule", "cli:reports", "DELETED", "cli:reports@1"],
    ]
    put = shell.out("declaration", "apply", "schedule", "cli:reminds")
    assert put == "schedule cli:reminds: AS_IN_CODE\n"
    assert shell.out("schedule", "list").count("0 8 * * mon (UTC)") == 1
    unknown = shell.run("declaration", "apply", "queue", "none")
    assert (unknown.exit_code, "no code has ever had a queue 'none'" in unknown.stderr) == (1, True)
    wrong = shell.run("declaration", "apply", "timer", "none")
    assert (wrong.exit_code, "kind: must be schedule or queue" in wrong.stderr) == (1, True)
    for id in ("cli:reminds", "cli:reports"):
        shell.run("schedule", "delete", id)


def test_a_schedule_that_nobody_has_put_is_previewed(shell: Shell) -> None:
    when = ("--cron", "0 2 * * *", "--time-zone", "Europe/Berlin", "--start-at", "2031-03-28T00:00:00Z", "--count", 2)
    assert shell.out("schedule", "preview", *when).splitlines() == [
        "Europe/Berlin              UTC",
        "2031-03-28 02:00:00+01:00  2031-03-28T01:00:00Z",
        "2031-03-29 02:00:00+01:00  2031-03-29T01:00:00Z",
        "",
        "On 2031-03-30 the clock goes from 02:00 to 03:00:",
        "Europe/Berlin              UTC",
        "2031-03-29 02:00:00+01:00  2031-03-29T01:00:00Z",
        "2031-03-30 03:00:00+02:00  2031-03-30T01:00:00Z",
        "2031-03-31 02:00:00+02:00  2031-03-31T00:00:00Z",
        "",
        "On 2031-10-26 the clock goes from 03:00 to 02:00:",
        "Europe/Berlin              UTC",
        "2031-10-25 02:00:00+02:00  2031-10-25T00:00:00Z",
        "2031-10-26 02:00:00+02:00  2031-10-26T00:00:00Z",
        "2031-10-27 02:00:00+01:00  2031-10-27T01:00:00Z",
    ]
    reported = json.loads(shell.out("schedule", "preview", *when, "--json"))
    assert [each["at"] for each in reported["times"]] == ["2031-03-28T01:00:00Z", "2031-03-29T01:00:00Z"]
    assert [len(each["times"]) for each in reported["clockChanges"]] == [3, 3]
    assert json.loads(shell.out("schedule", "list", "--json")) == []


def test_a_preview_shows_changes_of_the_clock_where_they_matter(shell: Shell) -> None:
    often = shell.out("schedule", "preview", "--cron", "*/5 * * * *", "--time-zone", "Europe/Berlin", "--count", 1)
    changes = re.findall(r"On \S+ the clock goes from (\S+) to (\S+):\n.*\n((?:\d.*\n?)+)", often)
    assert {(was, now): re.findall(r" (\d\d:\d\d):00\+", rows) for was, now, rows in changes} == {
        ("02:00", "03:00"): ["01:50", "01:55", "03:00", "03:05", "03:10"],
        ("03:00", "02:00"): ["02:50", "02:55", "02:00", "02:05", "02:10"],
    }
    for calm in (("--every", "PT90M"), ("--cron", "0 2 * * *"), ("--cron", "0 2 * * *", "--time-zone", "Asia/Tokyo")):
        assert "the clock" not in shell.out("schedule", "preview", *calm)
    ends = ("--cron", "@daily", "--time-zone", "Europe/Berlin", "--start-at", "2031-01-01T00:00:00Z")
    assert shell.out("schedule", "preview", *ends, "--end-at", "2031-01-03T12:00:00Z").count("\n") == 3
    jittered = shell.out("schedule", "preview", "nightly", "--every", "PT1H", "--jitter", "PT9M").splitlines()
    assert jittered[0].split() == ["UTC", "fires"]
    assert shell.out("schedule", "preview", "--cron", "@daily", "--time-zone", "").startswith("UTC")
    late = ("--cron", "@daily", "--time-zone", "Europe/Berlin", "--start-at", "9999-12-20T12:00:00z")
    assert shell.out("schedule", "preview", *late).count("\n") == 11
    wrong = shell.run("schedule", "preview", "--cron", "0 2 * * *", "--time-zone", "Mars/Base")
    assert (wrong.exit_code, "is not a time zone" in wrong.stderr) == (1, True)


@pytest.mark.parametrize(
    ("zone", "changes"),
    [
        ("Europe/Berlin", ["2026-03-29T01:00:00Z", "2026-10-25T01:00:00Z"]),
        ("America/New_York", ["2026-03-08T07:00:00Z", "2026-11-01T06:00:00Z"]),
        ("Australia/Lord_Howe", ["2026-04-04T15:00:00Z", "2026-10-03T15:30:00Z"]),
        ("Asia/Kolkata", []),
    ],
)
def test_changes_of_the_clock_are_found_to_the_second(zone: str, changes: list[str]) -> None:
    found = clock_changes(ZoneInfo(zone), datetime(2026, 1, 1, tzinfo=UTC))
    assert [each.at for each in found] == [datetime.fromisoformat(text) for text in changes]


def test_a_backfill_tells_what_it_starts(shell: Shell) -> None:
    shell.out("schedule", "set", "past", "claim", "--cron", "0 2 * * *")
    reported = shell.out("schedule", "backfill", "past", "2026-01-01T00:00:00", "2026-01-03T23:00:00")
    assert re.match(r"past: 3 times, 2026-01-0\S+ to 2026-01-0\S+, started all at once; ", reported)
    assert reported.endswith("; `penstock schedule show past` tells how far it is\n")
    shell.out("schedule", "delete", "past")


def test_a_put_hints_at_what_catching_up_needs(shell: Shell) -> None:
    hint = "hint: catchUp ALL: of times that are caught up together the first is started, "
    put = ("schedule", "set", "late", "claim", "--every", "PT1H", "--catch-up", "ALL", "--catch-up-window", "P2D")
    assert hint in shell.out(*put)
    assert "hint" not in shell.out(*put, "--overlap", "BUFFER_ALL", "--anchor", "2026-01-01T00:30:00Z", "--paused")
    assert "paused" in shell.out("schedule", "show", "late")
    shell.out("schedule", "delete", "late")


def test_a_batch_that_was_waited_for_tells_reasons(shell: Shell, tmp_path: Path) -> None:
    """Of the first that failed or were refused; standard output stays what it is."""
    definition = tmp_path / "failing.json"
    total = {"id": "sum", "name": "sum", "type": "TRANSFORMATION", "transformations": {"x": "${1 / zero}"}}
    steps: list[object] = [{**total, "nextStep": "end"}, {"id": "end", "name": "end", "type": "END"}]
    definition.write_text(json.dumps({"id": "failing", "name": "failing", "steps": steps}))
    shell.out("definition", "upload", definition)
    file = tmp_path / "items.jsonl"
    items = [{"definitionId": "failing", "variables": {"zero": 0}}, *[{"definitionId": "nobody"}] * 4]
    file.write_text("".join(json.dumps(item) + "\n" for item in items))
    reported = shell.run("batch", "start", file, "--wait")
    id, *reasons = reported.stderr.splitlines()
    assert (reported.exit_code, reported.stdout) == (1, "DONE: 1 failed, 4 refused, of 5\n")
    assert re.fullmatch(r"item 0 FAILED: [0-9a-f]+: .*zero.*", reasons[0])
    assert [line.partition(": ")[0] for line in reasons[1:-1]] == [f"item {n} REFUSED" for n in (1, 2, 3)]
    assert "nobody" in reasons[1]
    assert reasons[-1] == f"… 1 more: penstock batch results {id} --state REFUSED"
    again = shell.run("batch", "show", id, "--wait", "--json")
    assert (json.loads(again.stdout)["failed"], again.stderr.splitlines()) == (1, reasons)


def test_a_batch_is_started_from_a_file_followed_and_cancelled(shell: Shell, tmp_path: Path) -> None:
    file = tmp_path / "items.jsonl"
    file.write_text('{"n": 1}\n\n{"n": 2}\n')
    id = shell.out("batch", "start", file, "-d", "claim", "--note", "spring", "--on-complete", "claim").strip()
    assert shell.out("batch", "start", file, "-d", "claim", "--key", id, "--json") != id
    assert shell.out("batch", "show", id).endswith(", of 2\nthen claim\nspring\n")
    [listed] = [line for line in shell.out("batch", "list").splitlines() if line.split()[0] == id]
    assert listed.split()[-1] == "spring"
    assert "CANCELLING" in shell.out("batch", "cancel", id, "--reason", "wrong list")
    over = shell.run("batch", "show", id, "--wait")
    assert (over.exit_code, over.output.split()[0]) == (1, "CANCELLED:")
    results = [json.loads(line) for line in shell.out("batch", "results", id).splitlines()]
    assert [result["index"] for result in results] == [0, 1]
    assert {result["state"] for result in results} <= {"CANCELLED", "PENDING"}
    file.write_text('{"definitionId": "nobody"}\n')
    refused = shell.run("batch", "start", file, "--wait")
    assert (refused.exit_code, "DONE: 1 refused, of 1" in refused.output) == (1, True)
    [reported] = shell.out("batch", "results", shell.out("batch", "list", "--limit", "1").split()[5]).splitlines()
    assert json.loads(reported)["error"] == "not-found"
    file.write_text('{"n": 1}\n[]\n')
    assert "line 2: " in shell.run("batch", "start", file, "-d", "claim").output
    assert "No such file" in shell.run("batch", "start", tmp_path / "none").output
