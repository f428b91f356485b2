"""Traffic, agreement, noise scale and timing, against cases whose answer is known."""

from __future__ import annotations

import numpy as np
import pytest
import synth
from simcluster import DIM, Cluster, Net, Rank, Steps

from ddpviz.timeline import pairs, timing, trends
from ddpviz.timeline.model import Module


def module(mistake: str | None = None, **how: object) -> Module:
    return synth.cluster_of(mistake, **how).timeline().modules[0]  # type: ignore[arg-type]


def test_windows() -> None:
    assert trends.windows(module(windows=3, accumulation=4).lanes[0]).tolist() == [0, 4, 8, 12]
    assert trends.windows(module("bypass").lanes[0]).tolist() == [0]


def test_traffic_sent_and_saved() -> None:
    sent, saved = trends.traffic(module(windows=3, accumulation=4))
    whole = 4 * Net().numel
    assert (sent, saved) == (3 * whole, 9 * whole)
    assert trends.traffic(module("redundant", windows=3)) == (12 * whole, 0)
    assert trends.traffic(module("by-hand", windows=3)) == (0, 12 * whole)  # nothing sent: the buckets' bytes


def every_pass(passes: int, same_data: bool = False):  # type: ignore[no-untyped-def]
    def train(me: Rank) -> Steps:
        for _ in range(passes):
            yield from me.backward(True, same_data=same_data)
            me.step()
            me.clear()

    return train


@pytest.mark.parametrize(("ranks", "noise"), [(2, 0.5), (4, 1.0), (8, 2.0)])
def test_noise_scale_of_a_known_distribution(ranks: int, noise: float) -> None:
    """Gradients are G + noise * N(0, I): tr(S) = noise^2 * dim, and G is what the simulation draws."""
    cluster = Cluster(ranks, noise=noise, layers=False, seed=3).run(every_pass(1500))
    params = len(Net().params)
    true = np.concatenate([np.random.default_rng([3, 7, 0, p]).normal(size=DIM) for p in range(params)])
    expected = noise**2 * params * DIM / float(true @ true)
    assert trends.noise_scale(cluster.timeline().modules[0]) == pytest.approx(expected, rel=0.1)


def test_agreement_lies_between_noise_and_unison() -> None:
    alike = Cluster(4).run(every_pass(20, same_data=True)).timeline().modules[0]
    assert trends.agreement(alike) == pytest.approx(1.0)
    assert trends.noise_scale(alike) == pytest.approx(0.0, abs=1e-9)
    noisy = Cluster(4, noise=200.0).run(every_pass(200)).timeline().modules[0]
    assert trends.agreement(noisy) == pytest.approx(0.5, rel=0.05)  # 1 / sqrt(4)


def test_no_answer_where_nothing_was_measured() -> None:
    for quiet in (module(ranks=1), module("unsynced", at=0), module("bypass")):
        assert trends.agreement(quiet) is None
        assert trends.noise_scale(quiet) is None
    unsampled = Cluster(2, sampled=lambda index: False).run(every_pass(4)).timeline().modules[0]
    assert trends.agreement(unsampled) is None
    hooked = module()
    hooked.hook = "fp16_compress_hook"
    assert trends.noise_scale(hooked) is None


def brute_force(spans: list[tuple[int, int]], ready: int) -> tuple[int, int]:
    """(exposed, hidden) of one pass, nanosecond by nanosecond."""
    under_way = {t for begin, end in spans for t in range(begin, end)}
    exposed = sum(t >= ready for t in under_way)
    return exposed, len(under_way) - exposed


def test_hidden_and_exposed_time_against_counting() -> None:
    random = np.random.default_rng(5)
    lane = module(windows=1).lanes[0]
    rows, expected = [], []
    for index in range(40):
        n, base = int(random.integers(1, 5)), 1000 * index + 1
        ready = np.sort(base + random.integers(0, 60, n))
        launch = ready + random.integers(0, 10, n)
        done = launch + random.integers(1, 80, n)
        for k in range(n):
            row = np.zeros(1, lane.buckets.dtype)
            row["pass"], row["index"], row["flags"] = index, k, 8
            row["ready"], row["launch"], row["done"] = ready[k], launch[k], done[k]
            rows.append(row)
        spans = list(zip(launch.tolist(), done.tolist(), strict=True))
        expected.append(brute_force(spans, int(ready.max())))
    lane.buckets = np.concatenate(rows)
    found = timing.communication(lane)
    assert found.passes.tolist() == list(range(40))
    assert list(zip(found.exposed.tolist(), found.hidden.tolist(), strict=True)) == expected
    exposed, hidden = np.array(expected).sum(0)
    assert found.share_hidden == pytest.approx(hidden / (exposed + hidden))


def test_unmeasured_times_are_left_out() -> None:
    lane = module(windows=2).lanes[0]
    lane.buckets = lane.buckets.copy()
    lane.buckets["done"][:2] = 0
    assert timing.communication(lane).passes.tolist() == [7]
    lane.buckets["done"] = 0
    assert timing.communication(lane).share_hidden is None


def test_the_straggler_is_named() -> None:
    late = timing.arrivals(module("straggler", ranks=3, windows=6))
    assert late.passes.tolist() == [3, 7, 11, 15, 19, 23]
    assert late.last.tolist() == [2] * 6
    median = late.median_late(2)
    assert median is not None
    assert median > 2_000_000
    assert late.spread.min() > 2_000_000
    even = timing.arrivals(module(ranks=3, windows=6))
    assert even.spread.max() < 2_000_000
    assert len(timing.arrivals(module(ranks=1)).passes) == 0


def test_passes_that_met() -> None:
    def train(me: Rank) -> Steps:
        for i in range(6):
            yield from me.backward(i in ((0, 1, 4, 5), (0, 1, 3, 4))[me.rank])
        yield from me.barrier()

    drifted = Cluster(2).run(train).timeline().modules[0]
    assert pairs.met(drifted, 0, 1) == {1: 1}
    assert pairs.met(drifted, 0, 4) == {1: 3}
    assert pairs.met(drifted, 1, 4) == {0: 5}
    assert pairs.met(drifted, 0, 2) == {}  # sent nothing
    assert timing.arrivals(drifted).passes.tolist() == [0, 1]
