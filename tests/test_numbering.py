"""Steps that some ranks leave out by themselves: which steps of different ranks are one, in any order of arrival."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given, settings, strategies as st
from simcluster import Cluster, Net, Rank, Steps
from test_timeline_chunks import pieces, plain

from ddpviz.timeline.columns import DTYPES
from ddpviz.timeline.fold import Fold
from ddpviz.timeline.model import Timeline
from ddpviz.timeline.numbering import Numbering
from ddpviz.trace import records as r


def afters(tl: Timeline, module: int = 0) -> list[tuple[int | None, ...]]:
    return [p.after for s in tl.steps for p in s.parts if p.module == module]


def leaving_out(left: set[tuple[int, int]], windows: int = 6) -> Any:
    """A program; `left` has (rank, window) of the steps that are left out."""

    def train(me: Rank) -> Steps:
        for i in range(windows):
            yield from me.backward()
            if (me.rank, i) not in left:
                me.step()
            me.clear()

    return train


def test_three_ranks_of_which_two_leave_out_steps() -> None:
    tl = Cluster(3).run(leaving_out({(1, 1), (2, 1), (2, 3)})).timeline()
    assert afters(tl) == [(0, 0, 0), (1, None, None), (2, 2, 2), (3, 3, None), (4, 4, 4), (5, 5, 5)]


def test_the_only_one_who_does_a_step() -> None:
    tl = Cluster(3).run(leaving_out({(0, 2), (2, 2)})).timeline()
    assert afters(tl)[2:4] == [(None, 2, None), (3, 3, 3)]


def test_two_modules_in_turn() -> None:
    def train(me: Rank) -> Steps:
        for i in range(5):
            for m in (0, 1):
                yield from me.backward(module=m)
                if not (me.rank == 1 and i == 2 and m == 0):
                    me.step(m)
                me.clear(m)

    tl = Cluster(2, [Net(), Net(name="Critic")]).run(train).timeline()
    assert afters(tl, 0) == [(0, 0), (1, 1), (2, None), (3, 3), (4, 4)]
    assert afters(tl, 1) == [(k, k) for k in range(5)]


def test_windows_by_tokens_are_in_step_though_their_micro_steps_differ() -> None:
    def train(me: Rank) -> Steps:
        for w in range(5):
            for _ in range((w + me.rank) % 3):
                yield from me.backward(False)
            yield from me.backward()
            me.step()
            me.clear()

    tl = Cluster(2).run(train).timeline()
    assert all(None not in after for after in afters(tl))
    assert len(tl.steps) == 5


def test_modules_of_other_ranks_are_nothing_to_a_rank() -> None:
    def train(me: Rank) -> Steps:
        mine = 0 if me.rank < 2 else 1
        for _ in range(3 + mine):
            yield from me.backward(module=mine)
            me.step(mine)
            me.clear(mine)

    tl = Cluster(4, [Net(ranks=(0, 1)), Net(ranks=(2, 3))]).run(train).timeline()
    assert afters(tl, 0) == [(k, k) for k in range(3)]
    assert afters(tl, 1) == [(k, k) for k in range(4)]


@settings(max_examples=25, deadline=None)
@given(
    left=st.sets(st.tuples(st.integers(0, 2), st.integers(0, 29)), max_size=8),
    sizes=st.lists(st.integers(1, 30), min_size=1, max_size=4),
    order=st.randoms(use_true_random=False),
)
def test_any_order_of_arrival_gives_the_same_numbers(left: set[tuple[int, int]], sizes: list[int], order: Any) -> None:
    cluster = Cluster(3, layers=False).run(leaving_out(left, windows=30))
    batches = cluster.batches()
    whole, cut = Fold(), Fold()
    for fold in (whole, cut):
        fold.run(cluster.info())
    whole.feed(batches)
    queues = [pieces(b, sizes) for b in batches]
    while any(queues):
        cut.feed([order.choice([q for q in queues if q]).pop(0)])
    assert plain(cut.timeline) == plain(whole.timeline)
    expected = [tuple(None if (k, i) in left else i for k in range(3)) for i in range(30)]
    assert afters(whole.timeline) == [after for after in expected if set(after) != {None}]


def test_ranks_that_never_agree_keep_their_own_numbers() -> None:
    rows = np.zeros(5000, DTYPES[r.RowKind.STEP])
    rows["index"] = np.arange(5000)
    numbering = Numbering(lambda module: (0, 1))
    for rank in (0, 1):
        rows["after"], rows["collective"] = np.arange(5000) * 2 + rank, np.arange(5000) + 9000 * (1 - rank)
        numbering.add(rank, 0, rows)
    assert numbering.update() == []
    assert all(cuts.none for cuts in numbering.cuts.values())
