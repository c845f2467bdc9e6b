#!/usr/bin/env python3
"""The shortest way in: makes .venv beside this file, installs Penstock into it, and runs the demo or the tests.

    python3 bootstrap.py demo [options of `penstock demo`]
    python3 bootstrap.py test [options of pytest]           the quick tests
    python3 bootstrap.py test --slow [options of pytest]    the others; --all: both
    python3 bootstrap.py dev              only installs, with all that tests and linters need

Needs Python >= 3.11 and nothing else. Stays readable for older Pythons, so that they can say what is wrong. Installs
again only when pyproject.toml or the lock changed. Must not touch anything outside this folder.

Where locks/ has a lock for this kind of machine, exactly its versions are installed, and only files with its hashes
(tools/lock.py writes it). `python3 bootstrap.py --unlocked dev` takes whatever versions pyproject.toml allows instead.
"""

# Without annotations: older Pythons can't parse them.
# pyright: basic

import hashlib
import os
import platform
import shutil
import signal
import subprocess
import sys

NEEDED = (3, 11)
NEWER = ("python3.14", "python3.13", "python3.12", "python3.11")
PASSED, FAILED, NO_TESTS = 0, 1, 5  # exit statuses of pytest
TOP = os.path.dirname(os.path.abspath(__file__))
VENV = os.path.join(TOP, ".venv")
PYTHON = os.path.join(VENV, "bin", "python")


def main(words):
    """Does not return when something is to be run: that takes this process's place, signals included."""
    unlocked = words[:1] == ["--unlocked"]
    words = words[1:] if unlocked else words
    if not words or words[0] not in ("demo", "test", "dev"):
        sys.exit((__doc__ or "").strip())
    if sys.version_info < NEEDED:
        run_with_newer_python(["--unlocked"] + words if unlocked else words)
    make_venv()
    install("[engine]" if words[0] == "demo" else "[dev]", unlocked)
    if words[0] == "demo":
        become([os.path.join(VENV, "bin", "penstock"), "demo"] + words[1:])
    if words[0] == "test":
        sys.exit(run_tests(words[1:]))


def run_tests(words):
    """The exit status of pytest: of the tests that run beside each other, then of those that need the machine alone."""
    os.chdir(TOP)
    tier = "all" if "--all" in words else "slow" if "--slow" in words else "quick"
    words = [word for word in words if word not in ("--slow", "--all")]
    # Many tests start an engine or a command. Where PYTHONDONTWRITEBYTECODE is set, as in .ci/run, each would compile
    # all of its modules: a third of its CPU.
    quiet([PYTHON, "-m", "compileall", "-q", "-j", "0", "src", "chaos", "benchmarks", "examples"])
    # Each worker process has a database of its own; more than four wait for each other's disk. Two more than there are
    # processors, as many tests wait for time to pass: with one more two processors were busy for 60 %. With four more
    # slow tests had too little of a processor, and failed by time. worksteal: tests take from a millisecond to half a
    # minute, and one worker would stay with all of the long ones.
    workers = str(min(4, (os.cpu_count() or 1) + 2))
    pytest = [PYTHON, "-m", "pytest", "--tier=" + tier]
    beside = run(pytest + ["-n", workers, "--dist=worksteal", "--timing=without"] + words)
    if beside not in (PASSED, FAILED, NO_TESTS) or not any_test_needs_the_machine():
        return beside
    alone = run(pytest + ["--timing=only"] + words + ["-n0"])
    return min(beside, alone) if NO_TESTS in (beside, alone) else max(beside, alone)


def any_test_needs_the_machine():
    """Whether a test has the marker `timing`. To ask pytest would take as long as it takes to collect all tests."""
    for folder, _, names in os.walk("tests"):
        texts = (content(os.path.join(folder, name)) for name in names if name.endswith(".py"))
        if any(text and "pytest.mark.timing" in text for text in texts):
            return True
    return False


def run(command):
    """Its exit status. It gets the signals that this process gets, and ends in its own time."""
    sys.stdout.flush()
    child = subprocess.Popen(command)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal sends it to the child, too
    signal.signal(signal.SIGTERM, lambda number, frame: child.terminate())
    return child.wait()


def run_with_newer_python(words):
    """Goes on under the newest Python there is, or says that there is none."""
    for name in NEWER:
        found = shutil.which(name)
        if found:
            become([found, os.path.abspath(__file__)] + words)
    sys.exit("Penstock needs Python >= 3.11; this is %d.%d, and no newer one is on the PATH." % sys.version_info[:2])


def make_venv():
    """Makes .venv with pip in it, by whichever tool this machine has for that."""
    if os.path.exists(PYTHON) and quiet([PYTHON, "-m", "pip", "--version"]):
        return
    shutil.rmtree(VENV, ignore_errors=True)
    print("Making a virtual environment in .venv", flush=True)
    ways = [[sys.executable, "-m", "venv", VENV], [sys.executable, "-m", "virtualenv", "-q", VENV]]
    if shutil.which("uv"):
        ways.append(["uv", "venv", "-q", "--seed", "--python", sys.executable, VENV])
    if any(quiet(way) for way in ways):
        return
    # Debian splits venv's pip off into python3-venv; its pip, if that is there, can fill an environment without one.
    if quiet([sys.executable, "-m", "venv", "--clear", "--without-pip", VENV]) and quiet(
        [sys.executable, "-m", "pip", "--python", PYTHON, "install", "-q", "pip"]
    ):
        return
    shutil.rmtree(VENV, ignore_errors=True)
    sys.exit(
        "This Python can't make a virtual environment with pip in it (no ensurepip, pip, virtualenv or uv).\n"
        "On Debian and Ubuntu: apt-get install python3-venv"
    )


def install(extra, unlocked):
    """Installs this folder, editable, unless that was done for the same pyproject.toml and lock."""
    lock = None if unlocked else find_lock(extra)
    state = state_of([os.path.join(TOP, "pyproject.toml")] + ([lock] if lock else []))
    done = [os.path.join(VENV, "installed" + name) for name in (extra, "[dev]")]  # dev has all that others have
    if any(content(path) == state for path in done):
        return
    print(
        "Installing Penstock and what it needs into .venv (a minute the first time, if it is slow several)", flush=True
    )
    pip = [PYTHON, "-m", "pip", "install", "-q", "--disable-pip-version-check"]
    if lock is None:
        steps = [pip + ["-e", TOP + extra]]
    else:
        # The lock holds what builds this folder, too: an isolated build would fetch that without hashes.
        steps = [
            pip + ["--require-hashes", "--only-binary=:all:", "-r", lock],
            pip + ["--no-deps", "--no-build-isolation", "-e", TOP],
        ]
    if any(subprocess.call(step) != 0 for step in steps):
        hint = "" if lock is None else "\nWithout the lock: python3 bootstrap.py --unlocked demo (or test, or dev)"
        sys.exit("The installation failed; pip said why above." + hint)
    with open(os.path.join(VENV, "installed" + extra), "w") as file:
        file.write(state)


def lock_path(extra):
    """Where the lock for this kind of machine is, if there is one."""
    name = "%s-%s%s.txt" % (sys.platform, platform.machine(), "-dev" if extra == "[dev]" else "")
    return os.path.join("locks", name)


def find_lock(extra):
    """The lock, if there is one for this machine and Python that fits pyproject.toml; else None."""
    path = os.path.join(TOP, lock_path(extra))
    text = content(path)
    if text is None:
        return None
    about = dict(line[2:].split(": ", 1) for line in text.splitlines() if line.startswith("# ") and ": " in line)
    if "%d.%d" % sys.version_info[:2] not in about["python"].split():
        return None
    libc, version = platform.libc_ver()
    if libc != "glibc" or numbers(version) < numbers(about["glibc"]):
        return None
    if about["dependencies"] != dependencies_state():
        print("%s is older than pyproject.toml (tools/lock.py renews it): installing without" % lock_path(extra))
        return None
    return path


def dependencies_state():
    """A hash of what pyproject.toml asks for."""
    import json
    import tomllib

    with open(os.path.join(TOP, "pyproject.toml"), "rb") as file:
        found = tomllib.load(file)
    project = found["project"]
    asked = [found["build-system"]["requires"], project["dependencies"], project["optional-dependencies"]]
    return hashlib.sha256(json.dumps(asked, sort_keys=True).encode()).hexdigest()


def numbers(version):
    """(2, 28) of 2.28."""
    return tuple(int(part) for part in version.split("."))


def state_of(paths):
    """A hash of files."""
    state = hashlib.sha256()
    for path in paths:
        with open(path, "rb") as file:
            state.update(file.read())
    return state.hexdigest()


def content(path):
    """The text of a file, or None."""
    if not os.path.exists(path):
        return None
    with open(path) as file:
        return file.read()


def quiet(command):
    """Whether it worked."""
    try:
        return subprocess.call(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) == 0
    except OSError:
        return False


def become(command):
    """Never returns."""
    sys.stdout.flush()
    os.execv(command[0], command)


if __name__ == "__main__":
    main(sys.argv[1:])
