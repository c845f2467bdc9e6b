"""The page about Patroni is what `chaos.patroni` runs, and who lacks its packages is told so."""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from pathlib import Path

import pytest

from chaos import patroni_cluster
from chaos.patroni import BACK_WITHIN_S, Drill
from chaos.patroni_cluster import NODES, PAGE, TTL_S, commands, missing
from tests.chaos.test_short_attack import directory
from tests.house.sources import TOP

__all__ = ["directory"]


def test_the_blocks_of_the_page_are_those_that_the_drill_runs() -> None:
    source = Path(patroni_cluster.__file__).read_text()
    run = set(re.findall(r'self\._(?:spawn|run)\(\s*"(\w+)"', source))
    assert run == set(commands())
    assert run == {"etcd", "patroni", "database", "haproxy", "list", "switchover"}


def test_the_pages_settings_are_those_that_are_promised() -> None:
    text = commands()["patroni"]
    assert f"ttl: {TTL_S:g}\n" in text
    assert BACK_WITHIN_S == TTL_S + 5
    assert "synchronous_mode: true\n" in text
    assert "synchronous_mode_strict: true\n" in text
    assert re.findall(r"\$N(\d):2379", text) == [name[1:] for name in NODES]
    assert "target_session_attrs=read-write" in PAGE.read_text()


def test_without_the_packages_the_drill_says_which(tmp_path: Path) -> None:
    environment = {"PATH": str(tmp_path), "PYTHONPATH": f"{TOP / 'src'}:{TOP}"}
    command = [sys.executable, "-m", "chaos.patroni"]
    done = subprocess.run(command, cwd=TOP, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("chaos.patroni: not installed: etcd-server,")
    assert "apt-get install etcd-server " in done.stderr


@pytest.mark.chaos
async def test_nothing_acknowledged_is_lost_when_patronis_leader_is(directory: Path, leave_out) -> None:
    if absent := missing():
        leave_out(f"no Patroni here: apt-get install {' '.join(absent)}")
    options = argparse.Namespace(rounds=1, clients=8, executors=2, runs=100, seed="test", keep=False)
    verdict = await Drill(directory, options).run()
    assert [strike.kind for strike in verdict.strikes] == ["killed", "switched over"]
    assert (verdict.lost, verdict.broken, verdict.late) == ([], [], [])
    assert verdict.done > 100
