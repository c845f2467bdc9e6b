"""Three PostgreSQL nodes under Patroni, with etcd and HAProxy, on loopback addresses: by the commands of
docs/high-availability.md, so that the page is what runs.

Each node has an address of its own in 127.0.0.0/8 and so the same ports as on a machine of its own. Needs Debian's
packages patroni, etcd-server, haproxy and postgresql; `missing` names those that are not there.
"""

from __future__ import annotations

import json
import os
import pwd
import random
import re
import shutil
import signal
import subprocess
import urllib.request
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import trio

from benchmarks.processes import all_processes, tree

PAGE: Final = Path(__file__).resolve().parents[1] / "docs" / "high-availability.md"
BLOCK: Final = re.compile(r"^<!-- chaos\.patroni: (\w+) -->\n```sh\n(.*?)^```$", re.DOTALL | re.MULTILINE)
PROGRAMS: Final = {"patroni": "patroni", "patronictl": "patroni", "etcd": "etcd-server", "haproxy": "haproxy"}
"""By program, the package that has it."""
ACCOUNT: Final = "postgres"
NODES: Final = ("n1", "n2", "n3")
TTL_S: Final = 20.0
"""As on the page; a test compares them."""
POLL_S: Final = 0.2
ANSWER_TIMEOUT_S: Final = 3.0
UP_WITHIN_S: Final = 180.0
END_TIMEOUT_S: Final = 20.0
HEALTHY_WITHIN_S: Final = 180.0
"""Until all three nodes are there again and one is the synchronous standby."""


class NoPrograms(Exception):
    """What this needs is not installed."""


class ClusterFailed(Exception):
    """It did not come up, or not come back."""


def commands() -> dict[str, str]:
    """The blocks of the page that are run, by their name."""
    return {found[1]: found[2] for found in BLOCK.finditer(PAGE.read_text(encoding="utf-8"))}


def server_programs() -> Path | None:
    """The newest PostgreSQL of Debian's packages; None without one."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: int(path.parts[-3]))
    return found[-1].parent if found else None


def missing() -> list[str]:
    """The packages that are not installed."""
    path = f"{os.environ.get('PATH', '')}:/usr/sbin"
    found = {package for program, package in PROGRAMS.items() if shutil.which(program, path=path) is None}
    return sorted(found | ({"postgresql"} if server_programs() is None else set()))


class Cluster:
    """In ``directory``, which the account of PostgreSQL may enter."""

    def __init__(self, directory: Path, *, net: int | None = None) -> None:
        if absent := missing():
            raise NoPrograms(f"not installed: {', '.join(absent)} (apt-get install {' '.join(absent)})")
        programs = server_programs()
        assert programs is not None
        self._directory = directory / "ha"
        net = random.randrange(2, 250) if net is None else net
        self.addresses = {name: f"127.{net}.0.{number}" for number, name in enumerate(NODES, 1)}
        self._commands = commands()
        self._environment = {
            "PATH": f"{programs}:/usr/local/bin:/usr/bin:/bin:/usr/sbin",
            "LANG": "C.UTF-8",
            "HOME": str(self._directory),
            "BIN": str(programs),
            "TRUSTED": "127.0.0.0/8",
            **{name.upper(): address for name, address in self.addresses.items()},
        }
        self._identity: dict[str, Any] = {}
        if os.geteuid() == 0:
            account = pwd.getpwnam(ACCOUNT)
            self._identity = {"user": account.pw_uid, "group": account.pw_gid, "extra_groups": []}
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    @property
    def dsn(self) -> str:
        """Of all nodes: it leads to the leader."""
        return (
            f"host={','.join(self.addresses.values())} user=penstock dbname=penstock"
            " target_session_attrs=read-write connect_timeout=3"
        )

    @property
    def proxied_dsn(self) -> str:
        """Through HAProxy."""
        return f"host={self.addresses['n1']} port=5000 user=penstock dbname=penstock connect_timeout=3"

    async def make(self) -> None:
        """Start all of it, and make the database."""
        self._directory.mkdir(mode=0o700)
        if self._identity:
            os.chown(self._directory, self._identity["user"], self._identity["group"])
        for node in NODES:
            self._spawn("etcd", node)
        for node in NODES:
            self._spawn("patroni", node)
        await self.wait_healthy(UP_WITHIN_S)
        self._run("database", "n1")
        self._spawn("haproxy", "n1")
        print(self._run("list", "n1"), flush=True)

    async def wait_healthy(self, within_s: float = HEALTHY_WITHIN_S) -> None:
        """Wait until one leads, one is its synchronous standby, and the third follows."""
        with trio.move_on_after(within_s):
            while True:
                roles = sorted((await self._members()).values())
                if roles == ["leader", "replica", "sync_standby"]:
                    return
                await trio.sleep(POLL_S)
        raise ClusterFailed(f"after {within_s:g} s the nodes are {await self._members()}; see {self._directory}/*.log")

    async def leader(self) -> str | None:
        """The name of the node that leads now, if one does."""
        return next((name for name, role in (await self._members()).items() if role == "leader"), None)

    async def kill_leader(self) -> str:
        """kill -9 Patroni and PostgreSQL of the leader, as a machine that is gone; its name. It stays away until
        `start`."""
        name = await self.leader()
        assert name is not None, "kill_leader is for a healthy cluster"
        postmaster = int((self._directory / f"data-{name}" / "postmaster.pid").read_text().split()[0])
        manager = self._processes.pop(f"patroni-{name}")
        for pid in (manager.pid, postmaster):  # while it is listed it starts nothing: what is left keeps the node away
            os.kill(pid, signal.SIGSTOP)
        processes = all_processes()
        for pid in [*tree(processes, manager.pid), *tree(processes, postmaster)]:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        manager.wait()
        return name

    def start(self, name: str) -> None:
        """Start a node that was killed."""
        self._spawn("patroni", name)

    async def switch_over(self) -> None:
        """Have another node lead. Returns when Patroni has done it."""
        name = await self.leader()
        assert name is not None, "switch_over is for a healthy cluster"
        await trio.to_thread.run_sync(lambda: self._run("switchover", "n1", LEADER=name))

    async def remove(self) -> None:
        """End all that was started here."""
        with trio.CancelScope(shield=True):
            for name in sorted(self._processes, reverse=True):  # Patroni before etcd, and it ends its PostgreSQL
                process = self._processes.pop(name)
                process.send_signal(signal.SIGTERM)
                await trio.to_thread.run_sync(self._end, process)

    def _end(self, process: subprocess.Popen[bytes]) -> None:
        try:
            process.wait(END_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            for pid in tree(all_processes(), process.pid):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            process.wait()

    def _spawn(self, block: str, node: str) -> None:
        """The block's last command takes the shell's place, so that it is what is signalled."""
        *before, last = re.split(r"\n(?=\S)", self._commands[block].rstrip("\n"))
        text = "\n".join(["set -eu", *before, f"exec {last}"])
        with (self._directory / f"{block}-{node}.log").open("ab") as log:
            self._processes[f"{block}-{node}"] = subprocess.Popen(
                ["bash", "-c", text], cwd=self._directory, env=self._variables(node), stdin=subprocess.DEVNULL,
                stdout=log, stderr=log, start_new_session=True, **self._identity,
            )  # fmt: skip

    def _run(self, block: str, node: str, **more: str) -> str:
        done = subprocess.run(
            ["bash", "-euc", self._commands[block]], cwd=self._directory, env={**self._variables(node), **more},
            stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=UP_WITHIN_S, check=False,
            **self._identity,
        )  # fmt: skip
        if done.returncode:
            raise ClusterFailed(f"the block `{block}` of {PAGE.name}: {done.stdout}{done.stderr}")
        return done.stdout

    def _variables(self, node: str) -> Mapping[str, str]:
        return {**self._environment, "NODE": node, "ADDRESS": self.addresses[node]}

    async def _members(self) -> dict[str, str]:
        """By name the roles of those that run, as the first Patroni says that answers and sees a leader."""
        best: dict[str, str] = {}
        for address in self.addresses.values():
            found = await trio.to_thread.run_sync(_members_at, f"http://{address}:8008/cluster")
            if "leader" in found.values():
                return found
            best = best or found
        return best


def _members_at(url: str) -> dict[str, str]:
    with (
        suppress(OSError, urllib.error.URLError, ValueError),
        urllib.request.urlopen(url, timeout=ANSWER_TIMEOUT_S) as answer,
    ):
        members = json.load(answer)["members"]
        return {each["name"]: each["role"] for each in members if each["state"] in ("running", "streaming")}
    return {}
