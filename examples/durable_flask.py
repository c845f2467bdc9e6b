"""Orders over HTTP, in a Flask application: calls that block, in threads; a script or a task queue's job does the same.

    flask --app durable_flask run

    curl -X PUT localhost:5000/orders/A-1/pen/2
    curl -X POST localhost:5000/orders/A-1/payment/visa
    curl localhost:5000/orders/A-1

The runs are served by threads beside Flask's, from the first request on. With gunicorn each worker has its own; all
share the database (PENSTOCK_AT, or the embedded one).
"""

from __future__ import annotations

import atexit
from contextlib import ExitStack
from decimal import Decimal
from functools import cache
from threading import Lock

from durable_order import Line, Order, Payment, order
from flask import Flask
from flask.typing import ResponseReturnValue

from penstock.client import NotFound, TimedOut, Unavailable
from penstock.durable import App, RunFailed
from penstock.durable.blocking import BlockingApp

web = Flask(__name__)
opened = ExitStack()
atexit.register(opened.close)
first_request = Lock()


def shop() -> BlockingApp:
    """Opened by the first request, so after a server forked its workers."""
    with first_request:
        return open_shop()


@cache
def open_shop() -> BlockingApp:
    return opened.enter_context(App(order).in_thread())


@web.put("/orders/<id>/<sku>/<int:count>")
def place(id: str, sku: str, count: int) -> ResponseReturnValue:
    run = shop().start(order, Order(id, [Line(sku, count, Decimal(3))]), id=id)
    return {"instance": run.instance_id}, 202


@web.post("/orders/<id>/payment/<card>")
def pay(id: str, card: str) -> ResponseReturnValue:
    shop().get(id, order).send("payment", Payment(card), dedup=f"card {card}")
    return "", 202


@web.get("/orders/<id>")
def show(id: str) -> ResponseReturnValue:
    run = shop().get(id, order)
    return {"status": run.status(), "view": run.view()}


@web.get("/orders/<id>/result")
def result(id: str) -> ResponseReturnValue:
    try:
        return {"tracking": shop().get(id, order).result(timeout_s=20).tracking}
    except TimedOut:
        return {"error": "not yet"}, 504
    except RunFailed as error:
        return {"error": str(error)}, 409


@web.errorhandler(NotFound)
def not_found(error: NotFound) -> ResponseReturnValue:
    return {"error": error.reason}, 404


@web.errorhandler(Unavailable)
def unavailable(error: Unavailable) -> ResponseReturnValue:
    """The database is away or has too much to do: what was sent may be sent again."""
    return {"error": error.reason}, 503, {"Retry-After": "1"}
