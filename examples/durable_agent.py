"""An agent that survives crashes: pydantic-ai's models and messages, and a durable workflow around them.

    pip install 'penstock-workflow[engine]' pydantic-ai-slim
    python durable_agent.py --try            in memory, with a model that needs no network
    python durable_agent.py                  serves, until Ctrl-C

and from another terminal, meanwhile:

    python durable_agent.py ask trip-1 "Book me a hotel in Lisbon, 2 nights"
    python durable_agent.py show trip-1      what it said, what it is just saying, and what it asks for
    python durable_agent.py approve trip-1 CALL ann

Each call of the model is a step, and so is each call of a tool: if the process dies, the run goes on in another one
with the answers that it has, and pays for none of them twice. A booking waits until a person has approved it. All calls
share a budget of tokens. The model is this file's own, `rehearsed`, or what PENSTOCK_MODEL names for pydantic-ai.
"""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

from pydantic import BaseModel
from pydantic_ai.direct import model_request_stream
from pydantic_ai.messages import (
    ModelMessage,
    ModelRequest,
    ModelResponse,
    SystemPromptPart,
    TextPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)
from pydantic_ai.models import Model, ModelRequestParameters
from pydantic_ai.models.function import AgentInfo, DeltaToolCall, DeltaToolCalls, FunctionModel
from pydantic_ai.tools import ToolDefinition

from penstock.durable import (
    App,
    CancelScope,
    Event,
    NonRetryable,
    each,
    now,
    set_view,
    step,
    step_info,
    update,
    workflow,
)

INSTRUCTIONS = "You book hotels. Look for one first. Book only what the user asked for."
SHOWN_CHARS = 1_000
"""Of a streamed answer: its end, as a step's progress has at most 4 kB."""


class Talk(BaseModel):
    """What was said. A model of pydantic's, which writes pydantic-ai's messages as JSON and reads them again."""

    messages: list[ModelMessage]


class Answer(BaseModel):
    response: ModelResponse


@dataclass
class Request:
    """A call of a tool that waits for a person."""

    tool: str
    arguments: dict[str, Any]
    decided: Event = field(default_factory=Event)
    granted: bool = False
    by: str = ""


def tool(name: str, description: str, **fields: str) -> ToolDefinition:
    properties = {name: {"type": kind} for name, kind in fields.items()}
    schema = {"type": "object", "properties": properties, "required": [*fields]}
    return ToolDefinition(name=name, description=description, parameters_json_schema=schema)


TOOLS = ModelRequestParameters(
    function_tools=[
        tool("find_hotels", "Look for hotels in a city.", city="string"),
        tool("book_hotel", "Book a hotel. It costs money.", hotel="string", nights="integer"),
    ]
)
NEEDS_APPROVAL = frozenset({"book_hotel"})


async def rehearse(messages: list[ModelMessage], info: AgentInfo) -> AsyncIterator[str | DeltaToolCalls]:
    """What a model might answer: it looks for a hotel, books it, and says what became of it."""
    parts = [part for message in messages for part in message.parts]
    results = [part for part in parts if isinstance(part, ToolReturnPart)]
    match results:
        case []:
            yield {0: DeltaToolCall("find_hotels", '{"city": "Lisbon"}', tool_call_id="find")}
        case [found]:
            yield {
                0: DeltaToolCall("book_hotel", f'{{"hotel": "{found.content[0]}", "nights": 2}}', tool_call_id="book")
            }
        case [*_, booked]:
            for word in ("It", " is", " done: ", str(booked.content)):
                yield word


@dataclass
class World:
    """What the steps reach: the model, and the systems behind the tools. Tests put another one here."""

    model: Model | str = field(default_factory=lambda: FunctionModel(stream_function=rehearse, model_name="rehearsed"))

    def find_hotels(self, city: str) -> list[str]:
        return [f"{city} Palace", f"{city} Inn"]

    def book_hotel(self, key: str, hotel: str, nights: int) -> str:
        """``key`` is the same in each attempt of one booking: give it to the system that books."""
        return f"{hotel}, {nights} nights"


world = World()


@step(retries=5, first="1s", cap="1m", within="5 minutes")
async def ask_model(talk: Talk) -> Answer:
    """Call the model once. What it has said so far is the step's progress, which the run's tree shows."""
    async with model_request_stream(world.model, talk.messages, model_request_parameters=TOOLS) as stream:
        async for _ in stream:
            said = "".join(part.content for part in stream.get().parts if isinstance(part, TextPart))
            step_info().heartbeat(said[-SHOWN_CHARS:])
        return Answer(response=stream.get())


@step(retries=3, first="1s")
async def call_tool(name: str, arguments: dict[str, Any]) -> Any:
    match name:
        case "find_hotels":
            return world.find_hotels(arguments["city"])
        case "book_hotel":
            return world.book_hotel(step_info().key, arguments["hotel"], arguments["nights"])
        case _:
            raise NonRetryable(f"no tool has the name {name}")


@workflow
async def agent(prompt: str, max_tokens: int = 20_000) -> str:
    """Let the model work on a prompt until it answers in words, or the budget is spent."""
    requests: dict[str, Request] = {}
    spent = 0

    def show_requests() -> None:
        asks = {call: {"tool": request.tool, "arguments": request.arguments} for call, request in requests.items()}
        set_view(asks, key="asks")

    @update
    def decide(call: str, granted: bool, by: str) -> str:
        request = requests.pop(call)
        request.granted, request.by = granted, by
        request.decided.set()
        show_requests()
        return f"{call} is {'approved' if granted else 'refused'}"

    @decide.validator
    def check(call: str, granted: bool, by: str) -> None:
        if call not in requests:
            raise ValueError(f"no call with the id {call} waits for approval")

    async def use_tool(call: ToolCallPart) -> ToolReturnPart:
        arguments, refusal = call.args_as_dict(), None
        if call.tool_name in NEEDS_APPROVAL:
            request = requests[call.tool_call_id] = Request(call.tool_name, arguments)
            show_requests()
            await request.decided.wait()
            if not request.granted:
                refusal = f"{request.by} refused this. Do not try it again."
        result = refusal or await call_tool(call.tool_name, arguments)
        return ToolReturnPart(call.tool_name, result, call.tool_call_id, timestamp=now())

    start = [SystemPromptPart(INSTRUCTIONS, timestamp=now()), UserPromptPart(prompt, timestamp=now())]
    talk = Talk(messages=[ModelRequest(parts=start)])
    with CancelScope() as budget:
        while True:
            response = (await ask_model(talk)).response
            spent += response.usage.total_tokens
            set_view({"said": response.text, "tokens": spent})
            if not response.tool_calls:
                return response.text or ""
            if spent >= max_tokens:
                budget.cancel()  # also of what other branches do in this scope
            results = await each(use_tool, response.tool_calls, key=lambda call: call.tool_call_id)
            talk.messages += [response, ModelRequest(parts=results)]
    return f"stopped: {spent} tokens are spent, {max_tokens} were allowed"


# -- from the command line

app = App(agent)


def try_it() -> None:
    from penstock.testing import Ask, run_workflow

    prompt = "Book me a hotel in Lisbon, 2 nights"
    run = run_workflow(agent, prompt, messages=[Ask("decide", ["book", True, "ann"], after="2h")])
    print(run.result(), "- after", run.took, "and", ", ".join(call.step for call in run.calls))


def just_said(branches: list[dict[str, Any]]) -> list[str]:
    """Return what the steps that run now have said, from the branches of a run's tree."""
    said = [branch["progress"] for branch in branches if branch.get("progress")]
    return said + [text for branch in branches for text in just_said(branch.get("children") or [])]


def tell(what: str, id: str, *words: str) -> None:
    with App().in_thread() as client:
        if what == "ask":
            client.start(agent, *words, id=id)
            return
        run = client.get(id, agent)
        match what:
            case "approve" | "refuse":
                call, by = words
                print(run.ask("decide", call, what == "approve", by))
            case "show":
                print(run.status(), run.view(), just_said(run.tree().get("branches") or []), run.view("asks"))
            case _:
                sys.exit(f"{what}? ask, show, approve or refuse")


if __name__ == "__main__":
    world.model = os.environ.get("PENSTOCK_MODEL", world.model)
    match sys.argv[1:]:
        case []:
            app.main()
        case ["--try"]:
            try_it()
        case [what, id, *words]:
            tell(what, id, *words)
        case _:
            sys.exit(__doc__)
