"""Stored text commands no terminal: what is printed for people is escaped, at one place; JSON stays as it is."""

from __future__ import annotations

import ast
import io
import logging
import re
import subprocess
import sys
from datetime import UTC, datetime

import pytest
from rich.console import Console
from typer.testing import CliRunner

from penstock.cli.app import app
from penstock.cli.demo.view import failures, history_table
from penstock.cli.options import print_done, print_json, print_page, print_table
from penstock.cli.plain import echo, echo_lines, escaped
from penstock.log.log import configure_logging, get_logger
from penstock.log.plain_log import PlainFormatter
from penstock.wire.model import Attempt, Instance, StepExecution
from penstock.wire.page import Page
from tests.house.sources import SRC

RAW = "\x1b]0;owned\x07\x1b[31m\x9b2J\u202egnp\u2066\u200f\u2028\r\nCOMPLETED\x00\x7f\t"
SHOWN = (
    r"\x1b]0;owned\x07\x1b[31m\x9b2J\u202egnp\u2066\u200f\u2028\r\nCOMPLETED\x00\x7f\t"
)  # fmt: skip


def test_everything_that_moves_or_hides_is_escaped() -> None:
    assert escaped(RAW) == SHOWN
    for number in (
        *range(0x20),
        *range(0x7F, 0xA0),
        0x61C,
        0x200E,
        0x200F,
        *range(0x2028, 0x202F),
        *range(0x2066, 0x206A),
    ):
        assert escaped(chr(number)).isprintable(), hex(number)


def test_what_people_read_is_left_alone() -> None:
    for text in ("Größe 5 · 漢字", "🙂", "a\\nb", "\u0627\u0644"):
        assert escaped(text) == text


def test_a_row_of_a_table_stays_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(("instance", "reason"), [("1", RAW), ("2", "boom")])
    assert capsys.readouterr().out.splitlines() == ["instance  reason", f"1         {SHOWN}", "2         boom"]


def test_each_way_to_print_escapes(capsys: pytest.CaptureFixture[str]) -> None:
    echo(RAW)
    echo_lines([RAW])
    print_done({}, RAW, as_json=False)
    print_page(Page(items=[RAW]), ("reason",), lambda each: (each,), as_json=False, limit=1, narrower="")
    reported = capsys.readouterr().out.splitlines()
    assert reported == [SHOWN, SHOWN, SHOWN, "reason", SHOWN]


def test_json_stays_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    print_json({"reason": "\u202e\x1b"})
    assert "\u202e\\u001b" in capsys.readouterr().out


@pytest.mark.slow(reason="parses all commands")
def test_nothing_is_printed_for_people_elsewhere() -> None:
    """Whatever writes to the terminal gets constants, JSON, or what was escaped just before."""
    assert [
        f"{file.relative_to(SRC)}:{node.lineno}: {ast.unparse(node)}"
        for file in sorted(SRC.rglob("*.py"))
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.Call) and (said := _said(node)) is not None and not _is_harmless(said)
    ] == []


def _said(call: ast.Call) -> list[ast.expr] | None:
    """What a call writes to a terminal by other means than `cli/plain`; None where it does nothing of the kind."""
    match call.func:
        case ast.Name("print"):
            return call.args
        case ast.Attribute(ast.Name("typer" | "click"), "echo" | "secho" | "confirm" | "prompt"):
            return call.args
        case ast.Attribute(ast.Attribute(ast.Name("sys"), "stdout" | "stderr"), "write" | "writelines"):
            return call.args
        case ast.Attribute(ast.Name("console") | ast.Attribute(_, "_console"), "print"):
            return call.args
        case _:
            return None


def _is_harmless(said: list[ast.expr]) -> bool:
    """Constants and numbers, JSON, the result of `escaped`, or tables whose cells are (`demo/view`)."""
    text = " ".join(ast.unparse(each) for each in said)
    if re.search(r"\b(escaped|escaped_lines|json\.(dumps|encode|format)|history_table)\(", text):
        return True
    shown = [each for part in said for each in ast.walk(part) if isinstance(each, ast.FormattedValue)]
    return all(ast.unparse(each.value) in HARMLESS for each in shown) and all(
        isinstance(each, ast.Constant | ast.JoinedStr | ast.BinOp) for each in said
    )


HARMLESS = {
    "NEXT", "time.monotonic() - begun", "url", "path.name", "summary.id", "summary.version", "definition.name", "count",
    "jobs", "seconds", "100 * tenths // PLAIN_LINES", "counts",
}  # fmt: skip
"""What the demo says of itself: its own definition, its own address, numbers."""


@pytest.mark.parametrize(
    "arguments",
    [
        ["instance", "list", "--attribute", RAW.replace("\x00", "")],
        ["bulk", "retry", "--filter", "\x1b]0;x\x07=1"],
        ["definition", "diff", "a", "b\x1b[31m.json", "--to", "2"],
        ["\x1b[31mno-such-command"],
        ["instance", "list", "--\x1b[31m"],
        ["instance", "start", "a", "{\x1b"],
    ],
    ids=["pairs", "filter", "file", "command", "option", "json"],
)
def test_wrong_use_is_told_without_commands_to_the_terminal(arguments: list[str]) -> None:
    reported = CliRunner().invoke(app, arguments)
    assert reported.exit_code == 2
    assert not any(0x7F <= ord(char) < 0xA0 or char in "\x1b\x07\u202e" for char in reported.output), reported.output


def test_a_log_for_people_escapes_values_and_keeps_tracebacks() -> None:
    out = io.StringIO()
    configure_logging(form="human", stream=out)
    try:
        get_logger("penstock.engine").warning("an instance failed", reason=RAW)
        try:
            raise RuntimeError("\x1b[31m")
        except RuntimeError:
            logging.getLogger("others").exception("\x1b]0;x\x07 of others")
    finally:
        configure_logging()
    lines = out.getvalue().splitlines()
    assert SHOWN in lines[0]
    assert "\x1b" not in out.getvalue()
    assert "\x07" not in out.getvalue()
    assert any(line.startswith("RuntimeError: \\x1b[31m") for line in lines), "a traceback has its lines"


def logged(handler: logging.Handler, out: io.StringIO, template: str, *given: object) -> list[str]:
    logger = logging.getLogger("penstock.tests.escapes")
    logger.propagate = False
    logger.handlers = [handler]
    try:
        raise ValueError(f"no such name: {RAW}")
    except ValueError:
        logger.exception(template, *given)
    assert not any(0x7F <= ord(char) < 0xA0 or char in "\x1b\x07\u202e\r\t" for char in out.getvalue())
    return out.getvalue().splitlines()


def test_the_log_of_a_worker_that_has_set_up_none_escapes() -> None:
    out = io.StringIO()
    handler = logging.StreamHandler(out)
    handler.setFormatter(PlainFormatter("%(levelname)s %(message)s"))
    lines = logged(handler, out, "job failed: %s", RAW)
    assert lines[0] == f"ERROR job failed: {SHOWN}"
    assert lines[1] == "Traceback (most recent call last):"
    assert "at y" in logged(handler, out, "step failed:\n%s", "at x\nat y"), "a message that is written in lines"


@pytest.mark.parametrize("program", ["worker", "app", "command"])
def test_what_a_program_says_in_a_terminal_escapes(program: str) -> None:
    said = subprocess.run([sys.executable, "-c", PROGRAMS[program]], capture_output=True, timeout=120, check=False)
    reported = said.stderr.decode()
    assert "\\x1b]0;owned\\x07" in reported, reported
    assert not any(0x7F <= ord(char) < 0xA0 or char in "\x1b\x07\u202e" for char in reported), reported


FAILS = "'no such name: \\x1b]0;owned\\x07\\u202e'"
PROGRAMS = {
    "worker": f"""
import logging
from penstock.worker import Worker
worker = Worker("http://127.0.0.1:9")
async def run():
    logging.getLogger("penstock.worker").error("job failed: %s", {FAILS})
worker.run = run
worker.main()
""",
    "app": f"""
import logging, trio
from penstock.durable.app import App
app = App()
async def run():
    try:
        async with app.opened():
            pass
    except BaseException:
        pass
    logging.getLogger("penstock.durable").error("run 1 failed: %s", {FAILS})
app._open_backend = None
trio.run(run)
""",
    "command": f"""
import sys
import penstock.cli
def fails(): raise RuntimeError({FAILS})
penstock.cli._run = fails
penstock.cli.main()
""",
}  # fmt: skip
"""What an error in each of them tells."""


def test_a_table_of_the_demo_has_no_raw_cell() -> None:
    noon = datetime(2026, 1, 1, tzinfo=UTC)
    attempts = [Attempt(attempt=1, status="FAILED", worker=RAW, reason=RAW), Attempt(attempt=2, worker="[red]w")]
    step = StepExecution(id="1", instance_id="1", step_id="pay", step_type="X", attempt_number=1, status="COMPLETED",
                         started_at=noon, attempts=attempts)  # fmt: skip
    instance = Instance(id="1", definition_id="d", definition_version=1, status="FAILED", current_step_ids=[],
                        variables={}, started_at=noon, business_key=RAW, failure_reason=RAW)  # fmt: skip
    out = io.StringIO()
    Console(file=out, width=600).print(history_table(instance, [step], {}))
    assert "\x1b" not in out.getvalue()
    assert "\u202e" not in out.getvalue()
    assert "[red]w" in out.getvalue()
    assert failures([instance]) == [f"instance 1 is FAILED: {SHOWN}"]
