"""Steps of programs after published reports."""

from __future__ import annotations

from collections import Counter

from penstock.durable import step, step_info

done: Counter[str] = Counter()


@step
async def act(what: str) -> str:
    done[what] += 1
    return what


@step(retries=2)
async def flaky(what: str) -> str:
    if step_info().attempt < 3:
        raise ConnectionError("reset")
    return what
