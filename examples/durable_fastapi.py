"""Orders over HTTP, in the process of a FastAPI application: the order of durable_order.py.

    uvicorn durable_fastapi:api

    curl -X PUT localhost:8000/orders/A-1 -H 'Content-Type: application/json' \
         -d '{"lines": [{"sku": "pen", "count": 2, "price": "3"}]}'
    curl -X POST localhost:8000/orders/A-1/payment -H 'Content-Type: application/json' -d '{"card": "visa"}'
    curl localhost:8000/orders/A-1

The application is open for as long as the server's lifespan. An order goes on after a crash of the process: with its
next start, or in another one that serves orders on the same database (PENSTOCK_AT).
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from durable_order import Approval, Line, Order, Payment, order
from fastapi import FastAPI, HTTPException
from fastapi.requests import Request
from fastapi.responses import JSONResponse

from penstock.client import Conflict, NotFound, TimedOut, Unavailable
from penstock.durable import App, RunFailed

app = App(order)


@asynccontextmanager
async def lifespan(api: FastAPI) -> AsyncGenerator[None]:
    async with app:
        yield


api = FastAPI(lifespan=lifespan)


@dataclass(frozen=True)
class Basket:
    lines: list[Line]


@api.put("/orders/{id}", status_code=202)
async def place(id: str, basket: Basket) -> dict[str, str]:
    """Once, however often it is sent: the order's number is the run's id."""
    run = await app.start(order, Order(id, basket.lines), id=id)
    return {"instance": run.instance_id}


@api.post("/orders/{id}/payment", status_code=202)
async def pay(id: str, payment: Payment) -> None:
    run = await app.get(id, order)
    await run.send("payment", payment, dedup=f"card {payment.card}")


@api.post("/orders/{id}/approval", status_code=202)
async def approve(id: str, approval: Approval) -> None:
    run = await app.get(id, order)
    await run.send("approval", approval, dedup=f"approval by {approval.by}")


@api.get("/orders/{id}")
async def show(id: str) -> dict[str, Any]:
    run = await app.get(id, order)
    return {"status": await run.status(), "view": await run.view()}


@api.get("/orders/{id}/result")
async def result(id: str, wait_s: float = 0) -> Any:
    """What came of it; 504 when it takes longer than that, and the order goes on."""
    run = await app.get(id, order)
    try:
        return await run.result(min(wait_s, 30))
    except TimedOut:
        raise HTTPException(504, "not yet") from None
    except RunFailed as error:
        raise HTTPException(409, str(error)) from None


@api.exception_handler(NotFound)
async def not_found(request: Request, error: NotFound) -> JSONResponse:
    return JSONResponse({"error": error.reason}, 404)


@api.exception_handler(Conflict)
async def conflict(request: Request, error: Conflict) -> JSONResponse:
    return JSONResponse({"error": error.reason}, 409)


@api.exception_handler(Unavailable)
async def unavailable(request: Request, error: Unavailable) -> JSONResponse:
    """The database is away or has too much to do: what was sent may be sent again, as an order has its number."""
    return JSONResponse({"error": error.reason}, 503, {"Retry-After": "1"})
