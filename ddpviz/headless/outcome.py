"""How a watched job ended, and what that means for the exit code. Data and pure functions; `measure` makes one."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ddpviz.findings import find_in_english
from ddpviz.findings.model import Finding, Severity
from ddpviz.headless.follow import Logs
from ddpviz.language import current
from ddpviz.timeline.model import Timeline

FAIL_ON = {"error": Severity.ERROR, "warning": Severity.WARNING, "never": None}

FINE, FOUND, USAGE, FAILED, NO_MODULE = 0, 1, 2, 3, 4  # exit codes of `check`


@dataclass(frozen=True, slots=True)
class Outcome:
    """A job that is over, with everything that was seen of it."""

    timeline: Timeline
    findings: list[Finding]
    run_dir: Path
    logs: Logs
    signum: int | None = None  # the signal that ended ddpviz, and so the job

    def code(self, fail_on: str = "error") -> int:
        """The exit code, the first that applies: interrupted 128 + n; failed or hung 3; findings 1; no DDP 4; 0."""
        if self.signum is not None:
            return 128 + self.signum
        if self.timeline.run.status != "finished":
            return FAILED
        if self.failing(fail_on):
            return FOUND
        return FINE if self.timeline.modules else NO_MODULE

    @property
    def reported(self) -> list[Finding]:
        """The findings in English, for what programs read."""
        return self.findings if current() == "en" else find_in_english(self.timeline)

    def failing(self, fail_on: str = "error") -> list[Finding]:
        """The findings at or above `fail_on`."""
        least = FAIL_ON[fail_on]
        return [] if least is None else [f for f in self.findings if f.severity >= least]


def worst_first(findings: list[Finding]) -> list[Finding]:
    """Errors, then warnings, then the rest; within one severity in the order of the rules."""
    return sorted(findings, key=lambda f: -f.severity)
