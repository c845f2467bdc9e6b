"""A health probe in a process of its own: `python -m chaos.exposure.probe PORT`, until its standard input ends.

Prints the worst latency in seconds and how many probes had no answer within 60 s.
"""

from __future__ import annotations

import socket
import sys
import threading
import time

PAUSE_S = 0.02
PATIENCE_S = 60.0


def main(port: int) -> None:
    over = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.read(), over.set()), daemon=True).start()
    worst_s, unanswered = 0.0, 0
    while not over.wait(PAUSE_S):
        started = time.monotonic()
        try:
            with socket.create_connection(("127.0.0.1", port), PATIENCE_S) as stream:
                stream.sendall(b"GET /healthz HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")
                answered = stream.recv(64).startswith(b"HTTP/1.1 200")
        except OSError:
            answered = False
        unanswered += not answered
        if answered:
            worst_s = max(worst_s, time.monotonic() - started)
    print(worst_s, unanswered)


if __name__ == "__main__":
    main(int(sys.argv[1]))
