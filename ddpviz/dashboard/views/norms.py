"""Norms: each rank's accumulated gradient norm by micro-step, and what the all-reduce made of it. Drawn by plotext.

Beneath the chart every column says what happened there: local, all-reduced, a step. Passes whose norms were not sampled
leave gaps; NaN and Inf are marked, never drawn as numbers.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt
from textual import events
from textual.binding import BindingType

from ddpviz.dashboard import format as fmt
from ddpviz.dashboard.keymap import bound
from ddpviz.dashboard.keys import Key
from ddpviz.dashboard.marks import OF_GRADIENTS, OF_SYNC, M
from ddpviz.dashboard.messages import GoTo
from ddpviz.dashboard.moments import between
from ddpviz.dashboard.state import Cursor, module_of
from ddpviz.dashboard.views.canvas import Canvas, Drawing, wrap
from ddpviz.dashboard.views.chart import Line, raster, thin, tick_words, ticks
from ddpviz.language import _
from ddpviz.timeline.model import Gradients, Lane, Module, Rows, Sync, Timeline
from ddpviz.trace.records import PassFlag

SHAPES = "●◆▪○◇▫"  # a rank's shape on its line; tells ranks apart without colour
MEAN = "■"
SOME = "▄"  # a column of several passes, local and all-reduced
GUTTER = 9  # cells for the numbers at the left; fixed, so that the chart does not jump
MANY = 6  # beyond so many ranks: lowest, median and highest instead of a line each
Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]
# Worst first: what a column that covers several passes or steps shows.
_SYNC_ORDER = (Sync.UNFINISHED, Sync.MIXED, Sync.PARTIAL, Sync.ABSENT, Sync.RUNNING, Sync.SYNCED, Sync.LOCAL)
_STEP_ORDER = (Gradients.LOCAL, Gradients.MIXED, Gradients.STALE, Gradients.SYNCED, Gradients.NONE)


class Span(NamedTuple):
    """The passes lo..hi-1 over `width` columns."""

    lo: int
    hi: int
    width: int

    def column(self, index: npt.ArrayLike) -> Ints:
        """The column of a pass: the middle of its share."""
        at = (np.asarray(index, np.float64) - self.lo + 0.5) * self.width / max(self.hi - self.lo, 1)
        return np.clip(at, 0, max(self.width - 1, 0)).astype(np.int64)

    def at(self, column: int) -> int:
        """The pass at a column."""
        count = max(self.hi - self.lo, 1)
        return self.lo + min(max(int((column + 0.5) * count / max(self.width, 1)), 0), count - 1)


def span(passes: int, index: int, width: int, count: int) -> Span:
    """`count` passes (0: all that there are) of a run, so that pass `index` is among them."""
    count = min(count or passes, passes) or 1
    if index < 0 or index >= passes - count // 3:
        lo = passes - count
    else:
        lo = min(max(index - count * 2 // 3, 0), passes - count)
    return Span(max(lo, 0), max(lo, 0) + count, width)


def layout(module: Module, cursor: Cursor, width: int, count: int) -> tuple[int, Span]:
    """The pass at the cursor, and the window: `count` passes, as many as suit the width if 0, all if negative."""
    index = cursor.index if 0 <= cursor.index < module.passes else module.passes - 1
    wanted = max(width // 2 - 4, 8) if count == 0 else max(count, 0)
    return index, span(module.passes, index, max(width - GUTTER, 1), wanted)


def draw(tl: Timeline, cursor: Cursor, width: int, height: int, count: int = 0, *, title: bool = True) -> Canvas:
    """The chart in `width` x `height` cells, of `count` passes (see `layout`)."""
    canvas = Canvas(width, height)
    module = module_of(tl, cursor)
    if module is None or module.passes == 0:
        _draw_empty(canvas, _("No backward pass yet.") if module else _("No DDP module yet."))
        return canvas
    index, view = layout(module, cursor, width, count)
    top = int(title and height >= 10)
    if top:
        canvas.put(1, 0, fmt.shorten(_title(module, view), width - 1), "dim")
    legend, steps_row = height >= 6, height >= 9
    bottom = height - 2 - legend - steps_row  # below it: passes, steps, numbers, legend
    rows = bottom - top
    if rows < 1 or view.width < 8:
        canvas.put(0, 0, fmt.shorten(_("too small for a chart"), width), "dim")
        return canvas

    lanes = [module.lanes[rank] for rank in module.ranks if rank in module.lanes]
    at = GUTTER + int(view.column(index))
    limits = _limits(lanes, view)
    marks = ticks(*(limits or (0.0, 1.0)), max(2, min(rows // 3 + 1, 7)))
    for y in range(top, bottom):
        canvas.put(GUTTER - 1, y, "│", "dim")
        canvas.put(at, y, M.CURSOR.glyph, "dim")
    for value, word in zip(marks, tick_words(marks), strict=True) if limits else ():
        y = bottom - 1 - round((value - marks[0]) / (marks[-1] - marks[0]) * (rows - 1))
        canvas.put(0, y, f"{word[: GUTTER - 2].rjust(GUTTER - 2)} ┤", "dim")
    _draw_lines(canvas, lanes, Plot(view, (marks[0], marks[-1]), rows), GUTTER, top, cursor.rank)
    if limits is None:
        taken = any(_measured(lane, view, PassFlag.HAS_LOCAL_NORM)[1].any() for lane in lanes)
        note = _("no norm is a number here") if taken else _("no norm was taken in these micro-steps")
        note = fmt.shorten(note, view.width)
        canvas.put(GUTTER + (view.width - len(note)) // 2, top + rows // 2, note, "dim")
    _draw_marks(canvas, module, lanes, view, GUTTER, bottom, steps_row)
    _draw_numbers(canvas, view, GUTTER, bottom + 1 + steps_row, index)
    if legend:
        _draw_legend(canvas, lanes, index, cursor.rank, height - 1)
    return canvas


def _title(module: Module, view: Span) -> str:
    share = (view.hi - view.lo) / view.width
    text = _(
        "gradient norm of {name}, micro-steps {lo} to {value} of {passes}",
        name=module.name,
        lo=view.lo,
        value=view.hi - 1,
        passes=module.passes,
    )
    return (
        _("{text}, {share:.0f} a column ({mark} some all-reduced)", text=text, share=share, mark=SOME)
        if share >= 1.5
        else text
    )


def _draw_empty(canvas: Canvas, why: str) -> None:
    rows = [
        why,
        *wrap(_("Each backward pass draws a point a rank: its norm before and after the all-reduce."), canvas.width),
    ]
    for y, row in enumerate(rows, start=max((canvas.height - len(rows)) // 2, 0)):
        if y < canvas.height:
            canvas.put(max((canvas.width - len(row)) // 2, 0), y, row, "dim")


@dataclass(frozen=True, slots=True)
class Plot:
    """Where numbers fall: a window of passes, a range of norms, and rows of cells."""

    view: Span
    bounds: tuple[float, float]
    rows: int

    def line(self, index: Ints, values: Floats, joined: Bools, look: str) -> Line:
        """A line through passes."""
        low, high = self.bounds
        x = (index - self.view.lo + 0.5) * self.view.width / (self.view.hi - self.view.lo)
        y = np.clip((values - low) * self.rows / ((high - low) or 1.0), 0, self.rows - 1e-6)
        return Line(*thin(x, y, joined, self.view.width), look)

    def local(self, lane: Lane) -> tuple[Line, Ints]:
        """A rank's norm before any averaging, and the columns where it was no number.

        Each window is a line of its own, since the fall to the next one is no gradient's. Where nothing is accumulated
        the windows are joined.
        """
        rows, has = _measured(lane, self.view, PassFlag.HAS_LOCAL_NORM)
        values = rows["local_norm"]
        finite = np.isfinite(values)
        good = np.flatnonzero(has & finite)
        bad = np.flatnonzero(has & ~finite) + self.view.lo
        joined = np.diff(good, prepend=-2) == 1
        same = np.diff(rows["window"][good].astype(np.int64), prepend=-2) == 0
        if np.count_nonzero(same) * 2 >= len(same) - 1:
            joined &= same
        line = self.line(good + self.view.lo, values[good], joined, f"rank:{lane.rank}")
        return line, np.unique(self.view.column(bad))

    def averaged(self, lane: Lane) -> Line:
        """The norm that the all-reduce left, through the passes that had one; broken where one was not measured."""
        rows, has = _measured(lane, self.view, PassFlag.HAS_NORM)
        sync = lane.sync[self.view.lo : self.view.hi]
        reduced = np.flatnonzero((sync == Sync.SYNCED) | (sync == Sync.PARTIAL))
        values = rows["norm"][reduced]
        good = has[reduced] & np.isfinite(values)
        joined = np.diff(np.flatnonzero(good), prepend=-2) == 1
        return self.line(reduced[good] + self.view.lo, values[good], joined, "synced")

    def crowd(self, lanes: list[Lane]) -> list[Line]:
        """Lowest, highest and median of many ranks; of their extremes where a column holds many passes."""
        count = self.view.hi - self.view.lo
        at = np.arange(count)
        if count > 2 * self.view.width:
            at = np.unique((np.arange(2 * self.view.width) * count) // (2 * self.view.width))
        low, high, middle = (np.full((len(lanes), len(at)), np.nan) for _rest in range(3))
        for row, lane in enumerate(lanes):
            rows, has = _measured(lane, self.view, PassFlag.HAS_LOCAL_NORM)
            values = np.full(count, np.nan)
            values[: len(rows)] = np.where(has & np.isfinite(rows["local_norm"]), rows["local_norm"], np.nan)
            low[row], high[row] = np.fmin.reduceat(values, at), np.fmax.reduceat(values, at)
            middle[row] = (low[row] + high[row]) / 2
        some = ~np.isnan(low).all(axis=0)
        if not some.any():
            return []
        index, joined = at[some] + self.view.lo, np.diff(np.flatnonzero(some), prepend=-2) == 1
        return [
            self.line(index, np.nanmin(low[:, some], axis=0), joined, "local"),
            self.line(index, np.nanmax(high[:, some], axis=0), joined, "running"),
            self.line(index, np.nanmedian(middle[:, some], axis=0), joined, "text"),
        ]


def _measured(lane: Lane, view: Span, flag: PassFlag) -> tuple[Rows, Bools]:
    """The passes of a window, and which of them carry this number."""
    rows = lane.passes[view.lo : view.hi]
    return rows, (rows["flags"] & int(flag)) != 0


def _limits(lanes: list[Lane], view: Span) -> tuple[float, float] | None:
    """The range of the finite norms in sight, from zero unless they all lie close together; None if there is none."""
    low, high = np.inf, -np.inf
    for lane in lanes:
        for column, flag in (("local_norm", PassFlag.HAS_LOCAL_NORM), ("norm", PassFlag.HAS_NORM)):
            rows, has = _measured(lane, view, flag)
            numbers = rows[column][has]
            numbers = numbers[np.isfinite(numbers)]
            if len(numbers):
                low, high = min(low, float(numbers.min())), max(high, float(numbers.max()))
    if high < low:
        return None
    return (low, high) if low > 0.8 * high and high > low else (0.0, high)


def _draw_lines(canvas: Canvas, lanes: list[Lane], plot: Plot, left: int, top: int, chosen: int | None) -> None:
    shown = lanes if len(lanes) <= MANY else [lane for lane in lanes if lane.rank == chosen]
    local = [plot.local(lane) for lane in shown]
    # Averaged norms are equal on all ranks unless something is broken: few ranks get a line each, many share one.
    averaged = [plot.averaged(lane) for lane in (lanes if len(lanes) <= MANY else lanes[:1])]
    crowd = plot.crowd(lanes) if len(lanes) > MANY else []
    raster(canvas, left, top, plot.view.width, plot.rows, [*crowd, *(line for line, _rest in local), *averaged])

    def glyph(x: float, y: float, char: str, look: str) -> None:
        canvas.put(left + int(x), top + plot.rows - 1 - int(y), char, look)

    for order, (lane, (line, bad)) in enumerate(zip(shown, local, strict=True)):
        for i in _turns(line, order, len(shown)):
            glyph(line.x[i], line.y[i], SHAPES[lane.rank % len(SHAPES)], f"{line.look} bold")
        for column in bad.tolist():
            glyph(column, plot.rows - 1, M.NONFINITE.glyph, "wrong bold")
    for line in averaged:
        if len(line.x) < 2 or float(np.min(np.diff(line.x))) >= 3:
            for x, y in zip(line.x.tolist(), line.y.tolist(), strict=True):
                glyph(x, y, MEAN, "synced bold")


def _turns(line: Line, order: int, of: int) -> list[int]:
    """The points of a line that carry its rank's shape: now and then, in turns with the other ranks."""
    if not len(line.x):
        return []
    turn = (line.x // 6).astype(np.int64)
    mine = np.flatnonzero((turn % of == order) & (np.diff(turn, prepend=-1) != 0))
    return mine.tolist() if len(mine) else [len(line.x) - 1]


def _draw_marks(
    canvas: Canvas, module: Module, lanes: list[Lane], view: Span, left: int, y: int, own_row: bool
) -> None:
    """What happened in each column: the passes, and the steps in a row of their own where there is room."""
    verdicts = module.verdicts[view.lo : view.hi]
    columns = view.column(np.arange(view.lo, view.lo + len(verdicts)))
    sampled = np.zeros(len(verdicts), bool)
    for lane in lanes:
        _rest, has = _measured(lane, view, PassFlag.SAMPLED)
        sampled[: len(has)] |= has[: len(sampled)]
    wide = min(max(view.width // (view.hi - view.lo) - 1, 1), 5)  # cells of a mark, where a pass has several
    for sync in reversed(_SYNC_ORDER):
        mark = OF_SYNC[sync]
        for column in np.unique(columns[verdicts == sync]).tolist():
            canvas.put(left + column - (wide - 1) // 2, y, mark.glyph * wide, mark.role)
    both = set(columns[verdicts == Sync.SYNCED].tolist()) & set(columns[verdicts == Sync.LOCAL].tolist())
    for column in both - set(columns[(verdicts != Sync.SYNCED) & (verdicts != Sync.LOCAL)].tolist()):
        canvas.put(left + column, y, SOME, M.SYNCED.role)
    for column in set(columns.tolist()) - set(columns[sampled].tolist()):
        canvas.put(left + column, y - 1, M.UNSAMPLED.glyph, M.UNSAMPLED.role)
    used = _step_columns(lanes, view)
    for gradients in reversed(_STEP_ORDER):
        mark = OF_GRADIENTS[gradients] if len(lanes) > 1 or gradients is Gradients.NONE else M.STEP
        for column in used[gradients]:
            if own_row:
                canvas.put(left + column, y + 1, mark.glyph, f"{mark.role} bold")
            elif mark is not M.STEP:  # no room: a wrong step shows above all else
                canvas.put(left + column, y, mark.glyph, f"{mark.role} bold")


def _step_columns(lanes: list[Lane], view: Span) -> dict[Gradients, list[int]]:
    """For each kind of gradients the columns in which some rank's step used them."""
    after, kinds = [np.zeros(0, np.int32)], [np.zeros(0, np.uint8)]
    for lane in lanes:
        lo, hi = between(lane.steps["after"], view.lo, view.hi)
        hi = min(hi, len(lane.gradients))
        after.append(lane.steps["after"][lo:hi])
        kinds.append(lane.gradients[lo:hi])
    columns, kind = view.column(np.concatenate(after)), np.concatenate(kinds)
    return {gradients: np.unique(columns[kind == gradients]).tolist() for gradients in _STEP_ORDER}


def _draw_numbers(canvas: Canvas, view: Span, left: int, y: int, index: int) -> None:
    """The micro-steps under the columns; the cursor's own always stands there."""
    count, every = view.hi - view.lo, 1
    room = len(str(view.hi)) + 3
    for every in (m * 10**e for e in range(9) for m in (1, 2, 5)):
        if every * view.width / count >= room:
            break
    own = f" {index} "
    at = min(max(int(view.column(index)) - len(own) // 2, 0), max(view.width - len(own), 0))
    for number in range(-(-view.lo // every) * every, view.hi, every):
        word = str(number)
        x = max(int(view.column(number)) - len(word) // 2, 0)
        if x + len(word) < at or x > at + len(own):
            canvas.put(left + x, y, word, "dim")
    canvas.put(left + at, y, own, "strong bold reverse")


def _draw_legend(canvas: Canvas, lanes: list[Lane], index: int, chosen: int | None, y: int) -> None:
    """Which line is which, with the numbers at the cursor, as far as they fit."""
    words: list[tuple[str, str]] = []
    many = len(lanes) > MANY
    for lane in lanes if not many else [lane for lane in lanes if lane.rank == chosen]:
        value = _at(lane, index, "local_norm", PassFlag.HAS_LOCAL_NORM)
        words.append(
            (
                _("{mark} rank {rank} {value}", mark=SHAPES[lane.rank % len(SHAPES)], rank=lane.rank, value=value),
                f"rank:{lane.rank}",
            )
        )
    if many:
        names = _("ranks {ranks}", ranks=fmt.ranges(lane.rank for lane in lanes))
        words += [(_("{names}: lowest", names=names), "local"), (_("median"), "text"), (_("highest"), "running")]
    if any(index < len(lane.sync) and lane.sync[index] in (Sync.SYNCED, Sync.PARTIAL) for lane in lanes):
        told = dict.fromkeys(_at(lane, index, "norm", PassFlag.HAS_NORM) for lane in lanes)
        # a rank that is not so far yet, or did not measure, does not disagree
        means = [mean for mean in told if mean not in (M.ABSENT.glyph, fmt.norm(None))] or list(told)[:1]
        words.append(
            (
                _("{mark} mean {values}", mark=MEAN, values=" ≠ ".join(means[:3])),
                "synced" if len(means) == 1 else "wrong bold",
            )
        )
    else:
        words.append((_("{mark} mean", mark=MEAN), "synced"))
    x = 1
    for word, look in words:
        if x + len(word) <= canvas.width:
            x = canvas.put(x, y, word, look) + 3


def _at(lane: Lane, index: int, column: str, flag: PassFlag) -> str:
    if index >= len(lane.passes):
        return M.ABSENT.glyph
    row = lane.passes[index]
    return fmt.norm(float(row[column]) if row["flags"] & int(flag) else None)


class NormsView(Drawing):
    """The chart; a click goes to its micro-step."""

    KEYS = (
        Key("plus,equals_sign", "zoom(2)", "+", "", "Fewer micro-steps over the width.", "Norms"),
        Key("minus", "zoom(0.5)", "-", "", "More of them.", "Norms"),
        Key("0", "whole", "0", "", "The whole run over the width, and back.", "Norms"),
    )
    BINDINGS: ClassVar[list[BindingType]] = bound(KEYS)
    EVERY = 0.25

    def __init__(self, *, id: str | None = None, classes: str | None = None, title: bool = True) -> None:
        super().__init__(id=id, classes=classes)
        self.count = 0  # passes over the width; 0: as suits it; -1: all
        self._title = title

    def options(self) -> Hashable:
        return self.count

    def paint(self, width: int, height: int) -> Canvas:
        return draw(self.tl, self.cursor or Cursor(), width, height, self.count, title=self._title)

    def _view(self) -> Span | None:
        """The window on screen."""
        if self.cursor is None or (module := module_of(self.tl, self.cursor)) is None or not module.passes:
            return None
        return layout(module, self.cursor, self.scrollable_content_region.width, self.count)[1]

    def action_zoom(self, factor: float) -> None:
        if (view := self._view()) is not None:
            self.count = max(round((view.hi - view.lo) / factor), 4)
            self.redraw()

    def action_whole(self) -> None:
        self.count = 0 if self.count == -1 else -1
        self.redraw()

    def on_click(self, event: events.Click) -> None:
        view = self._view()
        if view is not None and self.cursor is not None and event.x >= (left := self.size.width - view.width):
            self.post_message(GoTo(view.at(event.x - left), module=self.cursor.module))
