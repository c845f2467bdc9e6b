"""Bodies that do what a body must not, each in the line that is marked; and what is alike and allowed."""

from __future__ import annotations

import concurrent.futures
import datetime as dt
import importlib
import logging
import os
import queue
import random
import socket
import subprocess
import threading
import time
import uuid
import warnings
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from zoneinfo import ZoneInfo

from penstock.durable import rng, step, workflow

log = logging.getLogger("penstock.tests.bodies")


def opens() -> None:
    Path("/dev/null").read_bytes()  # here


def connects() -> None:
    socket.create_connection(("127.0.0.1", 1))  # here


def starts_a_process() -> None:
    subprocess.run(["/bin/true"], check=False)  # here


def starts_a_thread() -> None:
    threading.Thread(target=int).start()  # here


def lists() -> None:
    os.listdir("/")  # here


def makes_a_directory() -> None:
    os.mkdir("/dev/null/never")  # here


def waits_for_an_event() -> None:
    threading.Event().wait()  # here


def waits_for_an_item() -> None:
    queue.Queue[int]().get()  # here


def waits_for_a_future() -> None:
    concurrent.futures.Future[int]().result()  # here


def asks_the_clock() -> None:
    time.time()  # here


def asks_for_the_date() -> None:
    dt.datetime.now()  # noqa: DTZ005  # here


def throws_dice() -> None:
    random.randint(1, 6)  # here


def makes_an_id() -> None:
    uuid.uuid4()  # here


def reads_the_environment() -> None:
    os.environ.get("HOME")  # here


EVERYWHERE = [
    (opens, "open"),
    (connects, "socket."),
    (starts_a_process, "subprocess.Popen"),
    (lists, "os.listdir"),
    (makes_a_directory, "os.mkdir"),
    (waits_for_an_event, "threading.Event.wait in a workflow function"),
    (waits_for_an_item, "queue.Queue.get in a workflow function"),
    (waits_for_a_future, "concurrent.futures.Future.result in a workflow function"),
]
IN_TESTS = [
    (starts_a_thread, "_thread.start_new_thread"),
    (asks_the_clock, "time.time in a workflow function. Use penstock.durable.now"),
    (asks_for_the_date, "datetime.now in a workflow function. Use penstock.durable.now"),
    (throws_dice, "random in a workflow function. Use penstock.durable.rng"),
    (makes_an_id, "os.urandom in a workflow function. Use penstock.durable.uuid4"),
    (reads_the_environment, "os.environ in a workflow function. Move it into a step"),
]


def logs() -> None:
    log.warning("a body logs")


def warns() -> None:
    warnings.warn("a body warns", stacklevel=1)


def imports() -> None:
    importlib.import_module("colorsys")  # nothing else imports it


def knows_a_time_zone() -> None:
    ZoneInfo.no_cache("Europe/Berlin")


def uses_our_chance() -> None:
    rng().random()


ALLOWED: list[Callable[[], None]] = [logs, warns, imports, knows_a_time_zone, uses_our_chance]

doing: Callable[[], None] = opens


@step
async def nothing() -> None: ...


@workflow
async def body() -> str:
    await nothing()
    doing()
    return "done"


@workflow
async def catches() -> str:
    with suppress(Exception):
        doing()
    return "done"


_ORDER = {"Ada", "Bob", "Cyd", "Dan", "Eve", "Fay", "Gus", "Hal"}


@step
async def greet(names: list[str]) -> int:
    return len(names)


@workflow
async def in_order() -> int:
    return await greet(sorted(_ORDER))


@workflow
async def in_disorder() -> int:
    return await greet(list(_ORDER))
