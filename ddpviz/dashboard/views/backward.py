"""Backward: one pass as a waterfall. For each rank its backward span, when each bucket was ready, and its all-reduce.

What of an all-reduce ran beside the backward is hidden; what ran after this rank's last bucket was ready is exposed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
from textual import events
from textual.binding import BindingType

from ddpviz.dashboard import format as fmt
from ddpviz.dashboard.keymap import bound
from ddpviz.dashboard.keys import Key
from ddpviz.dashboard.marks import OF_SYNC, M
from ddpviz.dashboard.messages import GoTo
from ddpviz.dashboard.names import layers_of
from ddpviz.dashboard.state import Cursor, module_of
from ddpviz.dashboard.views.bucket_table import draw_table
from ddpviz.dashboard.views.canvas import Canvas, Drawing, wrap
from ddpviz.dashboard.views.chart import ticks
from ddpviz.language import _
from ddpviz.phrases import starting, which_ranks
from ddpviz.timeline.model import Lane, Module, Sync, Timeline
from ddpviz.timeline.pairs import met
from ddpviz.timeline.timing import arrivals, communication
from ddpviz.trace.records import BucketFlag, PassFlag

RECENT = 100  # passes looked back on for "arrived last"
EDGES = " ▏▎▍▌▋▊▉"
HIDDEN, EXPOSED = "▒", "█"  # the parts of an all-reduce beside the backward, and after it


@dataclass(frozen=True, slots=True)
class Scale:
    """Nanoseconds from `zero` on a row of `width` cells that starts at cell `left`."""

    zero: int
    per_cell: float
    left: int
    width: int

    def at(self, ns: float) -> float:
        return min(max((ns - self.zero) / self.per_cell, 0.0), float(self.width))


def late(module: Module, index: int) -> tuple[int, int, int, float] | None:
    """(rank, how often it came last, of how many passes, median ns after the first rank) up to pass `index`.

    Over the last `RECENT` passes, those that every rank all-reduced. None if there are none, or the ranks are even.
    """
    lanes = {}
    for rank, lane in module.lanes.items():
        lo, hi = np.searchsorted(lane.buckets["pass"], np.array([max(index - RECENT + 1, 0), index + 1], np.uint32))
        lanes[rank] = replace(lane, buckets=lane.buckets[lo:hi])
    came = arrivals(replace(module, lanes=lanes))
    if not len(came.passes):
        return None
    ranks, counts = np.unique(came.last, return_counts=True)
    rank = int(ranks[counts.argmax()])
    gap = came.median_late(rank)
    return (rank, int(counts.max()), len(came.passes), gap) if gap else None


def draw(tl: Timeline, cursor: Cursor, width: int, height: int) -> Canvas:
    """The waterfall of the pass at the cursor, as tall as it needs to be."""
    canvas = Canvas(width)
    module = module_of(tl, cursor)
    if module is None or not module.passes or cursor.index < 0:
        _draw_empty(canvas, height, module)
        return canvas
    index = min(cursor.index, module.passes - 1)
    ran = [lane for rank in module.ranks if (lane := module.lanes.get(rank)) and index < len(lane.passes)]
    wanted = [rank for rank in module.ranks if _wanted(rank, cursor.filter)]
    _draw_head(canvas, tl, module, index, ran)
    _draw_meeting(canvas, module, index, ran)
    if not wanted:
        canvas.line((_(" No rank matches {filter!r}.", filter=cursor.filter), "dim"))
        return canvas
    lanes = [lane for lane in ran if lane.rank in wanted]
    names = _names(module, index, lanes)
    gutter = min(max(20, width // 3), max(19, 15 + max((len(name) for name in names.values()), default=0)))
    scale = _scale(lanes, index, gutter, max(width - gutter - 1, 10)) if lanes else None
    if scale is not None:
        _draw_axis(canvas, scale)
    for rank in wanted:
        lane = next((lane for lane in lanes if lane.rank == rank), None)
        if lane is None or scale is None:
            _draw_absent(canvas, tl, module, rank, index)
        else:
            _draw_rank(canvas, lane, index, scale, names)
    canvas.line("")
    _draw_summary(canvas, module, index, ran)
    draw_table(canvas, module, index, ran, scale.zero if scale is not None else 0)
    return canvas


def _wanted(rank: int, text: str) -> bool:
    """Whether a filter lets a rank through; one that names no rank lets all through."""
    words = text.split()
    return not words or not words[0].isdigit() or str(rank) in words


def _draw_empty(canvas: Canvas, height: int, module: Module | None) -> None:
    rows = [_("No backward pass to look at yet.") if module else _("No DDP module yet.")]
    rows += wrap(
        _("Here one pass stands as a waterfall: buckets getting ready, their all-reduces, who came last."),
        canvas.width - 4,
    )
    canvas.grow(max((height - len(rows)) // 2, 0))
    for row in rows:
        canvas.line((row.center(canvas.width).rstrip(), "dim"))


def _draw_head(canvas: Canvas, tl: Timeline, module: Module, index: int, lanes: list[Lane]) -> None:
    verdict = Sync(int(module.verdicts[index]))
    mark = OF_SYNC[verdict]
    canvas.line(
        (_(" Backward {index}", index=index), "strong bold"),
        "  ",
        (mark.glyph, mark.role),
        " ",
        (mark.meaning, f"{mark.role} bold"),
        (f"   {module.name}", "dim"),
    )
    row = lanes[0].passes[index] if lanes else None
    if row is None:
        return
    site = tl.site(lanes[0].rank, int(row["backward_site"]))
    facts = [_("window {window}", window=int(row["window"]))]
    if row["flags"] & int(PassFlag.HAS_LOSS):
        facts.append(_("loss {loss}", loss=fmt.norm(float(row["loss"]))))
    if site.file:
        facts.append(f"{site.short}  {site.code}")
    canvas.line((" " + fmt.shorten("   ".join(facts), canvas.width - 2), "dim"))
    if verdict is Sync.LOCAL:
        canvas.wrap(_why_local(lanes, index), "local", indent=1)
    elif verdict is Sync.MIXED:
        by = {
            sync: [lane.rank for lane in lanes if lane.sync[index] == sync]
            for sync in (Sync.LOCAL, Sync.SYNCED, Sync.PARTIAL)
        }
        words = [f"{_ranks(ranks)} {_(sync.word)}" for sync, ranks in by.items() if ranks]
        canvas.wrap(_("The ranks disagree: {join}.", join="; ".join(words)), "wrong", indent=1)
    elif verdict is Sync.UNFINISHED:
        raised = [lane.rank for lane in lanes if lane.passes[index]["flags"] & int(PassFlag.RAISED)]
        canvas.wrap(
            _("{who} did not come back from this backward.", who=starting(_ranks(raised) or _("a rank"))),
            "wrong",
            indent=1,
        )
    elif verdict is Sync.PARTIAL:
        missing = sum(int(lane.passes[index]["unreduced"]) for lane in lanes[:1])
        canvas.wrap(
            _(
                "Only part was averaged: {parameters} outside every all-reduce.",
                parameters=fmt.plural(missing, "parameter"),
            ),
            "partial",
            indent=1,
        )


def _draw_meeting(canvas: Canvas, module: Module, index: int, lanes: list[Lane]) -> None:
    """Ranks that are out of step average this pass with other micro-steps: say with which."""
    for lane in lanes:
        others = {rank: other for rank, other in met(module, lane.rank, index).items() if other not in (None, index)}
        if others:
            words = ", ".join(
                _("micro-step {other} of rank {rank}", other=other, rank=rank)
                for rank, other in list(others.items())[:4]
            )
            canvas.wrap(
                _("Out of step: the all-reduce of rank {rank} met {words}.", rank=lane.rank, words=words),
                "wrong",
                indent=1,
            )
            return


def _ranks(ranks: list[int]) -> str:
    return which_ranks(ranks, fmt.ranges(ranks)) if ranks else ""


def _why_local(lanes: list[Lane], index: int) -> str:
    flags = [int(lane.passes[index]["flags"]) for lane in lanes]
    if all(not flag & PassFlag.FORWARD_SEEN for flag in flags):
        return _("A local pass: no all-reduce, since no forward of the DDP module preceded it.")
    if all(flag & PassFlag.NO_SYNC_FORWARD for flag in flags):
        return _("A local pass: no all-reduce, as no_sync() was on at its forward. Each rank keeps its own gradients.")
    return _("A local pass: no all-reduce was sent. Each rank keeps its own gradients.")


def _names(module: Module, index: int, lanes: list[Lane]) -> dict[tuple[int, int], str]:
    """What each bucket of the pass holds, by (layout, index)."""
    names: dict[tuple[int, int], str] = {}
    for lane in lanes[:1]:
        for bucket in lane.buckets_of(index):
            key = int(bucket["layout"]), int(bucket["index"])
            names[key] = layers_of(module, *key)
    return names


def _scale(lanes: list[Lane], index: int, left: int, width: int) -> Scale:
    begin = min(int(lane.passes[index]["begin"]) for lane in lanes)
    end = max(int(lane.passes[index]["end"]) for lane in lanes)
    for lane in lanes:
        rows = lane.buckets_of(index)
        if len(rows):
            end = max(end, int(rows["done"].max()), int(rows["ready"].max()))
    return Scale(begin, max(end - begin, 1) * 1.02 / width, left, width)


def _draw_axis(canvas: Canvas, scale: Scale) -> None:
    length = scale.per_cell * scale.width
    unit, name = next((u, n) for u, n in ((1e9, "s"), (1e6, "ms"), (1e3, "µs"), (1.0, "ns")) if length >= u or u == 1.0)
    y = canvas.line("")
    behind = 0
    for value in ticks(0.0, length / unit, max(scale.width // 9, 2)):
        x = scale.left + round(value * unit / scale.per_cell)
        word = f"{value:g} {name}" if value == 0 else f"{value:g}"
        if x >= behind and x + len(word) <= canvas.width:
            behind = canvas.put(x, y, word, "dim") + 2


def _draw_rank(canvas: Canvas, lane: Lane, index: int, scale: Scale, names: dict[tuple[int, int], str]) -> None:
    row, buckets = lane.passes[index], lane.buckets_of(index)
    raised = bool(row["flags"] & int(PassFlag.RAISED))
    y = canvas.line((_(" rank {rank}", rank=lane.rank), f"rank:{lane.rank} bold"), (_("  backward"), ""))
    x0, x1 = int(scale.at(int(row["begin"]))), max(math.ceil(scale.at(int(row["end"]))) - 1, 0)
    ends = ("├", M.UNFINISHED.glyph if raised else "┤")
    body = ends[0] + "─" * max(x1 - x0 - 1, 0) + ends[1] if x1 > x0 else "│"
    behind = canvas.put(scale.left + x0, y, body, "wrong" if raised else "text")
    lag = int(row["begin"]) - scale.zero
    word = fmt.duration(int(row["end"]) - int(row["begin"])) + (
        _(", began {time} later", time=fmt.duration(lag)) if lag else ""
    )
    if behind + 2 + len(word) <= canvas.width:
        canvas.put(behind + 2, y, word, "dim")
    elif x0 > len(word) + 2:
        canvas.put(scale.left + x0 - len(word) - 2, y, word, "dim")
    last_ready = int(buckets["ready"].max()) if len(buckets) else 0
    for bucket in buckets:
        key = int(bucket["layout"]), int(bucket["index"])
        label = _("   bucket {key}  ", key=key[1])
        y = canvas.line((label, ""), (fmt.shorten(names.get(key, ""), scale.left - len(label) - 1), "dim"))
        _draw_bucket(canvas, bucket, scale, y, last_ready)
        canvas.hits[y] = lane.rank


def _draw_bucket(canvas: Canvas, bucket: np.void, scale: Scale, y: int, last_ready: int) -> None:
    """◆ when its last gradient was there; its all-reduce shaded while the backward still computed, solid after that."""
    flags, ready = int(bucket["flags"]), int(bucket["ready"])
    launch, done = int(bucket["launch"]), int(bucket["done"])
    at = int(scale.at(ready)) if ready else 0
    behind = scale.left + at + 1
    if flags & BucketFlag.SENT and launch and done:
        split = min(max(last_ready, launch), done)
        start, middle, end = scale.at(launch), scale.at(split), scale.at(done)
        # Whole cells for the shaded part; the solid part ends on an eighth.
        first, turn = math.floor(start), round(middle)
        turn = max(turn, first)
        canvas.put(scale.left + first, y, HIDDEN * (turn - first), "synced")
        behind = scale.left + turn
        if done > split or turn == first:
            eighths = max(round((end - turn) * 8), 1)
            full, rest = divmod(eighths, 8)
            behind = canvas.put(scale.left + turn, y, EXPOSED * full + (EDGES[rest] if rest else ""), "running")
        word, look = fmt.duration(done - launch), "dim"
    elif flags & BucketFlag.FAILED:
        word, look = _("{glyph} its all-reduce failed", glyph=M.UNFINISHED.glyph), "wrong"
    elif flags & BucketFlag.SENT and launch:
        behind = canvas.put(scale.left + int(scale.at(launch)), y, M.RUNNING.glyph, "running")
        word, look = _("its end was not measured"), "dim"
    elif flags & BucketFlag.SENT:
        word, look = _("all-reduced, times not measured"), "dim"
    else:
        word, look = _("stays local"), "local"
    if ready:
        canvas.put(scale.left + at, y, M.READY.glyph, M.READY.role)
    if behind + 1 + len(word) <= canvas.width:
        canvas.put(behind + 1, y, word, look)
    elif scale.left + at - 1 - len(word) > scale.left:
        canvas.put(scale.left + at - 1 - len(word), y, word, look)


def _draw_absent(canvas: Canvas, tl: Timeline, module: Module, rank: int, index: int) -> None:
    """A rank that has not finished this pass: where it is instead, as far as it says."""
    state = tl.ranks.get(rank)
    name = (_(" rank {rank}", rank=rank), f"rank:{rank} bold")
    if state is None:
        canvas.line(name, (_("  not heard of yet"), "dim"))
    elif state.status in ("finished", "failed", "died"):
        canvas.line(
            name,
            (
                _("  {glyph} {status} before this pass", glyph=M.DEAD.glyph, status=state.status),
                "wrong" if state.status != "finished" else "dim",
            ),
        )
    elif state.stack is not None and state.stack.doing != "computing":
        stack = state.stack
        here = (
            _(" of backward {pass_index}", pass_index=stack.pass_index)
            if stack.pass_index >= 0 and stack.pass_index != index
            else ""
        )
        what = (
            _(
                " of bucket {bucket} ({layers_of})",
                bucket=stack.bucket,
                layers_of=layers_of(module, len(module.layouts) - 1, stack.bucket),
            )
            if stack.bucket >= 0
            else ""
        )
        since = fmt.duration(max(tl.now_ns - stack.since, 0))
        canvas.line(
            name,
            (
                _(
                    "  {glyph} in {doing}{what}{here} for {since}",
                    glyph=M.WAITING.glyph,
                    doing=stack.doing,
                    what=what,
                    here=here,
                    since=since,
                ),
                "waiting bold",
            ),
        )
        site = tl.site(rank, stack.site)
        if site.file:
            canvas.line((f"         {site.short}  {site.code}", "dim"))
    else:
        canvas.line(name, (_("  has not come to this pass"), "dim"))


def _draw_summary(canvas: Canvas, module: Module, index: int, lanes: list[Lane]) -> None:
    parts = [communication(replace(lane, buckets=lane.buckets_of(index))) for lane in lanes]
    parts = [part for part in parts if len(part.passes)]
    if parts:
        hidden, exposed = sum(int(p.hidden.sum()) for p in parts), sum(int(p.exposed.sum()) for p in parts)
        canvas.line(
            (f" {M.READY.glyph}", M.READY.role),
            _(" ready   "),
            (HIDDEN, "synced"),
            _(" hidden behind the backward {percent}   ", percent=fmt.percent(hidden / max(hidden + exposed, 1))),
            (EXPOSED, "running"),
            _(" exposed {time} a rank", time=fmt.duration(exposed / len(parts))),
        )
    elif lanes and lanes[0].buckets_of(index).size:
        canvas.line((f" {M.READY.glyph}", M.READY.role), _(" all gradients of the bucket are there"))
    behind = late(module, index)
    if behind is not None and parts:
        rank, count, of, gap = behind
        passes = fmt.plural(of, "all-reduced pass")
        said = _(
            " arrived last in {count} of {passes}, by {time} (median)",
            count=count,
            passes=passes,
            time=fmt.duration(gap),
        )
        canvas.line((_(" rank {rank}", rank=rank), f"rank:{rank} bold"), said)


class BackwardView(Drawing):
    """The waterfall of the pass under the cursor; Enter, or a click on a bucket, opens its layers."""

    KEYS = (Key("enter", "layers", "Enter", "layers", "The layers of this pass.", "Backward"),)
    BINDINGS: ClassVar[list[BindingType]] = bound(KEYS)

    def paint(self, width: int, height: int) -> Canvas:
        return draw(self.tl, self.cursor or Cursor(), width, height)

    def action_layers(self) -> None:
        if self.cursor is not None and self.cursor.index >= 0:
            self.post_message(GoTo(self.cursor.index, module=self.cursor.module, view="layers"))

    def on_click(self, event: events.Click) -> None:
        rank = self.canvas.hits.get(event.y + self.scroll_offset.y)
        if isinstance(rank, int) and self.cursor is not None:
            self.post_message(GoTo(self.cursor.index, module=self.cursor.module, rank=rank, view="layers"))
