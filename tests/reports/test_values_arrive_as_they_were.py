"""Reports of wrong values: values and errors arrive as themselves, each at the call that it belongs to.

`run_workflow` replays each run from its journal and `explore` breaks it off at each record, so that a replay which
differs fails the test by itself. LOG.md, "Code-first engines", has the reports.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pydantic

from penstock.durable import step, workflow
from penstock.testing import run_workflow
from tests.reports.steps import act, flaky

# pyright: reportUntypedBaseClass=false, reportUnknownMemberType=false


class HttpError(Exception):
    def __init__(self, status_code: int, detail: str | None = None) -> None:
        self.status_code, self.detail = status_code, detail


@dataclass
class Receipt:
    number: int


class Signup(pydantic.BaseModel):
    name: str
    roles: list[str] = []


def test_an_error_with_a_constructor_arrives_as_itself():
    """DBOS Transact Python 371 and 730."""

    @step
    async def asks() -> None:
        raise HttpError(status_code=500, detail="down")

    @step(raises=[KeyError])
    async def probes() -> None:
        raise KeyError("x")

    @workflow
    async def flow() -> list[Any]:
        found: list[Any] = []
        for call in (asks, probes):
            try:
                await call()
            except HttpError as error:
                found += [error.status_code, error.detail]
            except KeyError as error:
                found += error.args
        return found

    assert run_workflow(flow).result() == [500, "down", "x"]


def test_dataclasses_and_models_arrive_as_themselves():
    """Temporal Python 578 and 126."""

    @step
    async def pays(signup: Signup) -> Receipt:
        return Receipt(len(signup.roles))

    @workflow
    async def flow(signup: Signup) -> Receipt:
        receipt = await pays(signup)
        assert type(receipt) is Receipt
        return receipt

    assert run_workflow(flow, Signup(name="ann", roles=["a", "b"])).result() == Receipt(2)


def test_each_call_has_its_own_result():
    """Prefect 3476, Prefect 9012."""

    @workflow
    async def flow() -> list[str]:
        return [await act("a"), await act("b"), await act("a"), await flaky("c"), await flaky("d")]

    assert run_workflow(flow).result() == ["a", "b", "a", "c", "d"]
