"""What a viewer costs, from synthetic traces through the real files: opening a long recording, following a wide job.

    python tests/benchmarks/viewer.py [--passes N] [--ranks N] [--seconds N]

Opening: 1 M rank-passes (8 ranks x 125,000) read, folded and judged, in CPU time and memory. Following: 64 ranks that
run 100 micro-steps a second each, read and folded 20 times a second; printed is the share of one core that this takes.
Times move with the machine's load; nothing here is asserted.
"""

from __future__ import annotations

import argparse
import resource
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import synth
from simcluster import Cluster

from ddpviz.findings import find
from ddpviz.timeline.fold import Fold
from ddpviz.trace.reader import RunReader
from ddpviz.trace.rundir import create_run
from ddpviz.trace.writer import TraceFile

PERIOD_S = 0.05
RATE = 100  # micro-steps a second and rank


def memory_mb() -> int:
    """Resident now."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize() >> 20


def opening(base: Path, ranks: int, passes: int) -> None:
    folder = synth.write_big(base, ranks, passes, wrong=[passes // 8])
    size = sum(f.stat().st_size for f in (folder / "trace").iterdir())
    before, cpu, wall = memory_mb(), time.process_time(), time.perf_counter()
    reader, fold = RunReader(folder), Fold()
    fold.run(reader.info())
    while batches := reader.read(8 << 20):
        fold.feed(batches)
    folded = time.process_time() - cpu
    seen = time.perf_counter() - wall
    found = find(fold.timeline)
    judged = time.process_time() - cpu
    print(f"open {ranks} x {passes:,} rank-passes, {size / 1e6:.0f} MB of trace, {len(fold.timeline.steps):,} steps")
    print(f"  read and folded in {folded:.2f} s of CPU ({seen:.2f} s); with all findings ({len(found)}) {judged:.2f} s")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
    print(f"  memory: {memory_mb() - before} MB for the timeline, {peak} MB at the peak of the whole process")


def ticks(ranks: int, seconds: int) -> Iterator[list[tuple[str, list[tuple[object, object]]]]]:
    """What every rank writes in each period."""
    each = int(RATE * PERIOD_S)
    by_source: dict[str, list[list[tuple[object, object]]]] = {}
    for _, source, blocks in synth.big_batches(ranks, seconds * RATE, block=each):
        by_source.setdefault(source, []).append(blocks)
    for k in range(max(map(len, by_source.values()))):
        yield [(source, queue[k]) for source, queue in by_source.items() if k < len(queue)]


def following(base: Path, ranks: int, seconds: int) -> None:
    folder = create_run(base, Cluster(ranks).info(live=True))
    reader, fold = RunReader(folder), Fold()
    fold.run(reader.info())
    files: dict[str, TraceFile] = {}
    spent, count = 0.0, 0
    for tick in ticks(ranks, seconds):
        for source, blocks in tick:
            file = files.get(source) or files.setdefault(source, TraceFile(folder / "trace", source))
            for kind, payload in blocks:
                if isinstance(payload, list):
                    file.records(payload)
                else:
                    assert isinstance(payload, bytes)
                    file.rows(kind, payload, len(payload) // synth.dtype(kind).itemsize)  # type: ignore[arg-type]
        begin = time.process_time()
        fold.run(reader.info())
        fold.feed(reader.read())
        spent += time.process_time() - begin
        count += 1
    for file in files.values():
        file.close()
    print(f"follow {ranks} ranks x {RATE} micro-steps/s, {count} periods of {PERIOD_S * 1000:.0f} ms")
    print(f"  {spent / count * 1000:.1f} ms of CPU a period: {spent / count / PERIOD_S:.0%} of a core")


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--passes", type=int, default=125_000, help="passes of each rank of the recording")
    options.add_argument("--ranks", type=int, default=64, help="ranks of the live job")
    options.add_argument("--seconds", type=int, default=10, help="length of the live job")
    chosen = options.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        opening(Path(folder), 8, chosen.passes)
        following(Path(folder), chosen.ranks, chosen.seconds)


if __name__ == "__main__":
    main()
