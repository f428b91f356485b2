"""Many ranks: a simulated job through the real writer, reader, timeline, rules and report, real files, 256 at once.

`python tests/benchmarks/scale.py [RANKS ...]` prints one JSON line for each number of ranks; a million rank-passes in
all, unless `--passes` says how many a rank has.
"""

from __future__ import annotations

import argparse
import json
import resource
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parents[2])]

import synth

from ddpviz.export.report import in_parts
from ddpviz.findings import find
from ddpviz.timeline.fold import Fold
from ddpviz.trace import records as r
from ddpviz.trace.reader import RunReader
from ddpviz.trace.rundir import create_run
from ddpviz.trace.writer import TraceFile

OPEN_FILES = 256
AT_ONCE = 32 << 20  # bytes between two looks at the whole


def write(base: Path, ranks: int, passes: int) -> Path:
    """Each rank's trace, one after the other: no more than one file is open."""
    cluster = synth.Cluster(ranks)
    folder = create_run(base, {**cluster.info(), "status": "finished"})
    last, file = "", None
    for _, source, blocks in synth.big_batches(ranks, passes, wrong=[passes // 8], accumulation=4):
        if source != last:
            if file is not None:
                file.close()
            last, file = source, TraceFile(folder / "trace", source)
        assert file is not None
        for kind, payload in blocks:
            if kind is r.RowKind.RECORDS:
                file.records(payload)
            else:
                file.rows(kind, payload, len(payload) // synth.dtype(kind).itemsize)
    if file is not None:
        file.close()
    return folder


def measure(ranks: int, passes: int) -> dict[str, Any]:
    """Seconds and MiB to open a run of that size, complete; to look for something new; to judge; to report."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(OPEN_FILES, hard), hard))
    try:
        with tempfile.TemporaryDirectory() as base:
            told: dict[str, Any] = {"ranks": ranks, "passes": passes}
            clock = _Clock(told)
            run = write(Path(base), ranks, passes)
            clock("write_s")
            before = _resident()
            reader, fold = RunReader(run), Fold()
            fold.run(reader.info())
            fold.feed(reader.read(AT_ONCE))
            clock("first_part_s")
            while batches := reader.read(AT_ONCE):
                fold.feed(batches)
            clock("open_s")
            told["open_s"] = round(told["open_s"] + told["first_part_s"], 3)
            told["open_mib"] = _resident() - before
            assert reader.read() == []
            clock("nothing_new_s")
            found = find(fold.timeline)
            clock("find_s")
            told["report_mb"] = round(sum(map(len, in_parts(fold.timeline, found))) / 1e6)
            clock("report_s")
            module = fold.timeline.modules[0]
            told["ranks_seen"], told["verdicts"] = len(module.lanes), len(module.verdicts)
            told["findings"] = sorted({finding.rule for finding in found})
            told["problems"] = len(reader.problems)
            return told
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


class _Clock:
    def __init__(self, told: dict[str, Any]) -> None:
        self._told, self._at = told, time.perf_counter()

    def __call__(self, name: str) -> None:
        now = time.perf_counter()
        self._told[name], self._at = round(now - self._at, 3), now


def _resident() -> int:
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except OSError:
        return 0
    return pages * resource.getpagesize() >> 20


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("ranks", nargs="*", type=int, default=[8, 64, 1024, 8192])
    parser.add_argument("--passes", type=int, default=0)
    options = parser.parse_args()
    for ranks in options.ranks:
        print(json.dumps(measure(ranks, options.passes or 1_000_000 // ranks)), flush=True)
