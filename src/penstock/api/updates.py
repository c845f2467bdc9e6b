"""The operations on calls of updates: into a run of code, checked, recorded and answered."""

from __future__ import annotations

from typing import Final

from penstock.api.operation import Body, DeclaredOperation, Grpc, Rest
from penstock.api.permission import Permission
from penstock.wire import updates_v1 as w
from penstock.wire.update import RunUpdate, RunView

_SERVICE: Final = "/penstock.v1.Updates/"

ASK_RUN: Final = DeclaredOperation(
    name="askRun",
    summary="Call an update of a run, and wait for its answer (addition)",
    description="A handler in the workflow function (`@update`) serves it. The call is kept until one does. A wait "
    "ends after 20 s at most; `getRunUpdate` goes on with it. With the same `id` the call is made once.",
    tag="instances",
    request=w.AskRunRequest,
    answer=RunUpdate,
    needs=Permission.RUNS,
    rest=Rest("POST", "/v1/instances/{id}/updates", body=Body(field="call", noun="a call")),
    grpc=Grpc(_SERVICE + "AskRun"),
    errors=(400, 404, 409, 413, 429, 503),
)
GET_RUN_UPDATE: Final = DeclaredOperation(
    name="getRunUpdate",
    summary="Read what became of a call of an update (addition)",
    tag="instances",
    request=w.GetRunUpdateRequest,
    answer=RunUpdate,
    needs=Permission.ANSWERS,
    rest=Rest(
        "GET",
        "/v1/instances/{id}/updates/{updateId}",
        {"waitSeconds": "Waits for the answer up to so long, 20 at most."},
    ),
    grpc=Grpc(_SERVICE + "GetRunUpdate"),
    errors=(400, 404),
)

GET_RUN_VIEW: Final = DeclaredOperation(
    name="getRunView",
    summary="Read what a run shows, or wait for it (addition)",
    description="What the workflow function has shown last with `set_view`, under a key or without one.",
    tag="instances",
    request=w.GetRunViewRequest,
    answer=RunView,
    needs=Permission.ANSWERS,
    rest=Rest(
        "GET",
        "/v1/instances/{id}/view",
        {
            "key": "Of the value.",
            "waitSeconds": "Waits until there is a value, or the run has ended, up to so long, 20 at most.",
        },
    ),
    grpc=Grpc(_SERVICE + "GetRunView"),
    errors=(400, 404, 409),
)
