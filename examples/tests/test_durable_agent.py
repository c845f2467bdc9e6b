"""The durable agent: in memory with a model of a few lines, and on a database across two processes' Apps."""

from __future__ import annotations

import threading
import time
from collections.abc import AsyncIterator
from datetime import timedelta

import anyio
import pytest

pytest.importorskip("pydantic_ai", reason="no pydantic-ai in this environment: pip install -e '.[dev]'")

import durable_agent
from durable_agent import Answer, Talk, World, agent, just_said, rehearse
from pydantic_ai.messages import (
    BinaryContent,
    ModelMessage,
    ModelRequest,
    ModelResponse,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)
from pydantic_ai.models.function import AgentInfo, DeltaToolCall, DeltaToolCalls, FunctionModel
from pydantic_ai.models.test import TestModel
from pydantic_ai.usage import RequestUsage

from penstock.client import TimedOut
from penstock.durable import App, Unencodable, UpdateRefused, step, workflow
from penstock.testing import Ask, run_workflow

PROMPT = "Book me a hotel in Lisbon, 2 nights"
GRANTED = Ask("decide", ["book", True, "ann"], after="2h")


class Counted(World):
    """Counts what costs money."""

    def __init__(self) -> None:
        super().__init__(FunctionModel(stream_function=self.answer, model_name="counted"))
        self.asked = 0
        self.booked: list[str] = []

    async def answer(self, messages: list[ModelMessage], info: AgentInfo) -> AsyncIterator[str | DeltaToolCalls]:
        self.asked += 1
        async for delta in rehearse(messages, info):
            yield delta

    def book_hotel(self, key: str, hotel: str, nights: int) -> str:
        self.booked.append(key)
        return super().book_hotel(key, hotel, nights)


@pytest.fixture(autouse=True)
def world(monkeypatch: pytest.MonkeyPatch) -> Counted:
    world = Counted()
    monkeypatch.setattr(durable_agent, "world", world)
    return world


def test_it_books_when_a_person_has_approved(world: Counted) -> None:
    run = run_workflow(agent, PROMPT, messages=[GRANTED])
    assert run.result() == "It is done: Lisbon Palace, 2 nights"
    assert run.took == timedelta(hours=2)
    assert run.answers == {"decide": "book is approved"}
    assert (world.asked, len(world.booked)) == (3, 1)


def test_what_is_refused_is_not_booked(world: Counted) -> None:
    messages = [Ask("decide", ["other", True, "bob"], id="wrong"), Ask("decide", ["book", False, "ann"], after="1h")]
    run = run_workflow(agent, PROMPT, messages=messages)
    assert "ann refused this" in run.result()
    assert isinstance(run.answers["wrong"], UpdateRefused)
    assert world.booked == []


def test_of_two_bookings_each_is_decided(world: Counted) -> None:
    async def books_both(messages: list[ModelMessage], info: AgentInfo) -> AsyncIterator[str | DeltaToolCalls]:
        if len(messages) > 1:
            yield ", ".join(str(part.content) for part in messages[-1].parts if isinstance(part, ToolReturnPart))
        else:
            arguments = '{"hotel": "Inn", "nights": %d}'
            yield {day: DeltaToolCall("book_hotel", arguments % day, tool_call_id=f"book-{day}") for day in (1, 2)}

    world.model = FunctionModel(stream_function=books_both)
    messages = [
        Ask("decide", ["book-2", True, "ann"], id="second", after="1h"),
        Ask("decide", ["book-1", False, "bob"], id="first", after="2h"),
        Ask("decide", ["book-2", False, "bob"], id="again", after="90m"),
    ]
    run = run_workflow(agent, PROMPT, messages=messages)
    assert run.result() == "bob refused this. Do not try it again., Inn, 2 nights"
    assert isinstance(run.answers["again"], UpdateRefused)
    assert len(world.booked) == 1


def test_it_stops_when_its_budget_is_spent(world: Counted) -> None:
    assert "were allowed" in run_workflow(agent, PROMPT, max_tokens=10).result()
    assert (world.asked, world.booked) == (1, [])


def test_any_model_of_pydantic_ai_will_do(world: Counted) -> None:
    world.model = TestModel(call_tools=["find_hotels"], custom_output_text="no hotel is free")
    assert run_workflow(agent, PROMPT).result() == "no hotel is free"


def test_another_process_goes_on_and_pays_for_nothing_twice(world: Counted, penstock_dsn: str) -> None:
    with App(agent, at=penstock_dsn).in_thread() as app:
        run = app.start(agent, PROMPT, id="trip-1")
        booking = {"tool": "book_hotel", "arguments": {"hotel": "Lisbon Palace", "nights": 2}}
        assert run.view("asks", timeout_s=60) == {"book": booking}
        with pytest.raises(TimedOut):
            run.result(timeout_s=0.1)
    assert world.asked == 2
    with App(agent, at=penstock_dsn).in_thread() as app:
        run = app.get("trip-1", agent)
        assert run.ask("decide", "book", True, "ann") == "book is approved"
        assert run.result(timeout_s=60) == "It is done: Lisbon Palace, 2 nights"
    assert (world.asked, len(world.booked)) == (3, 1)


def test_what_a_model_is_just_saying_is_seen_while_it_speaks(world: Counted, penstock_dsn: str) -> None:
    goes_on = threading.Event()

    async def speaks(messages: list[ModelMessage], info: AgentInfo) -> AsyncIterator[str]:
        yield "The sea"
        await anyio.to_thread.run_sync(goes_on.wait)
        yield " is warm"

    world.model = FunctionModel(stream_function=speaks)
    with App(agent, at=penstock_dsn).in_thread() as app:
        run = app.start(agent, "How is the sea?", id="trip-2")
        try:
            said: list[str] = []
            until = time.monotonic() + 60
            while not said and time.monotonic() < until:
                time.sleep(0.05)
                said = just_said(run.tree().get("branches") or [])
            assert (said, run.view()) == (["The sea"], None)
        finally:
            goes_on.set()
        assert run.result(timeout_s=60) == "The sea is warm"
        assert run.view()["said"] == "The sea is warm"
        assert just_said(run.tree().get("branches") or []) == []


@step
async def echo(talk: Talk) -> Talk:
    return talk


@workflow
async def echoes(talk: Talk) -> Talk:
    return await echo(talk)


def test_messages_come_back_as_they_were() -> None:
    picture = BinaryContent.narrow_type(BinaryContent(b"\x00\xff", media_type="image/png"))
    asked = ModelRequest(
        parts=[UserPromptPart(["what is this?", picture]), ToolReturnPart("look", {"a": [1, None]}, "c")]
    )
    parts = [ThinkingPart("hm", signature="s"), TextPart("a sea"), ToolCallPart("look", {"deep": True}, "d")]
    said = ModelResponse(parts=parts, usage=RequestUsage(input_tokens=3, output_tokens=4), finish_reason="stop")
    talk = Talk(messages=[asked, said])
    assert run_workflow(echoes, talk).result() == talk


def test_what_would_not_come_back_is_refused_at_its_line() -> None:
    wide = Talk(messages=[ModelRequest(parts=[ToolReturnPart("look", (1, 2), "c")])])
    with pytest.raises(Unencodable, match="is tuple and comes back as list"):
        run_workflow(echoes, wide)

    async def bare(messages: list[ModelMessage]) -> Answer: ...

    with pytest.raises(TypeError, match="its parameter messages is annotated as a type that can't be kept"):
        step(bare)
