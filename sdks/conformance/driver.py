"""Runs scenarios: a worker or client program, a proxy that sees each message, an engine, and what has to come of it.

Scenarios are data (`scenarios/*.json`, explained in README.md). The engine's history decides, not what a program says.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import tempfile
import time
import traceback
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection, HTTPException
from itertools import count, pairwise
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from penstock.testing.postgres import PostgresServer
from sdks.conformance import grpc_proxy, rest_proxy
from sdks.conformance.matching import MISSING, differs, fits
from sdks.conformance.programs import HERE, Language, Program, take_interrupts
from sdks.conformance.recorder import Message, Recorder
from tests.sdk.running_engine import RunningEngine, running_engine

WAIT_S = 240.0
"""The end of what hangs, beyond the seconds that the scenario says. No scenario that passes depends on it."""
POLL_INTERVAL_S = 0.02
ASK_S = 0.15
"""Between two questions to the engine: each takes it 2 ms, and many scenarios ask at once."""
WIRES = ("rest", "grpc")
IN_PARALLEL = 8
ENGINES_AT_ONCE = 2

Scenario = Mapping[str, Any]
_numbers = count(1)


class Failed(AssertionError):
    """What happened is not what the scenario expects."""


class Case(NamedTuple):
    """A scenario over one of its wires; with a defect, against the Python program that is broken so."""

    scenario: Scenario
    wire: str
    defect: str = ""

    @property
    def name(self) -> str:
        """The scenario and the wire, and the defect."""
        return f"{self.scenario['id']} [{self.wire}]" + (f" {self.defect}" if self.defect else "")

    @property
    def own_engine(self) -> bool:
        """Whether the engine is killed or stopped."""
        return '"engine"' in json.dumps(self.scenario)


def parts() -> list[str]:
    """The names of the files of scenarios."""
    return sorted(path.stem for path in (HERE / "scenarios").glob("*.json"))


def scenarios(part: str | None = None) -> list[Scenario]:
    """The scenarios of a file, or all in the order of their files."""
    names = parts() if part is None else [part]
    return [one for name in names for one in json.loads((HERE / "scenarios" / f"{name}.json").read_text())]


def rules() -> dict[str, str]:
    """What a worker or client owes, by the names that scenarios give."""
    found: dict[str, str] = json.loads((HERE / "rules.json").read_text())
    return found


def cases(wires: Sequence[str] = WIRES, part: str | None = None) -> list[Case]:
    """Each scenario, or each of a file, over each of its wires."""
    return [Case(one, wire) for one in scenarios(part) for wire in one.get("wires", WIRES) if wire in wires]


class Driver:
    """Runs cases of one language against engines on one PostgreSQL: ``engine``, or one of this run, and one for each
    case that kills or stops it. What takes longer than ``wait_s`` has failed."""

    def __init__(
        self,
        language: Language,
        server: PostgresServer,
        directory: Path,
        wait_s: float = WAIT_S,
        engine: RunningEngine | None = None,
    ) -> None:
        take_interrupts()
        self._language = language
        self._server = server
        self._directory = directory
        self._wait_s = wait_s
        self._given_engine = engine

    def run(self, chosen: Iterable[Case], report: Callable[[str, str | None], None]) -> dict[str, str]:
        """Run the cases beside each other. What failed, by the case's name."""
        failures: dict[str, str] = {}

        def one(case: Case, engine: RunningEngine) -> None:
            problem = self._problem(case, engine)
            report(case.name, problem)
            if problem is not None:
                failures[case.name] = problem

        def alone(case: Case) -> None:
            with self._engine() as engine:
                one(case, engine)

        shared, own = [], []
        for case in chosen:
            (own if case.own_engine else shared).append(case)
        shared.sort(key=lambda case: -float(case.scenario.get("seconds", 1)))
        given = contextlib.nullcontext(self._given_engine) if self._given_engine else self._engine()
        with given as engine, ThreadPoolExecutor(IN_PARALLEL) as pool, ThreadPoolExecutor(ENGINES_AT_ONCE) as engines:
            running = [pool.submit(one, case, engine) for case in shared]
            running += [engines.submit(alone, case) for case in own]
            for future in running:
                future.result()
        return failures

    @contextlib.contextmanager
    def _engine(self) -> Generator[RunningEngine]:
        directory = Path(tempfile.mkdtemp(dir=self._directory))
        with running_engine(self._server, directory) as engine:
            yield engine

    def _problem(self, case: Case, engine: RunningEngine) -> str | None:
        try:
            with Run(case, self._language, engine, self._directory, self._wait_s) as run:
                run.play()
                run.judge()
        except Failed as failed:
            return str(failed)
        except (OSError, LookupError, ValueError, TypeError, HTTPException, subprocess.SubprocessError):
            return traceback.format_exc()
        return None


class Run:
    """One scenario being run."""

    def __init__(self, case: Case, language: Language, engine: RunningEngine, directory: Path, wait_s: float) -> None:
        self.id = f"c{next(_numbers)}-{case.scenario['id']}"
        text = json.dumps(case.scenario).replace("$id", self.id)
        self._scenario: dict[str, Any] = json.loads(text)
        self._scenario |= self._scenario.get(f"over_{case.wire}", {})
        self._case, self._language, self._engine = case, language, engine
        # Of sdks/java/run.sh: a program lives for seconds, which the second compiler would take most of.
        self._environment = {"JIT_LEVEL": "1"} | ({"CONFORMANCE_DEFECT": case.defect} if case.defect else {})
        self._wait_s = wait_s + case.scenario.get("seconds", 0)
        self._log = directory / f"{self.id}.log"
        self._recorder = Recorder(self._scenario.get("faults", ()))
        self._recorder.run_steps = self._steps
        self._stack = contextlib.ExitStack()
        self._programs: dict[str, list[Program]] = {}
        self.instances: list[str] = []
        self._exits: list[int] = []
        self._answers: list[Any] = []

    def __enter__(self) -> Run:
        port = urlsplit(self._engine.grpc_url if self._case.wire == "grpc" else self._engine.url).port or 0
        proxy = grpc_proxy.serving if self._case.wire == "grpc" else rest_proxy.serving
        own = self._stack.enter_context(proxy(self._recorder, lambda: port))
        scheme = {"grpc": "grpc", "rest": "http"}[self._case.wire] + ("s" if self._scenario.get("tls") else "")
        self._url = f"{scheme}://127.0.0.1:{own}"
        return self

    def __exit__(self, *_: object) -> None:
        for program in self._all_programs():
            program.close()
        self._stack.close()

    # -- playing

    def play(self) -> None:
        """Upload the definitions, start the worker, take the steps."""
        for definition in self._definitions():
            self._call("POST", "/v1/definitions", definition, expected=201)
        if self._scenario.get("worker", True) and "client" not in self._scenario:
            self._worker("start", {})
        if "client" in self._scenario:
            self._client(self._scenario["client"])
        self._steps(self._scenario.get("steps", []))
        for instance, expected in zip(self.instances, self._expected("instances", []), strict=False):
            status = expected.get("status")
            if status is not None:
                self._until(f"instance is {status}", lambda i=instance, s=status: self._status(i) == s, pause_s=ASK_S)

    def _definitions(self) -> Iterator[dict[str, Any]]:
        for given in self._scenario.get("definitions", [{}]):
            if "steps" in given:
                yield {"id": self.id, "name": self.id, **given}
                continue
            work = {
                "id": "work",
                "name": "Work",
                "type": "SERVICE_TASK",
                "jobType": self.id,
                "nextStep": "end",
                **given,
            }
            end = {"id": "end", "name": "End", "type": "END"}
            yield {"id": self.id, "name": self.id, "steps": [work, end]}

    def _steps(self, steps: Iterable[dict[str, Any]]) -> None:
        for step in steps:
            ((verb, given),) = ((key, value) for key, value in step.items() if key not in ("name", "within"))
            getattr(self, f"_do_{verb}")(given, step)

    def _do_start(self, given: dict[str, Any], step: dict[str, Any]) -> None:
        for _ in range(given.pop("times", 1)):
            body = {"definitionId": self.id, **given}
            self.instances.append(self._call("POST", "/v1/instances", body, expected=201)["id"])

    def _do_worker(self, given: str, step: dict[str, Any]) -> None:
        self._worker(given, step)

    def _worker(self, verb: str, step: dict[str, Any]) -> None:
        name = step.get("name", "a")
        if verb == "start":
            options = {
                "workerId": f"{self.id}-{name}",
                "jobTypes": [{"type": self.id}],
                "concurrency": 4,
                "leaseSeconds": 30,
                "waitSeconds": 5,
                "drainGraceSeconds": 10,
                **self._scenario.get("options", {}),
            }
            environment = {"PENSTOCK_URL": self._url, "CONFORMANCE_OPTIONS": json.dumps(options), **self._environment}
            program = Program(self._language, "worker", self._log, environment)
            self._programs.setdefault(name, []).append(program)
            self._until("the worker is ready", lambda: program.events or program.process.poll() is not None, WAIT_S)
        elif verb == "exit":
            self._exits.append(self._programs[name][-1].wait(step.get("within", self._wait_s)))
        else:
            self._programs[name][-1].signal(verb)

    def _do_await(self, given: dict[str, Any], step: dict[str, Any]) -> None:
        within = step.get("within", self._wait_s)
        wanted = given.pop("count", 1)
        if "message" in given:
            kind = given.pop("message")
            self._until(
                f"{wanted} {kind}", lambda: len(self._fitting(given, self._recorder.of(kind))) >= wanted, within
            )
        elif "log_lines" in given:
            self._until("a log", lambda: self._logged() >= given["log_lines"], within)
        elif "event" in given:
            self._until(f"{wanted} of {given}", lambda: len(self._fitting(given, self._events())) >= wanted, within)
        else:
            instance, expected = self.instances[given.pop("instance")], given
            self._until(f"{expected}", lambda: fits(expected, self._instance(instance)), within, pause_s=ASK_S)

    def _do_engine(self, given: str, step: dict[str, Any]) -> None:
        getattr(self._engine, given)()

    def _do_post(self, given: list[Any], step: dict[str, Any]) -> None:
        path, body = given[0], given[1] if len(given) > 1 else None
        for index, instance in enumerate(self.instances):
            path = path.replace(f"<{index}>", instance)
        if "<job>" in path:
            path = path.replace("<job>", self._events("begin")[-1]["job"])
        self._call("POST", path, body)

    def _do_pause(self, given: float, step: dict[str, Any]) -> None:
        time.sleep(given)

    def _do_proxy(self, given: str, step: dict[str, Any]) -> None:
        self._recorder.down = given == "down"
        if given in ("down", "cut"):
            self._recorder.cut_all()

    # -- clients

    def _client(self, commands: list[dict[str, Any]]) -> None:
        environment = {"PENSTOCK_URL": self._url, **self._environment}
        program = Program(self._language, "client", self._log, environment)
        self._programs["client"] = [program]
        for command in commands:
            if "then" in command:
                self._steps(command["then"])
                continue
            expected = command.pop("expect", {"$any": True})
            for _ in range(command.pop("times", 1)):
                sent = json.loads(self._filled(json.dumps(command)))
                before = len(program.events)
                program.ask(sent)
                self._until(f"an answer to {sent}", lambda b=before: len(program.events) > b or _ended(program))
                answer = program.events[before] if len(program.events) > before else {"error": "the program ended"}
                answer.pop("at", None)
                self._answers.append(answer)
                if isinstance(answer.get("result"), dict) and command["call"] == "start":
                    self.instances.append(answer["result"].get("id", ""))
                wanted = json.loads(self._filled(json.dumps(expected)))
                self._check(differs(wanted, answer.get("result", answer), f"the answer to {command['call']}"))

    def _filled(self, text: str) -> str:
        for index, instance in reversed([*enumerate(self.instances)]):
            text = text.replace(f"<{index}>", instance)
        return text

    # -- judging

    def judge(self) -> None:
        """Compare what happened with what is expected. Raises Failed."""
        for number, expected in enumerate(self._expected("instances", [])):
            self._check(differs(expected, self._instance(self.instances[number]), f"instance {number}"))
        for number, expected in enumerate(self._expected("attempts", [])):
            self._check(differs(expected, self._attempts(self.instances[number]), f"attempts of instance {number}"))
        for number, expected in enumerate(self._expected("history", [])):
            self._check(differs(expected, self._history(self.instances[number]), f"history of instance {number}"))
        self._judge_events()
        self._judge_messages()
        if "exits" in self._scenario:
            self._check(differs(self._scenario["exits"], self._exits, "exit codes"))
        if "log_lines" in self._scenario:
            self._check(differs(self._scenario["log_lines"], self._logged(), "lines of the programs' logs"))
        for program in self._all_programs() if self._expected("alive", False) else ():
            self._check(None if program.process.poll() is None else f"it ended: {program.process.returncode}")

    def _judge_events(self) -> None:
        events = self._events()
        for expected in self._expected("events", []):
            self._check(None if self._fitting(expected, events) else f"no event {expected}")
        for unwanted in self._expected("no_events", []):
            found = self._fitting(unwanted, events)
            self._check(f"the event {found[0]} must not be" if found else None)
        for name, values in (("same", 1), ("differ", None)):
            for field in self._expected(name, []):
                seen = [event[field] for event in events if event["event"] == "begin"]
                wanted = values or len(seen)
                right = len(set(seen)) == wanted and len(seen) > 1
                self._check(None if right else f"{field} of the attempts is to be {name}: {seen}")
        if (limit := self._expected("running", None)) is not None:
            self._check(differs(limit, _most_at_once(events), "handlers that ran at once"))

    def _judge_messages(self) -> None:
        for rule in self._expected("messages", []):
            found = self._fitting(rule.get("where", {}), self._recorder.of(rule["kind"]))
            what = f"messages {rule}"
            if "count" in rule:
                self._check(differs(rule["count"], len(found), what))
            for message in found if "each" in rule else ():
                self._check(differs(rule["each"], message, what))
            if "gaps" in rule:
                gaps = [later["at"] - former["at"] for former, later in pairwise(found)]
                self._check(differs(rule["gaps"], gaps, f"pauses between {what}"))
            if "longest_gap" in rule:
                longest = max((later["at"] - former["at"] for former, later in pairwise(found)), default=0.0)
                self._check(differs(rule["longest_gap"], longest, f"the longest pause of {what}"))

    # -- looking

    def _expected(self, name: str, otherwise: Any) -> Any:
        return self._scenario.get(name, otherwise)

    def _fitting(self, expected: Any, found: Iterable[Message]) -> list[Message]:
        return [each for each in found if fits(expected, each)]

    def _all_programs(self) -> list[Program]:
        return [program for programs in self._programs.values() for program in programs]

    def _events(self, kind: str | None = None) -> list[dict[str, Any]]:
        found = [
            {**event, "worker": name}
            for name, programs in self._programs.items()
            for program in programs
            for event in [*program.events]
            if "event" in event and kind in (None, event["event"])
        ]
        return sorted(found, key=lambda event: event["at"])

    def _instance(self, instance: str) -> dict[str, Any]:
        found: dict[str, Any] = self._call("GET", f"/v1/instances/{instance}")
        return found

    def _logged(self) -> int:
        return len(self._log.read_text().splitlines()) if self._log.exists() else 0

    def _status(self, instance: str) -> str:
        return str(self._instance(instance).get("status"))

    def _history(self, instance: str) -> list[dict[str, Any]]:
        items: list[dict[str, Any]] = self._call("GET", f"/v1/instances/{instance}/history")["items"]
        return items

    def _attempts(self, instance: str) -> list[dict[str, Any]]:
        items = [item for item in self._history(instance) if item["stepType"] == "SERVICE_TASK"]
        return [attempt for item in items for attempt in item.get("attempts", [])]

    def _call(self, method: str, path: str, body: object = None, *, expected: int | None = None) -> Any:
        port = urlsplit(self._engine.url).port or 0
        connection = HTTPConnection("127.0.0.1", port, timeout=60)
        try:
            connection.request(method, path, None if body is None else json.dumps(body))
            answer = connection.getresponse()
            text = answer.read()
        finally:
            connection.close()
        if expected is not None and answer.status != expected:
            raise Failed(f"{method} {path}: {answer.status} {text.decode()}")
        return json.loads(text) if text else {}

    def _until(
        self, what: str, holds: Callable[[], object], within: float | None = None, *, pause_s: float = POLL_INTERVAL_S
    ) -> None:
        within = self._wait_s if within is None else within
        deadline = time.monotonic() + within

        def away_or_not() -> bool:
            with contextlib.suppress(OSError, HTTPException):  # an engine that is killed meanwhile
                return not holds()
            return True

        while away_or_not():
            if time.monotonic() > deadline:
                raise Failed(f"not within {within:g} s: {what}\n{self._reported()}")
            time.sleep(pause_s)

    def _check(self, problem: str | None) -> None:
        if problem is not None:
            raise Failed(f"{problem}\n{self._reported()}")

    def _reported(self) -> str:
        begun = self._recorder.messages[0]["at"] if self._recorder.messages else 0.0
        messages = [
            f"  {m['at'] - begun:6.2f} { {k: v for k, v in m.items() if k != 'at'} }" for m in self._recorder.messages
        ]
        events = [f"  {e['at'] - begun:6.2f} { {k: v for k, v in e.items() if k != 'at'} }" for e in self._events()]
        log = self._log.read_text()[-3000:] if self._log.exists() else ""
        history = [f"  {self._attempts(each)}" for each in self.instances[:4]] if self._case.scenario else []
        return "\n".join(["messages:", *messages[-40:], "events:", *events[-30:], "attempts:", *history, "log:", log])


def _ended(program: Program) -> bool:
    return program.process.poll() is not None


def _most_at_once(events: Iterable[Mapping[str, Any]]) -> int:
    running = most = 0
    for event in events:
        running += {"begin": 1, "end": -1}.get(event["event"], 0)
        most = max(most, running)
    return most


__all__ = ["MISSING", "Case", "Driver", "Failed", "cases", "parts", "rules", "scenarios"]
