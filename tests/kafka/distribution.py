"""Apache Kafka's own jars, fetched once from Maven Central into a folder outside the source tree.

Needs ``java`` 17 or newer, and ``mvn`` for the first time only. The folder is `PENSTOCK_KAFKA_JARS`, else
``penstock/kafka-<version>`` in `$XDG_CACHE_HOME` or ``~/.cache``. Safe with several callers at once: the folder is
filled beside its place and renamed, under a file lock. Knows nothing of brokers: that is `broker.py`.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import tempfile
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

JARS_VARIABLE: Final = "PENSTOCK_KAFKA_JARS"
KAFKA_VERSION: Final = "4.3.1"
FETCH_TIMEOUT_S: Final = 540.0
# 4.3.1 is the newest whose every artefact resolves (2026-11); log4j-slf4j-impl is the binding without which the
# broker says nothing at all, not even why it ends.
POM: Final = f"""\
<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>penstock.testing</groupId>
  <artifactId>kafka</artifactId>
  <version>1</version>
  <dependencies>
    <dependency>
      <groupId>org.apache.kafka</groupId>
      <artifactId>kafka_2.13</artifactId>
      <version>{KAFKA_VERSION}</version>
    </dependency>
    <dependency>
      <groupId>org.apache.logging.log4j</groupId>
      <artifactId>log4j-slf4j-impl</artifactId>
      <version>2.25.4</version>
    </dependency>
  </dependencies>
  <build>
    <plugins>
      <plugin>
        <groupId>org.apache.maven.plugins</groupId>
        <artifactId>maven-dependency-plugin</artifactId>
        <version>3.8.1</version>
      </plugin>
    </plugins>
  </build>
</project>
"""


class KafkaUnusable(RuntimeError):
    """The broker's jars can't be had, or the broker does not do what it was told; the text ends with its log."""


def jars_folder(environ: Mapping[str, str] = os.environ) -> Path:
    """Where the jars are, or will be."""
    if folder := environ.get(JARS_VARIABLE):
        return Path(folder).expanduser().absolute()
    cache = environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(cache).expanduser() / "penstock" / f"kafka-{KAFKA_VERSION}"


def java() -> str:
    """The ``java`` to run: of `JAVA_HOME`, else the one on the path."""
    home = os.environ.get("JAVA_HOME")
    return str(Path(home, "bin", "java")) if home else "java"


@contextmanager
def folder_lock(folder: Path) -> Generator[None]:
    """Holds the lock of a folder that may not exist yet; waits for others that fill it."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with open(folder.parent / f".{folder.name}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def ensure_jars(folder: Path | None = None) -> Path:
    """The folder with the jars, fetched if need be (45 MB; about 20 s with an empty Maven repository).

    Raises KafkaUnusable with the end of Maven's output.
    """
    folder = folder or jars_folder()
    if _complete(folder):
        return folder
    with folder_lock(folder):
        if not _complete(folder):
            _fetch(folder)
    return folder


def _complete(folder: Path) -> bool:
    stamp = folder / "pom.xml"
    return stamp.exists() and stamp.read_text() == POM


def _fetch(folder: Path) -> None:
    with tempfile.TemporaryDirectory(prefix=f".{folder.name}-", dir=folder.parent) as place:
        jars = Path(place, "jars")
        jars.mkdir()
        pom = jars / "pom.xml"
        pom.write_text(POM)
        command = ["mvn", "-B", "-ntp", "-q", "-f", str(pom), "dependency:copy-dependencies"]
        command += ["-DincludeScope=runtime", f"-DoutputDirectory={jars}"]
        try:
            done = subprocess.run(
                command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=FETCH_TIMEOUT_S, check=False
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise KafkaUnusable(f"the broker's jars could not be fetched: {error}") from error
        if done.returncode:
            raise KafkaUnusable(f"mvn failed:\n{done.stdout.decode(errors='replace')[-3000:]}")
        shutil.rmtree(folder, ignore_errors=True)  # of another version
        jars.rename(folder)
