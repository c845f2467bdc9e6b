"""The wheel carries all that a run needs, and what it carries works without the repository."""

from __future__ import annotations

import shutil
import subprocess
import sys
import zipfile

import pytest

from tests.house.sources import PACKAGE, TOP


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    source = tmp_path_factory.mktemp("source")
    for folder in ("src", "examples", "benchmarks"):
        shutil.copytree(TOP / folder, source / folder, ignore=shutil.ignore_patterns("__pycache__"))
    for file in ("pyproject.toml", "README.md", "LICENSE", "schema.sql"):
        shutil.copy(TOP / file, source)
    command = [
        sys.executable,
        "-m",
        "build",
        "--wheel",
        "--no-isolation",
        "--outdir",
        str(source / "dist"),
        str(source),
    ]
    subprocess.run(command, check=True, capture_output=True)
    [built] = (source / "dist").glob("penstock-*.whl")
    unpacked = tmp_path_factory.mktemp("wheel")
    with zipfile.ZipFile(built) as archive:
        archive.extractall(unpacked)
    return unpacked


@pytest.mark.slow
def test_the_wheel_carries_every_file_of_the_package_the_schema_and_the_examples(wheel):
    expected = {str(path.relative_to(PACKAGE)) for path in PACKAGE.rglob("*") if path.is_file()}
    expected = {path for path in expected if "__pycache__" not in path}
    expected |= {"schema.sql", *(str(path.relative_to(TOP)) for path in (TOP / "examples").rglob("*.*"))}
    expected = {path for path in expected if "__pycache__" not in path}
    carried = {str(path.relative_to(wheel / "penstock")) for path in (wheel / "penstock").rglob("*") if path.is_file()}
    assert expected - carried == set()
    assert {path for path in carried - expected if not path.startswith(("examples/", "harness/benchmarks/"))} == set()


@pytest.mark.slow
def test_the_harness_in_the_wheel_runs_without_the_repository(wheel, tmp_path):
    run = subprocess.run(
        [sys.executable, "-m", "penstock", "bench", "list"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
        env={"PYTHONPATH": str(wheel)},
    )
    assert "jobs ≥ 3,000/s" in run.stdout.replace("\n", " ")


@pytest.mark.slow
def test_schema_and_examples_are_found_in_the_wheel(wheel):
    code = (
        "from penstock.cli.examples import example\n"
        "from penstock.store.schema import schema_sql\n"
        "print(example('order-fulfilment.json'))\n"
        f"print(schema_sql() == open({str(TOP / 'schema.sql')!r}).read())"
    )
    run = subprocess.run(
        [sys.executable, "-c", code],
        cwd="/",
        capture_output=True,
        text=True,
        check=True,
        env={"PYTHONPATH": str(wheel)},
    )
    assert run.stdout.splitlines() == [str(wheel / "penstock" / "examples" / "order-fulfilment.json"), "True"]


@pytest.mark.slow
def test_the_wheel_has_the_command_and_the_licence(wheel):
    [metadata] = wheel.glob("penstock-*.dist-info")
    assert "penstock = penstock.cli:main" in (metadata / "entry_points.txt").read_text()
    assert "Apache License" in (metadata / "licenses" / "LICENSE").read_text()
