"""Each rule from both sides, on simulated jobs that hang together: the mistake, and the nearest right thing."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest
import synth
from judging import one, rules, run
from simcluster import Cluster, Net, Rank, Steps

from ddpviz.findings import RULES, cause, facts, find, words
from ddpviz.findings.model import Finding, Severity
from ddpviz.timeline.fold import Fold
from ddpviz.timeline.model import Timeline
from ddpviz.trace import records as r
from ddpviz.trace.reader import Batch

# --- the usual shapes -------------------------------------------------------------------------------------------------

SHAPES = {
    None: set(),
    "unsynced": {"unsynced-step", "replicas-diverged"},
    "stale": {"stale-sync-step", "replicas-diverged"},
    "partial": {"unmanaged-parameter", "replicas-diverged"},
    "nan": {"nonfinite-gradient"},
    "divergence": {"replicas-diverged"},
    "drift": {"uneven-ranks", "collective-hang"},
    "hang": {"uneven-ranks", "collective-hang"},
    "died": {"rank-died"},
    "failed": {"rank-died"},
    "identical": {"identical-batches"},
    "redundant": {"redundant-sync"},
    "lost": {"lost-micro-steps"},
    "bypass": {"unsynced-step", "replicas-diverged"},
    "by-hand": set(),
    "local-sgd": set(),
    "join": set(),
    "skipped": set(),
    "closure": set(),
}


@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize("shape", SHAPES)
def test_shapes(shape: str | None, ranks: int) -> None:
    assert rules(synth.cluster_of(shape, ranks=ranks).timeline()) == SHAPES[shape]


@pytest.mark.parametrize("shape", ["unsynced", "stale", "redundant", "identical", "bypass"])
def test_one_rank_has_nobody_to_average_with(shape: str) -> None:
    assert rules(synth.cluster_of(shape, ranks=1).timeline()) == set()


@pytest.mark.parametrize("shape", ["unsynced", "stale", "lost", "nan"])
def test_other_accumulation_lengths_and_module_counts(shape: str) -> None:
    for accumulation in (2, 5):
        tl = synth.cluster_of(shape, accumulation=accumulation, modules=2).timeline()
        assert rules(tl) == SHAPES[shape]
        assert {f.module for f in find(tl)} <= {0, 1}


def test_every_finding_names_a_place_and_a_way_out() -> None:
    for shape in SHAPES:
        for finding in find(synth.cluster_of(shape).timeline()):
            assert finding.rule in RULES
            assert finding.message[0].isupper()
            assert finding.message.endswith((".", ")"))
            assert finding.advice.endswith(".")
            if finding.rule not in ("rank-died",):
                assert (finding.file, finding.line > 0) == ("/home/user/train.py", True), finding.rule


def test_the_worst_comes_first() -> None:
    found = find(synth.cluster_of("stale", ranks=2).timeline())
    assert [f.severity for f in found] == sorted((f.severity for f in found), reverse=True)
    assert found[0].rule == "stale-sync-step"  # the cause before its consequence


# --- micro-steps ------------------------------------------------------------------------------------------------------


def test_redundant_sync_counts_bytes_and_windows() -> None:
    finding = one(synth.cluster_of("redundant", accumulation=4, windows=3).timeline(), "redundant-sync")
    net = Net()
    assert finding.count == 3
    assert len(finding.backwards) == 9
    assert words.size(9 * sum(net.bytes_of(b) for b in net.buckets)) in finding.message


def test_windows_without_a_step_are_not_redundant() -> None:
    def train(me: Rank) -> Steps:
        for _ in range(2):
            yield from me.backward()
            yield from me.backward()
            me.clear()

    assert rules(run(train)) == set()


def test_local_gradients_dropped_by_another_line_are_meant() -> None:
    """An evaluation or an attack has backward and clearing lines of its own."""

    def train(me: Rank) -> Steps:
        usual = me.site

        def elsewhere(what: str, line: int | None = None) -> int:
            return usual(what, 90 if what in ("backward", "clear") else line)

        for i in range(4):
            if i == 2:
                me.site = elsewhere  # type: ignore[method-assign]
                yield from me.backward(False)
                me.clear()
                me.site = usual  # type: ignore[method-assign]
            yield from me.backward()
            me.step()
            me.clear()

    assert rules(run(train)) == set()


def test_carried_and_left_over() -> None:
    def train(me: Rank) -> Steps:
        for _ in range(3):
            for i in range(7):
                yield from me.backward(i % 3 == 2)
                if i % 3 == 2:
                    me.step()
                    me.clear()

    tl = run(train)
    assert rules(tl) == {"carried-window", "lost-micro-steps"}
    assert one(tl, "carried-window").backwards == (6, 13)
    assert one(tl, "lost-micro-steps").backwards == (20,)


@pytest.mark.parametrize("sizes", [(3, 3, 4, 3, 3, 4), (1, 2, 2, 4, 4, 8), (3, 3, 1, 3, 3, 1)])
def test_windows_of_other_sizes_are_no_carry(sizes: tuple[int, ...]) -> None:
    def train(me: Rank) -> Steps:
        for size in sizes:
            for i in range(size):
                yield from me.backward(i == size - 1)
            me.step()
            me.clear()

    assert rules(run(train)) == set()


def test_disagreement_and_the_windows_that_only_look_like_it() -> None:
    def disagree(me: Rank) -> Steps:
        for i in range(6):
            yield from me.backward(i % 3 == (1 if me.rank else 2))
            if i % 3 == 2:
                me.step()
                me.clear()

    finding = one(run(disagree), "rank-disagreement")
    assert (finding.backward, finding.ranks) == (1, (0,))

    def by_tokens(me: Rank) -> Steps:
        for w in range(4):
            for _ in range(1 + (w + me.rank) % 3):
                yield from me.backward(False)
            yield from me.backward(True)
            me.step()
            me.clear()

    assert rules(run(by_tokens)) == set()


def test_a_skipped_batch_is_found_where_it_happened() -> None:
    def train(me: Rank) -> Steps:
        for i in range(4):
            if me.rank == 1 and i == 2:
                me.say(r.Unanswered(0, me.states[0].index - 1, me.tick(1), me.site("forward")))
                continue
            yield from me.backward()
            me.step()
            me.clear()
        yield from me.barrier()

    tl = run(train)
    assert rules(tl) == {"uneven-ranks", "collective-hang"}
    finding = one(tl, "uneven-ranks")
    assert (finding.ranks, finding.backward, finding.line) == ((1,), 2, 17)
    assert "after micro-step 1 had no backward" in finding.message


@pytest.mark.parametrize("shape", ["drift", "hang"])
def test_a_hang_that_the_time_out_ended_is_explained_as_well(shape: str) -> None:
    tl = synth.cluster_of(shape).timeline()
    tl.run.status = "failed"
    error = "RuntimeError: [unbound_buffer.cc:78] Timed out waiting 60000ms for recv operation to complete"
    for state in tl.ranks.values():
        state.exit = r.Exit(tl.now_ns, 1, "exception", error)
    assert rules(tl) == {"uneven-ranks", "torch-refused"}
    for state in tl.ranks.values():  # an error of its own is no time-out
        state.exit = r.Exit(tl.now_ns, 1, "exception", "ValueError: no")
    assert "uneven-ranks" not in rules(tl)


@pytest.mark.parametrize(("strays", "want"), [(Net().numel, {"never-stepped"}), (24, set())])
def test_an_optimizer_that_holds_a_copy_or_something_else(strays: int, want: set[str]) -> None:
    def train(me: Rank) -> Steps:
        me.say(r.Optimizer(7, "Adam", me.site("step"), [], strays))
        for _ in range(3):
            yield from me.backward()
            me.clear()

    assert rules(run(train)) == want


# --- clips, hooks, buffers --------------------------------------------------------------------------------------------


def clipping(limit: float, norm: float | None, when: str) -> Timeline:
    def train(me: Rank) -> Steps:
        for i in range(4):
            yield from me.backward(i % 2 == 1)
            if i % 2 == (0 if when == "local" else 1):
                me.say(r.Clip(0, me.states[0].index - 1, me.tick(1000), me.site("clip"), "norm", limit, norm))
            if i % 2:
                me.step()
                me.clear()

    return run(train)


def test_clipped_before_sync() -> None:
    finding = one(clipping(1.0, 8.6, "local"), "clipped-before-sync")
    assert (finding.count, finding.line) == (2, 22)


@pytest.mark.parametrize(
    ("limit", "norm", "when"), [(1.0, 8.6, "averaged"), (1.0, 0.5, "local"), (np.inf, 8.6, "local")]
)
def test_clips_that_change_nothing_or_come_after(limit: float, norm: float, when: str) -> None:
    assert rules(clipping(limit, norm, when)) == set()


@pytest.mark.parametrize(
    ("factor", "words"), [(3.0, "the sum over the 3 ranks"), (1 / 3, "divided once more"), (1.0, ""), (1.001, "")]
)
def test_hook_not_mean(factor: float, words: str) -> None:
    tl = synth.cluster_of(None, ranks=3).timeline()
    module = tl.modules[0]
    module.hook = "exchange"
    for lane in module.lanes.values():
        lane.buckets["sum_after"] *= factor
    found = [f for f in find(tl) if f.rule == "hook-not-mean"]
    assert bool(found) == bool(words)
    assert not words or words in found[0].message


def test_a_hook_that_gives_back_what_it_got() -> None:
    tl = synth.cluster_of(None, ranks=2).timeline()
    tl.modules[0].hook = "exchange"
    for lane in tl.modules[0].lanes.values():
        lane.buckets["sum_after"] = lane.buckets["sum_before"]
    assert "what it put in" in one(tl, "hook-not-mean").message


@pytest.mark.parametrize(("broadcast", "want"), [(False, {"buffers-diverged"}), (True, set())])
def test_buffers_diverged(broadcast: bool, want: set[str]) -> None:
    def train(me: Rank) -> Steps:
        yield from me.backward()
        me.step()
        me.clear()
        me.say(r.Buffers(0, ["1.running_mean", "1.count"], [me.rank, 7], broadcast, me.tick(1)))

    tl = run(train)
    assert rules(tl) == want
    assert not want or "(1.running_mean)" in one(tl, "buffers-diverged").message


@pytest.mark.parametrize(
    ("expected", "passes", "params", "want"),
    [
        (False, 3, ([0, 1], [1, 2]), {"never-used-parameter"}),
        (True, 3, ([0, 1], [1, 2]), set()),  # a branch drawn at random had no chance yet
        (True, 9, ([0, 1], [1, 2]), {"never-used-parameter"}),
        (False, 9, ([0], [1]), set()),  # each is used on the other rank
    ],
)
def test_never_used_parameter(expected: bool, passes: int, params: Any, want: set[str]) -> None:
    def train(me: Rank) -> Steps:
        yield from me.backward()
        me.step()
        me.clear()
        me.say(r.Unused(0, params[me.rank], passes, True))

    tl = run(train, nets=[Net(options={"find_unused_parameters": expected})])
    assert rules(tl) == want
    assert not want or "0.bias" in one(tl, "never-used-parameter").message


@pytest.mark.parametrize("skipped", [False, True])
def test_a_non_finite_gradient_that_grad_scaler_skipped(skipped: bool) -> None:
    def train(me: Rank) -> Steps:
        for i in range(3):
            yield from me.backward(nan=0 if i == 1 and me.rank == 1 else None)
            me.step(skipped=skipped and i == 1)
            me.clear()

    tl = run(train)
    assert rules(tl) == (set() if skipped else {"nonfinite-gradient"})
    if not skipped:
        finding = one(tl, "nonfinite-gradient")
        assert (finding.ranks, finding.backward, finding.step) == ((1,), 1, 1)
        assert "in 0.weight" in finding.message
        assert "of bucket 1 (0.bias and 0.weight) in micro-step 1 spread it" in finding.message


# --- trends, scale ----------------------------------------------------------------------------------------------------


def test_straggler() -> None:
    tl = synth.cluster_of("straggler", ranks=3, accumulation=1, windows=30).timeline()
    finding = one(tl, "straggler")
    assert (finding.ranks, finding.severity) == ((2,), Severity.INFO)
    assert not [
        f for f in find(synth.cluster_of(None, ranks=3, accumulation=1, windows=30).timeline()) if "arrive" in f.message
    ]


def test_a_rule_that_fails_hides_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(tl: Timeline) -> list[Finding]:
        raise KeyError("x")

    monkeypatch.setitem(RULES, "unsynced-step", broken)
    found = {f.rule: f for f in find(synth.cluster_of("unsynced").timeline())}
    assert found["unsynced-step"].severity is Severity.INFO
    assert "could not be judged" in found["unsynced-step"].message
    assert "replicas-diverged" in found


def test_an_empty_timeline() -> None:
    for status in ("starting", "running", "finished", "failed", "hung", "interrupted"):
        tl = Timeline()
        tl.run.status = status
        assert {f.rule for f in find(tl)} <= {"collective-hang"}


def test_a_wrong_step_among_many_is_found_and_cheap() -> None:
    fold = Fold()
    fold.run(Cluster(2).info())
    for _, source, blocks in synth.big_batches(2, 40_000, wrong=(7_000,)):
        fold.feed([Batch(source, blocks)])
    began = time.process_time()
    found = find(fold.timeline)
    spent = time.process_time() - began
    assert [f.steps for f in found if f.rule == "unsynced-step"] == [(7_000,)]
    assert spent < 5  # a hundredth of that on a free machine; a rule that loops over passes takes more


def test_segments_split_at_steps_and_clears() -> None:
    def train(me: Rank) -> Steps:
        yield from me.backward(False)
        yield from me.backward()
        me.step()
        yield from me.backward()  # gradients not cleared: the same window, another step
        me.step()
        me.clear()
        yield from me.backward(False)

    lane = run(train).modules[0].lanes[0]
    stretch, step = facts.segments(lane)
    assert stretch.tolist() == [0, 0, 1, 2]
    assert step.tolist() == [0, 0, 1, -1]
    facts.forget()


def test_words() -> None:
    assert words.ranges([0]) == "0"
    assert words.ranges([0, 1]) == "0 and 1"
    assert words.ranges([0, 1, 2, 5, 8]) == "0-2, 5 and 8"
    assert words.ranges(range(0, 40, 2)) == "0, 2, 4, 6, 8 and 15 more"
    assert words.ranks((0, 1), of=(0, 1)) == "both ranks"
    assert words.ranks((0, 1, 2), of=(0, 1, 2)) == "all 3 ranks"
    assert words.ranks((2,), of=(0, 1, 2)) == "rank 2"
    assert words.names(["a", "b", "c", "d", "e", "f"]) == "a, b, c and 3 more"
    assert [words.size(n) for n in (512, 1200, 3_400_000)] == ["512 B", "1.2 kB", "3.4 MB"]
    assert [words.duration(n) for n in (850e3, 3.1e6, 12e9, 200e9)] == ["850 us", "3.1 ms", "12 s", "3 min"]
    assert cause.Why("a", "b", "c").kind == "a"
