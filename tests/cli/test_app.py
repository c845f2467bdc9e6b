"""The command line: options reach the settings, wrong ones are told and end with code 2."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from penstock import __version__
from tests.house.sources import SRC


def penstock(*arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "penstock", *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        env={"PATH": os.environ["PATH"], "PYTHONPATH": str(SRC), **environ},
    )


def test_version_is_printed():
    run = penstock("version")
    assert (run.returncode, run.stdout) == (0, f"penstock {__version__}\n")


def test_wrong_settings_exit_with_2_and_a_line_per_problem(tmp_path):
    config = tmp_path / "engine.yaml"
    config.write_text("rest_prot: 1\n")
    run = penstock("serve", "--config", str(config), "--grpc-port", "99999", DB_MAX_CONNS="x")
    assert run.returncode == 2
    assert run.stderr.splitlines() == [
        "penstock: the settings are wrong:",
        f"  {config}:1: rest_prot: unknown setting (did you mean rest_port?)",
        "  DB_MAX_CONNS: 'x' is not accepted: expected `int`, got `str`",
        "  option --grpc-port: 99999 is not accepted: expected `int` <= 65535",
    ]


@pytest.mark.parametrize("command", ["serve", "migrate"])
def test_a_secret_is_not_printed_with_the_problem(command, tmp_path):
    config = tmp_path / "engine.yaml"
    config.write_text("kafka_sasl_password: hunter2\n")
    run = penstock(command, "--config", str(config))
    assert run.returncode == 2
    assert "hunter2" not in run.stdout + run.stderr


def test_an_unknown_option_or_command_is_refused():
    assert penstock("serve", "--rest-prot", "1").returncode == 2
    assert penstock("server").returncode == 2


def test_bench_passes_arguments_and_exit_code_of_the_harness():
    listed, refused = penstock("bench", "list"), penstock("bench", "no-such", "--quick")
    assert (listed.returncode, "idle-fleet" in listed.stdout) == (0, True)
    assert (refused.returncode, refused.stderr) == (2, "benchmarks: there is no scenario no-such; `list` names them\n")
