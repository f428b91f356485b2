"""GitHub workflow annotations: one command line a finding, which GitHub shows at the line in the pull request.

Escaping as the runner's own toolkit does it (actions/toolkit, packages/core/src/command.ts).
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from ddpviz.findings.model import Finding, Severity
from ddpviz.headless.outcome import Outcome, worst_first
from ddpviz.trace.text import clean

_COMMANDS = {Severity.ERROR: "error", Severity.WARNING: "warning", Severity.INFO: "notice"}


def annotate(outcome: Outcome) -> Iterator[str]:
    """`::error file=src/train.py,line=19,title=unsynced-step::message`, the worst first."""
    for finding in worst_first(outcome.reported):
        yield annotation(finding)
    run = outcome.timeline.run
    if run.status in ("failed", "hung") and not any(f.severity is Severity.ERROR for f in outcome.findings):
        ended = "hung and was ended" if run.status == "hung" else f"failed with exit code {run.exit_code}"
        yield f"::error title=ddpviz::{data(f'the job {ended}')}"


def annotation(finding: Finding) -> str:
    fields = {"title": finding.rule}
    if finding.file:
        fields = {"file": in_repository(finding.file), "line": str(finding.line), **fields}
    said = finding.message + (f"\n→ {finding.advice}" if finding.advice else "")
    shown = ",".join(f"{key}={property_(clean(value))}" for key, value in fields.items())
    return f"::{_COMMANDS[finding.severity]} {shown}::{data(clean(said, newlines=True))}"


def data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def property_(text: str) -> str:
    return data(text).replace(":", "%3A").replace(",", "%2C")


def in_repository(file: str) -> str:
    """The path as the repository knows it: relative to GITHUB_WORKSPACE, else to the nearest folder with a `.git`."""
    path = Path(os.path.abspath(file))
    roots = [Path(os.environ["GITHUB_WORKSPACE"])] if os.environ.get("GITHUB_WORKSPACE") else []
    roots += [parent for parent in path.parents if (parent / ".git").exists()][:1]
    for root in [*roots, Path.cwd()]:
        try:
            return path.relative_to(root.resolve()).as_posix()
        except (ValueError, OSError):
            continue
    return path.as_posix()
