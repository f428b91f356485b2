"""The fold: what really happened, from facts alone, over the ranks of simulated jobs."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import synth
from simcluster import Cluster, Net, Rank, Steps

from ddpviz.timeline import verdicts
from ddpviz.timeline.fold import Fold
from ddpviz.timeline.model import Gradients, Replicas, Sync, Timeline
from ddpviz.timeline.steps import StepTable
from ddpviz.trace import records as r
from ddpviz.trace.reader import Batch, RunReader


def syncs(tl: Timeline, module: int = 0) -> str:
    """One letter a micro-step: Local Synced Partial Mixed Unfinished Running Absent."""
    return "".join("LSPMURA"[v] for v in tl.modules[module].verdicts)


def grads(tl: Timeline) -> list[str]:
    return [step.gradients.word for step in tl.steps]


def replicas(tl: Timeline) -> list[str]:
    return [step.replicas.word for step in tl.steps]


EXPECTED = {  # mistake: (passes, gradients of the steps, replicas after them), of 3 ranks, 3 windows of 4
    None: ("LLLS" * 3, ["synced"] * 3, ["equal"] * 3),
    "unsynced": ("LLLS" + "LLLL" * 2, ["synced", "local", "local"], ["equal", "diverged", "diverged"]),
    "stale": ("LLLS" + "LLSL" * 2, ["synced", "stale", "stale"], ["equal", "diverged", "diverged"]),
    "mixed": ("LLLS" + "MLLM" * 2, ["synced", "mixed", "mixed"], ["equal", "diverged", "diverged"]),
    "partial": ("LLLS" + "LLLP" * 2, ["synced", "mixed", "mixed"], ["equal", "diverged", "diverged"]),
    "nan": ("LLLS" * 3, ["synced"] * 3, ["equal"] * 3),
    "divergence": ("LLLS" * 3, ["synced"] * 3, ["equal", "equal", "diverged"]),
    "identical": ("LLLS" * 3, ["synced"] * 3, ["equal"] * 3),
    "redundant": ("SSSS" * 3, ["synced"] * 3, ["equal"] * 3),
    "lost": ("LLLS" * 3, ["synced"] * 3, ["equal"] * 3),
    "bypass": ("", ["local"] * 3, ["diverged"] * 3),
    "straggler": ("LLLS" * 3, ["synced"] * 3, ["equal"] * 3),
    "by-hand": ("LLLL" * 3, ["synced"] * 3, ["equal"] * 3),
    "local-sgd": ("LLLL" * 3, ["local"] * 3, ["diverged"] * 3),
    "join": ("LLLS" * 3, ["synced"] * 3, ["equal", "unknown", "unknown"]),
    "skipped": ("LLLS" * 3, ["synced"] * 2, ["equal"] * 2),
    "closure": ("LLLS" * 3, ["synced"] * 3, ["equal"] * 3),
    # rank 2 leaves a window out; the others' last all-reduce then meets its barrier
    "drift": ("LLLSLLLSLLLU", ["synced"] * 2, ["equal"] * 2),
    "hang": ("LLLSLLLU", ["synced"], ["equal"]),
    "died": ("LLLSLLLU", ["synced"], ["equal"]),
    "failed": ("LLLSLLLU", ["synced"], ["equal"]),
}


@pytest.mark.parametrize("mistake", EXPECTED, ids=str)
def test_what_happened(mistake: str | None) -> None:
    tl = synth.cluster_of(mistake, ranks=3, windows=3).timeline()
    assert (syncs(tl), grads(tl), replicas(tl)) == EXPECTED[mistake]
    assert set(EXPECTED) == {None, *synth.MISTAKES, *synth.RIGHT}


def test_declared_flags_decide_nothing() -> None:
    """Every bit of what `no_sync` declared turned round: no verdict changes."""
    for mistake in (None, *synth.MISTAKES, *synth.RIGHT):
        batches = synth.cluster_of(mistake, ranks=2, windows=3).batches()
        turned = []
        for batch in batches:
            blocks: list[tuple[r.RowKind, Any]] = []
            for kind, payload in batch.blocks:
                if kind is r.RowKind.PASS:
                    rows = np.frombuffer(payload, synth.dtype(kind)).copy()
                    rows["flags"] ^= np.uint16(r.PassFlag.NO_SYNC_FORWARD | r.PassFlag.NO_SYNC_BACKWARD)
                    rows["flags"] ^= np.uint16(r.PassFlag.FLAGS_KNOWN | r.PassFlag.FORWARD_SEEN)
                    blocks.append((kind, rows.tobytes()))
                else:
                    blocks.append((kind, payload))
            turned.append(Batch(batch.source, blocks))
        plain, other = Fold(), Fold()
        plain.feed(batches)
        other.feed(turned)
        for a, b in zip(plain.timeline.modules, other.timeline.modules, strict=True):
            assert a.verdicts.tolist() == b.verdicts.tolist()
        assert list(plain.timeline.steps) == list(other.timeline.steps)


def test_through_the_real_files(tmp_path: Path) -> None:
    folder = synth.write_run(tmp_path, "stale", ranks=2, windows=3)
    reader, fold = RunReader(folder), Fold()
    fold.run(reader.info())
    while batches := reader.read():
        fold.feed(batches)
    tl = fold.timeline
    assert reader.problems == []
    assert (syncs(tl), grads(tl), replicas(tl)) == EXPECTED["stale"]
    assert tl.run.status == "finished"
    assert tl.run.torch == "2.14.1"
    step = tl.steps[1]
    assert (step.site.short, step.site.code, step.optimizer) == ("train.py:19", "optimizer.step()", "SGD")
    assert step.parts[0].after == (7, 7)
    assert step.parts[0].by_rank == (Gradients.STALE, Gradients.STALE)
    assert [tl.ranks[k].status for k in (0, 1)] == ["finished", "finished"]
    module = tl.modules[0]
    assert module.layouts[0].buckets == [(3, 2), (1, 0)]
    assert module.lanes[0].buckets_of(6)["index"].tolist() == [0, 1]
    assert len(module.lanes[0].buckets_of(5)) == 0
    assert module.lanes[0].layers_of(6)["param"].tolist() == [0, 1, 2, 3]
    assert module.lanes[0].window_of(1) == (4, 8)


def facts(**values: int) -> np.ndarray[Any, Any]:
    row = np.zeros(1, synth.dtype(r.RowKind.PASS))
    row["touched"], row["buckets"] = 4, 2
    for name, value in values.items():
        row[name] = value
    return row


@pytest.mark.parametrize(
    ("row", "failed", "sync"),
    [
        (facts(launched=2), 0, Sync.SYNCED),
        (facts(launched=0, unreduced=4), 0, Sync.LOCAL),
        (facts(launched=2, unreduced=4), 0, Sync.LOCAL),  # buckets were sent, and held no gradient of this module
        (facts(launched=1, unreduced=2), 0, Sync.PARTIAL),
        (facts(launched=2, unreduced=1), 0, Sync.PARTIAL),
        (facts(launched=2), 1, Sync.PARTIAL),
        (facts(launched=2, flags=int(r.PassFlag.RAISED)), 0, Sync.UNFINISHED),
        (
            facts(launched=0, unreduced=4, flags=int(r.PassFlag.REDUCER_DONE)),
            0,
            Sync.LOCAL,
        ),  # a hook that sends nothing
        (facts(launched=2, touched=0), 0, Sync.ABSENT),  # a join's shadow
    ],
)
def test_sync_of_a_pass(row: np.ndarray[Any, Any], failed: int, sync: Sync) -> None:
    assert verdicts.sync_of(row, np.array([failed], np.uint16)).tolist() == [sync]


def test_across_ranks_the_worst_stands() -> None:
    order = [Sync.UNFINISHED, Sync.RUNNING, Sync.MIXED, Sync.PARTIAL]
    for worse, better in pairwise(order):
        lanes = [np.array([worse], np.uint8), np.array([better], np.uint8)]
        assert verdicts.across(lanes, [0, 0], 1).tolist() == [worse]
    local, synced = np.array([0], np.uint8), np.array([1], np.uint8)
    assert verdicts.across([local, synced], [0, 0], 1).tolist() == [Sync.MIXED]
    assert verdicts.across([synced, synced[:0]], [0, 0], 1).tolist() == [Sync.SYNCED]  # the other rank ended
    assert verdicts.across([synced, synced[:0]], [0, 1], 1).tolist() == [Sync.RUNNING]  # it has still to come
    assert verdicts.across([synced[:0], synced[:0]], [0, 0], 1).tolist() == [Sync.ABSENT]


def test_identical_data_is_no_proof_of_sync() -> None:
    """Bit-equal gradients on all ranks, no collective: local all the same."""

    def train(me: Rank) -> Steps:
        for _ in range(3):
            yield from me.backward(False, same_data=True)
            me.step()
            me.clear()

    tl = Cluster(2).run(train).timeline()
    assert grads(tl) == ["local"] * 3
    assert [s.parts[0].grads_equal for s in tl.steps] == [True] * 3
    assert replicas(tl) == ["equal"] * 3


@pytest.mark.parametrize("flattened", [True, False])
def test_averaged_by_hand(flattened: bool) -> None:
    def train(me: Rank) -> Steps:
        for k in range(4):
            yield from me.backward(False)
            yield from me.all_reduce_gradients(flattened=flattened)
            if k == 2:
                yield from me.backward(False)  # and then more, locally
            me.step()
            me.clear()

    assert grads(Cluster(2).run(train).timeline()) == ["synced", "synced", "local", "synced"]


def test_gradients_set_by_hand_and_averaged_are_synced() -> None:
    def train(me: Rank) -> Steps:
        for k in range(4):
            me.set_grads()
            if k != 2:
                yield from me.all_reduce_gradients()
            me.step()
            me.clear()

    assert grads(Cluster(2).run(train).timeline()) == ["synced", "synced", "local", "synced"]


def test_parameters_averaged_after_a_local_step_do_not_make_the_next_one_synced() -> None:
    def train(me: Rank) -> Steps:
        for _ in range(3):
            me.set_grads()
            me.step()
            yield from me.average_parameters()
            me.clear()

    tl = Cluster(2).run(train).timeline()
    assert grads(tl) == ["local"] * 3
    assert [rec.step for rec in tl.modules[0].lanes[0].replicas] == [0, 1, 2]


def test_no_gradients_and_one_rank() -> None:
    def idle(me: Rank) -> Steps:
        me.step()
        yield from me.barrier()

    assert grads(Cluster(2).run(idle).timeline()) == ["none"]
    assert grads(synth.cluster_of("unsynced", ranks=1).timeline()) == ["synced"] * 4


def test_two_modules_are_judged_apart() -> None:
    def gan(me: Rank) -> Steps:
        for i in range(4):
            last = i % 2 == 1
            yield from me.backward(True, 1)
            if last:
                me.step(1)
                me.clear(1)
            yield from me.backward(last, 0)
            if last:
                me.step(0)
                me.clear(0)

    tl = Cluster(2, [Net("Generator"), Net("Critic")]).run(gan).timeline()
    assert (syncs(tl, 0), syncs(tl, 1)) == ("LSLS", "SSSS")
    assert [(s.parts[0].module, s.gradients, s.index) for s in tl.steps] == [
        (1, Gradients.SYNCED, 0), (0, Gradients.SYNCED, 1), (1, Gradients.SYNCED, 2), (0, Gradients.SYNCED, 3)
    ]  # fmt: skip
    assert [m.name for m in tl.modules] == ["Generator", "Critic"]


def test_one_optimizer_over_two_modules() -> None:
    def train(me: Rank) -> Steps:
        yield from me.backward(True, 0)
        yield from me.backward(False, 1)
        me.step(0)
        me.steps -= 1  # rows of one step share the index
        me.step(1)

    tl = Cluster(2, [Net(), Net()]).run(train).timeline()
    assert [len(s.parts) for s in tl.steps] == [2]
    assert tl.steps[0].gradients is Gradients.MIXED
    assert tl.steps[0].replicas is Replicas.DIVERGED


def test_a_module_that_took_no_step_beside_one_that_did() -> None:
    def train(me: Rank) -> Steps:
        for _ in range(3):
            yield from me.backward(True, 0)
            yield from me.backward(True, 1)
            me.step(1)

    tl = Cluster(2, [Net(), Net()]).run(train).timeline()
    assert [[p.module for p in s.parts] for s in tl.steps] == [[1], [1], [1]]
    table = tl.steps
    assert isinstance(table, StepTable)
    idle, busy = table.of(0), table.of(1)
    assert busy is not None
    assert busy.there.tolist() == [True] * 3
    assert idle is None or not idle.there.any()


def test_steps_are_a_sequence() -> None:
    steps = synth.cluster_of(None, windows=5).timeline().steps
    assert [s.index for s in steps[1:4]] == [1, 2, 3]
    assert steps[-1].index == 4
    assert len(list(steps)) == len(steps) == 5
    assert steps[2] in steps
    with pytest.raises(IndexError):
        steps[5]


def test_a_module_on_a_sub_group_is_judged_within_it() -> None:
    def train(me: Rank) -> Steps:
        if 0 in me.states:
            yield from me.backward(True, 0)
            me.step(0)
        yield from me.backward(False, 1)
        me.step(1)

    tl = Cluster(3, [Net("Part", ranks=(0, 2)), Net("Whole")]).run(train).timeline()
    part = next(m for m in tl.modules if m.name == "Part")
    assert part.ranks == (0, 2)
    assert sorted(part.lanes) == [0, 2]
    assert part.verdicts.tolist() == [Sync.SYNCED]
    by_module = {p.module: p for s in tl.steps for p in s.parts if len([a for a in p.after if a is not None]) > 1}
    assert by_module[part.id].replicas is Replicas.EQUAL
    assert by_module[part.id].gradients is Gradients.SYNCED


def test_a_step_that_one_rank_leaves_out_has_no_partner() -> None:
    def train(me: Rank) -> Steps:
        yield from me.backward(True)
        if me.rank == 0:
            me.step()
        yield from me.backward(True)
        me.step()

    tl = Cluster(2).run(train).timeline()
    assert [s.parts[0].after for s in tl.steps] == [(0, None), (1, 1)]
    assert [s.replicas for s in tl.steps] == [Replicas.UNKNOWN, Replicas.DIVERGED]


def test_running_until_the_last_rank_reports() -> None:
    cluster = Cluster(2)
    fold = Fold()
    fold.run(cluster.info(live=True))
    cluster.run(synth.program(windows=1))
    first, second = cluster.batches()
    fold.feed([first])
    assert syncs(fold.timeline) == "RRRR"
    fold.feed([second])
    assert syncs(fold.timeline) == "LLLS"
    assert fold.timeline.version > 1


def test_a_rank_that_waits_for_ever() -> None:
    cluster = synth.cluster_of("hang", ranks=2, windows=3)
    fold = Fold()
    fold.run(cluster.info(live=True))
    fold.feed(cluster.batches())
    tl = fold.timeline
    assert syncs(tl) == "LLLSRRRR"  # rank 1 has not run the last four: live, it may still come
    stack = tl.ranks[0].stack
    assert stack is not None
    assert (stack.doing, stack.module, stack.pass_index) == ("all-reduce", 0, 7)
    assert stack.since < stack.at == tl.now_ns
    assert tl.ranks[1].stack is not None
    assert tl.ranks[1].stack.doing == "barrier"
    group = tl.modules[0].group
    assert stack.group == group
    assert {k: s.collectives[group] for k, s in tl.ranks.items()} == {0: 3, 1: 3}
    fold.run(cluster.info())
    assert syncs(tl) == "LLLSLLLU"


def test_a_stack_is_over_when_the_rank_moves() -> None:
    cluster = synth.cluster_of("hang", ranks=2, windows=3)
    fold = Fold()
    fold.run(cluster.info(live=True))
    fold.feed(cluster.batches())
    rank, state = cluster.ranks[0], fold.timeline.ranks[0]

    def beat(progress: int) -> None:
        rank.say(r.Beat(at=rank.tick(1_000_000_000), progress=progress))
        fold.feed(cluster.batches())

    beat(50)  # the interpreter answers, that is all
    beat(50)
    assert state.stack is not None
    assert state.beat_ns == state.last_ns
    beat(51)
    assert state.stack is None


def test_cpu_time_tells_computing_from_waiting() -> None:
    cluster = Cluster(1)
    fold = Fold()
    rank = cluster.ranks[0]
    for cpu in (0, 900_000_000, 900_100_000):
        rank.say(r.Beat(at=rank.tick(1_000_000_000), progress=1, cpu_ns=cpu))
    fold.feed(cluster.batches())
    state = fold.timeline.ranks[0]
    assert state.beat_ns - state.busy_ns == 1_000_000_000


def test_drift_is_where_all_reduces_of_different_passes_meet() -> None:
    def train(me: Rank) -> Steps:
        for i in range(6):
            if me.rank == 1:
                yield from me.backward(i in (0, 1, 4, 5))
            else:
                yield from me.backward(i in (0, 1, 3, 4))
        yield from me.barrier()

    tl = Cluster(2).run(train).timeline()
    assert syncs(tl) == "SSLMSM"
    assert tl.modules[0].drift == 4
    assert synth.cluster_of(None).timeline().modules[0].drift is None


def test_hosts_with_clocks_of_their_own() -> None:
    """Two hosts whose monotonic clocks lie minutes apart: on the common clock their passes coincide."""
    tl = synth.cluster_of(None, ranks=4, hosts=["a", "a", "b", "b"], windows=2).timeline()
    ends = [tl.modules[0].lanes[k].buckets["done"] for k in range(4)]
    assert all(np.array_equal(ends[0], other) for other in ends)
    assert 0 < ends[0][0] < 60_000_000_000
    assert [tl.ranks[k].host for k in range(4)] == ["a", "a", "b", "b"]


@pytest.mark.parametrize("piece", [1, 7, 1000])
def test_hosts_are_aligned_on_the_ends_of_their_all_reduces(piece: int) -> None:
    """A wall clock that is 3 s fast: after eight shared all-reduces it does not matter, whenever they came in."""
    hosts = ["a", "a", "b", "b"]
    cluster = Cluster(4, hosts=hosts, wall_skew={"b": 3_000_000_000}).run(synth.program(windows=12))
    exact = Cluster(4, hosts=hosts).run(synth.program(windows=12)).timeline()
    fold = Fold()
    fold.run(cluster.info())
    queues = [[Batch(b.source, [block]) for block in b.blocks] for b in cluster.batches()]
    while any(queues):
        for queue in queues:
            fold.feed(queue[:piece])
            del queue[:piece]
    tl = fold.timeline
    for rank in range(4):
        mine, right = tl.modules[0].lanes[rank], exact.modules[0].lanes[rank]
        for field in ("passes", "buckets", "steps", "clears"):
            assert getattr(mine, field).tolist() == getattr(right, field).tolist()
        assert tl.ranks[rank].exit == exact.ranks[rank].exit
        assert tl.ranks[rank].last_ns == exact.ranks[rank].last_ns
    assert list(tl.steps) == list(exact.steps)
    assert tl.now_ns == exact.now_ns


def test_a_lost_row_leaves_a_gap_and_no_guess() -> None:
    cluster = Cluster(2).run(synth.program(windows=2))
    rows = cluster.ranks[1].rows[r.RowKind.PASS]
    del rows[3]  # the synchronised one of the first window
    tl = cluster.timeline()
    lane = tl.modules[0].lanes[1]
    assert lane.passes["index"].tolist() == list(range(8))
    assert lane.sync[3] == Sync.ABSENT
    assert syncs(tl) == "LLLSLLLS"
    assert lane.gradients.tolist() == [Gradients.NONE, Gradients.SYNCED]
    assert lane.window_of(0) == (0, 4)
    assert grads(tl) == ["synced", "synced"]


def begun_later(cluster: Cluster) -> list[Batch]:
    """What the cluster wrote, by processes of other names that started a second later."""
    for rank in cluster.ranks:
        head = rank.records[0]
        assert isinstance(head, r.Process)
        rank.records[0] = msgspec.structs.replace(head, wall_ns=head.wall_ns + 10**9)
    return [Batch(f"later-{source}", blocks) for source, blocks in cluster.batches()]


def test_two_jobs_one_after_the_other_show_the_newer() -> None:
    """One script that runs torchrun twice: the same rendezvous, attempt and ranks."""
    first, second = Cluster(2).run(synth.program(windows=2)), Cluster(2).run(synth.program("unsynced", windows=1, at=0))
    fold = Fold()
    fold.run(second.info())
    fold.feed(first.batches())
    assert syncs(fold.timeline) == "LLLSLLLS"
    fold.feed(begun_later(second))
    assert syncs(fold.timeline) == "LLLL"
    assert fold.timeline.run.notes == ["another job ran in this folder too (2 ranks, 8 micro-steps); it is not shown"]


def test_an_elastic_restart_shows_the_new_attempt() -> None:
    old, new = Cluster(2).run(synth.program("died", windows=2)), Cluster(2, attempt=1)
    fold = Fold()
    fold.run(old.info(live=True))
    fold.feed(old.batches())
    assert fold.timeline.ranks[1].attempt == 0
    new.run(synth.program(windows=1))
    fold.feed(begun_later(new))
    tl = fold.timeline
    assert (syncs(tl), {s.attempt for s in tl.ranks.values()}) == ("LLLS", {1})
    assert any("attempt 0" in note for note in tl.run.notes)


def test_a_restart_that_got_nowhere_is_said() -> None:
    old, new = Cluster(2).run(synth.program("died", windows=2)), Cluster(2, [], attempt=1)
    fold = Fold()
    fold.run(old.info())
    fold.feed(old.batches())
    assert fold.timeline.run.notes == []
    fold.feed(new.batches())
    assert syncs(fold.timeline) == "LLLSLLLU"
    assert ["attempt 1" in note and "0 micro-steps" in note for note in fold.timeline.run.notes] == [True]


def test_a_process_that_says_its_rank_late() -> None:
    batches = Cluster(2).run(synth.program(windows=1)).batches()
    fold = Fold()
    for batch in batches:
        (kind, records), *rows = batch.blocks
        assert isinstance(records, list)
        late = [x for x in records if isinstance(x, r.RankIs)]
        early = [x for x in records if not isinstance(x, r.RankIs)]
        fold.feed([Batch(batch.source, [(kind, early)])])
        fold.feed([Batch(batch.source, list(rows))])
        assert len(fold.timeline.ranks) == int(batch is not batches[0])
        fold.feed([Batch(batch.source, [(kind, late)])])
    assert syncs(fold.timeline) == "LLLS"


def test_what_the_ranks_say_of_the_watching_is_said_once() -> None:
    cluster = Cluster(3)
    for rank in cluster.ranks:
        rank.say(r.Note("sampling one window in 4", rank.now))
    cluster.ranks[1].say(
        r.Note("the comm hook is PowerSGD", 0), r.Dropped(7, "disk full", 0), r.Dropped(2, "disk full", 0)
    )
    tl = cluster.timeline()
    assert tl.run.notes == ["sampling one window in 4", "rank 1: the comm hook is PowerSGD"]
    assert tl.ranks[1].dropped == 9


def test_a_long_run(tmp_path: Path) -> None:
    """Many passes through the real files: the wrong step is found by the arrays, not by building every Step."""
    folder = synth.write_big(tmp_path, 4, 20_000, wrong=[1234])
    reader, fold = RunReader(folder), Fold()
    fold.run(reader.info())
    while batches := reader.read():
        fold.feed(batches)
    tl = fold.timeline
    assert len(tl.steps) == 5000
    assert np.flatnonzero(tl.steps.gradients != Gradients.SYNCED).tolist() == [1234]
    assert np.flatnonzero(tl.steps.replicas == Replicas.DIVERGED)[0] == 1234
    assert np.flatnonzero(tl.modules[0].verdicts[3::4] != Sync.SYNCED).tolist() == [1234]
    assert tl.steps[-1].index == 4999
    assert [s.index for s in tl.steps[10:13]] == [10, 11, 12]
