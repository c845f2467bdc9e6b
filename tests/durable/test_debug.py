"""`penstock debug`: a run's journal replayed under pdb and in an editor's debugger. No step runs."""

from __future__ import annotations

import io
import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trio

from penstock.access.tokens import make_token
from penstock.cli.debug import run_debug
from penstock.cli.runs import on_run
from penstock.client import IdempotencyConflict
from penstock.durable import App, RunFailed, open_nursery, receive, sleep, step, workflow
from penstock.durable.backend import SavedPage
from penstock.durable.check import SavedRun, replay_run, save_run
from penstock.durable.debug import find_place
from penstock.testing import Message, run_workflow
from penstock.wire.model import Instance
from tests.durable.served import serving
from tests.waiting import wait_until

HERE = "tests.durable.test_debug"
PAGE = Path(__file__).parents[2] / "docs" / "durable-debug.md"
REPLY_MAX_S = 60
began: list[str] = []


@step
async def reserve(count: int) -> int:
    began.append("reserve")
    return count * 2


@step
async def charge(count: int) -> int:
    began.append("charge")
    return count + 1


@workflow
async def order(count: int) -> str:
    stock = await reserve(count)
    by = await receive("approval", str)
    paid = await charge(stock)
    return f"{paid} by {by}"


@workflow
async def too_much(count: int) -> int:
    stock = await reserve(count)
    if stock > 3:
        raise ValueError(f"{stock} are too many")
    return stock


@workflow
async def wide(count: int) -> None:
    async with open_nursery() as nursery:
        nursery.start_soon(reserve, count, key="bare")
        nursery.start_soon(helped, count, key="helped")
    await sleep("1 day")


async def helped(count: int) -> None:
    stock = await reserve(count)
    await receive(f"more than {stock}", int)


@workflow(name="order")
async def changed(count: int) -> str:
    stock = await reserve(count)
    by = await receive("approval", str)
    again = await reserve(stock)
    return f"{again} by {by}"


def kept(run: Any, count: int) -> SavedRun:
    return msgspec.structs.replace(run.saved, records=run.journal[:count])


@pytest.fixture(scope="module")
def journals() -> dict[str, SavedRun]:
    ran = run_workflow(order, 4, messages=[Message("approval", "ann", after=5)])
    waits = run_workflow(wide, 4, messages=[Message("more than 8", 1, after=5)])
    return {
        "done": kept(ran, 3),
        "waits": kept(ran, 1),
        "at-step": kept(ran, 2),
        "failed": run_workflow(too_much, 4).saved,
        "wide": kept(waits, 0),
    }


@pytest.fixture
def debug(
    tmp_path: Path, journals: dict[str, SavedRun], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Generator[Callable[..., tuple[int, str, str]]]:
    """Debug one of the journals: what a person types goes in, code and outputs come out."""
    began.clear()

    def debug(name: str, *typed: str, target: str = HERE, until: str | None = None, as_json: bool = False):
        file = tmp_path / f"{name}.json"
        file.write_bytes(journals[name].text())
        monkeypatch.setattr(sys, "stdin", io.StringIO("".join(f"{line}\n" for line in typed)))
        code = run_debug(str(file), target, until, None, None, as_json=as_json)
        captured = capsys.readouterr()
        return code, captured.out.replace(f"{tmp_path}{os.sep}", ""), captured.err

    yield debug
    assert began == []


def test_a_run_that_waits_stops_at_its_line_and_no_step_runs(debug):
    code, out, _ = debug("at-step", "p stock, by", "n")
    assert code == 0
    assert out.startswith("at-step.json (order@1), 2 records: waits for charge (test_debug.py:")
    assert "at-step.json goes no further than /2: its journal ends here, and no step runs under penstock debug" in out
    assert "-> paid = await charge(stock)" in out
    assert "(8, 'ann')" in out
    assert out.endswith("the replay has ended: at-step.json waits for charge " + out[out.rindex("(test_debug.py:") :])


def test_one_steps_through_recorded_results(debug):
    _, out, _ = debug("done", "n", "p stock", "n", "p by", "n", "p paid", "c", until="/0")
    places = re.findall(r"^-> (.*)$", out, re.MULTILINE)
    assert places == [
        "stock = await reserve(count)",
        'by = await receive("approval", str)',
        "paid = await charge(stock)",
        'return f"{paid} by {by}"',
    ]
    assert [said for said in out.split("(Pdb) ") if not said.startswith(">")][1:4] == ["8\n", "'ann'\n", "9\n"]
    assert out.endswith("the replay has ended: done.json completed\n")


def test_a_stack_is_that_of_the_function_alone(debug):
    _, out, _ = debug("done", "w", "c", until="/2")
    between = out.split("(Pdb) ")[1]
    assert "penstock" not in between.replace(str(Path(__file__).parent), "")
    assert "order()" in between


def test_a_run_that_failed_stops_at_the_line_that_raised(debug):
    _, out, _ = debug("failed", "p stock", "q")
    assert "failed: ValueError: 8 are too many (test_debug.py:" in out
    assert '-> raise ValueError(f"{stock} are too many")' in out
    assert "(Pdb) 8\n" in out


def test_a_blocked_run_stops_where_code_and_journal_differ(debug, journals):
    place = find_place(changed, journals["done"])
    assert (place.how, place.stops) == ("blocked", ["/2"])
    assert "at /2 the journal has 'charge', the code asks for 'reserve'" in place.text
    _, out, _ = debug("done", "p stock", "n", target=f"{HERE}:changed")
    assert "done.json is blocked at /2" in out
    assert "-> again = await reserve(stock)" in out
    assert "(Pdb) 8\n" in out


def test_a_recorded_value_of_another_type_stops_at_its_step(journals):
    records = [msgspec.structs.replace(journals["done"].records[0], payload='"eight"')]
    place = find_place(order, msgspec.structs.replace(journals["done"], records=records))
    assert (place.how, place.stops) == ("blocked", ["/0"])
    assert "'reserve' returned \"eight\" which does not fit int" in place.text


def test_each_branch_that_waits_is_named_and_a_bare_step_stops_at_its_nursery(debug):
    _, out, _ = debug("wide", "c", "c")
    assert "wide.json (wide@1), 0 records: waits for " in out
    stops = re.findall(r"goes no further than (\S+):", out)
    assert stops == ["/0.[helped]/0", "/0.[bare]/0"]
    assert "-> async with open_nursery() as nursery:" in out


def test_no_such_operation_file_or_code_is_said_and_nothing_starts(debug, tmp_path: Path, capsys):
    code, out, err = debug("done", until="/7")
    assert code == 1
    assert "--until /7: the run came to no such operation. Its latest ones: /0, /1, /2" in err
    assert "(Pdb)" not in out
    assert debug("done", target="tests.durable.no_such")[0] == 2
    assert "the run is of order@1" in debug("done", target=f"{HERE}:too_much")[2]
    (tmp_path / "none.json").write_text("{}")
    assert run_debug(str(tmp_path / "none.json"), HERE, None, None, None) == 2
    assert "is not a journal of `penstock runs save`" in capsys.readouterr().err
    assert run_debug(str(tmp_path / "gone.json"), HERE, None, None, None) == 2
    assert "No such file" in capsys.readouterr().err


def test_programs_are_told_the_place_as_json(debug):
    code, out, _ = debug("waits", as_json=True)
    reported = json.loads(out)
    assert (code, reported["how"], reported["operations"]) == (0, "waits", ["/0", "/1"])
    assert reported["waits"][0]["path"] == "/1"


def test_an_encrypted_journal_needs_its_key(debug, journals):
    sealed = msgspec.structs.replace(journals["done"].records[0], payload='{"$enc":"k1:AAAA"}')
    journals["sealed"] = msgspec.structs.replace(journals["done"], records=[sealed])
    code, _, err = debug("sealed")
    assert code == 2
    assert "is encrypted: give the engine's keys in WE_ENCRYPTION_KEYS" in err


async def test_a_run_is_debugged_where_it_is(at: str, monkeypatch: pytest.MonkeyPatch, capsys):
    """In the database, and over gRPC. The run goes on as if nothing had happened."""
    async with App(order, name="shop", at=at) as app:
        run = await app.start(order, 4, id="o-1")

        async def waits() -> bool:
            return "approval" in str((await run.tree()).get("waitsFor"))

        await wait_until(waits)
        began.clear()
        monkeypatch.setattr(sys, "stdin", io.StringIO("p stock\nc\n"))
        code = await trio.to_thread.run_sync(lambda: run_debug("o-1", HERE, None, at, None))
        out = capsys.readouterr().out
        assert code == 0
        assert "o-1 (order@1), 1 records: waits for message 'approval'" in out
        assert "(Pdb) 8\n" in out
        assert began == []
        await run.send("approval", "ann")
        assert await run.result(timeout_s=REPLY_MAX_S) == "9 by ann"


@workflow
async def priced(result: int, schedule: str = "", *, records: int = 1, fails: bool = False) -> int:
    if fails:
        raise ValueError(f"{result} {schedule} {records}")
    return await reserve(result)


async def test_arguments_named_as_what_a_run_shows_are_kept(at: str):
    """A run that has completed shows its result among its variables; that is no argument."""

    async def save(instance_id: str) -> SavedRun:
        return await trio.to_thread.run_sync(lambda: on_run(instance_id, at, None, save_run))

    async with App(priced, name="shop", at=at) as app:
        run = await app.start(priced, 21, "nightly", records=3, id="p-1")
        assert await run.result(timeout_s=REPLY_MAX_S) == 42
        saved = await save(run.instance_id)
        given = {"result": 21, "schedule": "nightly", "records": 3, "fails": False}
        assert {**given, **json.loads(saved.arguments)} == given
        assert "21" in saved.arguments
        assert find_place(priced, saved).how == "completed"
        assert replay_run(priced, saved).finding is None
        failed = await app.start(priced, 21, "nightly", fails=True, id="p-2")
        with pytest.raises(RunFailed, match="21 nightly 1"):
            await failed.result(timeout_s=REPLY_MAX_S)
        saved = await save(failed.instance_id)
        assert json.loads(saved.arguments)["result"] == 21
        assert find_place(priced, saved).how == "failed"


async def test_another_argument_named_result_is_seen_after_the_end(at: str):
    async with App(priced, name="shop", at=at) as app:
        run = await app.start(priced, 21, id="p-1")
        assert await run.result(timeout_s=REPLY_MAX_S) == 42
        assert (await app.start(priced, 21, id="p-1")).instance_id == run.instance_id
        for other in (22, 42):
            with pytest.raises(IdempotencyConflict, match=f"result is {other} and was 21"):
                await app.start(priced, other, id="p-1")


class OlderEngine:
    def __init__(self, status: str) -> None:
        self._status = status

    async def read_run(self, instance_id: str) -> Instance:
        shown = msgspec.Raw(b'{"result": 42, "schedule": "nightly"}')
        return Instance(id=instance_id, status=self._status, variables=shown)

    async def tree(self, instance_id: str) -> dict[str, Any]:
        return {"workflow": "priced", "version": 1}

    async def records(self, instance_id: str, after: int) -> SavedPage:
        return SavedPage([], more=False, began_at=float(after), arguments=None)


async def test_an_older_engine_says_no_arguments_and_the_shown_ones_are_taken():
    for status, kept in (("COMPLETED", ["schedule"]), ("FAILED", ["result", "schedule"])):
        assert list(json.loads((await save_run(OlderEngine(status), "1f")).arguments)) == kept


async def test_who_may_read_may_debug(database_dsn: str, tmp_path: Path, capsys):
    tokens = {role: make_token() for role in ("viewer", "executor", "worker")}
    known = tuple(f"{role}={role}=sha256:{made.digest.hex()}" for role, made in tokens.items())
    files = {}
    for role, made in tokens.items():
        files[role] = tmp_path / role
        files[role].write_text(made.text)
        files[role].chmod(0o600)
    async with serving(database_dsn, authentication=True, api_tokens=known) as served:
        async with App(too_much, name="shop", at=database_dsn) as app:
            run = await app.start(too_much, 4, id="o-1")
            with pytest.raises(Exception, match="too many"):
                await run.result(timeout_s=REPLY_MAX_S)

        async def asked(role: str) -> int:
            def ask() -> int:
                try:
                    return run_debug("o-1", HERE, None, served.at, files[role], as_json=True)
                except SystemExit as error:
                    return int(error.code or 0)
                except Exception as error:  # typer.Exit
                    return int(getattr(error, "exit_code", 99))

            return await trio.to_thread.run_sync(ask)

        assert await asked("viewer") == 0
        assert '"how": "failed"' in capsys.readouterr().out
        assert await asked("worker") == 1
        assert "worker" in capsys.readouterr().err


class Adapter:
    """debugpy as VS Code speaks to it: the adapter on its standard input, by the debug adapter protocol."""

    def __init__(self, directory: Path) -> None:
        environment = {
            **os.environ,
            "PYTHONPATH": str(Path(__file__).parents[2]),
            "PYDEVD_DISABLE_FILE_VALIDATION": "1",
        }
        self.process = subprocess.Popen(
            [sys.executable, "-m", "debugpy.adapter"],
            cwd=directory, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        self._alarm = threading.Timer(REPLY_MAX_S, self.process.kill)
        self._alarm.start()
        self._seq = 0
        self.output = ""

    def close(self) -> None:
        self._alarm.cancel()
        self.process.kill()
        self.process.communicate()

    def send(self, command: str, **arguments: Any) -> int:
        self._seq += 1
        body = json.dumps({"seq": self._seq, "type": "request", "command": command, "arguments": arguments}).encode()
        assert self.process.stdin is not None
        self.process.stdin.write(b"Content-Length: %d\r\n\r\n%s" % (len(body), body))
        self.process.stdin.flush()
        return self._seq

    def read(self, wanted: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        assert self.process.stdout is not None
        while True:
            header = self.process.stdout.readline()
            assert header, f"the adapter has ended: {self.output}"
            self.process.stdout.readline()
            message = json.loads(self.process.stdout.read(int(header.split(b":")[1])))
            if message.get("event") == "output":
                self.output += message["body"]["output"]
            if wanted(message):
                return message

    def ask(self, command: str, **arguments: Any) -> dict[str, Any]:
        seq = self.send(command, **arguments)
        answer = self.read(lambda message: message.get("request_seq") == seq)
        assert answer["success"], answer
        body: dict[str, Any] = answer.get("body") or {}
        return body

    def event(self, *names: str) -> dict[str, Any]:
        return self.read(lambda message: message.get("event") in names)

    def stopped(self) -> tuple[str, int, dict[str, str], str]:
        """Function, line, local variables, and why."""
        event = self.event("stopped", "terminated")
        assert event["event"] == "stopped", self.output
        self.thread = event["body"]["threadId"]
        frame = self.ask("stackTrace", threadId=self.thread)["stackFrames"][0]
        scope = self.ask("scopes", frameId=frame["id"])["scopes"][0]
        found = self.ask("variables", variablesReference=scope["variablesReference"])["variables"]
        return frame["name"], frame["line"], {each["name"]: each["value"] for each in found}, event["body"]["reason"]


def vs_code_configuration() -> dict[str, Any]:
    """As the page has it."""
    [text] = re.findall(r"```json\n(.*?)```", PAGE.read_text(), re.DOTALL)
    [found] = json.loads(text)["configurations"]
    return found


@pytest.fixture
def adapter(tmp_path: Path, journals: dict[str, SavedRun]) -> Generator[Adapter]:
    pytest.importorskip("debugpy", reason="the editor's debugger is not installed")
    for name, saved in journals.items():
        (tmp_path / f"{name}.json").write_bytes(saved.text())
    (tmp_path / "shop").mkdir()
    text = Path(__file__).read_text()
    start, end = text.index("@step\n"), text.index('@workflow(name="order")')
    (tmp_path / "shop" / "__init__.py").write_text("")
    (tmp_path / "shop" / "workflows.py").write_text(
        f"from penstock.durable import open_nursery, receive, sleep, step, workflow\nbegan = []\n{text[start:end]}"
    )
    adapter = Adapter(tmp_path)
    yield adapter
    adapter.close()


def launched(
    adapter: Adapter, name: str, directory: Path, *breakpoints: str, words: tuple[str, ...] = ()
) -> dict[str, int]:
    """Start the page's configuration for a journal. Give the lines of texts in the code."""
    configuration = vs_code_configuration()
    assert configuration["args"][1] == "order-17"
    configuration["args"] = ["debug", f"{name}.json", *configuration["args"][2:], *words]
    configuration = json.loads(json.dumps(configuration).replace("${workspaceFolder}", str(directory)))
    code = directory / "shop" / "workflows.py"
    lines = {text: code.read_text().split(text)[0].count("\n") + 1 for text in breakpoints}
    adapter.ask("initialize", adapterID="debugpy", linesStartAt1=True, columnsStartAt1=True, pathFormat="path")
    adapter.send("launch", python=[sys.executable], **configuration)
    adapter.event("initialized")
    where = [{"line": line} for line in lines.values()]
    adapter.ask("setBreakpoints", source={"path": str(code)}, breakpoints=where)
    adapter.ask("setExceptionBreakpoints", filters=["uncaught"])
    adapter.ask("configurationDone")
    return lines


@pytest.mark.slow(reason="starts the debug adapter and a program under it")
def test_an_editor_stops_at_breakpoints_and_where_the_run_waits(adapter: Adapter, tmp_path: Path):
    at = 'by = await receive("approval", str)'
    lines = launched(adapter, "at-step", tmp_path, at)
    name, line, variables, why = adapter.stopped()
    assert (name, line, variables["stock"], why) == ("order", lines[at], "8", "breakpoint")
    adapter.send("continue", threadId=adapter.thread)
    name, line, variables, _ = adapter.stopped()
    assert (name, line, variables["by"]) == ("order", lines[at] + 1, "'ann'")
    adapter.send("continue", threadId=adapter.thread)
    adapter.event("terminated")
    assert "goes no further than /2: its journal ends here" in adapter.output


@pytest.mark.slow(reason="starts the debug adapter and a program under it")
def test_an_editor_stops_at_the_error_of_a_run_that_failed(adapter: Adapter, tmp_path: Path):
    launched(adapter, "failed", tmp_path)
    name, _, variables, why = adapter.stopped()
    assert (name, variables["stock"], why) == ("too_much", "8", "exception")


@pytest.mark.slow(reason="starts the debug adapter and a program under it")
def test_an_editor_steps_and_evaluates_from_an_operation_on(adapter: Adapter, tmp_path: Path):
    launched(adapter, "done", tmp_path, words=("--until", "/0"))
    name, line, variables, _ = adapter.stopped()
    assert (name, "stock" in variables) == ("order", False)
    adapter.send("next", threadId=adapter.thread)
    name, after, variables, why = adapter.stopped()
    assert (name, after, variables["stock"], why) == ("order", line + 1, "8", "step")
    frame = adapter.ask("stackTrace", threadId=adapter.thread)["stackFrames"][0]["id"]
    read = adapter.ask("evaluate", expression="open(__file__).read(4)", frameId=frame, context="repl")
    assert read["result"] == "'from'"
    adapter.send("continue", threadId=adapter.thread)
    adapter.event("terminated")
    assert "the replay has ended: done.json completed" in adapter.output
