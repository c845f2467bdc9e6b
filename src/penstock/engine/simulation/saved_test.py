"""What somebody tried, as a file for pytest and `penstock.testing`: the same moves on an engine with a virtual clock.

Pure. Workflows that are called are stood in for by one job each.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from pprint import PrettyPrinter
from typing import Any, Final, assert_never, cast

import msgspec

from penstock.core.advance.simulation import Simulation
from penstock.core.graph.definition import StepType
from penstock.core.rules.state import InstanceStatus
from penstock.engine.simulation.simulated_moves import CHILD, REASON, Deed

PATH_MAX: Final = 200
"""Of a longer path only the length is compared."""
_WIDTH: Final = 110
_UNITS: Final = (("days", 86_400), ("hours", 3_600), ("minutes", 60))
_OTHER_INSTANCE: Final = f"instance '{CHILD}' of "
_STAND_IN: Final = '''
def stand_in(definition_id, version):
    """A workflow of one job, in the place of one that is called."""
    job = {"id": "job", "name": "job", "type": "SERVICE_TASK", "jobType": "in-place-of-another", "nextStep": "end"}
    end = {"id": "end", "name": f"end {version}", "type": "END"}
    return {"id": definition_id, "name": definition_id, "steps": [job, end]}

'''

Spend = Callable[[], None]


def saved_test(
    document: Mapping[str, Any],
    started_at: datetime,
    variables: Mapping[str, Any],
    simulation: Simulation,
    deeds: Sequence[Deed],
    path: Sequence[str],
    spend: Spend,
) -> str:
    """Return the text of the file. ``path``: the steps that were entered, in this order. ``spend`` is called before
    each value that is written, at each level of what it is in; what it raises ends it."""
    definition = simulation.definition
    others = _other_workflows(simulation)
    lines = ["penstock = penstock_sync"]
    lines += [f"penstock.deploy(*(stand_in({id!r}, n) for n in range({count})))" for id, count in others.items()]
    lines += [
        "penstock.deploy(DEFINITION)",
        f"run = penstock.start({definition.id!r}, {_literal(spend, variables, 8)})",
    ]
    lines.append("penstock.settle()")
    for deed in deeds:
        lines += _made(spend, deed)
    lines += ["", *_claims(spend, simulation, path)]
    body = "\n".join(f"    {line}" if line else "" for line in lines)
    name = re.sub(r"[^a-z0-9]+", "_", definition.id.lower()).strip("_") or "definition"
    at = started_at.isoformat()
    return (
        f'"""A run of {definition.id} as it was tried in the modeller."""\n\n'
        "from datetime import datetime\n\nimport pytest\n\n"
        f"DEFINITION = {_literal(spend, document, 0)}\n\n"
        f"{_STAND_IN if others else ''}\n"
        f'@pytest.mark.penstock(now=datetime.fromisoformat("{at}"))\n'
        f"def test_{name}(penstock_sync):\n{body}\n"
    )


def _other_workflows(simulation: Simulation) -> dict[str, int]:
    """Those that may be called or started, and how many versions of each there have to be."""
    definition = simulation.definition
    found: dict[str, int] = {}
    for step in definition.steps:
        if step.callee is not None:
            id = step.callee.definition_id
            found[id] = max(found.get(id, 1), step.callee.version)
    if simulation.chained is not None:
        found.setdefault(simulation.chained, 1)
    found.pop(definition.id, None)
    return found


def _made(spend: Spend, deed: Deed) -> Iterable[str]:
    move, step = deed.move, deed.step_id
    of = {} if deed.nth == 0 else {"nth": deed.nth}
    by = {} if move.by is None else {"by": move.by}
    reason = {} if move.error is None else {"reason": move.error}
    whom = "run"
    if deed.kind is StepType.CALL_ACTIVITY and move.do in ("complete", "fail", "cancel"):
        whom, step, of = f"run.called({_arguments(spend, [deed.step_id], of)})", "job", {}
    match move.do:
        case "complete" if deed.kind is StepType.USER_TASK:
            yield f"run.complete_task({_arguments(spend, [step, move.variables], {**by, **of})})"
        case "complete":
            yield f"{whom}.complete_job({_arguments(spend, [step, move.variables], of)})"
        case "fail":
            again = move.retryable and whom == "run"
            named: dict[str, object] = {} if again else {"retryable": False}
            named |= {} if move.error_code is None else {"code": move.error_code}
            named |= {} if move.variables is None else {"variables": move.variables}
            yield f"{whom}.fail_job({_arguments(spend, [step, move.error or REASON], {**named, **of})})"
        case "cancel":
            undone = {"compensate": True} if move.compensate else {}
            yield f"{whom}.cancel({_arguments(spend, [], {**reason, **undone})})"
        case "signal":
            yield f"run.signal({_arguments(spend, [step, move.variables], {'buffer': True})})"
        case "message":
            yield f"penstock.publish({_arguments(spend, [move.name, move.correlation_key, move.variables], {})})"
        case "retry":
            yield "run.retry()"
        case _:  # the clock alone
            yield f"penstock.advance({_span(deed.seconds)})"
            return
    yield "penstock.settle()"


def _claims(spend: Spend, simulation: Simulation, path: Sequence[str]) -> Iterable[str]:
    instance, steps = simulation.instance, simulation.definition.steps
    match simulation.status:
        case InstanceStatus.COMPLETED:
            yield "run.assert_completed()"
            if instance.result is not None:
                yield f"assert run.instance.result == {_literal(spend, msgspec.json.decode(instance.result), 4)}"
        case InstanceStatus.FAILED:
            known = instance.failure is not None and _OTHER_INSTANCE not in instance.failure
            yield f"run.assert_failed({instance.failure!r})" if known else "run.assert_failed()"
            if instance.failure_code is not None:
                yield f"assert run.instance.failure_code == {instance.failure_code!r}"
        case InstanceStatus.CANCELLED:
            yield 'assert run.status == "CANCELLED"'
        case InstanceStatus.ACTIVE:
            at = dict.fromkeys(steps[token.step].id for token in simulation.open_tokens)
            yield f"run.assert_at({_arguments(spend, [*at], {})})"
        case _:
            assert_never(simulation.status)
    if len(path) <= PATH_MAX:
        yield f"run.assert_path({_arguments(spend, path, {})})"
    else:
        yield f"assert len(run.path) == {len(path)}"
    other_ids = {name for name, value in simulation.variables.items() if _OTHER_INSTANCE in str(value)}
    rest = {name: value for name, value in simulation.variables.items() if name not in other_ids}
    found = "run.variables"
    if other_ids:  # the ids of other instances are in them
        found = f"{{name: value for name, value in run.variables.items() if name not in {sorted(other_ids)!r}}}"
    yield f"assert {found} == {_literal(spend, rest, 4)}"


def _arguments(spend: Spend, given: Sequence[object], named: Mapping[str, object]) -> str:
    values = list(given)
    while values and values[-1] is None:
        values.pop()
    return ", ".join(
        [*(_literal(spend, value, 8) for value in values), *(f"{k}={_literal(spend, v, 8)}" for k, v in named.items())]
    )


def _span(seconds: float) -> str:
    for unit, length in _UNITS:
        if seconds and seconds % length == 0:
            return f"{unit}={int(seconds // length)}"
    return f"seconds={seconds:g}" if float(f"{seconds:g}") == seconds else f"seconds={seconds!r}"


def _literal(spend: Spend, value: object, indent: int) -> str:
    """As Python writes it; what takes several lines is moved in."""
    text = _Printer(spend, _WIDTH - indent).pformat(_plain(value))
    return text.replace("\n", "\n" + " " * indent) if indent and "\n" in text else text


def _plain(value: object) -> object:
    if isinstance(value, Mapping):
        return {str(key): _plain(each) for key, each in cast("Mapping[str, object]", value).items()}
    return [_plain(each) for each in cast("list[object]", value)] if isinstance(value, list) else value


class _Printer(PrettyPrinter):
    """It writes what is nested again at each level, to see whether it fits into a line: 100 levels take 100 times as
    long."""

    def __init__(self, spend: Spend, width: int) -> None:
        super().__init__(width=width, sort_dicts=False)
        self._spend = spend

    def format(
        self,
        object: object,  # noqa: A002 - it is called so in the class above
        context: dict[int, int],
        maxlevels: int,
        level: int,
    ) -> tuple[str, bool, bool]:
        self._spend()
        return super().format(object, context, maxlevels, level)
