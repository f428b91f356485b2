"""Tidy tables (CSV): one row a rank and pass, one a rank, pass and bucket, one a step and rank.

Empty cells are "not measured"; NaN and Inf are `nan` and `inf`, as pandas and polars read them. Times are nanoseconds
since the run's start.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from itertools import islice
from typing import TextIO

import numpy as np

from ddpviz.export.columns import tuples
from ddpviz.export.report import bucket_bytes, verdicts
from ddpviz.timeline import model as m
from ddpviz.trace import records as r

Row = tuple[object, ...]

WORDS = {int(kind): kind.word for kind in m.Sync}
# plain ints: a flag enum's `&` costs more than the rest of a row
FORWARD_OFF, BACKWARD_OFF = int(r.PassFlag.NO_SYNC_FORWARD), int(r.PassFlag.NO_SYNC_BACKWARD)
SAMPLED, HAS_LOSS = int(r.PassFlag.SAMPLED), int(r.PassFlag.HAS_LOSS)
HAS_LOCAL_NORM, HAS_NORM = int(r.PassFlag.HAS_LOCAL_NORM), int(r.PassFlag.HAS_NORM)
SENT, HAS_SUMS = int(r.BucketFlag.SENT), int(r.BucketFlag.HAS_SUMS)
BUCKET_LOCAL, BUCKET_NORM = int(r.BucketFlag.HAS_LOCAL_NORM), int(r.BucketFlag.HAS_NORM)

PASSES = (
    "module rank backward window sync sync_across_ranks no_sync_forward no_sync_backward collective sampled local_norm "
    "norm loss memory_bytes begin_ns end_ns forward_ns forward_end_ns file line"
)
BUCKETS = (
    "module rank backward bucket layout sent bytes wire_bytes ready_ns launch_ns done_ns local_norm norm sum_before "
    "sum_after"
)
STEPS = "step module rank after_backward gradients gradients_across_ranks replicas optimizer begin_ns end_ns file line"


def tables(tl: m.Timeline) -> dict[str, tuple[list[str], Iterator[Row]]]:
    """Each table's header and rows, by name: "passes", "buckets", "steps"."""
    return {
        "passes": (PASSES.split(), passes(tl)),
        "buckets": (BUCKETS.split(), buckets(tl)),
        "steps": (STEPS.split(), steps(tl)),
    }


def write(stream: TextIO, header: list[str], rows: Iterator[Row]) -> None:
    """One table as RFC 4180 CSV with a header line."""
    out = csv.writer(stream, lineterminator="\n")
    out.writerow(header)
    out.writerows(rows)


def in_parts(tl: m.Timeline, name: str) -> Iterator[bytes]:
    """A table's CSV one part after the other, in UTF-8."""
    header, rows = tables(tl)[name]
    lines: list[Row] = [tuple(header)]
    while lines:
        stream = io.StringIO()
        csv.writer(stream, lineterminator="\n").writerows(lines)
        yield stream.getvalue().encode()
        lines = list(islice(rows, 4096))


def passes(tl: m.Timeline) -> Iterator[Row]:
    for module in tl.modules:
        across = verdicts(module)
        for rank in sorted(module.lanes):
            lane = module.lanes[rank]
            sites = {site: tl.site(rank, site) for site in np.unique(lane.passes["backward_site"]).tolist()}
            rows = tuples(
                lane.passes,
                "index window flags collective local_norm norm loss memory begin end backward_site forward forward_end",
            )
            for row, sync in zip(rows, lane.sync.tolist(), strict=True):
                index, window, flags, collective, local, norm, loss, memory, begin, end, site, forward, forward_end = (
                    row
                )
                place = sites[site]
                yield (
                    module.id,
                    rank,
                    index,
                    window,
                    WORDS[sync],
                    across[index] if index < len(across) else "",
                    _flag(flags & FORWARD_OFF),
                    _flag(flags & BACKWARD_OFF),
                    collective,
                    _flag(flags & SAMPLED),
                    local if flags & HAS_LOCAL_NORM else None,
                    norm if flags & HAS_NORM else None,
                    loss if flags & HAS_LOSS else None,
                    memory or None,
                    begin,
                    end,
                    forward or None,
                    forward_end or None,
                    place.file,
                    place.line or None,
                )


def buckets(tl: m.Timeline) -> Iterator[Row]:
    for module in tl.modules:
        for rank in sorted(module.lanes):
            rows = tuples(
                module.lanes[rank].buckets,
                "pass index layout flags wire_bytes ready launch done local_norm norm sum_before sum_after",
            )
            for number, index, layout, flags, wire, ready, launch, done, local, norm, before, after in rows:
                yield (
                    module.id,
                    rank,
                    number,
                    index,
                    layout,
                    _flag(flags & SENT),
                    bucket_bytes(module, layout, index),
                    wire,
                    ready or None,
                    launch or None,
                    done or None,
                    local if flags & BUCKET_LOCAL else None,
                    norm if flags & BUCKET_NORM else None,
                    before if flags & HAS_SUMS else None,
                    after if flags & HAS_SUMS else None,
                )


def steps(tl: m.Timeline) -> Iterator[Row]:
    for step in tl.steps:
        for part in step.parts:
            ranks = tl.modules[part.module].ranks
            for rank, after, gradients in zip(ranks, part.after, part.by_rank, strict=True):
                yield (
                    step.index,
                    part.module,
                    rank,
                    after,
                    None if gradients is None else gradients.word,
                    part.gradients.word,
                    part.replicas.word,
                    step.optimizer,
                    step.begin,
                    step.end,
                    step.site.file,
                    step.site.line or None,
                )


def _flag(value: int) -> int:
    return int(bool(value))
