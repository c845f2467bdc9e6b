"""The travel saga: whatever of it fails, is cancelled or comes twice, in the end all is booked or nothing is."""

from __future__ import annotations

import pytest
import travel_worker

from penstock.testing import SyncRun, SyncTestEngine, fails, vanishes
from penstock.worker import StepError

JOURNEY = {"traveller": "Ann", "price": 400}
BOOKINGS = {"flight": "book-flight", "hotel": "book-hotel", "card": "charge-card", "confirm": "send-tickets"}


@pytest.fixture
def penstock(penstock_sync: SyncTestEngine) -> SyncTestEngine:
    penstock_sync.deploy(travel_worker.WORKFLOW)
    penstock_sync.use(travel_worker.worker)
    travel_worker.BOOKED.clear()
    return penstock_sync


def assert_nothing_is_booked() -> None:
    assert not any(travel_worker.BOOKED.values())


def travel(penstock: SyncTestEngine, **changes: object) -> SyncRun:
    return penstock.start("travel", JOURNEY | changes)


def test_a_journey_is_booked(penstock: SyncTestEngine) -> None:
    run = travel(penstock).finish()
    run.assert_completed()
    run.assert_path("flight", "hotel", "card", "confirm", "booked")
    assert {service: len(keys) for service, keys in travel_worker.BOOKED.items()} == {
        "airline": 1,
        "hotel": 1,
        "bank": 1,
    }
    assert run.instance.result == {"booked": True, "ticket": "sent to Ann"}


def test_a_declined_card_undoes_the_bookings_and_goes_on(penstock: SyncTestEngine) -> None:
    run = travel(penstock, price=4_000).finish()
    run.assert_completed()
    run.assert_path(
        "flight", "hotel", "card", "undo", "hotel/compensation", "flight/compensation", "sorry", "not-booked"
    )
    assert run.instance.result == {"booked": False, "why": "4000 is over the limit of 1000"}
    assert_nothing_is_booked()


@pytest.mark.parametrize("step", BOOKINGS)
def test_whatever_fails_for_good_nothing_stays_booked(penstock: SyncTestEngine, step: str) -> None:
    penstock.stub(BOOKINGS[step], fails("out of order"))
    run = travel(penstock).finish()
    run.assert_failed("out of order")
    assert_nothing_is_booked()
    undone = [name for name in run.path if name.endswith("/compensation") and name != "/compensation"]
    assert undone == [
        f"{name}/compensation" for name in reversed(["flight", "hotel", "card"][: list(BOOKINGS).index(step)])
    ]


@pytest.mark.parametrize("step", BOOKINGS)
def test_wherever_it_is_cancelled_nothing_stays_booked(penstock: SyncTestEngine, step: str) -> None:
    penstock.stub(BOOKINGS[step], takes=3_600)
    run = travel(penstock).settle()
    run.assert_at(step)
    run.cancel("changed my mind", compensate=True)
    run.finish()
    assert (run.status, run.instance.failure_reason) == ("CANCELLED", "changed my mind")
    assert_nothing_is_booked()


@pytest.mark.parametrize("step", BOOKINGS)
def test_a_worker_that_dies_is_no_failure(penstock: SyncTestEngine, step: str) -> None:
    penstock.stub(BOOKINGS[step], vanishes(), {step: "again", "ticket": "sent again"})
    run = travel(penstock).finish()
    run.assert_completed()


@pytest.mark.parametrize("job_type", ["cancel-hotel", "cancel-flight"])
def test_a_handler_that_fails_for_good_is_retried_by_people(penstock: SyncTestEngine, job_type: str) -> None:
    undo = penstock.stub(job_type, RuntimeError("no line"))
    run = travel(penstock, price=4_000).finish()
    step = job_type.removeprefix("cancel-")
    run.assert_failed(f"compensation of step '{step}' failed: RuntimeError: no line")
    assert undo.count == 6
    penstock.stub(job_type, getattr(travel_worker, job_type.replace("-", "_")))
    run.retry()
    run.finish()
    run.assert_completed()
    assert_nothing_is_booked()


def test_a_declined_card_is_not_tried_again(penstock: SyncTestEngine) -> None:
    card = penstock.stub("charge-card", StepError("CARD_DECLINED", "no"))
    travel(penstock).finish().assert_completed()
    assert card.count == 1
