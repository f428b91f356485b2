"""The recordings of real jobs in `recordings/`, opened for tests."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from ddpviz.timeline.fold import Fold
from ddpviz.timeline.model import Timeline
from ddpviz.trace.reader import RunReader

FOLDER = Path(__file__).parent / "recordings"
NAMES = ("accumulate", "unsynced-step", "sampled", "uneven", "failed")


@cache
def timeline(name: str) -> Timeline:
    """A recording, folded. Shared between tests: change nothing in it."""
    reader = RunReader(FOLDER / name)
    fold = Fold()
    fold.run(reader.info())
    while batches := reader.read():
        fold.feed(batches)
    assert not reader.problems
    return fold.timeline
