"""Property: however the same blocks are cut and mixed over the processes, the Timeline comes out the same."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import synth
from hypothesis import given, settings, strategies as st

from ddpviz.timeline.fold import Fold
from ddpviz.timeline.model import Timeline
from ddpviz.timeline.plausible import Plausible
from ddpviz.trace import records as r
from ddpviz.trace.reader import Batch

PROGRAMS = (None, *synth.MISTAKES, *synth.RIGHT)


def plain(value: Any) -> Any:
    """A Timeline as nested plain values, without its version; numbers as text, so that NaN equals NaN."""
    if isinstance(value, np.ndarray):
        return str(value.tolist())
    if dataclasses.is_dataclass(value):
        names = [f.name for f in dataclasses.fields(value)]
        return {n: plain(getattr(value, n)) for n in names if n != "version"}
    if isinstance(value, dict):
        return {k: plain(v) for k, v in sorted(value.items())}
    return [plain(v) for v in value] if isinstance(value, Sequence) and not isinstance(value, str) else repr(value)


def pieces(batch: Batch, sizes: list[int]) -> list[Batch]:
    """The same blocks cut smaller: block by block, rows by the given sizes."""
    out, turn = [], 0
    for kind, payload in batch.blocks:
        width = 1 if isinstance(payload, list) else np.dtype(synth.dtype(kind)).itemsize
        at = 0
        while at < len(payload):
            step = sizes[turn % len(sizes)] * width
            turn += 1
            out.append(Batch(batch.source, [(kind, payload[at : at + step])]))
            at += step
    return out


@settings(max_examples=60, deadline=None)
@given(
    mistake=st.sampled_from(PROGRAMS),
    ranks=st.integers(1, 3),
    modules=st.integers(1, 2),
    accumulation=st.integers(1, 3),
    sizes=st.lists(st.integers(1, 40), min_size=1, max_size=5),
    order=st.randoms(use_true_random=False),
    live=st.booleans(),
)
def test_any_chunking_gives_the_same_timeline(
    mistake: str | None, ranks: int, modules: int, accumulation: int, sizes: list[int], order: Any, live: bool
) -> None:
    cluster = synth.cluster_of(mistake, ranks=ranks, modules=modules, accumulation=accumulation, windows=3)
    batches = cluster.batches()
    whole, cut = Fold(), Fold()
    whole.run(cluster.info())
    whole.feed(batches)
    cut.run(cluster.info(live=live))
    queues = [pieces(b, sizes) for b in batches]
    while any(queues):
        queue = order.choice([q for q in queues if q])
        cut.feed([queue.pop(0)])
    cut.run(cluster.info())
    assert plain(cut.timeline) == plain(whole.timeline)


@settings(max_examples=30, deadline=None)
@given(mistake=st.sampled_from(PROGRAMS), order=st.randoms(use_true_random=False))
def test_rows_may_come_before_or_after_the_rows_they_belong_to(mistake: str | None, order: Any) -> None:
    """Within a process, passes, buckets and steps are blocks of their own, and may be written in any order."""
    cluster = synth.cluster_of(mistake, ranks=2, windows=3)
    batches = cluster.batches()
    whole, mixed = Fold(), Fold()
    whole.run(cluster.info())
    whole.feed(batches)
    mixed.run(cluster.info())
    for batch in batches:
        records, *rows = batch.blocks
        assert records[0] is r.RowKind.RECORDS
        order.shuffle(rows)
        for block in [records, *rows]:
            mixed.feed([Batch(batch.source, [block])])
    assert plain(mixed.timeline) == plain(whole.timeline)


def test_the_comparison_can_fail() -> None:
    def timeline(mistake: str | None) -> Timeline:
        return synth.cluster_of(mistake).timeline()

    assert plain(timeline(None)) == plain(timeline(None))
    assert plain(timeline(None)) != plain(timeline("stale"))


def test_a_pass_without_a_bucket_is_no_lost_row() -> None:
    """However long the run: three of four passes have no bucket, and a GAN's optimizers share one count of steps."""
    plausible = Plausible()
    for start in range(0, 4_000_000, 40_000):
        passes = np.zeros(40_000, synth.dtype(r.RowKind.PASS))
        passes["index"] = np.arange(start, start + 40_000)
        buckets = np.zeros(10_000, synth.dtype(r.RowKind.BUCKET))
        buckets["pass"] = passes["index"][::4]
        steps = np.zeros(10_000, synth.dtype(r.RowKind.STEP))
        for module in (0, 1):
            steps["index"] = np.arange(start // 2 + module, start // 2 + 20_000, 2)
            assert len(plausible.rows(0, module, r.RowKind.BUCKET, buckets)) == 10_000
            assert len(plausible.rows(0, module, r.RowKind.PASS, passes)) == 40_000
            assert len(plausible.rows(0, module, r.RowKind.STEP, steps)) == 10_000
    buckets["pass"] = 100_000_000
    assert not len(plausible.rows(0, 0, r.RowKind.BUCKET, buckets))
