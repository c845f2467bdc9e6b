"""`penstock definition`, `instance` and `job` against an engine that runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from penstock.cli.app import app
from penstock.client import SyncClient
from tests.cli.shell import CLAIM, Shell
from tests.runtime.waiting import wait_until
from tests.sdk.running_engine import RunningEngine

pytestmark = pytest.mark.slow(reason="commands and engines in processes")


def test_versions_are_compared_with_each_other_and_with_files(shell: Shell, tmp_path: Path) -> None:
    first = {**CLAIM, "id": "diff"}
    second = {**first, "name": "Other"}
    files = [tmp_path / name for name in ("first.json", "second.json")]
    for file, body in zip(files, (first, second), strict=True):
        file.write_text(json.dumps(body))
    shell.out("definition", "upload", files[0])
    assert shell.out("definition", "diff", "diff", files[0]) == ""
    reported = shell.run("definition", "diff", "diff", files[1])
    assert reported.exit_code == 1
    assert [line for line in reported.stdout.splitlines() if line[:1] in "+-"] == [
        "--- version 1", f"+++ {files[1]}", '-  "name": "Claim",', '+  "name": "Other",',
    ]  # fmt: skip
    shell.out("definition", "upload", files[1])
    assert shell.run("definition", "diff", "diff", "--from", 1, "--to", 2).stdout.splitlines()[1] == "+++ version 2"
    assert shell.run("definition", "diff", "diff").exit_code == 2
    assert shell.run("definition", "diff", "nothing", files[0]).exit_code == 1


def test_exported_definitions_come_back_as_they_were(shell: Shell, tmp_path: Path) -> None:
    for name in ("one", "two"):
        file = tmp_path / "moved.json"
        file.write_text(json.dumps({**CLAIM, "id": "a:moved", "name": name}))
        shell.out("definition", "upload", file)
    there = tmp_path / "exported"
    shell.out("definition", "export", there, "--all-versions")
    assert {path.name for path in there.glob("a*")} == {"a%3Amoved@1.json", "a%3Amoved@2.json"}
    latest = tmp_path / "latest"
    shell.out("definition", "export", latest)
    assert [path.name for path in latest.glob("a*")] == ["a%3Amoved@2.json"]
    made = json.loads(shell.out("definition", "import", there, "--json"))
    assert {(each["id"], each["version"]) for each in made} >= {("a:moved", 1), ("a:moved", 2), ("claim", 1)}
    (there / "a%3Amoved@2.json").rename(there / "moved@x.json")
    assert shell.run("definition", "import", there).exit_code == 2


def test_instances_are_listed_by_search_attributes(shell: Shell, tmp_path: Path) -> None:
    file = tmp_path / "found.json"
    file.write_text(json.dumps({**CLAIM, "id": "found", "searchAttributes": {"customer": "STRING"}}))
    shell.out("definition", "upload", file)
    id = shell.out("instance", "start", "found", '{"customer": "4711"}').strip()
    listed = json.loads(shell.out("instance", "list", "--attribute", "customer=4711", "--json"))
    assert [each["id"] for each in listed] == [id]
    assert shell.run("instance", "list", "--attribute", "customer").exit_code == 2


def test_instances_are_listed_by_any_filter_and_sorted(shell: Shell, tmp_path: Path) -> None:
    file = tmp_path / "sorted.json"
    file.write_text(json.dumps({**CLAIM, "id": "sorted", "searchAttributes": {"amount": "NUMBER"}}))
    shell.out("definition", "upload", file)
    ids = [
        shell.out("instance", "start", "sorted", json.dumps({"amount": n}), "--business-key", key).strip()
        for n, key in enumerate(("s-2", "s-1", "s-3"))
    ]

    def listed(*words: object) -> list[int]:
        return [ids.index(each["id"]) for each in json.loads(shell.out("instance", "list", *words, "--json"))]

    here = "-f", "definition=sorted"
    assert listed(*here) == listed(*here, "--order", "newest") == [2, 1, 0]
    assert listed(*here, "--order", "oldest") == [0, 1, 2]
    assert listed(*here, "--order", "businesskey") == [1, 0, 2]
    first = CLAIM["steps"][0]["id"]
    assert listed(*here, "-f", f"current-step={first}") == listed(*here, "--current-step", first) == [2, 1, 0]
    assert listed(*here, "--current-step", "nowhere") == []
    assert listed(*here, "-f", "attr.amount.from=1", "-f", "version=1", "-f", "status=active") == [2, 1]
    assert listed(*here, "-f", "started-after=2100-01-01") == []
    assert listed(*here, "-f", "cause=nothing") == []  # of those that failed
    for wrong in ("size=1", "version=x", "started-before=soon", "status"):
        assert shell.run("instance", "list", "-f", wrong).exit_code == 2
    assert shell.run("instance", "list", "--status", "failed", "-f", "status=failed").exit_code == 2
    assert shell.run("instance", "list", "--current-step", first).exit_code == 1


def test_shells_complete_commands(shell: Shell) -> None:
    environment = {"_PENSTOCK_COMPLETE": "complete_bash", "COMP_WORDS": "penstock inst", "COMP_CWORD": "1"}
    reported = CliRunner().invoke(app, [], prog_name="penstock", env=environment)
    assert reported.stdout.split() == ["instance"]


def check(engine: RunningEngine, instance: str, *, fails: str | None = None) -> None:
    """Do the job of the first step of the instance, or fail it; jobs of other instances come back by themselves."""
    with SyncClient(engine.url) as client:
        found = {job.instance_id: job for job in client.poll_jobs("w", ["claim.check"], max_jobs=100, wait_s=20)}
        job = found.pop(instance)
        if fails is None:
            client.complete_job(job.id, "w", attempt=job.attempt)
        else:
            client.fail_job(job.id, "w", fails, attempt=job.attempt, retryable=False)


def test_definitions_are_uploaded_listed_and_shown(shell: Shell, tmp_path: Path) -> None:
    file = tmp_path / "refund.json"
    file.write_text(json.dumps({**CLAIM, "id": "refund"}))
    assert shell.out("definition", "upload", file) == "refund version 1\n"
    assert shell.out("definition", "upload", file) == "refund version 1\n"
    listed = shell.out("definition", "list", "--keyword", "refund").splitlines()
    assert [line.split()[:2] for line in listed] == [["id", "version"], ["refund", "1"]]
    assert json.loads(shell.out("definition", "show", "refund"))["steps"] == CLAIM["steps"]


def test_a_refused_upload_tells_every_problem(shell: Shell, tmp_path: Path) -> None:
    file = tmp_path / "bad.json"
    file.write_text(json.dumps({**CLAIM, "steps": CLAIM["steps"][:1]}))
    result = shell.run("definition", "upload", file)
    assert (result.exit_code, result.stdout) == (1, "")
    assert 'penstock: steps[0].nextStep: unknown step "approve"' in result.stderr.splitlines()


def test_an_instance_is_brought_to_its_end(shell: Shell, engine: RunningEngine) -> None:
    id = shell.start('{"amount": 3}', "--business-key", "C-1")
    check(engine, id)
    shell.out("instance", "complete", id, "approve", '{"approved": true}', "--by", "ann")
    shell.out("instance", "signal", id, "paid", "--file", "-", given='{"paid": 3}')
    assert shell.out("instance", "watch", id, "--timeout", "60").splitlines()[-1] == f"{id}  COMPLETED  claim:1"
    shown = json.loads(shell.out("instance", "show", id, "--json"))
    assert shown["instance"]["variables"] == {"amount": 3, "approved": True, "paid": 3}
    assert [each["stepId"] for each in shown["history"]] == ["check", "approve", "paid", "end"]
    reported = shell.out("instance", "show", id, "--variables").splitlines()
    assert reported[1] == "business key C-1"
    assert reported[3].split()[3].endswith(("Z", "+00:00")) or reported[3].split()[3][-6] in "+-", "a time has its zone"
    assert [line.split()[:2] for line in reported[3:7]] == [
        [step, "COMPLETED"] for step in ("check", "approve", "paid", "end")
    ]
    assert '"approved": true' in "".join(reported[7:])


def test_a_failed_instance_is_found_and_retried(shell: Shell, engine: RunningEngine) -> None:
    id = shell.start("--business-key", "C-2")
    check(engine, id, fails="the register is closed")
    [found] = json.loads(shell.out("instance", "list", "--status", "failed", "--business-key", "C-2", "--json"))
    assert (found["id"], "the register is closed" in found["failureReason"]) == (id, True)
    assert "the register is closed" in shell.out("job", "failed", "--job-type", "claim.check")
    watched = shell.run("instance", "watch", id)
    assert (watched.exit_code, watched.stdout.split()[:2]) == (1, [id, "FAILED"])
    assert shell.out("instance", "retry", id).split()[:2] == [id, "ACTIVE"]
    check(engine, id)


def test_open_jobs_and_workers_are_listed(shell: Shell, engine: RunningEngine) -> None:
    id = shell.start()
    waiting = json.loads(shell.out("job", "list", "waiting", "--job-type", "claim.check", "--limit", 200, "--json"))
    assert (id, "check") in {(job["instanceId"], job["stepId"]) for job in waiting}
    table = shell.out("job", "list", "waiting", "--job-type", "claim.check", "--limit", 200).splitlines()
    assert table[0].split()[:3] == ["job", "job", "type"]
    assert any(id in line for line in table[1:])

    def listed(*options: object) -> list[dict[str, Any]]:
        words = ("job", "list", "waiting", "--job-type", "claim.check", "--limit", 200, "--json", *options)
        found: list[dict[str, Any]] = json.loads(shell.out(*words))
        return found

    [mine] = [job for job in waiting if job["instanceId"] == id]
    of_version = listed("--definition", mine["definitionId"], "--version", mine["version"])
    assert id in {job["instanceId"] for job in of_version}
    assert {job["version"] for job in of_version} == {mine["version"]}
    assert listed("--definition", mine["definitionId"], "--version", mine["version"] + 1) == []
    assert id in {job["instanceId"] for job in listed("--older-than", "0s")}
    assert listed("--older-than", "1d") == []
    for options, reported in (
        (("--older-than", "soon"), "--older-than"), (("--version", 1), "--definition"),
        (("--definition", "claim"), "--job-type"),
    ):  # fmt: skip
        refused = shell.run("job", "list", "waiting", *options)
        assert (refused.exit_code, reported in refused.stderr) == (2, True)
    assert "status" in shell.run("job", "list", "asleep").stderr
    wait_until(lambda: "claim.check  " in shell.out("job", "list", "waiting"), timeout_s=120)  # as engines measure
    assert shell.out("job", "types").splitlines()[0].split()[:2] == ["job", "type"]
    check(engine, id)

    def seen() -> list[str]:
        return [each["id"] for each in json.loads(shell.out("worker", "list", "--json"))]

    wait_until(lambda: "w" in seen(), timeout_s=120)
    assert any(line.split()[0] == "w" for line in shell.out("worker", "list").splitlines()[1:])


def test_attempts_of_a_job_are_listed_and_its_checkpoint_goes(shell: Shell, engine: RunningEngine) -> None:
    with SyncClient(engine.url) as client:
        client.upload_definition({**CLAIM, "id": "recorded", "recordAttempts": True})
        id = client.start_instance("recorded", {"amount": 3}).id
        found = {job.instance_id: job for job in client.poll_jobs("w", ["claim.check"], max_jobs=100, wait_s=20)}
        job = found[id]
        client.heartbeat_job(job.id, "w", attempt=job.attempt, checkpoint={"page": 7})
        assert shell.out("job", "forget-checkpoint", job.id, "--note", "a bad page") == ""
        assert [(one.kind, one.detail) for one in client.get_audit(id)][-1] == ("CHECKPOINT_FORGOTTEN", "a bad page")
        client.complete_job(job.id, "w", {"seen": "x" * 100}, attempt=job.attempt)
    head, row = shell.out("job", "attempts", job.id).splitlines()
    assert head.split() == ["attempt", "status", "started", "ended", "worker", "given", "progress", "result", "reason"]
    assert row.split()[:2] == ["1", "COMPLETED"]
    assert '{"amount": 3}' in row
    assert row.endswith("x…")
    [reported] = json.loads(shell.out("job", "attempts", job.id, "--json"))
    assert (reported["parameters"], reported["result"]) == ({"amount": 3}, {"seen": "x" * 100})
    gone = shell.run("job", "forget-checkpoint", job.id)
    assert (gone.exit_code, "is not open" in gone.stderr) == (1, True)


def test_an_instance_is_mended(shell: Shell, engine: RunningEngine) -> None:
    id = shell.start()
    line = f"{id}  ACTIVE  claim:1  at check"
    assert shell.out("instance", "priority", id, "2") == f"{line}\n"
    check(engine, id, fails="no")
    assert shell.out("instance", "retry", id, "--from", "paid", "--note", "was paid").split()[1:] == [
        "WAITING", "claim:1", "at", "paid"
    ]  # fmt: skip
    assert shell.out("instance", "move", id, "paid", "check", "--note", "checked too early") == f"{line}\n"
    assert shell.out("instance", "skip", id, "check", '{"seen": true}').split()[1] == "WAITING"
    assert shell.out("instance", "skip", id, "approve", "--note", "by phone").split()[-1] == "paid"
    with SyncClient(engine.url) as client:
        assert client.get_instance(id).variables == {"seen": True}
        notes = {each.kind: each.detail for each in client.get_audit(id) if each.detail}
    assert (notes["RETRIED"], notes["MOVED"], notes["SKIPPED"]) == (
        "from 'paid': was paid", "to 'check': checked too early", "by phone"
    )  # fmt: skip
    refused = shell.run("instance", "skip", id, "check")
    assert (refused.exit_code, refused.stderr) == (1, "penstock: conflict: step 'check' is not open (HTTP 409)\n")


def test_instances_are_cancelled_with_a_reason(shell: Shell) -> None:
    ids = [shell.start("--instance-key", f"k{n}") for n in range(2)]
    assert shell.start("--instance-key", "k1") == ids[1]
    lines = shell.out("instance", "cancel", *ids, "--reason", "a mistake").splitlines()
    assert [line.split()[:2] for line in lines] == [[id, "CANCELLED"] for id in ids]
    again = shell.run("instance", "cancel", ids[0])
    assert (again.exit_code, again.stderr.startswith("penstock: conflict:")) == (1, True)


def test_a_list_says_when_there_are_more(shell: Shell) -> None:
    for _ in range(2):
        shell.start("--business-key", "many")
    result = shell.run("instance", "list", "--business-key", "many", "--limit", "1")
    assert len(result.stdout.splitlines()) == 2
    assert result.stderr == "there are more than 1: --limit, or a narrower filter\n"


def test_wrong_use_changes_nothing(shell: Shell, tmp_path: Path) -> None:
    for wrong in (["[1]"], ["{"], ["{}", "--file", "x.json"], ["--file", tmp_path / "none.json"]):
        result = shell.run("instance", "start", "claim", *wrong, "--business-key", "wrong")
        assert (result.exit_code, result.stdout) == (2, ""), wrong
    assert json.loads(shell.out("instance", "list", "--business-key", "wrong", "--json")) == []


def test_an_engine_that_is_away_is_reported_in_a_line() -> None:
    result = CliRunner().invoke(app, ["definition", "show", "x", "--url", "http://127.0.0.1:1"])
    assert result.exit_code == 1
    assert result.stderr.startswith("penstock: connection-failed:")
    assert "127.0.0.1:1" in result.stderr
    assert len(result.stderr.splitlines()) == 1


def test_messages_are_published_and_listed(engine: RunningEngine, shell: Shell) -> None:
    waits = {"id": "w", "name": "W", "type": "WAIT", "nextStep": "end", "message": {"name": "m", "correlationKey": "k"}}
    with SyncClient(engine.url) as client:
        client.upload_definition({"id": "told", "name": "T", "steps": [waits, CLAIM["steps"][-1]]})
    id = shell.out("instance", "start", "told").strip()
    assert shell.out("message", "publish", "m", "k", '{"sum": 3}') == f"{id} w\n"
    assert shell.run("message", "publish", "m", "k", "--ttl", "PT0S").output == "nobody waits for it\n"
    assert shell.run("message", "publish", "m", "k", "--message-id", "x").output == "kept\n"
    assert json.loads(shell.out("message", "publish", "m", "k", "--to-all", "--json"))["kept"] is False
    (line,) = shell.out("message", "list", "--name", "m").splitlines()[1:]
    assert line.split()[:2] == ["m", "k"]
    assert shell.run("message", "publish", "m", "").exit_code == 1


def test_many_instances_are_counted_confirmed_and_changed(shell: Shell, engine: RunningEngine, tmp_path: Path) -> None:
    file = tmp_path / "many.json"
    file.write_text(json.dumps({**CLAIM, "id": "many"}))
    shell.out("definition", "upload", file)
    ids = [shell.out("instance", "start", "many", "--business-key", f"m-{n}").strip() for n in range(3)]
    wanted = ("--filter", "definition=many", "--except", "business-key=m-2")
    reported = shell.run("bulk", "skip", "check", '{"ok": true}', *wanted, given="n\n")
    assert reported.exit_code == 1
    assert "DONE" not in reported.stdout
    assert "2 instances match\n  2 at step check\nskip 2 instances? [y/N]" in reported.stderr
    preview = json.loads(shell.out("bulk", "skip", "check", *wanted, "--dry-run", "--json"))
    assert (preview["count"], preview["exact"]) == (2, True)
    done = shell.out("bulk", "skip", "check", '{"ok": true}', *wanted, "--note", "by hand", given="y\n")
    number = done.splitlines()[-1].split()[4]
    assert done.splitlines()[-3:] == [
        "DONE: 2 done, 0 skipped, 0 failed, of 2",
        "since then: 0 completed, 0 failed, 2 still running, 0 cancelled",
        f"  penstock instance list --bulk {number} --open",
    ]
    assert len(json.loads(shell.out("instance", "list", "--bulk", number, "--open", "--json"))) == 2
    edited = shell.out("bulk", "edit", '{"rate": 2}', "--remove", "ok", *wanted, "--yes", "--json")
    assert {name: json.loads(edited)[name] for name in ("state", "done", "filter")} == {
        "state": "DONE", "done": 2, "filter": {"definitionId": "many", "except": {"businessKey": "m-2"}},
    }  # fmt: skip
    with SyncClient(engine.url) as client:
        assert [client.get_instance(id).variables for id in ids] == [{"rate": 2}, {"rate": 2}, {}]
    file.write_text(json.dumps({**CLAIM, "id": "many", "steps": CLAIM["steps"][1:]}))
    reported = shell.run("definition", "impact", file)
    assert reported.exit_code == 1
    assert reported.stdout.splitlines()[0] == "removes check"
    assert f"  {ids[2]}  version 1  it stands on step 'check': the version has no 'check'" in reported.stdout
    shell.out("definition", "upload", file)
    assert json.loads(shell.run("definition", "impact", "--id", "many", "--json").stdout)["refusals"]["refused"] == 1
    assert shell.run("definition", "impact").exit_code == 2
    reported = shell.run("bulk", "migrate", "--filter", "definition=many", "-y")
    assert reported.exit_code == 1
    assert "of the newest 3 1 can't be migrated" in reported.stderr
    assert reported.stdout.startswith("DONE: 2 done, 0 skipped, 1 failed, of 3\n  " + ids[2])
    begun = json.loads(shell.out("bulk", "cancel", "--id", ids[0], "-y", "--detach", "--json"))
    assert shell.out("bulk", "show", begun["id"], "--wait") == "DONE: 1 done, 0 skipped, 0 failed, of 1\n"
    assert shell.out("bulk", "list", "--limit", 2).splitlines()[1].split()[:3] == [begun["id"], "cancel", "DONE"]
    assert shell.out("bulk", "stop", begun["id"]).startswith("DONE: 1 done")
    assert shell.out("instance", "edit", ids[1], "--remove", "rate", "--json").count('"rate"') == 0


def test_a_filter_that_says_nothing_changes_nothing(shell: Shell) -> None:
    for wrong in (
        (), ("--filter", "status=FAILED", "--id", "1"), ("--filter", "state=FAILED"), ("--filter", "version=x"),
        ("--filter", "status=FAILED", "--filter", "status=ACTIVE"),
    ):  # fmt: skip
        assert shell.run("bulk", "cancel", "-y", *wrong).exit_code == 2


def test_what_an_instance_called_is_a_tree(shell: Shell, tmp_path: Path) -> None:
    """And what it gave is shown with it."""
    file = tmp_path / "called.json"
    end = {"id": "end", "name": "End", "type": "END"}
    child = {"id": "called", "name": "Called", "steps": [{**end, "output": {"sum": "${a + 1}"}}]}
    call = {"id": "ask", "name": "Ask", "type": "CALL_ACTIVITY", "definitionId": "called", "nextStep": "end"}
    for body in (child, {"id": "caller", "name": "Caller", "steps": [call, end]}):
        file.write_text(json.dumps(body))
        shell.out("definition", "upload", file)
    id = shell.out("instance", "start", "caller", '{"a": 1}').strip()
    shell.out("instance", "watch", id)
    reported = shell.out("instance", "tree", id).splitlines()
    assert reported[0] == f"{id}  COMPLETED  caller:1"
    assert reported[1].startswith("  /ask  done  called  ")
    (called,) = json.loads(shell.out("instance", "tree", id, "--json"))["branches"]
    assert shell.out("instance", "show", called["instanceId"]).endswith('result\n{\n  "sum": 2\n}\n')


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("bulk", "cancel", "-y", "-f", "version=x"), "version: must be a version"),
        (("bulk", "cancel", "-y", "-f", "definition=claim", "-f", "version=0"), "--filter version: must be a version"),
        (("bulk", "cancel", "-y", "-f", "started-after=soon"), "started-after: must be a time"),
        (("bulk", "cancel", "-y", "-f", "version=1", "-f", "started-before=2026-01-01"), "started-before: must be"),
        (("bulk", "cancel", "-y", "-f", "definition=a", "--except", "failed-step=s"), "--except failed-step: needs"),
        (("bulk", "cancel", "-y", "-f", "version=1"), "version: needs a definition"),
        (("instance", "list", "-f", "version=0", "-f", "definition=claim"), "version: must be a version"),
        (("instance", "list", "--version", "1"), "version: needs a definition"),
        (
            ("instance", "list", "-f", "parent=x", "-f", "failed-step=s", "-f", "definition=a"),
            "parent: can't be combined",
        ),
        (("schedule", "set", "s", "claim", "--cron", "nonsense"), "--cron[0]: "),
        (("instance", "start", "claim", "{}", "--business-key", "k" * 2000), "--business-key: "),
        (("instance", "start", "claim", "{}", "--debounce", '{"delay": "soon"}'), "debounce"),
    ],
)
def test_refusals_name_what_was_written(shell: Shell, words: tuple[str, ...], told: str) -> None:
    done = shell.run(*words)
    said = " ".join(done.stderr.replace("│", " ").split())
    assert told in said
    names = ("definitionVersion", "definitionId", "stepId", "startedAfter", "parentInstanceId", "businessKey", "$.")
    assert [name for name in names if name in said] == []
    assert ".--" not in said, "a field of an option's JSON is no option"
    assert done.exit_code in (1, 2)
