"""Connections that ask for nothing, opened anew as soon as they are closed: `crowd.py PORT CONNECTIONS HOSTS HEX`.

Runs until it is killed. ``HEX`` is what each sends. Imports nothing of ours: it has to begin at once.
"""

from __future__ import annotations

import select
import socket
import sys
from collections.abc import Iterator
from contextlib import suppress
from itertools import count
from typing import Final

DIALLED_AT_ONCE: Final = 256


def addresses(many: int) -> Iterator[str]:
    """Source addresses one after the other, for ever."""
    for number in count():
        host = number % many
        yield f"127.{1 + host // 250}.{1 + host % 7}.{1 + host % 250}"


def attack(port: int, connections: int, hosts: int, sent: bytes) -> None:
    """Keep so many connections open, until killed."""
    sources, open_now = addresses(hosts), 0
    poll, sockets = select.epoll(), dict[int, socket.socket]()
    reported = False
    while True:
        if not reported and open_now == connections:
            print("all dialled", flush=True)
            reported = True
        dialled = 0
        while open_now < connections and dialled < DIALLED_AT_ONCE:
            sock = socket.socket()
            sock.setblocking(False)
            with suppress(OSError):
                sock.bind((next(sources), 0))
                sock.connect_ex(("127.0.0.1", port))
            sockets[sock.fileno()] = sock
            poll.register(sock.fileno(), (select.EPOLLOUT if sent else 0) | select.EPOLLRDHUP)
            open_now, dialled = open_now + 1, dialled + 1
        for fd, events in poll.poll(0 if dialled else 0.05, 4_096):
            sock = sockets[fd]
            if events & (select.EPOLLHUP | select.EPOLLERR | select.EPOLLRDHUP):
                poll.unregister(fd)
                sockets.pop(fd).close()
                open_now -= 1
            elif events & select.EPOLLOUT:
                with suppress(OSError):
                    sock.send(sent)
                poll.modify(fd, select.EPOLLRDHUP)


if __name__ == "__main__":
    attack(int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), bytes.fromhex(sys.argv[4]))
