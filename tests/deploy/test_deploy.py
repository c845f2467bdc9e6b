"""The files of `deploy/`: they name settings, metrics, labels, paths and commands that exist, and tools accept them."""

from __future__ import annotations

import re
import shutil
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client.metrics import MetricWrapperBase

from penstock.rest.operations import OPERATIONS
from penstock.settings import SETTINGS, load_settings
from penstock.settings.load import SECRET_FILES
from penstock.telemetry.metrics import Metrics
from tests.house.sources import TOP

DEPLOY = TOP / "deploy"
FILES = sorted(path for path in DEPLOY.rglob("*") if path.is_file())
STOP_MAX_S = SETTINGS["shutdown_grace_seconds"].default + 15
"""What a stop may take: docs/operations.md."""
# Series and labels that prometheus_client's process collector, or Prometheus itself, has.
THEIRS = {"up", "process_resident_memory_bytes", "process_cpu_seconds_total"}
THEIR_LABELS = {"job", "instance", "le"}


def documents(file: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((DEPLOY / file).read_text()))


def series() -> dict[str, set[str]]:
    """Every series of an engine's page, with its labels."""
    registry: Any = Metrics().registry
    found: dict[str, set[str]] = {}
    for each in registry._names_to_collectors.values():
        if isinstance(each, MetricWrapperBase):
            about: Any = each
            suffixes = {"counter": ["_total"], "histogram": ["_bucket", "_sum", "_count"]}.get(about._type, [""])
            found |= {about._name + suffix: set(about._labelnames) for suffix in suffixes}
    return found


def queries() -> list[str]:
    rules = [rule["expr"] for group in documents("prometheus/alerts.yaml")[0]["groups"] for rule in group["rules"]]
    dashboard = yaml.safe_load((DEPLOY / "grafana" / "penstock.json").read_text())
    return rules + [target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", [])]


@pytest.mark.parametrize("query", queries())
def test_queries_name_metrics_and_labels_that_exist(query: str) -> None:
    known = series()
    plain = re.sub(r'"[^"]*"|\[[^\]]*\]', "", query)
    names = {name for name in re.findall(r"[a-z_]+", plain) if name in THEIRS or name.count("_") > 1}
    names -= {"histogram_quantile"}
    assert names, query
    assert names <= known.keys() | THEIRS
    labels = {label.strip() for group in re.findall(r"by \(([^)]*)\)", plain) for label in group.split(",")}
    labels |= set(re.findall(r"[{,]\s*([a-z_]+)\s*=", plain))
    have = set().union(*(known.get(name, set()) for name in names)) | THEIR_LABELS
    assert labels <= have


def test_every_alert_is_routed_and_says_what_it_means() -> None:
    [groups] = documents("prometheus/alerts.yaml")
    for rule in groups["groups"][0]["rules"]:
        assert rule["labels"]["severity"] in ("page", "ticket"), rule["alert"]
        assert rule["annotations"]["summary"], rule["alert"]


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(DEPLOY)))
def test_settings_that_are_named_exist(file: Path) -> None:
    known = {info.env for info in SETTINGS.values()} | {f"WE_{name.upper()}" for name in SECRET_FILES}
    assert set(re.findall(r"\b(?:WE|DB)_[A-Z0-9_]+", file.read_text())) <= known


def test_the_settings_of_the_manifests_are_accepted(tmp_path: Path) -> None:
    [settings] = documents("kubernetes/settings.yaml")
    accepted = load_settings(environ=settings["data"], default_config_path=tmp_path / "none")
    assert accepted.authentication
    compose = documents("container/compose.yaml")[0]["services"]["engine"]["environment"]
    given = {name: re.sub(r"\$\{[^:}]+(?::-([^}]*))?\}", r"\1", value) for name, value in compose.items()}
    assert load_settings(environ=given, default_config_path=tmp_path / "none").insecure


def test_probes_ask_for_what_they_decide() -> None:
    container = documents("kubernetes/engine.yaml")[0]["spec"]["template"]["spec"]["containers"][0]
    asked = {name: container[f"{name}Probe"]["httpGet"]["path"] for name in ("startup", "liveness", "readiness")}
    assert asked == {"startup": "/healthz", "liveness": "/healthz", "readiness": "/readyz"}
    assert {"/healthz", "/readyz"} <= {operation.path for operation in OPERATIONS}
    assert "/healthz" in (DEPLOY / "container" / "Containerfile").read_text()


def test_a_stop_has_the_time_that_it_may_take() -> None:
    pod = documents("kubernetes/engine.yaml")[0]["spec"]["template"]["spec"]
    pause = int(pod["containers"][0]["lifecycle"]["preStop"]["exec"]["command"][1])
    assert pod["terminationGracePeriodSeconds"] >= STOP_MAX_S + pause
    unit = (DEPLOY / "systemd" / "penstock.service").read_text()
    assert int(re.findall(r"^TimeoutStopSec=(\d+)$", unit, re.MULTILINE)[0]) >= STOP_MAX_S
    grace = documents("container/compose.yaml")[0]["services"]["engine"]["stop_grace_period"]
    assert int(grace.removesuffix("s")) >= STOP_MAX_S


def test_nothing_runs_as_root() -> None:
    pod = documents("kubernetes/engine.yaml")[0]["spec"]["template"]["spec"]
    assert pod["securityContext"]["runAsNonRoot"]
    assert re.search(r"^USER \d+$", (DEPLOY / "container" / "Containerfile").read_text(), re.MULTILINE)
    assert "\nUser=penstock\n" in (DEPLOY / "systemd" / "penstock.service").read_text()


def test_the_image_is_built_from_all_that_the_wheel_takes() -> None:
    made = (DEPLOY / "container" / "Containerfile").read_text()
    copied = {name for line in re.findall(r"^COPY ([^-].*) \S+$", made, re.MULTILINE) for name in line.split()}
    project = tomllib.loads((TOP / "pyproject.toml").read_text())
    built = project["tool"]["hatch"]["build"]["targets"]["wheel"]
    named = {project["project"]["readme"], *project["project"]["license-files"], *built["force-include"]}
    named |= {hook["path"] for hook in built["hooks"].values()}
    assert {"pyproject.toml", *named, *(package.split("/")[0] for package in built["packages"])} <= copied
    assert all((TOP / name).exists() for name in copied)


def test_the_image_installs_what_stands_in_the_locks_and_nothing_else() -> None:
    made = (DEPLOY / "container" / "Containerfile").read_text()
    calls = re.findall(r"pip (?:install|wheel) [^\n&]*", made)
    assert len(calls) == 4
    for call in calls:
        assert "--require-hashes" in call or "--no-deps" in call
        assert not call.startswith("pip wheel") or "--no-build-isolation" in call
    [program] = re.findall(r"awk '([^']+)'", made)
    kafka = subprocess.run(
        ["awk", program, TOP / "locks" / "linux-x86_64-dev.txt"], capture_output=True, text=True, check=True
    ).stdout
    locked = (TOP / "locks" / "linux-x86_64.txt").read_text() + kafka
    extras = tomllib.loads((TOP / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    wanted = {re.split(r"[\[<>=~!; ]", text)[0].lower() for text in (*extras["engine"], *extras["kafka"])}
    assert {name for name in wanted if f"\n{name}==" not in "\n" + locked} <= {"penstock"}
    assert "aiokafka==" in kafka
    assert kafka.count("==") == 2


def test_published_ports_stay_on_loopback() -> None:
    services = documents("container/compose.yaml")[0]["services"]
    ports = [port for service in services.values() for port in service.get("ports", [])]
    assert ports
    assert all(port.startswith("127.0.0.1:") for port in ports)


def test_the_unit_is_accepted_by_systemd(tmp_path: Path) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("LEFT OUT: systemd-analyze is not installed")
    text = (DEPLOY / "systemd" / "penstock.service").read_text()
    unit = tmp_path / "penstock.service"
    unit.write_text(text.replace("/usr/local/bin/penstock", "/bin/true"))
    check = subprocess.run(["systemd-analyze", "verify", str(unit)], capture_output=True, text=True, timeout=60)
    assert (check.returncode, check.stderr) == (0, "")


def test_kustomize_puts_the_manifests_together() -> None:
    if shutil.which("kubectl") is None:
        pytest.skip("LEFT OUT: kubectl is not installed")
    made = subprocess.run(
        ["kubectl", "kustomize", str(DEPLOY / "kubernetes")], capture_output=True, text=True, timeout=60
    )
    assert made.returncode == 0, made.stderr
    kinds = sorted(each["kind"] for each in yaml.safe_load_all(made.stdout))
    assert kinds == ["ConfigMap", "Deployment", "PodDisruptionBudget", "Service"]


def test_promtool_accepts_the_alerts() -> None:
    if shutil.which("promtool") is None:
        pytest.skip("LEFT OUT: promtool is not installed")
    rules = DEPLOY / "prometheus" / "alerts.yaml"
    check = subprocess.run(["promtool", "check", "rules", str(rules)], capture_output=True, text=True, timeout=60)
    assert check.returncode == 0, check.stdout + check.stderr
