"""Handlers for processes of their own; a module, because another process has to import them."""

from __future__ import annotations

import os
import signal
import sys
import threading

import msgspec

from penstock.client import Job
from penstock.worker import NonRetryable


class Numbers(msgspec.Struct):
    upto: int


def add_up(numbers: Numbers, job: Job) -> dict[str, object]:
    return {"sum": sum(range(numbers.upto)), "pid": os.getpid(), "job": job.id}


def shows_checkpoint(job: Job) -> dict[str, object]:
    return {"checkpoint": job.checkpoint}


def never_ends() -> None:
    threading.Event().wait()


def refuses(_job: Job) -> None:
    raise NonRetryable("not this one")


def gets_the_groups_signals() -> dict[str, bool]:
    os.kill(os.getpid(), signal.SIGINT)
    os.kill(os.getpid(), signal.SIGTERM)
    return {"survived": True}


def ends_its_process() -> None:
    sys.exit(3)


def dies() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def returns_a_lock() -> object:
    return threading.Lock()


async def is_async() -> None: ...
