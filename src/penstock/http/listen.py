"""Listening sockets: bound from an address, or inherited from a parent process.

Bound before anything is served, so that a taken port is known, and named, before the engine has started the rest.
"""

from __future__ import annotations

import errno
import os
import socket
import sys
from collections.abc import Generator
from contextlib import ExitStack, contextmanager

# The kernel cuts it at net.core.somaxconn (4096 by default since Linux 5.4).
BACKLOG_CONNECTIONS = 4096
_NOT_HERE = frozenset({errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT})


class ListenError(Exception):
    """An address can't be listened on. The text names address, port and cause, for whoever starts the engine."""


def listen(host: str, port: int, *, purpose: str = "HTTP") -> list[socket.socket]:
    """Listen on a TCP port: one socket per address that ``host`` stands for, all on the same port.

    Port 0 takes any free one (``sockets[0].getsockname()[1]``). Raises ListenError, and then holds nothing.
    """
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except socket.gaierror as exc:
        raise ListenError(f"{purpose} can't listen on {host}:{port}: {exc.strerror}") from exc
    sockets: list[socket.socket] = []
    missing: OSError | None = None
    try:
        for family, _, _, _, address in found:
            try:
                sockets.append(_bind(family, (str(address[0]), port, *address[2:])))
            except OSError as exc:
                if exc.errno not in _NOT_HERE:
                    raise ListenError(_explain(purpose, str(address[0]), port, exc)) from exc
                missing = exc  # "localhost" is also ::1 where there is no IPv6
            else:
                port = sockets[0].getsockname()[1]
    except ListenError:
        for sock in sockets:
            sock.close()
        raise
    if not sockets:
        assert missing is not None
        raise ListenError(_explain(purpose, host, port, missing)) from missing
    return sockets


@contextmanager
def reserved_ports(count: int) -> Generator[list[int]]:
    """Ports of 127.0.0.1 that nobody listens on, and that no other program is given meanwhile; `listen` takes them.

    On Linux a bound socket that does not listen keeps its port, and SO_REUSEADDR on both sides lets an engine bind it
    all the same, as often as it starts. Elsewhere another program may take one first: `listen` then says so.
    """
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            each.bind(("127.0.0.1", 0))
        ports = [each.getsockname()[1] for each in sockets]
        if sys.platform != "linux":
            stack.close()
        yield ports


def inherit(fd: int) -> socket.socket:
    """A listening socket that a parent process has bound. Takes the descriptor over. Raises ListenError."""
    try:
        sock = socket.socket(fileno=fd)
    except OSError as exc:
        raise ListenError(f"file descriptor {fd} is not a listening socket: {os.strerror(exc.errno or 0)}") from exc
    if sock.type != socket.SOCK_STREAM or not sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
        sock.detach()
        raise ListenError(f"file descriptor {fd} is not a listening socket")
    sock.setblocking(False)
    return sock


def _bind(family: int, address: tuple[object, ...]) -> socket.socket:
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        # Without it a restart fails for a minute while old connections are in TIME_WAIT; it does not share the port.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        sock.bind(address)
        sock.listen(BACKLOG_CONNECTIONS)
        sock.setblocking(False)
    except BaseException:
        sock.close()
        raise
    return sock


def _explain(purpose: str, host: str, port: int, error: OSError) -> str:
    where = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    if error.errno == errno.EADDRINUSE:
        return f"{purpose} can't listen on {where}: port {port} is taken by another process"
    if error.errno == errno.EACCES:
        return f"{purpose} can't listen on {where}: no permission for port {port} (below 1024 it takes a privilege)"
    return f"{purpose} can't listen on {where}: {error.strerror}"
