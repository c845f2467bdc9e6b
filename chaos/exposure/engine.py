"""``penstock`` with a note in the file ``EXPOSURE_NOTE_FILE``: its process, and the longest turns of its event loop.

A turn is what the loop does between two looks for events: nobody is served meanwhile. Two numbers in seconds: what the
longest one took, and the most that one took of the processor; the difference is waiting for it, or for the interpreter.
SIGUSR2 begins anew: the start has turns that nobody waits for.
"""

from __future__ import annotations

import os
import signal
import time
from functools import partial

import trio


class Turns(trio.abc.Instrument):
    """Writes the longest turn whenever one is longer than all before."""

    def __init__(self, path: str) -> None:
        self._file = os.open(path, os.O_WRONLY)
        self._began, self._cpu_began = time.perf_counter(), time.thread_time()
        self._longest_s = self._cpu_s = 0.0
        self._write()
        signal.signal(signal.SIGUSR2, self._forget)

    def _forget(self, *_: object) -> None:
        self._longest_s = self._cpu_s = 0.0
        self._write()

    def after_io_wait(self, timeout: float) -> None:
        self._began, self._cpu_began = time.perf_counter(), time.thread_time()

    def before_io_wait(self, timeout: float) -> None:
        took_s, cpu_s = time.perf_counter() - self._began, time.thread_time() - self._cpu_began
        if took_s > self._longest_s or cpu_s > self._cpu_s:
            self._longest_s, self._cpu_s = max(took_s, self._longest_s), max(cpu_s, self._cpu_s)
            self._write()

    def _write(self) -> None:
        os.pwrite(self._file, b"%10d %12.6f %12.6f" % (os.getpid(), self._longest_s, self._cpu_s), 0)


if __name__ == "__main__":
    trio.run = partial(trio.run, instruments=[Turns(os.environ["EXPOSURE_NOTE_FILE"])])
    from penstock.cli import main

    main()
