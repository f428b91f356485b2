"""`ddpviz check`: run a job without a screen, say what is wrong with it, and end with the documented exit code."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from ddpviz.export.report import in_parts
from ddpviz.headless.console import Console, complain, reason
from ddpviz.headless.github import annotate
from ddpviz.headless.measure import measure
from ddpviz.headless.outcome import USAGE, Outcome
from ddpviz.headless.progress import Progress
from ddpviz.headless.text import verdict
from ddpviz.language import _
from ddpviz.launch import Job


def check(
    job: Job,
    *,
    json: str | None = None,
    format: str = "text",
    fail_on: str = "error",
    hang_after: float = 30.0,
) -> int:
    """Run the job, print its verdict, return the exit code (see `Outcome.code`; 2 if the report cannot be written).

    `json` is a file for the report, or "-" for stdout (the text then goes to stderr). `format` is "text", "json" (the
    report on stdout) or "github" (the text, then workflow annotations). `hang_after` is in seconds.
    """
    if json not in (None, "-") and (problem := unwritable(Path(json))):
        complain(problem)  # before minutes of computing, not after
        return USAGE
    progress = Progress(Console(sys.stderr))
    outcome = measure(job, hang_after=hang_after, watch=progress.show)
    progress.clear()
    code = outcome.code(fail_on)
    out = Console(sys.stdout)
    if format == "json" or json == "-":
        out.data(in_parts(outcome.timeline, outcome.reported))
        if format != "json":
            show(outcome, Console(sys.stderr), format, fail_on)
    else:
        show(outcome, out, format, fail_on)
    if json not in (None, "-"):
        try:
            with Path(json).open("wb") as stream:
                stream.writelines(in_parts(outcome.timeline, outcome.reported))
        except OSError as error:
            complain(_("the report cannot be written to {json}: {reason}", json=json, reason=reason(error)))
            return USAGE if code == 0 else code
    return code


def show(outcome: Outcome, out: Console, format: str, fail_on: str) -> None:
    for line in verdict(outcome, out, fail_on=fail_on):
        out.line(line)
    if format == "github":
        for line in annotate(outcome):
            out.line(line)


def unwritable(path: Path) -> str | None:
    """Why no file can be written there, or None."""
    if path.is_dir():
        return _("the report cannot be written to {path}: it is a folder", path=path)
    if not path.parent.is_dir():
        return _("the report cannot be written to {path}: there is no folder {parent}", path=path, parent=path.parent)
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        return _("the report cannot be written to {path}: permission denied", path=path)
    return None
