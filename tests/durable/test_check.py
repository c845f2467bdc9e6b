"""Open runs against code that is to be deployed: what breaks is found, with line and patch, and nothing is changed."""

from __future__ import annotations

import importlib.util
import json
import signal
import subprocess
import sys
from collections.abc import Callable, Generator
from decimal import Decimal
from pathlib import Path
from typing import Any

import msgspec
import pytest

from examples import durable_order
from examples.durable_order import Line, Order, Payment
from penstock.cli.check import NotLoaded
from penstock.cli.check import load as load_target
from penstock.durable import Workflow, step, workflow
from penstock.durable.check import Finding, Replay, Replayed, Report, SavedRun, replay_run
from penstock.testing import Message, run_workflow
from tests.durable.programs import Program, ended, own_directory, until

SOURCE = Path(durable_order.__file__).read_text()
RESERVE = "await reserve(o)"
SHIP = "tracking = await ship(o, parcels)"
ASKED = f"await ask_for_approval(o)\n        {RESERVE}"
PATCHED = f'if patched("asked"):\n            await ask_for_approval(o)\n        {RESERVE}'
PAID = (Message("payment", Payment("visa"), after="2 days"),)
Load = Callable[..., Workflow[..., Any]]


@pytest.fixture
def load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Load:
    """The example order, with an edit. No bytecode is kept of it: an edit of the same length within a second would run
    as what was there before."""
    monkeypatch.setattr(sys, "dont_write_bytecode", True)

    def load(before: str = "", after: str = "") -> Workflow[..., Any]:
        path = tmp_path / "edited_order.py"
        assert before in SOURCE
        path.write_text(SOURCE.replace(before, after).replace("    now,\n", "    now,\n    patched,\n"))
        spec = importlib.util.spec_from_file_location(path.stem, path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        monkeypatch.setitem(sys.modules, path.stem, module)
        spec.loader.exec_module(module)
        module.world.path = tmp_path / "world.sqlite3"
        found: Workflow[..., Any] = module.order
        return found

    return load


def found_in(edited: Workflow[..., Any], original: Workflow[..., Any], records: int) -> Finding | None:
    """What is said of a run of the original that has so many records."""
    order_class = original.parameters.hints()["o"]
    order = msgspec.convert(msgspec.to_builtins(Order("A-1", [Line("pen", 2, Decimal(3))])), order_class)
    run = run_workflow(original, order, messages=PAID)
    saved = msgspec.structs.replace(run.saved, records=run.journal[:records])
    assert replay_run(original, saved).finding is None
    return replay_run(edited, saved).finding


def test_what_is_the_same_breaks_nothing(load: Load):
    assert found_in(load(), load(), 3) is None


@pytest.mark.parametrize(
    ("before", "after", "recorded", "asked", "patch"),
    [
        (
            RESERVE,
            ASKED,
            "reserve",
            "ask_for_approval",
            (
                'if patched("ask_for_approval"): await ask_for_approval(...)  # if ask_for_approval is new\n'
                "# if it came after reserve before:\n"
                'if patched("ask_for_approval first"): await ask_for_approval(...); await reserve(...)\n'
                "else: await reserve(...); await ask_for_approval(...)  # as before, with the same variables"
            ),
        ),
        (RESERVE, "pass", "reserve", None, 'if not patched("without reserve"): await reserve(...)  # as before'),
        (
            RESERVE,
            "await ask_for_approval(o)",
            "reserve",
            "ask_for_approval",
            'if patched("ask_for_approval"): await ask_for_approval(...)\nelse: await reserve(...)  # as before',
        ),
    ],
    ids=["inserted", "removed", "replaced"],
)
def test_an_edit_is_found_with_line_and_patch(
    load: Load, before: str, after: str, recorded: str, asked: str | None, patch: str
):
    original = load()
    finding = found_in(load(before, after), original, 3)
    assert finding is not None
    assert finding.verdict == "breaks"
    assert (finding.path, finding.recorded) == ("/0", recorded)
    assert finding.where is not None
    assert finding.where.startswith("edited_order.py:")
    assert (finding.now, finding.patch) == (asked, patch)


def test_a_patched_insertion_breaks_nothing(load: Load):
    original = load()
    assert found_in(load(RESERVE, PATCHED), original, 3) is None


def test_an_edit_behind_what_happened_breaks_nothing(load: Load):
    original = load()
    edited = load(SHIP, f"await ask_for_approval(o)\n        {SHIP}")
    assert found_in(edited, original, 3) is None
    finding = found_in(edited, original, 5)
    assert finding is None, "the parcel is not shipped yet"


def test_a_value_that_fits_no_more_is_found(load: Load):
    original = load()
    finding = found_in(load("def reserve(order: Order) -> str:", "def reserve(order: Order) -> int:"), original, 3)
    assert finding is not None
    assert finding.verdict == "payload"
    assert "at /0: 'reserve' returned" in finding.text


def test_findings_are_counted_with_some_ids():
    report = Report("order", 1)
    finding = Finding("breaks", "at /0 …")
    for number in range(7):
        report.add(f"r-{number}", Replayed(2, finding, {"asked": number == 0}))
    assert report.breaks
    [found] = report.found
    assert (found.count, found.runs) == (7, ["r-0", "r-1", "r-2", "r-3", "r-4"])
    assert report.patches == {"asked": (1, 6)}


PROGRAM = """
from penstock.durable import App, patched, receive, step, workflow

@step
def reserve() -> str:
    return "reserved"

@step
def check_fraud() -> str:
    return "clean"

@workflow
async def order() -> str:
    {edit}
    done = await reserve()
    return done + await receive("{message}", str)

app = App(order)
if __name__ == "__main__":
    app.main()
"""
START = """
import trio
from penstock.durable import App
from program import order
async def main() -> None:
    async with App() as app:
        for n in range(3):
            await app.start(order, id=f"o-{n}")
trio.run(main)
"""


@pytest.fixture
def directory() -> Generator[Path]:
    yield from own_directory()


def checked(served: Program, *options: str, name: str, edit: str = "pass", message: str = "go") -> tuple[int, str]:
    """Exit code and output of the command, with the program edited."""
    (served.directory / f"{name}.py").write_text(PROGRAM.format(edit=edit, message=message))
    done = subprocess.run(
        [sys.executable, "-m", "penstock", "check", f"{name}:app", *options],
        cwd=served.directory, env=served.environment, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    return done.returncode, done.stdout + done.stderr


@pytest.mark.slow(reason="programs in processes of their own")
def test_the_command_replays_what_is_open(directory: Path):
    served = Program(directory, PROGRAM.format(edit="pass", message="go"))
    process = served.start()
    until(lambda: bool(served.rows("SELECT 1 FROM engine")), process)
    code, _, errors = ended(Program(directory, START, "start.py").start())
    assert code == 0, errors
    until(lambda: len(served.rows("SELECT 1 FROM parked")) == 3, process)
    before = served.rows()
    assert checked(served, name="same") == (0, "order@1: 3 open runs, 3 records: ok\n")
    code, text = checked(served, name="inserted", edit="await check_fraud()")
    assert code == 1
    assert "breaks, 3 runs (o-0, o-1, o-2): at /0 the journal has 'reserve'" in text
    assert "the code asks for 'check_fraud' (inserted.py:14)" in text
    assert '    | if patched("check_fraud"): await check_fraud(...)  # if check_fraud is new\n' in text
    assert '    | if patched("check_fraud first"): await check_fraud(...); await reserve(...)\n' in text
    assert checked(served, "--processes", "2", name="inserted", edit="await check_fraud()") == (code, text)
    code, text = checked(served, name="wrapped", edit='patched("fraud") and await check_fraud()')
    assert (code, text) == (0, "order@1: 3 open runs, 3 records: ok\n  patched('fraud'): 0 runs say yes, 3 say no\n")
    code, text = checked(served, "--json", name="waits", message="went")
    assert code == 0
    [report] = json.loads(text)
    assert report["ok"]
    assert [(each["verdict"], each["text"], each["count"]) for each in report["found"]] == [
        ("other frontier", "it waits for receive 'go' at /1; with this code for receive 'went' at /1", 3)
    ]
    assert checked(served, name="broken", edit="1 +")[0] == 2
    saved = [sys.executable, "-m", "penstock", "runs", "save", "o-1", "kept.json"]
    done = subprocess.run(saved, cwd=directory, env=served.environment, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, "kept.json: 1 records of order@1\n")
    assert msgspec.json.decode((directory / "kept.json").read_bytes(), type=SavedRun).records[0].path == "/0"
    assert served.rows() == before, "nothing is changed"
    process.send_signal(signal.SIGTERM)
    assert ended(process)[0] == 0


def test_what_is_no_code_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "nothing_here.py").write_text("x = 1\n")
    monkeypatch.chdir(tmp_path)
    for target, text in {
        "nothing_here": "there is no workflow",
        "nothing_here:y": "nothing_here has no y",
        "no_such_module": "no_such_module can't be imported",
    }.items():
        with pytest.raises(NotLoaded, match=text):
            load_target(target)


@step
async def left() -> int:
    return 1


@step
async def right() -> int:
    return 2


@workflow(name="both")
async def left_then_right() -> int:
    return await left() - await right()


@workflow(name="both")
async def right_then_left() -> int:
    second = await right()
    return await left() - second


SWAPPED = (
    'if patched("right first"): await right(...); await left(...)\n'
    "else: await left(...); await right(...)  # as before, with the same variables"
)


def test_steps_that_changed_places_leave_no_variable_unset():
    finding = replay_run(right_then_left, run_workflow(left_then_right).saved).finding
    assert finding is not None
    assert finding.patch == SWAPPED


@pytest.mark.parametrize(
    ("waits", "patch"),
    [
        ([("/1", "step", "right")], SWAPPED),
        (
            [("/1", "receive", "go on")],
            'if patched("right"): await right(...)  # if right is new\n# if it came after left before:\n' + SWAPPED,
        ),
    ],
    ids=["it runs", "it has not begun"],
)
def test_a_swap_whose_second_step_has_no_record(waits: list[tuple[str, str, str]], patch: str):
    saved = run_workflow(left_then_right).saved
    replay = Replay(right_then_left, saved.run_id, saved.arguments, saved.started_at)
    replay.start((), saved.records[:1], more=False)
    replay.apply_record(saved.records[:1], more=False)
    finding = replay.result(waits).finding
    assert finding is not None
    assert finding.patch == patch


def test_what_replaces_a_step_that_is_followed_by_it():
    """The step before it is gone from the code, and the journal has not come to the other one."""

    @workflow(name="both")
    async def right_alone() -> int:
        return await right()

    saved = run_workflow(left_then_right).saved
    replay = Replay(right_alone, saved.run_id, saved.arguments, saved.started_at)
    replay.start((), saved.records[:1], more=False)
    replay.apply_record(saved.records[:1], more=False)
    finding = replay.result([("/1", "step", "right")]).finding
    assert finding is not None
    assert finding.patch == 'if not patched("without left"): await left(...)  # as before'
