"""Opens a run that is on disk: the one place where an exporter reads files."""

from __future__ import annotations

from pathlib import Path

from ddpviz.timeline.fold import Fold
from ddpviz.timeline.model import Timeline
from ddpviz.trace.reader import RunReader
from ddpviz.trace.rundir import live_status


def load(run_dir: Path) -> Timeline:
    """Everything recorded so far in a run folder. Raises `RunError` with one clear line if it is no such folder.

    Files that cannot be read (torn, foreign, newer) do not fail it: what is wrong with them stands in the run's notes.
    """
    reader = RunReader(run_dir)
    fold = Fold()
    info = reader.info()
    if info:
        info = {**info, "status": live_status(info)}  # a run whose ddpviz is gone does not run any more
    fold.run(info)
    fold.feed(reader.read())
    notes = fold.timeline.run.notes
    notes.extend(problem for problem in reader.problems if problem not in notes)
    return fold.timeline
