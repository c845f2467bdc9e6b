"""The example agent in a process that a test kills: `python -m tests.examples.billed_agent DSN BILL [STOPS_AT]`.

BILL is a file with a line for each deed that costs something, in the order in which they began. The process stops in
the first deed that is called STOPS_AT, and waits for its end.
"""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from pathlib import Path
from threading import Event

import anyio
from pydantic_ai.messages import ModelMessage
from pydantic_ai.models.function import AgentInfo, DeltaToolCalls, FunctionModel

from examples import durable_agent
from penstock.durable import App


class BilledWorld(durable_agent.World):
    """Writes a line before a deed. The model's calls are numbered by the messages that they got."""

    def __init__(self, bill: Path, stops_at: str) -> None:
        super().__init__(FunctionModel(stream_function=self.answer, model_name="billed"))
        self.bill, self.stops_at = bill, stops_at

    def begin(self, deed: str) -> bool:
        """Return whether the process stops in this deed."""
        with self.bill.open("a") as file:
            file.write(f"{deed}\n")
        return deed.split(maxsplit=1)[0] == self.stops_at

    async def answer(self, messages: list[ModelMessage], info: AgentInfo) -> AsyncIterator[str | DeltaToolCalls]:
        stops = self.begin(f"model-{len(messages)}")
        async for delta in durable_agent.rehearse(messages, info):
            yield delta
            if stops:
                await anyio.sleep_forever()

    def find_hotels(self, city: str) -> list[str]:
        if self.begin("find"):
            Event().wait()
        return super().find_hotels(city)

    def book_hotel(self, key: str, hotel: str, nights: int) -> str:
        if self.begin(f"book {key}"):
            Event().wait()
        return super().book_hotel(key, hotel, nights)


if __name__ == "__main__":
    dsn, bill, *stops_at = sys.argv[1:]
    durable_agent.world = BilledWorld(Path(bill), *stops_at or [""])
    App(durable_agent.agent, at=dsn).main()
