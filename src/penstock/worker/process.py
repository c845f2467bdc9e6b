"""What runs inside a worker process: one call of a handler after another, for the pool that started it.

Requests come through standard input, answers go out through what was standard output; each is eight bytes of length
and a pickle. Ends when its input does. Imports as little as possible: every process pays for it.
"""

from __future__ import annotations

import os
import pickle
import runpy
import signal
import sys
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any, BinaryIO

from penstock.user_text import text_of

LENGTH_BYTES = 8


class HandlerEnded(Exception):
    """The handler tried to end its process; raised in the parent in place of that."""


def call(function: Callable[..., Any], arguments: Sequence[Any]) -> Any:
    """Call the function. SIGINT and SIGTERM go to whole process groups: the worker decides what ends, and kills."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        return function(*arguments)
    except SystemExit as error:
        raise HandlerEnded(f"SystemExit: {text_of(error)}") from error


def framed(value: object) -> bytes:
    """A request or an answer as it is sent. Raises what pickle does."""
    body = pickle.dumps(value, pickle.HIGHEST_PROTOCOL)
    return len(body).to_bytes(LENGTH_BYTES, "big") + body


def serve(main_path: str | None) -> None:
    """Answer requests until there are no more. ``main_path``: the program of the parent, whose functions may be asked
    for."""
    requests = sys.stdin.buffer
    with os.fdopen(os.dup(sys.stdout.fileno()), "wb") as answers:
        _be_silent()
        failure = _load_main(main_path)
        while length := requests.read(LENGTH_BYTES):
            body = requests.read(int.from_bytes(length, "big"))
            _answer(answers, _run(body) if failure is None else (False, failure))


def _be_silent() -> None:
    """What a handler prints goes nowhere: our standard output was the way to the parent, and nobody reads the rest."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (sys.stdout, sys.stderr):
        os.dup2(nowhere, stream.fileno())
    os.close(nowhere)
    sys.stdin = open(os.devnull, encoding="utf-8")  # noqa: SIM115 - for as long as the process lives


def _load_main(path: str | None) -> BaseException | None:
    """Run the parent's program under a name that is not ``__main__``, as multiprocessing does; its error."""
    if path is None or not os.path.isfile(path):
        return None
    main = ModuleType("__mp_main__")
    try:
        main.__dict__.update(runpy.run_path(path, run_name="__mp_main__"))
    except BaseException as error:
        return error
    sys.modules["__main__"] = sys.modules["__mp_main__"] = main
    return None


def _run(body: bytes) -> tuple[bool, object]:
    try:
        function, arguments = pickle.loads(body)  # noqa: S301 - of our own parent
        return True, call(function, arguments)
    except BaseException as error:
        return False, error


def _answer(answers: BinaryIO, answer: tuple[bool, object]) -> None:
    try:
        data = framed(answer)
    except Exception as error:  # neither every result nor every exception can be pickled
        data = framed((False, TypeError(f"{type(error).__name__}: {text_of(error)}")))
    answers.write(data)
    answers.flush()
