"""Open runs replayed against the code that is to be deployed: which of them it would block, where, and what to do.

Nothing is changed and no step is called: a replay is a pure function of code and journal. `penstock check` is its
command; `replay_run` is for one journal, whoever has it (`penstock.testing.assert_replays`).
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncGenerator, Iterable, Sequence
from types import CodeType, FunctionType, ModuleType
from typing import Any, Final, Literal, Protocol

import msgspec
import trio
import trio.lowlevel

from penstock.durable.activation import Activation, Still
from penstock.durable.backend import RecordPage, SavedPage
from penstock.durable.step import Step
from penstock.durable.workflow import Workflow
from penstock.kernel.errors import Blocked, Mismatch, Undecodable
from penstock.kernel.record import RULES, Record
from penstock.kernel.replay import marks_of
from penstock.wire.fields import json_text
from penstock.wire.model import Instance

Kept = tuple[str, str, str]
"""What a run waits for: path, kind, and the name or nothing."""

WAITS: Final = frozenset({"step", "sleep", "receive", "child"})
REFERENCES_MAX: Final = 10_000
SHOWN_WAITS: Final = 3
EXAMPLES_MAX: Final = 5
"""Runs that are named of each finding."""


class Finding(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    """What the code and a journal disagree about.

    ``verdict``: ``breaks`` (the run would be blocked), ``payload`` (what was recorded does not fit the types), or
    ``other frontier`` (it goes on, but waits for something else than it waits for now). ``patch`` is what to write.
    """

    verdict: Literal["breaks", "payload", "other frontier"]
    text: str
    path: str | None = None
    recorded: str | None = None
    now: str | None = None
    where: str | None = None
    patch: str | None = None


class Replayed(msgspec.Struct, frozen=True):
    """One run. ``answers``: what `patched` said in it."""

    records: int
    finding: Finding | None
    answers: dict[str, bool]


class Found(msgspec.Struct):
    """A finding, and the runs that have it: how many, and some of their ids."""

    finding: Finding
    count: int = 0
    runs: list[str] = []


class Report(msgspec.Struct, rename="camel"):
    """Of a workflow in a version. ``patches``: for each how many runs it says yes and no to. ``missing``: there is no
    code for it here."""

    workflow: str
    version: int
    runs: int = 0
    records: int = 0
    missing: bool = False
    found: list[Found] = []
    patches: dict[str, tuple[int, int]] = {}

    @property
    def breaks(self) -> bool:
        """Return whether a deploy would leave runs standing."""
        return (self.missing and self.runs > 0) or any(each.finding.verdict != "other frontier" for each in self.found)

    def add(self, id: str, run: Replayed) -> None:
        """One more run."""
        self.runs += 1
        self.records += run.records
        for name, said in run.answers.items():
            yes, no = self.patches.get(name, (0, 0))
            self.patches[name] = (yes + said, no + (not said))
        if run.finding is not None:
            same = next((each for each in self.found if each.finding == run.finding), None)
            if same is None:
                same = Found(run.finding)
                self.found.append(same)
            same.count += 1
            if len(same.runs) < EXAMPLES_MAX:
                same.runs.append(id)


class CheckedRun(msgspec.Struct, frozen=True):
    """A run that has not ended. ``id``: what it was started with, or its instance's. ``waits``: of one that is parked
    what it waits for, as its executor said."""

    id: str
    instance: int
    arguments: str
    started_at: float
    page: RecordPage
    waits: list[Kept] | None


class RunReader(Protocol):
    """Where open runs are read."""

    async def code_versions(self, workflow: str) -> dict[int, int]:
        """By version of a workflow's code the key of the definition that its runs have."""
        ...

    def read_open(self, definition: int) -> AsyncGenerator[list[CheckedRun]]:
        """All runs of a definition that have not ended, in slices, each with the first page of its journal."""
        ...

    async def read_records(self, instance: int, after: int) -> RecordPage:
        """Return a page of a journal beyond a position."""
        ...

    async def read_marks(self, instance: int) -> list[str]:
        """Return the marks of a whole journal."""
        ...


class SavedRun(msgspec.Struct, frozen=True, rename="camel"):
    """A run as a file keeps it: all that a replay needs. ``started_at`` is in seconds since 1970."""

    workflow: str
    version: int
    run_id: str
    arguments: str
    started_at: float
    records: list[Record]
    rules: int = 0  # of records that tell none; files of before there were versions say nothing of them

    def text(self) -> bytes:
        """JSON, for people too."""
        return msgspec.json.format(msgspec.json.encode(self)) + b"\n"


class JournalReader(Protocol):
    """Where one run is read, open or ended."""

    async def read_run(self, instance_id: str) -> Instance:
        """The run as it is now."""
        ...

    async def tree(self, instance_id: str) -> dict[str, Any]:
        """Its branches, as REST shows them."""
        ...

    async def records(self, instance_id: str, after: int) -> SavedPage:
        """Return a page of its journal beyond a position."""
        ...


async def save_run(journals: JournalReader, instance_id: str) -> SavedRun:
    """Return a run with its whole journal."""
    code = await journals.tree(instance_id)
    page = await journals.records(instance_id, 0)
    records, arguments, began_at = list(page.records), page.arguments, page.began_at
    while page.more:
        page = await journals.records(instance_id, records[-1].pos)
        records += page.records
    given = (
        _arguments_shown(await journals.read_run(instance_id)) if arguments is None else msgspec.json.decode(arguments)
    )
    return SavedRun(
        workflow=code["workflow"],
        version=code["version"],
        run_id=instance_id,
        arguments=msgspec.json.encode(given).decode(),
        started_at=began_at,
        records=records,
        rules=RULES,
    )


def _arguments_shown(instance: Instance) -> dict[str, Any]:
    """Return what a run was started with, as an older engine shows it: the result of a completed one stands in the
    place of an argument with that name."""
    variables: dict[str, Any] = msgspec.json.decode(json_text(instance.variables))
    if instance.status == "COMPLETED":
        variables.pop("result", None)
    return variables


class Replay:
    """One run against a workflow: pages of its journal go in, what is wrong comes out."""

    def __init__(
        self, workflow: Workflow[..., Any], run_id: str, arguments: str, started_at: float, *, rules: int = RULES
    ) -> None:
        self._workflow = workflow
        self._activation = Activation(workflow, run_id, arguments, started_at, Still(), rules=rules)
        self._count = 0
        self._names: list[tuple[str, str | None]] = []  # path and name of records and of open calls, for the patch
        self._blocked: Blocked | None = None

    def start(self, marks: Iterable[str], records: Sequence[Record], *, more: bool) -> None:
        """The body's first activation; as `Activation.start`."""
        try:
            self._activation.start(replaying=True, records=records, more=more, marks=frozenset(marks))
        except Blocked as error:
            self._blocked = error

    def apply_record(self, records: Sequence[Record], *, more: bool) -> None:
        """The next records; with ``more`` others follow."""
        self._count += len(records)
        if self._blocked is not None:
            return
        try:
            self._activation.reapply_records(records, more=more)
        except Blocked as error:
            self._blocked = error
            self._names = [(each.path, each.name) for each in records]

    def result(self, waits: Sequence[Kept] | None) -> Replayed:
        """What became of it. ``waits``: what its executor said that it waits for, None when that is not known."""
        answers = dict(self._activation.kernel.answers or {})
        self._names += [(path, name) for path, kind, name in waits or () if kind in ("step", "child")]
        finding = self._finding(self._blocked) if self._blocked is not None else self._frontier(waits)
        self._activation.discard()
        return Replayed(self._count, finding, answers)

    def _finding(self, error: Blocked) -> Finding:
        if isinstance(error, Mismatch):
            patch = patch_for(self._workflow, error, self._names)
            return Finding("breaks", str(error), error.path, error.recorded, error.asked, error.where, patch)
        return Finding("payload" if isinstance(error, Undecodable) else "breaks", str(error))

    def _frontier(self, waits: Sequence[Kept] | None) -> Finding | None:
        if waits is None:
            return None
        before = {each for each in waits if each[1] in WAITS}
        shown = self._activation.waits() if self._activation.result is None else []
        after = {(each["path"], each["kind"], each.get("name") or ""): each for each in shown if each["kind"] in WAITS}
        if before == set(after):
            return None
        now = _words(after.keys() - before) or ("nothing: it ends" if not after else "less")
        where = next((each.get("where") for key, each in after.items() if key not in before), None)
        text = f"it waits for {_words(before - after.keys()) or 'nothing else'}; with this code for {now}"
        return Finding("other frontier", text, where=where)


def replay_run(workflow: Workflow[..., Any], saved: SavedRun) -> Replayed:
    """Return a whole journal."""
    replay = Replay(workflow, saved.run_id, saved.arguments, saved.started_at, rules=saved.rules)
    replay.start(marks_of(saved.records), saved.records, more=False)
    replay.apply_record(saved.records, more=False)
    return replay.result(None)


def replay_open(workflow: Workflow[..., Any], run: CheckedRun) -> Replayed:
    """A run whose whole journal is in its page."""
    replay = Replay(workflow, run.id, run.arguments, run.started_at)
    replay.start(marks_of(run.page.records), run.page.records, more=False)
    replay.apply_record(run.page.records, more=False)
    return replay.result(run.waits)


class Elsewhere(Protocol):
    """Where else runs can be replayed, ``count`` slices at once."""

    count: int

    async def replay(self, workflow: Workflow[..., Any], runs: list[CheckedRun]) -> list[Replayed] | None:
        """What became of runs whose whole journals are given; None: the caller is to do it."""
        ...


async def check(
    runs: RunReader, workflows: Sequence[Workflow[..., Any]], elsewhere: Elsewhere | None = None
) -> list[Report]:
    """A report for each version of these workflows that has code here or open runs."""
    reports: list[Report] = []
    code = {(each.name, each.version): each for each in workflows}
    for name in dict.fromkeys(each.name for each in workflows):
        stored = await runs.code_versions(name)
        for version in sorted({*stored, *(each.version for each in workflows if each.name == name)}):
            report = Report(name, version, missing=(name, version) not in code)
            if version in stored:
                await _replay_all(runs, stored[version], code.get((name, version)), report, elsewhere)
            if report.runs or not report.missing:
                reports.append(report)
    return reports


async def _replay_all(
    runs: RunReader,
    definition: int,
    workflow: Workflow[..., Any] | None,
    report: Report,
    elsewhere: Elsewhere | None,
) -> None:
    """While a slice is replayed the database is at the next one."""
    sends, slices = trio.open_memory_channel[list[CheckedRun]](0)

    async def read() -> None:
        async with sends:
            async for slice_ in runs.read_open(definition):
                await sends.send(slice_)

    async def replay() -> None:
        async for slice_ in slices:
            await trio.lowlevel.checkpoint()  # let the reader ask for the next one first
            here = slice_
            if elsewhere is not None and workflow is not None:
                whole = [run for run in slice_ if not run.page.more]
                replayed = await elsewhere.replay(workflow, whole) if whole else None
                if replayed is not None:
                    for run, what in zip(whole, replayed, strict=True):
                        report.add(run.id, what)
                    here = [run for run in slice_ if run.page.more]
            for run in here:
                report.add(run.id, await _replay(runs, workflow, run) if workflow else Replayed(0, None, {}))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(read)
        for _ in range(1 if elsewhere is None else elsewhere.count):
            nursery.start_soon(replay)


async def _replay(runs: RunReader, workflow: Workflow[..., Any], run: CheckedRun) -> Replayed:
    page = run.page
    if not page.more:
        return replay_open(workflow, run)
    if not page.records:  # its first record is large, and may be what it continues with
        page = await runs.read_records(run.instance, 0)
    replay = Replay(workflow, run.id, run.arguments, run.started_at)
    replay.start(await runs.read_marks(run.instance), page.records, more=page.more)
    replay.apply_record(page.records, more=page.more)
    while page.more:
        page = await runs.read_records(run.instance, page.records[-1].pos if page.records else 0)
        replay.apply_record(page.records, more=page.more)
    return replay.result(run.waits)


def patch_for(workflow: Workflow[..., Any], error: Mismatch, records: Sequence[tuple[str, str | None]]) -> str | None:
    """What to write so that runs under way keep to the way they went; None where nothing simple does. ``records``:
    path and name of what was recorded, and of what the run waits for."""
    recorded, asked = error.recorded, error.asked
    if recorded is None:
        return None
    if asked is None:
        return f'if not patched("without {recorded}"): await {recorded}(...)  # as before'
    head, _, index = error.path.rpartition("/")
    if (f"{head}/{int(index) + 1}", asked) in records and not _calls(workflow, recorded):
        return f'if not patched("without {recorded}"): await {recorded}(...)  # as before'
    if _calls(workflow, recorded):
        there = f'if patched("{asked} first"): await {asked}(...); await {recorded}(...)'
        swapped = f"{there}\nelse: await {recorded}(...); await {asked}(...)  # as before, with the same variables"
        if asked in {name for _, name in records}:  # they have changed places
            return swapped
        new = f'if patched("{asked}"): await {asked}(...)'  # whether it was there before, no record says
        return f"{new}  # if {asked} is new\n# if it came after {recorded} before:\n{swapped}"
    return f'if patched("{asked}"): await {asked}(...)\nelse: await {recorded}(...)  # as before'


def _calls(workflow: Workflow[..., Any], step_name: str) -> bool:
    """Return whether the code of a body, or of a function that it names, still names a step."""
    todo: list[Any] = [workflow.function]
    seen: set[int] = set()
    while todo and len(seen) < REFERENCES_MAX:
        function = inspect.unwrap(todo.pop())
        if not isinstance(function, FunctionType) or id(function) in seen:
            continue
        seen.add(id(function))
        for value in _named(function):
            if isinstance(value, Step):
                if value.name == step_name:
                    return True
            elif isinstance(value, FunctionType | Workflow):
                todo.append(value)
    return False


def _named(function: FunctionType) -> list[Any]:
    """What the code of a function may refer to: its globals and closure, and attributes of modules among them."""
    names: set[str] = set()
    codes: list[CodeType] = [function.__code__]
    while codes:
        code = codes.pop()
        names.update(code.co_names)
        codes.extend(const for const in code.co_consts if isinstance(const, CodeType))
    found = [function.__globals__[name] for name in names if name in function.__globals__]
    found += [getattr(value, name, None) for value in found if isinstance(value, ModuleType) for name in names]
    for cell in function.__closure__ or ():
        try:
            found.append(cell.cell_contents)
        except ValueError:  # not set yet
            continue
    return found


def _words(waits: Iterable[Kept]) -> str:
    words = [f"{kind} {name!r} at {path}" if name else f"{kind} at {path}" for path, kind, name in sorted(waits)]
    more = f" and {len(words) - SHOWN_WAITS} more" if len(words) > SHOWN_WAITS else ""
    return ", ".join(words[:SHOWN_WAITS]) + more
