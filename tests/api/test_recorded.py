"""What the client sends for each operation over both wires, and what it makes of an answer, is as it was recorded.

The recordings are of the code in which each exchange was written by hand. A difference that was decided stands in
docs/decisions/002-operations.md; then record anew: ``python -m tests.api.test_recorded``.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import trio

from tests.api.samples import SAMPLES, label_of, over_grpc, over_rest

FILE = Path(__file__).with_name("recorded.jsonl")
RECORDED: list[dict[str, Any]] = [json.loads(line) for line in FILE.read_text().splitlines()] if FILE.exists() else []


async def record(place: int) -> dict[str, Any]:
    operation = SAMPLES[place]
    return {"call": label_of(operation), "rest": await over_rest(operation), "grpc": await over_grpc(operation)}


def test_each_sample_is_recorded() -> None:
    assert [each["call"] for each in RECORDED] == [label_of(operation) for operation in SAMPLES]


@pytest.mark.parametrize("place", range(len(SAMPLES)), ids=lambda place: f"{place}-{label_of(SAMPLES[place])}")
async def test_a_call_goes_out_and_comes_back_as_recorded(place: int) -> None:
    assert await record(place) == RECORDED[place]


if __name__ == "__main__":
    lines = [json.dumps(trio.run(record, place), ensure_ascii=False) for place in range(len(SAMPLES))]
    FILE.write_text("\n".join(lines) + "\n")
