"""Random bodies whose executor dies after each of their records, or that are cancelled there, scope by scope."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterator

import pytest

from penstock.kernel.drive import Kernel
from penstock.kernel.operation import Start
from penstock.kernel.record import OUTCOMES, JournalKind, Record
from tests.kernel.oracle import Executor, KernelSide, on_kernel, outcome_of, replayed
from tests.kernel.programs import Interpreter, Program, Programs

BODIES = 200


class Survivor(Executor):
    """Goes on from another one's journal. With ``again`` the steps that were running start from the beginning, as in a
    new process; else they went on outside, so the run comes out as if nothing had happened."""

    def __init__(self, program: Program, journal: list[Record], *, again: bool) -> None:
        kernel = Kernel()
        end = journal[-1].at if journal else 0.0
        is_said = any(
            record.at == end and record.kind in (JournalKind.MESSAGE, JournalKind.DROPPED, JournalKind.ASKED)
            for record in journal
        )
        left = [message for message in program.messages if message[0] > end or (message[0] == end and not is_said)]
        super().__init__(kernel, Interpreter(KernelSide(kernel, program)), left)
        kernel.start(self.interpreter.main(program.body))
        self.obey()
        for record in journal:
            self.at = record.at
            if record.name == "release":
                self.released = True
                self.interpreter.release()
            if record.kind in OUTCOMES:
                del self.running[record.path]
                self.due = deque(entry for entry in self.due if entry[0] != record.path)
            self.record(record)
        if again:
            stopping = {path for path, kind in self.due if kind is JournalKind.STOPPED}
            self.ends = [
                (self.at + call.seconds, next(self.ticks), path)
                for path, call in self.running.items()
                if path not in stopping
            ]
            heapq.heapify(self.ends)
            self.due = deque(entry for entry in self.due if entry[0] in stopping)

    def obey(self) -> None:
        for command in self.kernel.commands.values():
            if isinstance(command, Start):
                assert not self.kernel.pending[command.path].scope.effective, "a step starts in a cancelled scope"
        super().obey()

    def end(self) -> tuple:
        """Outcome and trace at the end, when nothing is open any more."""
        self.run()
        if self.kernel.result is None:
            self.kernel.discard()
            return "stuck", ()
        assert not self.running
        assert not self.kernel.pending
        assert self.kernel.open_branches() == []
        answered = [record.path for record in self.journal if record.kind in OUTCOMES]
        assert len(answered) == len(set(answered)), "a step has two outcomes"
        begun, calls = (
            [each.path for each in self.journal if each.kind is kind]
            for kind in (JournalKind.ACCEPTED, JournalKind.ANSWERED)
        )
        assert sorted(begun) == sorted(calls), "a call has begun and has no answer, or two"
        return outcome_of(self.kernel, self.interpreter)


def bodies() -> Iterator[tuple[Program, tuple, list[Record]]]:
    """Bodies that do something, what became of them undisturbed, and their journals."""
    found, seed = 0, 0
    while found < BODIES:
        program = Programs(seed, ties=False).program()
        seen, journal = on_kernel(program)
        seed += 1
        if len(journal) > 2:
            found += 1
            yield program, seen, journal


@pytest.mark.slow(reason="a crash after every record of many programs")
def test_an_executor_that_dies_after_any_record_changes_nothing():
    records = 0
    for program, seen, journal in bodies():
        for count in range(len(journal) + 1):
            survivor = Survivor(program, journal[:count], again=False)
            assert survivor.end() == seen
            assert survivor.journal == journal
            records += 1
    assert records > 5 * BODIES


@pytest.mark.slow(reason="a crash after every record of many programs")
def test_steps_that_start_again_after_a_crash_leave_nothing_open():
    for program, _, journal in bodies():
        for count in range(len(journal) + 1):
            survivor = Survivor(program, journal[:count], again=True)
            assert survivor.end() == replayed(program, survivor.journal)


@pytest.mark.slow(reason="a crash after every record of many programs")
def test_scopes_and_executors_may_end_after_any_record():
    cancels = 0
    for program, _, journal in bodies():
        for count in range(len(journal) + 1):
            for path in open_scopes(program, journal[:count]):
                first = Survivor(program, journal[:count], again=False)
                if first.kernel.result is not None:
                    continue
                first.record(Record(at=first.at, kind=JournalKind.CANCEL, path=path))
                second = Survivor(program, first.journal, again=False)
                seen = first.end()
                assert seen == second.end()
                assert seen == replayed(program, first.journal)
                cancels += 1
    assert cancels > 10 * BODIES


def open_scopes(program: Program, journal: list[Record]) -> list[str]:
    kernel = Survivor(program, journal, again=False).kernel
    found, todo = [], [kernel.root]
    while todo:
        scope = todo.pop()
        found.append(scope.path)
        todo.extend(scope.scopes)
    kernel.discard()
    return found
