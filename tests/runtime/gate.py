"""A TCP proxy in threads before PostgreSQL's Unix socket, to cut an engine process off from its database."""

from __future__ import annotations

import contextlib
import socket
import threading

from psycopg.conninfo import conninfo_to_dict, make_conninfo

CHUNK_BYTES = 65536


class Gate:
    """Open at first. ``dsn`` leads through it; the port stays the same when it is closed and opened again."""

    def __init__(self, dsn: str) -> None:
        upstream = conninfo_to_dict(dsn)
        self._path = f"{upstream['host']}/.s.PGSQL.{upstream['port']}"
        self._lock = threading.Lock()
        self._links: set[socket.socket] = set()
        self._is_open = True
        self._listener = socket.create_server(("127.0.0.1", 0))
        port = self._listener.getsockname()[1]
        self.dsn = make_conninfo(dsn, host="127.0.0.1", port=port, sslmode="disable", connect_timeout=5)
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        """Cut all connections; new ones are ended at once."""
        with self._lock:
            self._is_open = False
            links, self._links = self._links, set()
        for link in links:
            with contextlib.suppress(OSError):
                link.shutdown(socket.SHUT_RDWR)

    def open(self) -> None:
        with self._lock:
            self._is_open = True

    def end(self) -> None:
        self.close()
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            server = socket.socket(socket.AF_UNIX)
            with self._lock:
                if not self._is_open:
                    client.close()
                    server.close()
                    continue
                self._links |= {client, server}
            server.connect(self._path)
            for source, target in ((client, server), (server, client)):
                threading.Thread(target=self._pump, args=(source, target), daemon=True).start()

    def _pump(self, source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(CHUNK_BYTES):
                target.sendall(data)
        for end in (source, target):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
        with self._lock:
            self._links -= {source, target}
        source.close()
