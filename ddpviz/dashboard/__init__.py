"""The Textual dashboard. `run_app` is its only door; importing this package imports no Textual."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ddpviz.dashboard.state import Demo
    from ddpviz.launch import Job


def run_app(
    run_dir: Path | None,
    job: Job | None = None,
    *,
    demos: Sequence[Demo] | None = None,
    motion: bool = True,
    present: bool = False,
    beside: tuple[Path, Path] | None = None,
    narrate: str = "",
) -> int:
    """Show a run until the user quits, and return the exit code for the shell.

    With a `job` (not yet started; `job.start()` is called here) the app owns it: quitting ends its whole tree, and the
    code is the job's own, or 130 if the user ended it. With a `run_dir` alone a run is watched and left alone: 0. With
    `demos` a picker comes first, and the chosen one's job is made and started. `beside` are two runs to compare,
    `present` begins in presenter's mode, `narrate` says how much is told (quiet, normal, teacher).
    Needs a terminal: the caller checks.
    """
    from ddpviz.dashboard.app import Dashboard

    app = Dashboard(run_dir, job, demos=demos, motion=motion, present=present, narrate=narrate)
    app.beside = beside
    return app.run_to_exit()
