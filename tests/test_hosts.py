"""Many hosts: their clocks on one, with an error that holds."""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from simcluster import Cluster
from simrank import MONOTONIC
from synth import dtype, program

from ddpviz.export.report import report
from ddpviz.timeline.columns import TIMES, shift_rows
from ddpviz.timeline.fold import Fold
from ddpviz.timeline.model import Timeline
from ddpviz.trace import records as r
from ddpviz.trace.reader import Batch, RunReader
from ddpviz.trace.rundir import create_run, join_runs

HOSTS = ["a", "a", "b", "b"]
ENDS_NS = 200_000  # by which a rank hears of an all-reduce's end late, in the mean


SLOWER = 300  # times stretched: a run of a minute, in which a drift can be seen


class Recorded:
    """A cluster's blocks, to be worn differently each time."""

    def __init__(self, skew: int) -> None:
        cluster = Cluster(4, hosts=HOSTS, wall_skew={"b": skew}, layers=False).run(program(windows=80, accumulation=2))
        self.info, self.batches = cluster.info(), cluster.batches()
        self.began = [MONOTONIC + rank.offset for rank in cluster.ranks]


@pytest.fixture(scope="module")
def cluster() -> Recorded:
    return Recorded(1_500_000_000)


@pytest.fixture(scope="module")
def exact() -> Timeline:
    straight = Recorded(0)
    return folded(straight, worn(straight, 0, 0.0, (0.0, 0.0)))


def worn(cluster: Recorded, seed: int, drift: float, late: tuple[float, float]) -> Iterable[Batch]:
    """The cluster's blocks as hosts with real clocks write them: b's is slow by `drift`, ends are heard of late."""
    rng = np.random.default_rng(seed)
    for rank, batch in enumerate(cluster.batches):
        blocks: list[tuple[r.RowKind, Any]] = []
        for kind, payload in batch.blocks:
            if not isinstance(payload, bytes):
                blocks.append((kind, payload))
                continue
            rows = np.frombuffer(payload, dtype(kind)).copy()
            for name in (*TIMES[kind][0], *TIMES[kind][1]):
                known = rows[name] != 0
                since = (rows[name] - cluster.began[rank]) * SLOWER
                if name == "done":
                    since += rng.exponential(late[HOSTS[rank] == "b"], len(rows)).astype(np.int64)
                if HOSTS[rank] == "b":
                    since -= np.rint(since * drift).astype(np.int64)
                rows[name] = np.where(known, since + cluster.began[rank], 0)
            blocks += [(kind, rows[at : at + 20].tobytes()) for at in range(0, len(rows), 20)]
        yield Batch(batch.source, blocks)


def folded(cluster: Recorded, batches: Iterable[Batch], piece: int | None = None) -> Timeline:
    fold = Fold()
    fold.run(cluster.info)
    queues = [[Batch(b.source, [block]) for block in b.blocks] for b in batches] if piece else [list(batches)]
    while any(queues):
        for queue in queues:
            fold.feed(queue[:piece])
            del queue[: piece or len(queue)]
    return fold.timeline


def off(tl: Timeline, exact: Timeline) -> int:
    """By how much any time of host b is wrong, at most."""
    wrong = [
        np.abs(tl.modules[0].lanes[k].passes[f] - exact.modules[0].lanes[k].passes[f])
        for k in (2, 3)
        for f in ("begin", "end")
    ]
    return int(max(w.max() for w in wrong))


def test_the_estimated_error_covers_the_true_one(cluster: Recorded, exact: Timeline) -> None:
    """In 95 of 100 runs, whatever shift, drift (to 100 ppm) and lateness of each host; and it is of use."""
    rng = np.random.default_rng(1)
    covered, errors = 0, []
    for seed in range(100):
        late = (ENDS_NS * rng.uniform(0.5, 1.5), ENDS_NS * rng.uniform(0.5, 1.5))
        tl = folded(cluster, worn(cluster, seed, rng.uniform(-1e-4, 1e-4), late))
        clock = tl.clocks["b"]
        covered += off(tl, exact) <= clock.error_ns
        errors.append(clock.error_ns)
    assert covered >= 95
    assert np.median(errors) < 3 * ENDS_NS  # the wall clocks are 1.5 s apart


def test_without_the_drift_the_times_would_be_wrong(cluster: Recorded, exact: Timeline) -> None:
    tl = folded(cluster, worn(cluster, 5, 1e-4, (ENDS_NS / 10, ENDS_NS / 10)))
    assert tl.clocks["b"].drift == pytest.approx(1e-4, rel=0.1)
    last = exact.modules[0].lanes[2].passes["end"][-1]
    assert off(tl, exact) < 0.25 * 1e-4 * last


@pytest.mark.parametrize("piece", [1, 40])
def test_how_the_blocks_come_makes_no_difference(cluster: Recorded, piece: int) -> None:
    """But for the rounding of a nanosecond, each time that the clock is fitted anew."""
    whole = folded(cluster, worn(cluster, 3, 5e-5, (ENDS_NS, ENDS_NS)))
    parts = folded(cluster, worn(cluster, 3, 5e-5, (ENDS_NS, ENDS_NS)), piece)
    assert off(parts, whole) <= 10
    assert parts.clocks["b"].shared == whole.clocks["b"].shared
    assert parts.ranks[2].exit is not None


def test_the_error_is_shown(cluster: Recorded) -> None:
    tl = folded(cluster, worn(cluster, 3, 5e-5, (ENDS_NS, ENDS_NS)))
    run = report(tl, [])["run"]
    (note,) = [note for note in run["notes"] if "clock" in note]
    assert note.startswith("the clock of b is set by the ends of 128 shared all-reduces, to within ")
    (told,) = run["clocks"]
    assert (told["host"], told["all_reduces"]) == ("b", 128)
    assert 0 < told["error_ns"] < 5 * ENDS_NS
    assert told["drift_ppm"] == pytest.approx(50, abs=40)


def test_times_can_be_turned_and_turned_back() -> None:
    from ddpviz.timeline.align import Clock, change

    times = np.arange(10**15, 10**15 + 10**13, 10**10)
    clock = Clock(123_456_789, -7e-5, 10**15)
    assert np.abs(clock.undone(times + clock.by(times)) - times).max() <= 1
    other = Clock(-5, 3e-5, 2 * 10**15)
    by = change(clock, other)
    assert not isinstance(by, int)
    turned = times + clock.by(times)
    assert np.abs(turned + by(turned) - (times + other.by(times))).max() <= 2
    rows = np.zeros(2, dtype(r.RowKind.BUCKET))
    rows["ready"] = [0, 10**15]
    shift_rows(r.RowKind.BUCKET, rows, other.by)
    assert rows["ready"][0] == 0  # not measured stays so


def test_the_folders_of_several_hosts_are_one_run(tmp_path: Path) -> None:
    """Also what is written into them later, and where two processes' files have one name."""
    whole = Cluster(4, hosts=HOSTS).run(program(windows=4)).timeline()
    first = Cluster(4, hosts=HOSTS).run(program(windows=4)).write(tmp_path / "first")
    second, together = create_run(tmp_path / "second", {"title": "t"}), tmp_path / "together"
    theirs = sorted((first / "trace").iterdir())[2:]
    theirs[0].rename(second / "trace" / "x.0000.ddpv")
    late = theirs[1].rename(tmp_path / "late")
    sorted((first / "trace").iterdir())[0].rename(first / "trace" / "x.0000.ddpv")
    together.mkdir()
    join_runs([first, second], together)
    reader, fold = RunReader(together), Fold()
    fold.run(reader.info())
    fold.feed(reader.read())
    assert sorted(fold.timeline.ranks) == [0, 1, 2]
    late.rename(second / "trace" / theirs[1].name)
    fold.feed(reader.read())
    tl = fold.timeline
    assert tl.modules[0].verdicts.tolist() == whole.modules[0].verdicts.tolist()
    assert sorted(tl.modules[0].lanes) == [0, 1, 2, 3]
    assert list(tl.steps) == list(whole.steps)
    assert reader.problems == []
    shutil.rmtree(together)
    assert len(list((first / "trace").iterdir())) == 2  # links only


def test_a_wall_clock_that_jumps_moves_nothing() -> None:
    """On one host times are the monotonic clock's; a later attempt is the later one, whatever the wall clock says."""
    jumped = Cluster(2).run(program(windows=3))
    batches = jumped.batches()
    process = batches[1].blocks[0][1][0]
    assert isinstance(process, r.Process)
    batches[1].blocks[0][1][0] = msgspec.structs.replace(process, wall_ns=process.wall_ns - 3_600_000_000_000)
    fold = Fold()
    fold.run(jumped.info())
    fold.feed(batches)
    straight = Cluster(2).run(program(windows=3)).timeline()
    mine, right = fold.timeline.modules[0].lanes[1], straight.modules[0].lanes[1]
    assert mine.passes.tolist() == right.passes.tolist()
    again = Cluster(2, attempt=1, wall_skew={"node-a": -7_200_000_000_000}).run(program(windows=2))
    fold.feed(Batch(f"{b.source}-again", b.blocks) for b in again.batches())
    assert fold.timeline.ranks[0].attempt == 1
    assert fold.timeline.modules[0].passes == 8
