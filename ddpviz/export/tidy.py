"""Tidy tables (CSV): one row a rank and pass, one a rank, pass and bucket, one a step and rank.

Empty cells are "not measured"; NaN and Inf are `nan` and `inf`, as pandas and polars read them. Times are nanoseconds
since the run's start.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator
from typing import TextIO

from ddpviz.export.report import bucket_bytes, verdicts
from ddpviz.timeline import model as m
from ddpviz.trace import records as r

Row = tuple[object, ...]

PASSES = (
    "module rank backward window sync sync_across_ranks no_sync_forward no_sync_backward collective sampled local_norm "
    "norm loss memory_bytes begin_ns end_ns file line"
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


def passes(tl: m.Timeline) -> Iterator[Row]:
    F = r.PassFlag
    for module in tl.modules:
        across = verdicts(module)
        for rank in sorted(module.lanes):
            lane = module.lanes[rank]
            for row, sync in zip(lane.passes, lane.sync.tolist(), strict=True):
                flags, index = int(row["flags"]), int(row["index"])
                site = tl.site(rank, int(row["backward_site"]))
                yield (
                    module.id,
                    rank,
                    index,
                    int(row["window"]),
                    m.Sync(sync).word,
                    across[index] if index < len(across) else "",
                    _flag(flags & F.NO_SYNC_FORWARD),
                    _flag(flags & F.NO_SYNC_BACKWARD),
                    int(row["collective"]),
                    _flag(flags & F.SAMPLED),
                    _cell(row["local_norm"], flags & F.HAS_LOCAL_NORM),
                    _cell(row["norm"], flags & F.HAS_NORM),
                    _cell(row["loss"], flags & F.HAS_LOSS),
                    int(row["memory"]) or None,
                    int(row["begin"]),
                    int(row["end"]),
                    site.file,
                    site.line or None,
                )


def buckets(tl: m.Timeline) -> Iterator[Row]:
    F = r.BucketFlag
    for module in tl.modules:
        for rank in sorted(module.lanes):
            for row in module.lanes[rank].buckets:
                flags, layout, index = int(row["flags"]), int(row["layout"]), int(row["index"])
                sums = flags & F.HAS_SUMS
                yield (
                    module.id,
                    rank,
                    int(row["pass"]),
                    index,
                    layout,
                    _flag(flags & F.SENT),
                    bucket_bytes(module, layout, index),
                    int(row["wire_bytes"]),
                    int(row["ready"]) or None,
                    int(row["launch"]) or None,
                    int(row["done"]) or None,
                    _cell(row["local_norm"], flags & F.HAS_LOCAL_NORM),
                    _cell(row["norm"], flags & F.HAS_NORM),
                    _cell(row["sum_before"], sums),
                    _cell(row["sum_after"], sums),
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


def _cell(value: object, known: int) -> float | None:
    return float(value) if known else None  # type: ignore[arg-type]
