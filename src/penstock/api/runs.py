"""The operations on durable runs that have rows."""

from __future__ import annotations

from typing import Final

from penstock.api.operation import Body, DeclaredOperation, Grpc, Repeat, Rest
from penstock.api.permission import Permission
from penstock.wire import runs_v1 as w
from penstock.wire.model import Instance

FORK_RUN: Final = DeclaredOperation(
    name="forkRun",
    summary="Start another run with this run's journal up to an operation (addition)",
    description="The other run goes on from there, with steps and children of its own. This run stays as it is.",
    tag="instances",
    request=w.ForkRunRequest,
    answer=Instance,
    needs=Permission.OPERATE,
    rest=Rest(
        "POST",
        "/v1/instances/{id}/fork",
        body=Body(
            name="ForkBody",
            text="``path``: of the operation that is done again, as the journal has it; `start` for the beginning,"
            " `end` for where the journal ends. ``forkId``: of the new run, which is started once under it."
            " ``laterMessages``: the new run gets the messages that came after that, too.",
        ),
        status=201,
    ),
    grpc=Grpc("/penstock.v1.Runs/Fork"),
    errors=(400, 404, 409, 413, 422, 429, 503),
    required=("path",),
    repeat=Repeat.IF_NOT_APPLIED,
)
