"""Records are delivered by the version of the rules that they carry, at first and whenever they are again."""

from __future__ import annotations

from penstock.engine.queues import journal_items
from penstock.kernel.drive import Kernel
from penstock.kernel.operation import CallOperation, block
from penstock.kernel.record import RULES, JournalKind, Record
from penstock.kernel.replay import replay
from tests.kernel.oracle import StepCall


def test_engine_and_kernel_mean_the_same_rules() -> None:
    assert journal_items.RULES == RULES


def test_each_record_is_delivered_by_its_own_rules() -> None:
    seen: list[int] = []

    async def body() -> None:
        for _ in range(4):
            seen.append(kernel.rules)
            await block(CallOperation(StepCall(0, 0, False, False)))

    kernel = Kernel()
    records = [Record(0, JournalKind.DONE, f"/{n}", rules=rules) for n, rules in enumerate((0, 0, None))]
    replay(kernel, body(), records)
    assert seen == [0, 0, 0, RULES]
