"""The command ``penstock``.

``penstock serve`` must be ready within a second, so nothing is imported before a command is known to need it (a test
counts what `penstock version` imports). The command is there with the client and worker alone, too
(`pip install penstock-workflow`), and then says what to install.
"""

from __future__ import annotations

import io
import os
import sys
from typing import TYPE_CHECKING, NoReturn, cast

import penstock.distribution  # noqa: F401 - it refuses  # pyright: ignore[reportUnusedImport] - it refuses

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

__all__ = ["main"]

ENGINE = "pip install 'penstock-workflow[engine]'"
EXTRAS = {
    "aiokafka": "pip install 'penstock-workflow[engine,kafka]'",
    "hypothesis": "pip install 'penstock-workflow[testing]'",
}
"""What to install for a module that is missing, where it is not the engine."""
READER_GONE = 128 + 13
"""As a shell tells SIGPIPE."""


RUN_ON = {"serve", "engine-process"}
"""They go on when nobody reads what they say."""
HELP = {"--help", "-h"}
UTC = "--utc"


def main() -> None:
    """Runs the command line and exits with its code: 0 done, 1 failed (also when what it prints can't be written, as on
    a full disk), 2 wrong use, wrong settings or not installed; 141 when who read what it prints has gone, as `head`
    does."""
    if not RUN_ON.intersection(sys.argv[1:2]) or HELP.intersection(sys.argv):
        _watch_the_reader()
    from penstock.cli.plain import escape_tracebacks

    escape_tracebacks()
    try:
        try:
            _run()
        finally:
            if sys.stdout is not None:
                sys.stdout.flush()
    except Unprintable as error:
        _end(error)
    except BaseExceptionGroup as several:
        from penstock.errors import leaves

        unprintable = [each for each in leaves(several) if isinstance(each, Unprintable)]
        if not unprintable:
            raise
        _end(unprintable[0])


def _end(error: Unprintable) -> NoReturn:
    if isinstance(error.reason, BrokenPipeError):
        sys.exit(READER_GONE)
    from penstock.cli.plain import echo

    echo(f"penstock: what it prints can't be written: {error.reason.strerror}", err=True)
    sys.exit(1)


def _run() -> None:
    if sys.argv[1:] in (["version"], ["--version"]):
        from penstock.build import shown_version
        from penstock.cli.plain import echo

        echo(f"penstock {shown_version()}")
        return
    try:
        from penstock.cli.app import app

        app(_utc_first(sys.argv[1:]))
    except ImportError as error:
        advice = _what_to_install(error)
        if advice is None:
            raise
        from penstock.cli.plain import echo

        echo(f"penstock: {advice}", err=True)
        sys.exit(2)


def _utc_first(arguments: list[str]) -> list[str]:
    """`--utc` is an option of the whole command line, and may stand anywhere before `--`."""
    end = arguments.index("--") if "--" in arguments else len(arguments)
    if UTC not in arguments[:end]:
        return arguments
    return [UTC, *(each for each in arguments[:end] if each != UTC), *arguments[end:]]


class Unprintable(Exception):
    """What the command prints can't be written: nobody reads it any more, or the disk is full. No OSError: typer would
    make it a failure."""

    def __init__(self, reason: OSError) -> None:
        super().__init__(str(reason))
        self.reason = reason


class _Pipe(io.FileIO):
    """Standard output that raises `Unprintable` once, and then leads nowhere: so the command ends in order. SIGPIPE
    would end an engine in the middle, and by any socket."""

    def write(self, data: ReadableBuffer, /) -> int:
        if not memoryview(data).nbytes:  # click looks so whether bytes can be written, and would swallow what is raised
            return 0
        try:
            return cast("int", super().write(data))  # None: it can't be written now, to who buffers
        except OSError as error:
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self.fileno())
            os.close(nowhere)
            raise Unprintable(error) from None


def _watch_the_reader() -> None:
    out = sys.stdout
    if not isinstance(out, io.TextIOWrapper) or out.isatty():
        return
    try:
        raw = _Pipe(out.fileno(), "wb", closefd=False)
    except OSError:  # it is none of a process
        return
    unbuffered = isinstance(cast("object", sys.stdout.buffer), io.RawIOBase)  # `python -u`
    buffer = raw if unbuffered else io.BufferedWriter(raw)
    sys.stdout = io.TextIOWrapper(
        cast("io.BufferedWriter", buffer),
        out.encoding, out.errors, line_buffering=out.line_buffering, write_through=out.write_through,
    )  # fmt: skip


def _what_to_install(error: ImportError) -> str | None:
    """Return the line for who lacks something; None for a mistake of our own."""
    module = (error.name or "penstock").partition(".")[0]
    if module == "penstock":
        return None
    if isinstance(error, ModuleNotFoundError):
        return (
            f"{module} is not installed; this needs more than the client and the worker: {EXTRAS.get(module, ENGINE)}"
        )
    return str(error) if module == "psycopg" else None  # of a version that penstock.store does not run on
