"""A health probe in a process of its own: `python -m chaos.exposure.probe PORT NOTE`, until its standard input ends.

Prints the worst latency in seconds, the worst without the time in which the engine's loop or the probe was ready to
run and had no core (attacker and PostgreSQL are on the same machine), and how many probes had no answer within 60 s.
``NOTE`` is the file of `chaos.exposure.engine`.
"""

from __future__ import annotations

import socket
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

PAUSE_S = 0.02
PATIENCE_S = 60.0


def waited_s(note: str) -> float:
    """How long the thread of the engine's loop and this process have waited for a core so far."""
    waited_ns = 0
    for process in (Path(note).read_text().split()[:1], ["self"]):
        with suppress(OSError):
            waited_ns += int(Path("/proc", *process, "schedstat").read_text().split()[1])
    return waited_ns / 1e9


def main(port: int, note: str) -> None:
    over = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.read(), over.set()), daemon=True).start()
    worst_s, worst_own_s, unanswered = 0.0, 0.0, 0
    while not over.wait(PAUSE_S):
        waited = waited_s(note)
        started = time.monotonic()
        try:
            with socket.create_connection(("127.0.0.1", port), PATIENCE_S) as stream:
                stream.sendall(b"GET /healthz HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")
                answered = stream.recv(64).startswith(b"HTTP/1.1 200")
        except OSError:
            answered = False
        unanswered += not answered
        if answered:
            took_s = time.monotonic() - started
            worst_s = max(worst_s, took_s)
            worst_own_s = max(worst_own_s, took_s - max(waited_s(note) - waited, 0))
    print(worst_s, worst_own_s, unanswered)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
