"""A workflow whose step is cut off each time: ``python -m tests.reports.outliving DSN MAX_LOST``.

It ``exits`` its process, ``stops`` it, or holds the GIL in a C call (``gil``) until somebody writes into a pipe.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
from pathlib import Path

from penstock.durable import App, StepLost, step, workflow


@step
def cut_off(kind: str, directory: str) -> str:
    with (Path(directory) / "begun").open("a") as file:
        file.write("begun\n")
    match kind:
        case "exits":
            os._exit(9)
        case "stops":
            os.kill(os.getpid(), signal.SIGSTOP)
            threading.Event().wait()  # the main thread takes the signal; this one runs on until it does
        case _:
            pipe = os.open(Path(directory) / "pipe", os.O_RDWR)
            ctypes.PyDLL(None).read(pipe, ctypes.create_string_buffer(1), 1)
            os.close(pipe)
    return "it was not cut off"


@workflow
async def outliving(kind: str, directory: str) -> str:
    try:
        return await cut_off(kind, directory)
    except StepLost as error:
        return str(error)


if __name__ == "__main__":
    App(outliving, at=sys.argv[1], max_lost=int(sys.argv[2])).main()
