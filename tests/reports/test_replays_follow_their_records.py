"""Reports of replays that differ: order, random numbers and texts of errors are those of the records.

`run_workflow` replays each run from its journal and `explore` breaks it off at each record, so that a replay which
differs fails the test by itself. LOG.md, "Code-first engines", has the reports.
"""

from __future__ import annotations

import traceback

from penstock.durable import open_nursery, patched, receive, rng, sleep, step, uuid4, workflow
from penstock.durable.check import replay_run
from penstock.testing import Message, explore, run_workflow
from tests.reports.steps import act


class HttpError(Exception):
    def __init__(self, status_code: int, detail: str | None = None) -> None:
        self.status_code, self.detail = status_code, detail


def test_messages_and_completions_replay_in_their_order():
    """Temporal Python 673 and 1578."""

    @workflow
    async def flow() -> list[str]:
        order: list[str] = []

        async def acts(name: str) -> None:
            order.append(await act(f"{name}0"))
            order.append(await act(f"{name}1"))

        async def listens() -> None:
            for _ in range(2):
                order.append(await receive("resume", str))
                order.append(await act("resumed"))

        async with open_nursery() as nursery:
            nursery.start_soon(acts, "a")
            nursery.start_soon(acts, "b")
            nursery.start_soon(listens)
        return order

    messages = [Message("resume", "first", after="1 s"), Message("resume", "second", after="2 s")]
    explore(flow, messages=messages)
    run_workflow(flow, messages=messages).result()


def test_one_more_random_number_changes_no_uuid():
    """Temporal Python 1109."""

    @workflow
    async def before() -> str:
        found = await act(str(uuid4()))
        await sleep("1 h")
        return found

    @workflow(name="before")
    async def after() -> str:
        if patched("jitter"):  # without it, the stream would take the draw of the uuid
            rng().randint(1, 10)
        found = await act(str(uuid4()))
        await sleep("1 h")
        return found

    saved = run_workflow(before).saved
    replayed = replay_run(after, saved)
    assert replayed.finding is None
    run = run_workflow(after)
    assert run.result() != run_workflow(before).result()


def test_the_text_of_an_error_is_the_same_at_replay():
    """Restate TypeScript 656."""

    @step
    async def runs() -> None:
        raise HttpError(503, "away")

    @workflow
    async def flow() -> str:
        try:
            await runs()
        except HttpError as error:
            return await act(f"{error!r} {error.detail} {traceback.format_exception_only(error)}")
        return "no error"

    run_workflow(flow).result()
    explore(flow)
