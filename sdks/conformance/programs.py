"""The programs under test: how each language's is built and started, and what a running one says."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import zipfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
SDKS = HERE.parent
TOP = SDKS.parent
KEPT_CLASSES_TIMEOUT_S = 120.0
"""The end of a hang."""


class Language:
    """How to build and run the conformance program of a language. ``tools`` have to be on the machine."""

    def __init__(
        self,
        name: str,
        tools: Sequence[str],
        build: Sequence[Sequence[str]],
        run: Sequence[str],
        after_build: Callable[[], None] | None = None,
    ) -> None:
        self.name = name
        self.tools = tools
        self._build = build
        self.run = run
        self._after_build = after_build

    @property
    def missing(self) -> list[str]:
        """The tools that this machine does not have."""
        return [tool for tool in self.tools if shutil.which(tool) is None]

    def build(self) -> None:
        """Build the program; what it prints is shown when it fails."""
        for command in self._build:
            done = subprocess.run(command, cwd=SDKS / self.name, capture_output=True, text=True, check=False)
            if done.returncode:
                raise AssertionError(f"{' '.join(command)} failed:\n{done.stdout[-8000:]}\n{done.stderr[-8000:]}")
        if self._after_build is not None:
            self._after_build()


def keep_java_classes() -> None:
    """Let a worker of each wire load its classes and keep them for all programs that come (sdks/java/run.sh).

    It asks a port where nobody answers, twice, so that what loads is also what follows a failure.
    """
    built = SDKS / "java" / "target"
    with zipfile.ZipFile(built / "programs.jar", "w") as jar:
        for folder in ("classes", "test-classes"):
            for path in sorted((built / folder).rglob("*")):
                if path.is_file():
                    jar.write(path, path.relative_to(built / folder))
    options = {"workerId": "w", "jobTypes": [{"type": "t"}], "concurrency": 1}
    options |= {"leaseSeconds": 30, "waitSeconds": 1, "drainGraceSeconds": 1}
    for scheme in ("http", "grpc"):
        with socket.create_server(("127.0.0.1", 0)) as listener:
            listener.settimeout(KEPT_CLASSES_TIMEOUT_S)
            url = f"{scheme}://127.0.0.1:{listener.getsockname()[1]}"
            given = {"PENSTOCK_URL": url, "CONFORMANCE_OPTIONS": json.dumps(options), "JIT_LEVEL": "1"}
            command = [str(SDKS / "java" / "run.sh"), "io.penstock.sdk.Conformance", "worker"]
            worker = subprocess.Popen(
                command,
                env=os.environ | given | {"KEEP_CLASSES": "1"},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
            try:
                for _ in range(2):
                    listener.accept()[0].close()
                worker.terminate()
                worker.wait(KEPT_CLASSES_TIMEOUT_S)
            finally:
                worker.kill()
                worker.wait()


LANGUAGES = {
    "python": Language("python", (), (), (sys.executable, str(HERE / "python" / "worker.py"))),
    "go": Language(
        "go",
        ("go",),
        (("go", "build", "-o", "build/conformance", "./internal/conformance"),),
        (str(SDKS / "go" / "build" / "conformance"),),
    ),
    "typescript": Language(
        "typescript",
        ("node", "npm"),
        (
            ("npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--silent"),
            ("npm", "run", "--silent", "build"),
        ),
        ("node", str(SDKS / "typescript" / "dist" / "conformance" / "main.js")),
    ),
    "java": Language(
        "java",
        ("java", "javac", "mvn"),
        (("mvn", "-q", "-B", "test-compile", "dependency:build-classpath", "-Dmdep.outputFile=target/classpath"),),
        (str(SDKS / "java" / "run.sh"), "io.penstock.sdk.Conformance"),
        keep_java_classes,
    ),
}


def build_once(language: Language, run: str) -> None:
    """Build, unless another process of the same run has: they share the folder."""
    done = Path(tempfile.gettempdir(), f"penstock-sdk-{language.name}-{run}")
    with done.open("a+") as stamp:
        fcntl.flock(stamp, fcntl.LOCK_EX)
        stamp.seek(0)
        if not stamp.read():
            language.build()
            stamp.write("built")


def take_interrupts() -> None:
    """Let programs take SIGINT, from the main thread. A shell that runs us in its background has us ignore it, which
    programs inherit, as they do no handler. (Code between fork and exec crashes in a process with threads.)"""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


class Program:
    """A running program: its events, its log, its signals."""

    def __init__(self, language: Language, mode: str, log: Path, environment: Mapping[str, str]) -> None:
        plain = {name: value for name, value in os.environ.items() if not name.startswith(("WE_", "PENSTOCK_"))}
        path = os.pathsep.join((str(TOP / "src"), str(TOP)))
        self.log = log
        self._log_file = log.open("ab")
        self.process = subprocess.Popen(
            [*language.run, mode],
            env=plain | {"PYTHONPATH": path} | dict(environment),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log_file,
            text=True,
        )
        self.events: list[dict[str, Any]] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith("{"):
                self.events.append({**json.loads(line), "at": time.monotonic()})
            else:
                with contextlib.suppress(ValueError):  # closed
                    self._log_file.write(line.encode())

    def ask(self, command: object) -> None:
        """Send a command to a client program."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(command) + "\n")
        self.process.stdin.flush()

    def signal(self, name: str) -> None:
        """Send a signal, by its name without SIG."""
        if self.process.poll() is None:
            self.process.send_signal(getattr(signal, f"SIG{name}"))

    def wait(self, timeout_s: float) -> int:
        """The exit code, once it has ended."""
        code = self.process.wait(timeout_s)
        self._reader.join(5)
        return code

    def close(self) -> None:
        """End it, however it stands."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(60)
        self._reader.join(5)
        for stream in (self.process.stdin, self.process.stdout, self._log_file):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()
