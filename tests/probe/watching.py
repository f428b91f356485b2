"""Runs a script's ranks with the probe injected, as `ddpviz run` does, and folds what they wrote."""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from ddpviz.timeline.fold import Fold
from ddpviz.timeline.model import Timeline
from ddpviz.trace import records as r
from ddpviz.trace.reader import RunReader
from tests.jobs import ROOT, Done, run_ranks

SCRIPTS = ROOT / "tests" / "scripts"


def environment(run_dir: Path, budget: str = "full", **extra: str) -> dict[str, str]:
    """What `ddpviz run` puts into the environment of the ranks."""
    paths = [str(ROOT / "ddpviz" / "probe" / "site"), str(ROOT), os.environ.get("PYTHONPATH", "")]
    return {
        "DDPVIZ_RUN_DIR": str(run_dir),
        "DDPVIZ_BUDGET": budget,
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
        **extra,
    }


def watch(
    script: Path, nproc: int, args: Sequence[str], run_dir: Path, *, budget: str = "full", limit: float = 120,
    env: Mapping[str, str] | None = None,
) -> tuple[Done, Timeline]:  # fmt: skip
    """Run a script watched; returns how it ended and its timeline."""
    run_dir.mkdir(exist_ok=True)
    info = {"schema": "ddpviz.run/1", "id": "t", "status": "running", "command": [str(script)], "world_size": nproc}
    info |= {"host": socket.gethostname(), "started_monotonic_ns": time.monotonic_ns()}
    (run_dir / "run.json").write_text(json.dumps(info))
    done = run_ranks(script, nproc, args, env=environment(run_dir, budget, **(env or {})), limit=limit)
    return done, load(run_dir)


def load(run_dir: Path) -> Timeline:
    """The timeline of everything in a run folder."""
    reader, fold = RunReader(run_dir), Fold()
    fold.run(reader.info())
    while batches := reader.read():
        fold.feed(batches)
    return fold.timeline


def records(run_dir: Path, kind: type[r.Record]) -> list[r.Record]:
    """All records of one kind, of all ranks."""
    return [
        record
        for batch in RunReader(run_dir).read()
        for row, block in batch.blocks
        if row == r.RowKind.RECORDS
        for record in block
        if isinstance(record, kind)
    ]
