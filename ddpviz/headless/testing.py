"""For a team's own tests: `ddpviz.check(...)` asserts that a script, or a function, synchronises its gradients.

A failed check is an AssertionError whose text is what `ddpviz check` prints. The pytest fixture `ddpviz_check` is the
same function with its recordings in the test's `tmp_path`. Imports nothing of ddpviz before the first call.
"""

from __future__ import annotations

import io
import os
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ddpviz.findings.model import Finding
    from ddpviz.headless.outcome import Outcome
    from ddpviz.timeline.model import Timeline


class CheckFailed(AssertionError):
    """The job failed or hung, has findings at or above `fail_on`, or built no DDP module. `checked` has the facts."""

    def __init__(self, checked: Checked) -> None:
        super().__init__("\n" + checked.text)
        self.checked = checked


class Checked:
    """What one job did."""

    def __init__(self, outcome: Outcome, text: str, code: int) -> None:
        self.timeline: Timeline = outcome.timeline
        self.findings: list[Finding] = outcome.findings
        self.run_dir: Path = outcome.run_dir  # `ddpviz watch RUN_DIR` shows it
        self.text = text  # as `ddpviz check` prints it
        self.code = code  # as `ddpviz check` ends with it

    @property
    def report(self) -> dict[str, Any]:
        """The report, as `ddpviz check --json` writes it."""
        from ddpviz.export.report import report

        return report(self.timeline, self.findings)

    @property
    def syncs(self) -> list[str]:
        """What each micro-step of the first DDP module did: "local", "synced", "partial", "mixed" or "unfinished"."""
        from ddpviz.export.report import verdicts

        return verdicts(self.timeline.modules[0]) if self.timeline.modules else []

    def __repr__(self) -> str:
        return f"<ddpviz.check: exit code {self.code}, {len(self.findings)} findings, {self.run_dir}>"


def check(
    target: str | os.PathLike[str] | Callable[[], object] | Sequence[str],
    *args: str,
    nproc: int | None = None,
    backend: str = "auto",
    cpu: bool = False,
    fail_on: str = "error",
    hang_after: float = 30.0,
    run_dir: str | os.PathLike[str] | None = None,
) -> Checked:
    """Run `target` on several ranks under ddpviz; raise `CheckFailed` where `ddpviz check` would not end with 0.

    `target` is a script (with `args` as its arguments), a function without arguments that can be imported by name (it
    calls `init_process_group` itself; each rank is a process of its own), or a whole command as a list of words.
    `fail_on` is "error", "warning" or "never" (a job that fails or hangs fails the check even then); `hang_after` is
    in seconds. Raises ValueError, in one line, if there is nothing to run as asked.
    """
    from ddpviz.headless.measure import measure
    from ddpviz.headless.outcome import FAIL_ON
    from ddpviz.launch import Job, JobError, JobSpec

    if fail_on not in FAIL_ON:
        raise ValueError(f"fail_on={fail_on!r}: one of {', '.join(map(repr, FAIL_ON))}")
    folder = None if run_dir is None else Path(run_dir)
    how: dict[str, Any] = {"nproc": nproc, "backend": backend, "cpu": cpu, "budget": None, "run_dir": folder}
    with tempfile.TemporaryDirectory(prefix="ddpviz-check-") as scratch:
        if callable(target):
            spec = JobSpec(script=_runner(target, Path(scratch)), title=target.__name__, **how)
        elif isinstance(target, (str, os.PathLike)):
            spec = JobSpec(script=Path(target), args=tuple(map(str, args)), **how)
        else:
            spec = JobSpec(command=tuple(map(str, target)), **how)
        try:
            outcome = measure(Job(spec), hang_after=hang_after)
        except JobError as error:
            raise ValueError(str(error)) from None
    if outcome.signum is not None:
        raise KeyboardInterrupt
    checked = Checked(outcome, _text(outcome, fail_on), outcome.code(fail_on))
    if checked.code:
        raise CheckFailed(checked)
    return checked


def _text(outcome: Outcome, fail_on: str) -> str:
    from ddpviz.headless.console import Console
    from ddpviz.headless.text import verdict

    return "\n".join(verdict(outcome, Console(io.StringIO()), fail_on=fail_on))


def _runner(function: Callable[[], object], folder: Path) -> Path:
    """A script that imports the function as the test did, and calls it."""
    name, module = getattr(function, "__qualname__", ""), getattr(function, "__module__", "")
    file = getattr(sys.modules.get(module), "__file__", None)
    if "<" in name or not name or not file or module == "__main__":
        raise ValueError(f"{name or function!r} cannot be imported by name: check needs a function of a module's own")
    script = folder / f"call_{name.rsplit('.', 1)[-1]}.py"
    script.write_text(
        f"import importlib, importlib.util, operator, sys\n"
        f"sys.path[1:1] = {[path for path in sys.path if path]!r}\n"
        f"try:\n"
        f"    module = importlib.import_module({module!r})\n"
        f"except ImportError:\n"
        f"    spec = importlib.util.spec_from_file_location({module!r}, {str(Path(file).resolve())!r})\n"
        f"    module = sys.modules[{module!r}] = importlib.util.module_from_spec(spec)\n"
        f"    spec.loader.exec_module(module)\n"
        f"operator.attrgetter({name!r})(module)()\n",
        encoding="utf-8",
    )
    return script
