"""Kills recording processes at any moment and looks at what they leave. `python tests/kills.py FOLDER COUNT`.

One warm parent forks them, so that each costs milliseconds; each records passes through the probe's own session and
writer thread until it is killed. They say in shared memory what they have recorded and when. Prints JSON.
"""

from __future__ import annotations

import json
import mmap
import os
import random
import signal
import statistics
import struct
import sys
import time
from pathlib import Path

if __name__ == "__main__":
    sys.path[:0] = [str(Path(__file__).parents[1])]

from ddpviz.probe.jobs import PassJob
from ddpviz.probe.session import Session
from ddpviz.timeline.fold import Fold
from ddpviz.timeline.model import Timeline
from ddpviz.trace import records as r
from ddpviz.trace.reader import RunReader
from ddpviz.trace.rundir import create_run

AT_ONCE = 24
SLOT = struct.Struct("<q")  # by number of the pass: when it was handed to the writer
MOST = 4096  # passes of one process
TICKS = struct.Struct("<q")  # ... and, at the end, when the writer's last finished round began


def record(run: Path, told: mmap.mmap) -> None:
    """What a rank does, as fast as a small model; never returns."""
    session = Session(run, None, "comm-hook", False)
    os.environ["RANK"] = "0"
    session.open()
    assert session.writer is not None
    tick = session.writer._tick

    def told_tick() -> None:
        began = time.monotonic_ns()
        tick()
        TICKS.pack_into(told, MOST * SLOT.size, began)

    session.writer._tick = told_tick  # type: ignore[method-assign]
    now = time.monotonic_ns()
    session.emit(r.RankIs(0, 1, 0, "gloo", now))
    session.emit(r.Group(0, "0", [0], "gloo", now))
    session.emit(r.Module(0, "Net", 0, ["w"], [4], "float32", 4, "cpu", 0, now, {}))
    session.emit(r.Layout(0, 0, [[0]], [16], now))
    for number in range(MOST):
        begin = time.monotonic_ns()
        session.emit(
            PassJob(
                module=0, index=number, window=number, flags=0, begin=begin, end=begin + 1, collective=0,
                collectives=0, forward_site=0, forward=(0, 0), backward_site=0, layout=0, buckets=[[0]], bucket_of=[0],
                managed=1, itemsize=4, touched=[0], closed={}, launches=[],
            )
        )  # fmt: skip
        SLOT.pack_into(told, number * SLOT.size, time.monotonic_ns())  # not before it is in the buffer
        time.sleep(0.0005)
    signal.pause()


def opened(run: Path) -> tuple[Timeline, list[str]]:
    reader, fold = RunReader(run), Fold()
    fold.run(reader.info())
    fold.feed(reader.read())
    return fold.timeline, reader.problems


def main(folder: Path, count: int) -> None:
    rng = random.Random(0)
    lost_ms, missing, problems, empty = [], 0, [], 0
    for first in range(0, count, AT_ONCE):
        running = []
        for number in range(first, min(first + AT_ONCE, count)):
            run = create_run(folder, {"title": f"k{number}"})
            told = mmap.mmap(-1, MOST * SLOT.size + TICKS.size)
            pid = os.fork()
            if pid == 0:
                record(run, told)
            running.append((time.monotonic() + rng.uniform(0.0, 0.25), pid, run, told))
        for when, pid, run, told in sorted(running, key=lambda one: one[0]):
            time.sleep(max(0.0, when - time.monotonic()))
            os.kill(pid, signal.SIGKILL)
            killed = time.monotonic_ns()
            os.waitpid(pid, 0)
            handed = [at for (at,) in SLOT.iter_unpack(told[: MOST * SLOT.size]) if at]
            (round_began,) = TICKS.unpack_from(told, MOST * SLOT.size)
            timeline, said = opened(run)
            problems += said
            kept = [lane.passes["index"].tolist() for module in timeline.modules for lane in module.lanes.values()]
            have = kept[0] if kept else []
            assert have == list(range(len(have)))  # none in the middle is missing
            missing += sum(at < round_began for at in handed[len(have) :])
            empty += not have
            if len(handed) > len(have):
                lost_ms.append((killed - handed[len(have)]) / 1e6)
            elif handed:
                lost_ms.append(0.0)
    quantiles = statistics.quantiles(lost_ms, n=20)
    print(
        json.dumps(
            {
                "kills": count,
                "missing_of_finished_rounds": missing,
                "problems": problems,
                "without_a_pass": empty,
                "lost_ms_median": statistics.median(lost_ms),
                "lost_ms_p95": quantiles[-1],
                "lost_ms_max": max(lost_ms),
            }
        )
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
