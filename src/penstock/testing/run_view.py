"""What a test sees of one workflow instance, and what it claims about it.

All of it is read from the database whenever it is asked for, so it is never stale; that blocks for a millisecond or
two. Changes nothing: `run.py` and `blocking.py` add what a test does to a run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Protocol, Self

import msgspec

from penstock.client import Client, Instance, Job, NotFound, StepExecution
from penstock.testing.agenda import Agenda, AgendaStep, show_time
from penstock.testing.engine_thread import EngineThread
from penstock.testing.stubs import Duration


class RunningEngine(Protocol):
    """The engine of a test (`rehearsal.TestEngine`), as far as a run needs it."""

    thread: EngineThread
    agenda: Agenda
    client: Client

    async def take_job(self, job_id: str) -> Job:
        """Lease a job that waits."""
        ...

    @property
    def stubs(self) -> Mapping[str, object]:
        """Who does the jobs, by type."""
        ...

    @property
    def now(self) -> datetime:
        """Return the engine's time."""
        ...

    async def settle(self) -> None:
        """Go on until nothing more happens without time passing."""
        ...

    async def run_until(self, condition: Callable[[], bool], run: Any, within: Duration) -> None:
        """Go on, and on in time, until ``condition`` holds."""
        ...


class Status(str):
    """A status that can tell the story of its run, when a comparison fails (`plugin.py`)."""

    penstock_story: Callable[[], str]

    def __new__(cls, text: str, story: Callable[[], str]) -> Self:
        """``story`` is asked when a comparison has failed."""
        made = super().__new__(cls, text)
        made.penstock_story = story
        return made


class StepPath(list[str]):
    """As `Status`, for a path."""

    def __init__(self, steps: Iterable[str], story: Callable[[], str]) -> None:
        super().__init__(steps)
        self.penstock_story = story


class InspectedRun:
    """A workflow instance as it is now."""

    def __init__(self, engine: RunningEngine, instance_id: str) -> None:
        self._engine = engine
        self.id = instance_id

    # -- what is true now

    @property
    def instance(self) -> Instance:
        """All that the engine says of it."""
        view = self._engine.thread.call_blocking(self._engine.thread.engine.instances.get, self.id)
        return msgspec.json.decode(msgspec.json.encode(view), type=Instance)

    @property
    def history(self) -> list[StepExecution]:
        """Each entry into a step with its attempts, in the order of entry."""
        items = self._engine.thread.call_blocking(self._engine.thread.engine.instances.history, self.id)
        return msgspec.json.decode(msgspec.json.encode(items), type=list[StepExecution])

    @property
    def status(self) -> str:
        """``ACTIVE``, ``WAITING`` (a user task or a wait is open), ``COMPLETED``, ``FAILED`` or ``CANCELLED``."""
        return Status(self.instance.status, self.story)

    @property
    def ended(self) -> bool:
        """Return whether it is completed, failed or cancelled."""
        return self.instance.ended

    @property
    def failure(self) -> str | None:
        """Why it failed or was cancelled."""
        return self.instance.failure_reason

    @property
    def variables(self) -> dict[str, Any]:
        """Its variables."""
        return self.instance.variables

    @property
    def path(self) -> list[str]:
        """The ids of the steps that were entered, in this order, one for each entry; gateways and ends too."""
        return StepPath((item.step_id for item in self.history), self.story)

    @property
    def open_steps(self) -> list[str]:
        """The ids of the steps where it stands now, each once."""
        return self.instance.current_step_ids

    @property
    def next(self) -> Self | None:
        """Return the run of the workflow that this one started at its end."""
        child = self._engine.agenda.child_of(self.id)
        return None if child is None else self._of(child)

    @property
    def children(self) -> list[Self]:
        """The runs that its calls started, in order."""
        return [self._of(child) for child in self._engine.agenda.called_by(self.id)]

    def called(self, step_id: str, *, nth: int = 0) -> Self:
        """The run that an open call at this step waits for; of several the ``nth``, from 0, in order of entry.

        Raises:
            NotFound: nothing is called there.
        """
        child = self._engine.agenda.called_at(self._open(step_id, nth).id)
        if child is None:
            raise NotFound(f"step '{step_id}' has called nothing")
        return self._of(child)

    def _open(self, step_id: str, nth: int) -> StepExecution:
        """Raises NotFound."""
        found = [
            item for item in self.history if item.step_id == step_id and item.status == "RUNNING" and item.items is None
        ]
        if not 0 <= nth < len(found):
            raise NotFound(f"{len(found)} executions of step '{step_id}' are open, there is no number {nth}")
        return found[nth]

    def attempts(self, step_id: str) -> int:
        """Return how many attempts were made at the jobs of a step that are over."""
        return sum(len(item.attempts) for item in self.history if item.step_id == step_id)

    def waits_for(self) -> list[str]:
        """For each open step what it waits for, in words."""
        return [f"{step.step_id}: {self._explained(step)}" for step in self._engine.agenda.open_steps(self.id)]

    def _of(self, instance_id: str) -> Self:
        return type(self)(self._engine, instance_id)

    def _explained(self, step: AgendaStep) -> str:
        if step.in_queue and step.job_type not in self._engine.stubs:
            return f"{step.what}, and there is no stub for it"
        return step.what

    # -- what a test claims; each message tells the whole story

    def assert_completed(self) -> None:
        """Raises AssertionError unless it has completed."""
        __tracebackhide__ = True
        self._expect(self.status == "COMPLETED", "did not complete")

    def assert_failed(self, reason: str = "") -> None:
        """Raises AssertionError unless it has failed, with a reason that contains this text."""
        __tracebackhide__ = True
        self._expect(self.status == "FAILED", "did not fail")
        self._expect(reason in (self.failure or ""), f"did not fail because of {reason!r}")

    def assert_at(self, *step_ids: str) -> None:
        """Raises AssertionError unless it stands at just these steps, in any order."""
        __tracebackhide__ = True
        self._expect(sorted(self.open_steps) == sorted(step_ids), f"does not stand at {list(step_ids)}")

    def assert_path(self, *step_ids: str) -> None:
        """Raises AssertionError unless it entered just these steps in this order. See `path`."""
        __tracebackhide__ = True
        self._expect(self.path == list(step_ids), f"did not go through {list(step_ids)}")

    def assert_passed(self, *step_ids: str) -> None:
        """Raises AssertionError unless it entered these steps in this order, others between them or not."""
        __tracebackhide__ = True
        rest = iter(self.path)
        self._expect(all(step in rest for step in step_ids), f"did not pass {list(step_ids)}")

    def assert_variables(self, **variables: object) -> None:
        """Raises AssertionError unless it has these variables, others besides or not."""
        __tracebackhide__ = True
        found = self.variables
        wrong = [
            f"{name} is {found[name]!r}, not {value!r}" if name in found else f"there is no {name}"
            for name, value in variables.items()
            if name not in found or found[name] != value
        ]
        self._expect(not wrong, "has other variables: " + "; ".join(wrong))

    def _expect(self, true: bool, otherwise: str) -> None:
        __tracebackhide__ = True
        if not true:
            raise AssertionError(f"the run of {self.instance.definition_id} {otherwise}\n{self.story()}")

    def story(self) -> str:
        """Status, path, open steps and variables, as text of several lines."""
        instance = self.instance
        lines = [f"  {instance.status}" + (f": {instance.failure_reason}" if instance.failure_reason else "")]
        lines += [f"  now {show_time(self._engine.now)}, path:", *_path_lines(self.history)]
        if waits := self.waits_for():
            lines += ["  open:", *(f"    {line}" for line in waits)]
        lines.append(f"  variables: {msgspec.json.encode(instance.variables).decode()}")
        return "\n".join(lines)

    def __repr__(self) -> str:
        instance = self.instance
        at = f" at {', '.join(instance.current_step_ids)}" if instance.current_step_ids else ""
        why = f": {instance.failure_reason}" if instance.failure_reason else ""
        return f"<run of {instance.definition_id}, {instance.status}{at}{why}>"


def _path_lines(history: Sequence[StepExecution]) -> list[str]:
    lines: list[str] = []
    for item in history:
        at = "" if item.started_at is None else f" at {show_time(item.started_at)}"
        why = f": {item.failure_reason}" if item.failure_reason else ""
        lines.append(f"    {item.step_id} {item.status}{at}{why}")
        if len(item.attempts) > 1:
            lines += [f"      attempt {each.attempt} {each.status}: {each.reason or ''}" for each in item.attempts]
    return lines
