"""`ddpviz compare RUN RUN`: two recorded runs, their differences in sentences on stdout."""

from __future__ import annotations

import sys
from pathlib import Path

from ddpviz.export.compare import compare, figures
from ddpviz.export.load import load
from ddpviz.findings import find
from ddpviz.headless.console import Console, complain
from ddpviz.trace.reader import RunError

FINE, UNREADABLE = 0, 5


def compare_runs(a: Path, b: Path) -> int:
    """Print how run B differs from run A. 0, or 5 if one of them cannot be read."""
    found = []
    for run_dir in (a, b):
        try:
            tl = load(run_dir)
        except RunError as error:
            complain(str(error))
            return UNREADABLE
        found.append(figures(tl, find(tl), tl.run.title or tl.run.id or run_dir.name))
    out = Console(sys.stdout)
    for line in compare(*found):
        out.line(line)
    return FINE
