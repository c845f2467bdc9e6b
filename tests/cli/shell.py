"""The command line in this process, against an engine that runs."""

from __future__ import annotations

from typer.testing import CliRunner, Result

from penstock.cli.app import app
from tests.sdk.running_engine import RunningEngine

CLAIM = {
    "id": "claim",
    "name": "Claim",
    "steps": [
        {"id": "check", "name": "Check", "type": "SERVICE_TASK", "jobType": "claim.check", "nextStep": "approve"},
        {"id": "approve", "name": "Approve", "type": "USER_TASK", "nextStep": "paid"},
        {"id": "paid", "name": "Paid", "type": "WAIT", "nextStep": "end"},
        {"id": "end", "name": "End", "type": "END"},
    ],
}


class Shell:
    """Runs commands against the engine."""

    def __init__(self, engine: RunningEngine) -> None:
        self._environment = {"PENSTOCK_URL": engine.url}

    def run(self, *arguments: object, given: str | None = None) -> Result:
        return CliRunner().invoke(app, [str(each) for each in arguments], input=given, env=self._environment)

    def out(self, *arguments: object, given: str | None = None) -> str:
        result = self.run(*arguments, given=given)
        assert result.exit_code == 0, result.output
        return result.stdout

    def start(self, *more: object) -> str:
        return self.out("instance", "start", "claim", *more).strip()
