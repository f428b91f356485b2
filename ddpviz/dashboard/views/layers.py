"""Layers: each parameter's gradient norm in one pass, by rank, before and after averaging, in the module's order."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import numpy.typing as npt
from textual.binding import BindingType

from ddpviz.dashboard import format as fmt
from ddpviz.dashboard.keymap import bound
from ddpviz.dashboard.keys import Key
from ddpviz.dashboard.marks import OF_SYNC, M
from ddpviz.dashboard.messages import GoTo
from ddpviz.dashboard.state import Cursor, module_of
from ddpviz.dashboard.views.canvas import Canvas, Drawing, wrap
from ddpviz.language import N_, _
from ddpviz.timeline.model import Module, Sync, Timeline
from ddpviz.trace.records import LayerFlag, PassFlag

Floats = npt.NDArray[np.float64]
ORDERS = (N_("module order"), N_("largest first"), N_("ranks furthest apart first"))
NUMBER = 8  # cells of a norm


@dataclass(frozen=True, slots=True)
class Table:
    """Norms of one pass: parameters down, ranks across. Where `has_*` is False nothing was measured."""

    ranks: tuple[int, ...]
    local: Floats
    norm: Floats
    has_local: npt.NDArray[np.bool_]
    has_norm: npt.NDArray[np.bool_]


def table(module: Module, index: int) -> Table:
    """What the ranks' LAYER rows say about pass `index`."""
    ranks = tuple(rank for rank in module.ranks if rank in module.lanes)
    shape = (len(module.params), len(ranks))
    local, norm = np.full(shape, np.nan), np.full(shape, np.nan)
    has_local, has_norm = np.zeros(shape, bool), np.zeros(shape, bool)
    for column, rank in enumerate(ranks):
        rows = module.lanes[rank].layers_of(index)
        rows = rows[rows["param"] < len(module.params)]
        at = rows["param"].astype(np.int64)
        local[at, column], norm[at, column] = rows["local_norm"], rows["norm"]
        has_local[at, column] = (rows["flags"] & int(LayerFlag.HAS_LOCAL)) != 0
        has_norm[at, column] = (rows["flags"] & int(LayerFlag.HAS_NORM)) != 0
    return Table(ranks, local, norm, has_local, has_norm)


def nearest(module: Module, index: int) -> int | None:
    """The pass nearest to `index` that has layer norms on some rank; of two as near, the earlier."""
    best: int | None = None
    for lane in module.lanes.values():
        passes = lane.layers["pass"]
        at = int(np.searchsorted(passes, index))
        for found in (int(passes[i]) for i in (at - 1, at) if 0 <= i < len(passes)):
            if best is None or (abs(found - index), found) < (abs(best - index), best):
                best = found
    return best


def draw(tl: Timeline, cursor: Cursor, width: int, height: int, order: int = 0) -> Canvas:
    """The table of the pass at the cursor, filtered by `cursor.filter`; taller than `height` if it has many layers."""
    canvas = Canvas(width)
    module = module_of(tl, cursor)
    if module is None or not module.passes or cursor.index < 0:
        _draw_note(canvas, height, _("No backward pass to look at yet.") if module else _("No DDP module yet."))
        return canvas
    index = min(cursor.index, module.passes - 1)
    data = table(module, index)
    verdict = Sync(int(module.verdicts[index]))
    mark = OF_SYNC[verdict]
    canvas.line(
        (_(" Layers of backward {index}", index=index), "strong bold"),
        ("  ", ""),
        (mark.glyph, mark.role),
        (f" {mark.meaning}", f"{mark.role} bold"),
        (f"   {_(ORDERS[order])}", "dim"),
    )
    if not (data.has_local | data.has_norm).any():
        _draw_note(canvas, height, *_unsampled(tl, module, index))
        return canvas
    wanted = [i for i, param in enumerate(module.params) if _matches(param.name, cursor.filter)]
    if not wanted:
        canvas.line("")
        canvas.line((_(" No layer's name holds {filter!r}.", filter=cursor.filter), "dim"))
        return canvas
    _draw_table(canvas, module, data, _sorted(data, wanted, order), verdict, cursor.rank)
    return canvas


def _matches(name: str, text: str) -> bool:
    return all(word in name.lower() for word in text.lower().split())


def _sorted(data: Table, wanted: list[int], order: int) -> list[int]:
    if order == 0:
        return wanted
    local = np.where(np.isfinite(data.local[wanted]), data.local[wanted], np.where(data.has_local[wanted], np.inf, 0.0))
    top, low = local.max(axis=1), local.min(axis=1)
    score = top if order == 1 else np.where(top > 0, 1 - np.minimum(low, top) / np.where(top > 0, top, 1), 0.0)
    score = np.where(np.isnan(score), np.inf, score)
    return [wanted[i] for i in np.argsort(-score, kind="stable").tolist()]


def _unsampled(tl: Timeline, module: Module, index: int) -> list[str]:
    lanes = [lane for lane in module.lanes.values() if index < len(lane.passes)]
    if not lanes:
        return [_("No rank has finished this pass.")]
    if any(lane.passes[index]["flags"] & int(PassFlag.CAPTURED) for lane in lanes):
        return [_("This pass was captured into a CUDA graph: nothing can be measured in it.")]
    near = nearest(module, index)
    why = _("{glyph} The norms of this pass were not sampled.", glyph=M.UNSAMPLED.glyph)
    budget = (
        _("They are taken within {budget:g} % of the step time; --budget full takes all.", budget=tl.run.budget)
        if tl.run.budget
        else ""
    )
    where = _("The nearest pass that was sampled is {near}: press n.", near=near) if near is not None else ""
    return [why, *([budget] if budget else []), *([where] if where else [])]


def _draw_note(canvas: Canvas, height: int, *words: str) -> None:
    rows = [row for word in words for row in wrap(word, canvas.width - 4)]
    canvas.grow(max((height - len(rows)) // 2, canvas.height + 1))
    for row in rows:
        canvas.line((row.center(canvas.width).rstrip(), "dim"))


def _draw_table(
    canvas: Canvas, module: Module, data: Table, rows: list[int], verdict: Sync, chosen: int | None
) -> None:
    names, prefix = _short_names([module.params[i].name for i in rows], canvas.width // 3)
    after = 15
    room = canvas.width - 3 - 6 - after  # without name: size, after
    name = min(max(len(word) for word in names), max(room // 3, 12))
    each = (room - name - 1) // max(len(data.ranks), 1)
    top = float(np.max(data.local[rows], initial=0.0, where=np.isfinite(data.local[rows])))
    buckets = _buckets(module)
    head = canvas.line((" " + fmt.fit(prefix or _("layer"), name), "dim"), (_("   size"), "dim"))
    x = name + 9
    if each >= NUMBER + 1:
        for column, rank in enumerate(data.ranks):
            canvas.put(x + column * each, head, _("rank {rank}", rank=rank).rjust(NUMBER), f"rank:{rank}")
        behind = x + len(data.ranks) * each
    else:
        canvas.put(x, head, _("lowest").rjust(NUMBER) + _("  of  "), "dim")
        canvas.put(x + NUMBER + 8, head, _("highest").rjust(NUMBER) + _("  of  "), "dim")
        behind = x + 2 * (NUMBER + 8)
        if chosen in data.ranks:
            canvas.put(behind, head, _("rank {chosen}", chosen=chosen).rjust(NUMBER), f"rank:{chosen}")
            behind += NUMBER + 2
    canvas.put(behind + 1, head, _("averaged"), "dim")
    last = None
    for i, short in zip(rows, names, strict=True):
        param = module.params[i]
        bucket = buckets.get(i)
        y = canvas.line((" " + fmt.fit(short, name), "" if param.managed else "wrong"))
        canvas.put(name + 2, y, fmt.si(param.numel).rjust(6), "dim")
        if each >= NUMBER + 1:
            for column, rank in enumerate(data.ranks):
                _draw_cell(canvas, x + column * each, y, each, data, i, column, top, rank)
        else:
            _draw_extremes(canvas, x, y, data, i)
            if chosen in data.ranks:
                column = data.ranks.index(chosen)
                _draw_cell(canvas, x + 2 * (NUMBER + 8), y, NUMBER + 1, data, i, column, top, chosen)
        _draw_after(canvas, behind + 1, y, data, i, verdict, param.managed, param.reason)
        if bucket is not None and bucket != last and canvas.width - behind > after + 12:
            canvas.put(canvas.width - 10, y, _("bucket {bucket}", bucket=bucket), "dim")
        last = bucket


def _short_names(names: list[str], width: int) -> tuple[list[str], str]:
    """The names, without the prefix that all of them share where that makes them fit better, and that prefix."""
    if max(map(len, names)) <= width or len(names) < 2:
        return names, ""
    split = [name.split(".") for name in names]
    shared = 0
    while all(len(parts) > shared + 1 and parts[shared] == split[0][shared] for parts in split):
        shared += 1
    return [".".join(parts[shared:]) for parts in split], ".".join(split[0][:shared]) + "." if shared else ""


def _buckets(module: Module) -> dict[int, int]:
    if not module.layouts:
        return {}
    return {param: number for number, params in enumerate(module.layouts[-1].buckets) for param in params}


def _draw_cell(
    canvas: Canvas, x: int, y: int, width: int, data: Table, param: int, column: int, top: float, rank: int
) -> None:
    value = float(data.local[param, column])
    if not data.has_local[param, column]:
        canvas.put(x, y, M.UNSAMPLED.glyph.rjust(NUMBER), "dim")
    elif not np.isfinite(value):
        canvas.put(x, y, f"{M.NONFINITE.glyph} {fmt.nonfinite(value)}".rjust(NUMBER), "wrong bold")
    else:
        canvas.put(x, y, fmt.norm(value, NUMBER), "" if value else "dim")
        if width > NUMBER + 4:
            canvas.put(x + NUMBER + 1, y, fmt.bar(value / top if top else 0.0, width - NUMBER - 3), f"rank:{rank}")


def _draw_extremes(canvas: Canvas, x: int, y: int, data: Table, param: int) -> None:
    values = np.where(data.has_local[param], data.local[param], np.nan)
    bad = data.has_local[param] & ~np.isfinite(values)
    if bad.any():
        ranks = [data.ranks[i] for i in np.flatnonzero(bad).tolist()]
        canvas.put(
            x,
            y,
            _(
                "{glyph} NaN or Inf on {ranks}, first {ranks2}",
                glyph=M.NONFINITE.glyph,
                ranks=fmt.plural(len(ranks), "rank"),
                ranks2=ranks[0],
            ),
            "wrong bold",
        )
    elif np.isfinite(values).any():
        for column, at in ((x, int(np.nanargmin(values))), (x + NUMBER + 8, int(np.nanargmax(values)))):
            canvas.put(column, y, fmt.norm(float(values[at]), NUMBER))
            canvas.put(column + NUMBER + 1, y, _("rank {ranks}", ranks=data.ranks[at]), "dim")
    else:
        canvas.put(x, y, M.UNSAMPLED.glyph.rjust(NUMBER), "dim")


def _draw_after(
    canvas: Canvas, x: int, y: int, data: Table, param: int, verdict: Sync, managed: bool, reason: str
) -> None:
    if not managed:
        canvas.put(
            x, y, _("{glyph} not reduced", glyph=M.WRONG_STEP.glyph) + (f" ({reason})" if reason else ""), "wrong"
        )
        return
    if verdict is Sync.LOCAL:
        canvas.put(x, y, _("{glyph} stays local", glyph=M.LOCAL.glyph), "local")
        return
    values = data.norm[param][data.has_norm[param]]
    if not len(values):
        canvas.put(x, y, M.UNSAMPLED.glyph.rjust(NUMBER), "dim")
    elif not np.isfinite(values).all():
        canvas.put(x, y, _("{glyph} NaN", glyph=M.NONFINITE.glyph).rjust(NUMBER), "wrong bold")
    elif np.all(values == values[0]):
        canvas.put(x, y, fmt.norm(float(values[0]), NUMBER), "synced")
    else:
        canvas.put(x, y, f"{M.MIXED.glyph} {fmt.norm(float(values.min()))}-{fmt.norm(float(values.max()))}", "wrong")


class LayersView(Drawing):
    """The table of the pass under the cursor."""

    KEYS = (
        Key(
            "r",
            "order",
            "r",
            "order",
            "Order layers as in the module, by size, or by how far ranks are apart.",
            "Layers",
        ),
        Key("n", "nearest", "n", "", "Go to the nearest pass that was sampled.", "Layers"),
    )
    BINDINGS: ClassVar[list[BindingType]] = bound(KEYS)

    def __init__(self, *, id: str | None = None, classes: str | None = None) -> None:
        super().__init__(id=id, classes=classes)
        self.order = 0

    def options(self) -> Hashable:
        return self.order

    def paint(self, width: int, height: int) -> Canvas:
        return draw(self.tl, self.cursor or Cursor(), width, height, self.order)

    def action_order(self) -> None:
        self.order = (self.order + 1) % len(ORDERS)
        self.redraw()

    def action_nearest(self) -> None:
        if self.cursor is None or (module := module_of(self.tl, self.cursor)) is None:
            return
        near = nearest(module, self.cursor.index)
        if near is not None and near != self.cursor.index:
            self.post_message(GoTo(near, module=self.cursor.module))
