"""A real Apache Kafka broker (KRaft, one node) on loopback: for tests and benchmarks, and to try Kafka dispatch.

::

    with KafkaBroker() as broker:  # temporary folder, free port
        broker.bootstrap  # "127.0.0.1:NNNNN"
        broker.kill()  # SIGKILL; start() recovers the same data on the same port
        broker.start()

Relies on `distribution.py` for the jars. All methods block (call them in threads from an event loop) and raise
KafkaUnusable. A broker that this process started ends with this process.
"""

from __future__ import annotations

import atexit
import base64
import os
import shutil
import signal
import socket
import struct
import subprocess
import tempfile
import time
import uuid
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Final

from penstock.http import reserved_ports
from tests.kafka.configuration import LOG_CONFIGURATION, broker_properties
from tests.kafka.distribution import KafkaUnusable, ensure_jars, folder_lock, jars_folder, java

READY_TIMEOUT_S: Final = 60.0
STOP_TIMEOUT_S: Final = 15.0
POLL_INTERVAL_S: Final = 0.03
SCRAM_MECHANISMS: Final = ("SCRAM-SHA-256", "SCRAM-SHA-512")


class KafkaBroker:
    """One broker. Topics are not created by use.

    Args:
        folder: where its data and log live; kept. By default a temporary one, removed at the end of the block.
        users: name → password. Adds a listener (``sasl_bootstrap``) for SCRAM-SHA-256 and -512 over TLS.
        certificate: PEM file with the broker's private key (PKCS 8) and its chain; needed with ``users``.
        properties: more of ``server.properties``, e.g. ``{"message.max.bytes": 50_000}``.
        fast: start in about 2 s instead of 5 (class-data archive, C1 compiler only); switch off for benchmarks.
    """

    def __init__(
        self,
        folder: Path | None = None,
        *,
        users: Mapping[str, str] | None = None,
        certificate: Path | None = None,
        properties: Mapping[str, object] | None = None,
        fast: bool = True,
    ) -> None:
        self._temporary = folder is None
        self.folder = folder or Path(tempfile.mkdtemp(prefix="penstock-kafka-"))
        self.folder.mkdir(parents=True, exist_ok=True)
        self._ports = ExitStack()
        port, controller_port, sasl_port = self._ports.enter_context(reserved_ports(3))
        self.bootstrap = f"127.0.0.1:{port}"
        self.sasl_bootstrap = f"127.0.0.1:{sasl_port}" if users else None
        self._port = port
        self._users = dict(users or {})
        self._fast = fast
        self._jvm_flags: tuple[str, ...] = ()
        self._process: subprocess.Popen[bytes] | None = None
        self._properties = broker_properties(
            self.folder / "data", port, controller_port, sasl_port if users else None, certificate
        ) | {name: str(value) for name, value in (properties or {}).items()}

    @property
    def pid(self) -> int | None:
        """The process, while it runs."""
        process = self._process
        return process.pid if process is not None and process.poll() is None else None

    def start(self) -> KafkaBroker:
        """Start, and wait until it answers. After `kill` this takes 3 to 4 s: its old registration has to end."""
        if self.pid is not None:
            raise KafkaUnusable("the broker runs already")
        jars = ensure_warm() if self._fast else ensure_jars()
        self._configure()
        self._format(jars)
        flags = ["-Xmx512m", "-Xms128m", "-XX:+UseG1GC", "-XX:+ExitOnOutOfMemoryError", *self._jvm_flags]
        if self._fast:
            flags += ["-XX:TieredStopAtLevel=1", f"-XX:SharedArchiveFile={jars / 'kafka.jsa'}"]
        command = self._command(jars, flags, "kafka.Kafka", str(self.folder / "server.properties"))
        with open(self.folder / "broker.log", "ab") as log:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=self.folder, start_new_session=True
            )
        atexit.register(self._end_at_exit)
        self._wait_ready(self._process)
        return self

    def stop(self) -> None:
        """SIGTERM and the end; SIGKILL after 15 s."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """SIGKILL: what a crash looks like. `start` recovers the same data."""
        self._end(signal.SIGKILL)

    def pause(self) -> None:
        """SIGSTOP: connections stay and nothing answers, as behind a network that swallows everything."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """SIGCONT."""
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def log_tail(self, size_bytes: int = 3_000) -> str:
        """The end of what the broker said."""
        path = self.folder / "broker.log"
        return path.read_bytes()[-size_bytes:].decode(errors="replace") if path.exists() else ""

    def __enter__(self) -> KafkaBroker:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._temporary:  # nothing is kept: no need for an orderly end
            self.kill()
            shutil.rmtree(self.folder, ignore_errors=True)
        else:
            self.stop()
        self._ports.close()

    # -- starting

    def _configure(self) -> None:
        lines = (f"{name}={value}\n" for name, value in self._properties.items())
        (self.folder / "server.properties").write_text("".join(lines))
        (self.folder / "log4j2.yaml").write_text(LOG_CONFIGURATION)

    def _command(self, jars: Path, flags: list[str], main: str, *arguments: str) -> list[str]:
        class_path = os.pathsep.join(str(jar) for jar in sorted(jars.glob("*.jar")))
        logging = f"-Dlog4j2.configurationFile={self.folder / 'log4j2.yaml'}"
        return [java(), *flags, logging, "-Djava.net.preferIPv4Stack=true", "-cp", class_path, main, *arguments]

    def _format(self, jars: Path) -> None:
        data = self.folder / "data"
        if (data / "meta.properties").exists():
            return
        template = jars / "formatted"
        if self._fast and not self._users and template.exists():
            shutil.copytree(template, data)
            return
        arguments = ["format", "--cluster-id", _cluster_id(), "--config", str(self.folder / "server.properties")]
        for user, password in self._users.items():
            for mechanism in SCRAM_MECHANISMS:
                arguments += ["--add-scram", f"{mechanism}=[name={user},password={password}]"]
        flags = ["-Xmx128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
        done = subprocess.run(
            self._command(jars, flags, "kafka.tools.StorageTool", *arguments),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=READY_TIMEOUT_S,
            check=False,
        )
        if done.returncode:
            raise KafkaUnusable(f"formatting failed:\n{done.stdout.decode(errors='replace')[-3000:]}")

    def _wait_ready(self, process: subprocess.Popen[bytes]) -> None:
        deadline = time.monotonic() + READY_TIMEOUT_S
        while not answers(self._port):
            if process.poll() is not None:
                raise KafkaUnusable(f"the broker ended with {process.returncode}:\n{self.log_tail()}")
            if time.monotonic() > deadline:
                self.kill()
                raise KafkaUnusable(f"the broker was not ready after {READY_TIMEOUT_S} s:\n{self.log_tail()}")
            time.sleep(POLL_INTERVAL_S)

    # -- ending

    def _end(self, number: signal.Signals) -> None:
        process, self._process = self._process, None
        atexit.unregister(self._end_at_exit)
        if process is None or process.poll() is not None:
            return
        process.send_signal(number)
        process.send_signal(signal.SIGCONT)
        try:
            process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(STOP_TIMEOUT_S)

    def _end_at_exit(self) -> None:
        self._end(signal.SIGKILL)

    def make_archive(self, jars: Path) -> None:
        """One start and stop of this (new, slow) broker, which leaves behind in ``jars`` what makes others fast."""
        archive = jars / "kafka.jsa"
        archive.unlink(missing_ok=True)
        self._jvm_flags = (f"-XX:ArchiveClassesAtExit={archive}",)
        self._configure()
        self._format(jars)
        shutil.rmtree(jars / "formatted", ignore_errors=True)
        shutil.copytree(self.folder / "data", jars / "formatted")
        self.start()
        self.stop()
        self._ports.close()


def is_warm() -> bool:
    """Whether `ensure_warm` has nothing to fetch or make."""
    return (jars_folder() / "warm").exists()


def ensure_warm() -> Path:
    """The folder with the jars, and what makes a start fast; made once per folder (about 15 s)."""
    jars = ensure_jars()
    done = jars / "warm"
    if not done.exists():
        with folder_lock(jars_folder().with_suffix(".warm")):
            if not done.exists():
                with tempfile.TemporaryDirectory(prefix="penstock-kafka-") as folder:
                    KafkaBroker(Path(folder), fast=False).make_archive(jars)
                done.touch()
    return jars


def answers(port: int, timeout_s: float = 1.0) -> bool:
    """Whether a broker on loopback answers and is part of its own cluster: one Metadata request, version 1."""
    client = b"probe"
    body = struct.pack(">hhih", 3, 1, 7, len(client)) + client + struct.pack(">i", 0)
    try:
        with socket.create_connection(("127.0.0.1", port), timeout_s) as connection:
            connection.sendall(struct.pack(">i", len(body)) + body)
            stream = connection.makefile("rb")
            (size,) = struct.unpack(">i", stream.read(4))
            correlation, brokers = struct.unpack_from(">ii", stream.read(size))
    except (OSError, struct.error):
        return False
    return bool(correlation == 7 and brokers >= 1)


def _cluster_id() -> str:
    while True:  # StorageTool takes one that begins with a dash for an option
        text = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        if not text.startswith("-"):
            return text
