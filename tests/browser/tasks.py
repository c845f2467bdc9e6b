"""What people come to the console for (spec of the console, section 1), timed: `python -m tests.browser.tasks`.

    python -m tests.browser.tasks [--instances N, default 1,000,000]

Fills a database with so many instances (`benchmarks.console_pages`), puts the tasks' own beside them over REST, and
does each task in Chromium from the overview on, by the words on the page: clicks and keys are counted, seconds are the
page's and the engine's. A practised person's share is reckoned by the keystroke-level model of Card, Moran and Newell:
0.2 s a key, 1.3 s to point and press, 1.35 s to decide before each click and each run of keys. Exit code 1 when a task
takes more clicks or seconds than were promised.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

import trio

from benchmarks.console_pages import filled
from penstock.testing.definitions import definition, end, linear, service, step
from tests import postgres
from tests.browser.test_console import TIMEOUT_MS, Visitor, complete, fail, start, take, upload
from tests.runtime.engine_process import EngineProcess

EXAMPLES: Final = Path(__file__).resolve().parents[2] / "examples"
EXAMPLE: Final = EXAMPLES / "order-fulfilment.json"
BANK_AWAY: Final = "bank: 503 service unavailable"
OTHER_CAUSE: Final = "account closed"
KEY_S: Final = 0.2
POINT_AND_PRESS_S: Final = 1.3
DECIDE_S: Final = 1.35
BATCH_ITEMS: Final = 50
SECONDS_OF_A_CLICK: Final = 10
"""Promised where the page tells clicks alone."""


class Sizes(NamedTuple):
    """How many there are in all, failed for the one cause, and are test instances."""

    instances: int
    alike: int = 199
    tests: int = 2_000


class Person:
    """Somebody at the console, whose clicks, keys and decisions are counted."""

    def __init__(self, visitor: Visitor, sizes: Sizes) -> None:
        self.visitor = visitor
        self.page = visitor.page
        self.sizes = sizes
        self.keys = 0
        self.decisions = 0

    def click(self, role: str, name: str, within: Any = None) -> None:
        (within or self.page).get_by_role(role, name=name, exact=True).click(timeout=TIMEOUT_MS)
        self._clicked()

    def click_on(self, what: Any) -> None:
        what.click(timeout=TIMEOUT_MS)
        self._clicked()

    def _clicked(self) -> None:
        self.visitor.clicks += 1
        self.decisions += 1

    def press(self, *keys: str) -> None:
        """What belongs together; a combination counts as each of its keys."""
        for key in keys:
            self.page.keyboard.press(key)
            self.keys += len(key.split("+"))
        self.decisions += 1

    def type(self, text: str) -> None:
        self.page.keyboard.type(text)
        self.keys += len(text)
        self.decisions += 1

    def paste(self, text: str) -> None:
        self.page.keyboard.insert_text(text)
        self.keys += 2

    def write_json(self, text: str) -> None:
        """In place of the variables that stand there; the field has the keys when it comes."""
        self.page.get_by_label("Variables, as a JSON object").focus(timeout=TIMEOUT_MS)
        self.press("Control+a")
        self.type(text)

    def find(self, text: str) -> None:
        """`/`, paste, Enter, as with a key in hand."""
        self.press("/")
        self.paste(text)
        self.press("Enter")

    def see(self, text: str) -> None:
        self.visitor.see(text)

    @property
    def seconds(self) -> float:
        """Without the page's and the engine's."""
        clicks = self.visitor.clicks
        return clicks * POINT_AND_PRESS_S + self.keys * KEY_S + self.decisions * DECIDE_S


@dataclass(frozen=True)
class Task:
    """`walk` begins at the overview and ends when the page says that it is done."""

    what: str
    clicks: int
    seconds: float
    walk: Callable[[Person], None]


class Took(NamedTuple):
    task: Task
    clicks: int
    keys: int
    page_s: float
    person_s: float

    @property
    def kept(self) -> bool:
        return self.clicks <= self.task.clicks and self.page_s + self.person_s <= self.task.seconds

    def __str__(self) -> str:
        return (
            f"{self.task.what:<46} {self.clicks} of {self.task.clicks} clicks, {self.keys:3} keys, "
            f"{self.page_s:5.1f} s + {self.person_s:4.1f} s of a person = {self.page_s + self.person_s:5.1f} "
            f"of {self.task.seconds:.0f} s{'' if self.kept else '  MORE THAN PROMISED'}"
        )


def repair_a_failed_one(person: Person) -> None:
    person.find("STUCK-1")
    person.see(f"pay failed (not retryable): {BANK_AWAY}")
    person.click("button", "Retry")
    person.click("button", "Retry", person.page.get_by_role("dialog"))
    person.see("pay waits for a worker")


def retry_those_of_one_cause(person: Person) -> None:
    alike = person.sizes.alike
    person.see(f"{alike} instances of bills v1 failed")
    person.click("link", f"Show {alike}")
    person.click("button", "Select all that match")
    person.click("button", "Retry…")
    person.click("button", f"Retry {alike} instances")
    person.see(f"{alike} of {alike}")


def see_why_nothing_moves(person: Person) -> None:
    person.visitor.go()
    person.see("No workers for load")


def repair_a_variable(person: Person) -> None:
    person.find("BAD-1")
    person.see("pay failed (not retryable): amount is no number")
    person.click("button", "Edit variables…")
    person.write_json('{"amount": 25}')
    person.click("button", "Save and retry")
    person.see("pay waits for a worker")


def do_the_next_task(person: Person) -> None:
    person.click("link", "Tasks")
    person.page.get_by_role("checkbox", name="Approved").wait_for(timeout=TIMEOUT_MS)
    person.page.wait_for_function("() => document.activeElement.type === 'checkbox'", timeout=TIMEOUT_MS)
    before = person.page.url
    person.press("Space", "Control+Enter")
    person.page.wait_for_function("before => location.href !== before", arg=before, timeout=TIMEOUT_MS)
    person.page.get_by_role("checkbox", name="Approved", checked=False).wait_for(timeout=TIMEOUT_MS)


def read_what_happened(person: Person) -> None:
    person.find("A-88213")
    person.see("Completed")
    person.page.locator(".gantt").get_by_text("ship").wait_for(timeout=TIMEOUT_MS)
    person.click("tab", "Audit")
    person.see("instance completed")


def see_the_slow_attempt(person: Person) -> None:
    """The bars tell, each with its words, of its attempts how long they waited and ran."""
    person.find("SLOW-1")
    person.see("2 attempts")
    for answer in ("queue", "fail", "ok"):
        person.page.locator(f".gantt i.{answer}[title]").first.wait_for(state="attached", timeout=TIMEOUT_MS)


def change_a_definition(person: Person) -> None:
    """From what is found of it on: what is typed in its fields is no part of the promise."""
    person.find("changed")
    person.page.wait_for_url("**/definitions/changed", timeout=TIMEOUT_MS)
    person.click("link", "Open in modeller")
    person.page.locator('.surface .node[data-step="pay"]').wait_for(timeout=TIMEOUT_MS)
    name = person.page.get_by_role("region", name="Properties").get_by_label("Name", exact=True)
    name.fill("Changed with care")
    person.see("No problems")
    person.click("button", "Try it")
    person.see("What happens next?")
    person.click("button", "Differences")
    person.see("Which running instances does this touch?")
    person.click("button", "Upload as version 2")
    person.see("Uploaded as version 2")


def send_a_signal(person: Person) -> None:
    person.find("SIGNAL-1")
    person.click("button", "Signal…")
    person.write_json('{"paid": true}')
    person.click("button", "Send")
    person.see("Completed")


def cancel_test_instances(person: Person) -> None:
    tests = f"{person.sizes.tests:,}"
    person.click("link", "Instances")
    person.click_on(person.page.get_by_role("textbox", name="Definition", exact=True))
    person.type("load-test")
    person.press("Enter")
    person.see(f"{tests} match")
    person.click("button", "Cancel all…")
    person.page.get_by_label(f"Type {person.sizes.tests} to confirm").wait_for(timeout=TIMEOUT_MS)
    person.type(str(person.sizes.tests))
    person.click("button", f"Cancel {tests} instances")
    person.see(f"{tests} of {tests}")


def follow_a_link(person: Person) -> None:
    """What a colleague sees who opens the address."""
    person.find("SLOW-1")
    person.see("2 attempts")
    other = person.page.context.new_page()
    other.goto(person.page.url)
    other.get_by_text("2 attempts").first.wait_for(timeout=TIMEOUT_MS)
    ours, theirs = (page.get_by_role("heading", level=1).inner_text() for page in (person.page, other))
    assert ours == theirs
    other.close()


def start_an_example(person: Person) -> None:
    person.click("link", "Definitions")
    with person.page.expect_file_chooser(timeout=TIMEOUT_MS) as chosen:
        person.click("button", "Upload a file…")
    chosen.value.set_files(EXAMPLE)
    person.see("is new: this becomes its version 1")
    person.click("button", "Upload and start")
    person.page.locator(".node.st-run, .node.st-wait, .node.st-ready").or_(
        person.page.get_by_text("waits for a worker")
    ).first.wait_for(timeout=TIMEOUT_MS)


TASKS: Final = (
    Task("1 why an instance failed, and mend it", 2, 15, repair_a_failed_one),
    Task("2 retry those that failed for one cause", 4, 20, retry_those_of_one_cause),
    Task("3 why nothing moves", 0, SECONDS_OF_A_CLICK, see_why_nothing_moves),
    Task("4 mend a variable, then retry", 3, 30, repair_a_variable),
    Task("5 my next task", 1, SECONDS_OF_A_CLICK, do_the_next_task),
    Task("6 what happened to an order", 1, 10, read_what_happened),
    Task("7 which attempt was slow", 0, SECONDS_OF_A_CLICK, see_the_slow_attempt),
    Task("8 change, try, compare, upload a definition", 4, 30, change_a_definition),
    Task("9 send a signal", 3, 30, send_a_signal),
    Task("10 cancel the test instances", 4, 25, cancel_test_instances),
    Task("11 link to exactly this", 0, SECONDS_OF_A_CLICK, follow_a_link),
    Task("12 upload an example, start it, watch it", 3, 30, start_an_example),
)


def put_tasks(engine: EngineProcess, sizes: Sizes) -> None:
    """What the tasks are about, beside all the others."""
    upload(engine, linear(1, definition_id="load-test", job_type="load"))
    _start_many(engine, "load-test", sizes.tests)
    pay = [service("pay", "ship", job_type="pay-now", retryCount=3), service("ship", "end", job_type="ship-now"), end()]
    upload(engine, definition(*pay, definition_id="shop"))
    upload(engine, definition(*pay, definition_id="changed"))
    upload(engine, definition(step("paid", "WAIT", nextStep="end"), end(), definition_id="awaited"))
    start(engine, "awaited", "SIGNAL-1")
    for key, reason in (("STUCK-1", BANK_AWAY), ("BAD-1", "amount is no number")):
        fail(engine, start(engine, "shop", key, {"amount": "25 EUR"}), "pay-now", reason)
    ended = start(engine, "shop", "A-88213")
    complete(engine, ended, "pay-now")
    complete(engine, ended, "ship-now")
    slow = start(engine, "shop", "SLOW-1")
    body = {"workerId": "w-1", "attempt": 1, "errorMessage": "slow", "retryable": True, "retryAfterSeconds": 1}
    assert engine.call("POST", f"/v1/jobs/{take(engine, 'pay-now')['id']}/fail", body)[0] in (200, 204)
    complete(engine, slow, "pay-now")
    upload(engine, linear(1, definition_id="bills", job_type="bill"))
    _start_many(engine, "bills", sizes.alike + BATCH_ITEMS)
    for at, job in enumerate(_taken(engine, "bill", sizes.alike + BATCH_ITEMS)):
        reason = OTHER_CAUSE if at < BATCH_ITEMS else "mail server: connection refused"
        body = {"workerId": "w-1", "attempt": 1, "errorMessage": reason, "retryable": False}
        assert engine.call("POST", f"/v1/jobs/{job['id']}/fail", body)[0] in (200, 204)


def _start_many(engine: EngineProcess, definition_id: str, count: int) -> None:
    for first in range(0, count, BATCH_ITEMS):
        items = [{"definitionId": definition_id} for _ in range(min(BATCH_ITEMS, count - first))]
        assert engine.call("POST", "/v1/instances/batch", {"items": items})[0] == 200


def _taken(engine: EngineProcess, job_type: str, count: int) -> list[dict[str, Any]]:
    jobs: list[dict[str, Any]] = []
    while len(jobs) < count:
        body = {"workerId": "w-1", "jobTypes": [job_type], "maxJobs": 100, "waitSeconds": 20}
        jobs += engine.call("POST", "/v1/jobs/poll", body)[1]["jobs"]
    return jobs


@contextmanager
def busy_engine(server: postgres.PostgresServer, sizes: Sizes) -> Generator[EngineProcess]:
    """With all of it."""
    with server.database() as dsn:
        trio.run(_fill, dsn, sizes.instances)
        with EngineProcess(dsn) as engine:
            engine.wait_ready()
            put_tasks(engine, sizes)
            yield engine


async def _fill(dsn: str, count: int) -> None:
    async with filled(dsn, count):
        pass


def done(task: Task, page: Any, engine: EngineProcess, sizes: Sizes) -> Took:
    """In a page that shows the overview."""
    visitor = Visitor(page, engine)
    visitor.go().see("Needs attention")
    person = Person(visitor, sizes)
    began = time.monotonic()
    task.walk(person)
    took = Took(task, visitor.clicks, person.keys, time.monotonic() - began, person.seconds)
    assert visitor.complaints == []
    return took


def main(arguments: Sequence[str]) -> int:
    from playwright.sync_api import sync_playwright

    parser = argparse.ArgumentParser(prog="python -m tests.browser.tasks")
    parser.add_argument("--instances", type=int, default=1_000_000)
    sizes = Sizes(parser.parse_args(arguments).instances)
    began = time.monotonic()
    with (
        postgres.shared_server(postgres.run_directory(durable=True), durable=True) as server,
        busy_engine(server, sizes) as engine,
        sync_playwright() as playwright,
    ):
        print(f"{sizes.instances:,} instances, filled in {time.monotonic() - began:.0f} s", flush=True)
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        kept = True
        for task in TASKS:
            context = browser.new_context(viewport={"width": 1440, "height": 900})
            took = done(task, context.new_page(), engine, sizes)
            context.close()
            print(took, flush=True)
            kept &= took.kept
        browser.close()
    return 0 if kept else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
