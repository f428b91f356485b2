"""The buckets of one backward pass in numbers, over its ranks: the table under the waterfall."""

from __future__ import annotations

import numpy as np

from ddpviz.dashboard import format as fmt
from ddpviz.dashboard.marks import M
from ddpviz.dashboard.names import layers_of
from ddpviz.dashboard.views.canvas import Canvas
from ddpviz.language import _
from ddpviz.timeline.model import Lane, Module
from ddpviz.trace.records import BucketFlag


def draw_table(canvas: Canvas, module: Module, index: int, lanes: list[Lane], zero: int) -> None:
    """The buckets in numbers, over the ranks; as many columns as fit."""
    rows: list[tuple[str, ...]] = [
        (
            "bucket",
            _("size"),
            _("tensors"),
            _("last ready"),
            "all-reduce",
            _("fastest rate"),
            _("norm before"),
            _("after"),
            _("layers"),
        )
    ]
    found: dict[tuple[int, int], list[np.void]] = {}
    for lane in lanes:
        for bucket in lane.buckets_of(index):
            found.setdefault((int(bucket["layout"]), int(bucket["index"])), []).append(bucket)
    for (layout, number), buckets in sorted(found.items()):
        if layout >= len(module.layouts) or number >= len(module.layouts[layout].buckets):
            continue
        size = module.layouts[layout].bytes[number]
        took = [int(b["done"]) - int(b["launch"]) for b in buckets if b["launch"] and b["done"]]
        before = [float(b["local_norm"]) for b in buckets if b["flags"] & int(BucketFlag.HAS_LOCAL_NORM)]
        after = {fmt.norm(float(b["norm"])) for b in buckets if took and b["flags"] & int(BucketFlag.HAS_NORM)}
        rows.append(
            (
                str(number),
                fmt.size(size),
                str(len(module.layouts[layout].buckets[number])),
                fmt.duration(max(int(b["ready"]) for b in buckets) - zero),
                _between([fmt.duration(t) for t in sorted(took)]) or _("none"),
                f"{fmt.size(size / min(took) * 1e9)}/s" if took and min(took) > 0 else "",
                _between([fmt.norm(n) for n in sorted(before)]) or M.UNSAMPLED.glyph,
                " ≠ ".join(sorted(after)) or M.UNSAMPLED.glyph,
                layers_of(module, layout, number),
            )
        )
    if len(rows) == 1:
        return
    while len(rows[0]) > 3 and max(map(len, fmt.columns(rows))) > canvas.width - 2:
        rows = [row[:-1] for row in rows]
    canvas.line("")
    for number, line in enumerate(fmt.columns(rows, right=range(len(rows[0]) - (len(rows[0]) == 9)))):
        canvas.line((f" {fmt.shorten(line, canvas.width - 2)}", "" if number else "dim"))


def _between(words: list[str]) -> str:
    """The first and the last of them, or the one that they are."""
    return (
        ""
        if not words
        else words[0]
        if words[0] == words[-1]
        else _("{words} to {words2}", words=words[0], words2=words[-1])
    )
