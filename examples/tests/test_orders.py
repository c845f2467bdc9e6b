"""Order fulfilment with its own worker's handlers."""

from __future__ import annotations

import order_worker
import pytest

from penstock.testing import SyncTestEngine

STEPS = ["validate-order", "reserve-stock", "charge-payment", "ship-parcel", "notify-customer", "done"]


@pytest.fixture
def penstock(penstock_sync: SyncTestEngine) -> SyncTestEngine:
    penstock_sync.deploy(order_worker.WORKFLOW)
    penstock_sync.use(order_worker.worker)
    return penstock_sync


def test_an_order_is_shipped(penstock: SyncTestEngine) -> None:
    run = penstock.start("order-fulfilment", {"orderId": "A-1", "amount": 25, "items": ["book"]})
    run.finish()
    run.assert_completed()
    run.assert_path(*STEPS)
    run.assert_variables(reservation="r-A-1", shelves=["shelf-4"], trackingNumber="PS-A-1")


def test_a_payment_service_that_asks_for_later_is_asked_again(penstock: SyncTestEngine) -> None:
    run = penstock.start("order-fulfilment", {"orderId": "A-2", "items": ["flaky"]})
    run.finish()
    run.assert_completed()
    assert run.attempts("charge-payment") == 2


def test_a_negative_amount_is_refused_without_retries(penstock: SyncTestEngine) -> None:
    run = penstock.start("order-fulfilment", {"orderId": "A-3", "amount": -1})
    run.settle()
    run.assert_failed("order A-3 has a negative amount: -1")
    assert run.attempts("validate-order") == 1


def test_an_order_without_stock_fails_after_six_tries(penstock: SyncTestEngine) -> None:
    stock = penstock.stub("stock.reserve", raises=ConnectionError("no answer"))
    run = penstock.start("order-fulfilment", {"orderId": "A-4"})
    run.finish()
    run.assert_failed("no answer")
    assert stock.count == 6
