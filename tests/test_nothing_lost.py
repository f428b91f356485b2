"""What is on disk is read, whatever happened: mutated traces, every prefix, killed writers, readers beside a writer.

`DDPVIZ_FUZZ=100000` runs that many mutated inputs instead of the usual ones, `DDPVIZ_KILLS` likewise.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import struct
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
import synth

from ddpviz.timeline.fold import Fold
from ddpviz.timeline.model import Timeline
from ddpviz.trace import records as r
from ddpviz.trace.reader import RunReader
from ddpviz.trace.rundir import create_run
from ddpviz.trace.writer import TraceFile

HERE = Path(__file__).parent
CLEAR = struct.Struct(r.struct_format(r.RowKind.CLEAR))


@pytest.mark.timeout(3600)
def test_no_mutated_trace_crashes_hangs_or_fills_the_memory() -> None:
    count = os.environ.get("DDPVIZ_FUZZ", "1000")
    done = subprocess.run([sys.executable, HERE / "fuzz.py", "--count", count], capture_output=True, text=True)
    print(done.stdout)
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-5000:]
    assert f"{count} inputs from 0: 0 failed" in done.stdout


@pytest.mark.timeout(600)
def test_a_process_killed_at_any_moment_loses_its_last_moments_only(tmp_path: Path) -> None:
    """All that was handed over before the writer's last finished round is there, and the run opens."""
    count = os.environ.get("DDPVIZ_KILLS", "200")
    done = subprocess.run([sys.executable, HERE / "kills.py", tmp_path, count], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    print(done.stdout)
    told = json.loads(done.stdout)
    assert told["kills"] == int(count)
    assert told["missing_of_finished_rounds"] == 0
    assert told["problems"] == []
    assert told["without_a_pass"] < 0.5 * int(count)
    assert told["lost_ms_median"] < 100  # about 25: half of the writer's period


def folded(run: Path) -> Timeline:
    reader, fold = RunReader(run), Fold()
    fold.run(reader.info())
    fold.feed(reader.read())
    assert reader.problems == []
    return fold.timeline


def test_every_prefix_of_a_trace_opens(tmp_path: Path) -> None:
    run = synth.write_run(tmp_path, ranks=1, windows=1, accumulation=2)
    (path,) = (run / "trace").iterdir()
    whole, most = path.read_bytes(), 0
    assert len(whole) > 1500
    for cut in range(len(whole) + 1):
        path.write_bytes(whole[:cut])
        tl = folded(run)
        seen = sum(len(lane.passes) + len(lane.steps) for module in tl.modules for lane in module.lanes.values())
        assert seen >= most
        most = seen
    assert most == 3
    assert tl.ranks[0].status == "finished"


def _write(folder: Path, count: int) -> None:
    trace = TraceFile(folder, "j", segment_bytes=20_000)
    for n in range(0, count, 10):
        trace.rows(r.RowKind.CLEAR, b"".join(CLEAR.pack(0, 1, n + k, n, n, 7) for k in range(10)), 10)


def test_two_readers_and_a_writer_at_once(tmp_path: Path) -> None:
    run, count = create_run(tmp_path, {"title": "t"}), 60_000
    seen: dict[int | None, list[int]] = {None: [], 4096: []}
    problems: list[str] = []
    over = threading.Event()

    def follow(limit: int | None) -> None:
        reader = RunReader(run)
        while True:
            last = over.is_set()
            while batches := reader.read(limit):
                for _, payload in (block for batch in batches for block in batch.blocks):
                    assert isinstance(payload, bytes)
                    seen[limit] += [row[2] for row in CLEAR.iter_unpack(payload)]
            if last:
                break
        problems.extend(reader.problems)

    readers = [threading.Thread(target=follow, args=(limit,)) for limit in seen]
    for thread in readers:
        thread.start()
    writer = multiprocessing.get_context("spawn").Process(target=_write, args=(run / "trace", count))
    writer.start()
    writer.join(60)
    over.set()
    for thread in readers:
        thread.join(60)
    assert writer.exitcode == 0
    assert len(list((run / "trace").iterdir())) > 20
    for found in seen.values():
        assert np.array_equal(found, np.arange(count))
    assert problems == []
