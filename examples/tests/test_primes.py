"""CPU-bound handlers: as plain functions, and in a process of their own."""

from __future__ import annotations

import cpu_worker

from penstock.testing import SyncTestEngine


def test_primes_are_counted_in_another_process(penstock_sync: SyncTestEngine) -> None:
    penstock_sync.deploy(cpu_worker.WORKFLOW)
    penstock_sync.use(cpu_worker.worker)
    run = penstock_sync.start("prime-count", {"upTo": 100_000}).finish()
    run.assert_completed()
    run.assert_variables(primes=9592)


def test_the_test_can_step_into_the_function_itself(penstock_sync: SyncTestEngine) -> None:
    penstock_sync.deploy(cpu_worker.WORKFLOW)
    penstock_sync.stub("primes.count", cpu_worker.count_primes)
    penstock_sync.start("prime-count", {"upTo": 10}).finish().assert_variables(primes=4)
    too_large = penstock_sync.start("prime-count", {"upTo": 10**9}).finish()
    too_large.assert_failed("1000000000 is more than this example counts")
    unfit = penstock_sync.start("prime-count", {"upTo": "ten"}).finish()
    unfit.assert_failed("the variables do not fit Range")
