"""The sync timeline as an SVG: a row a rank, a cell a micro-step, marks where the optimizer stepped. Pure.

Long runs are binned: a cell then covers several passes, its green part is the share that was all-reduced, and the
worst of its passes and steps always shows. Ranks that did exactly the same share a row where there are many. Every
state has a shape of its own besides its colour (Okabe-Ito). Light and dark follow the reader's system.
"""

from __future__ import annotations

from collections.abc import Iterator
from html import escape

import numpy as np
import numpy.typing as npt

from ddpviz.export import words
from ddpviz.language import N_, _
from ddpviz.phrases import numbered
from ddpviz.timeline import model as m
from ddpviz.trace import records as r
from ddpviz.trace.text import clean

COLUMNS = 240  # cells in a row before passes are binned
ROWS = 24  # rows before ranks of equal behaviour share one
_GAP, _ROW = 2, 29  # pixels: between cells, from row to row
_CHARACTER = 7.3  # pixels of one, in the font below

_BAD = (m.Sync.UNFINISHED, m.Sync.MIXED, m.Sync.PARTIAL)
_CLASS = {
    m.Sync.LOCAL: "local",
    m.Sync.SYNCED: "synced",
    m.Sync.PARTIAL: "partial",
    m.Sync.MIXED: "mixed",
    m.Sync.UNFINISHED: "unfinished",
    m.Sync.RUNNING: "running",
    m.Sync.ABSENT: "absent",
}
LEGEND = (
    ("local", N_("local")),
    ("synced", N_("all-reduced")),
    ("partial", N_("partly all-reduced")),
    ("unfinished", N_("unfinished")),
    ("absent", N_("never ran")),
)

STYLE = """
.ddpviz{--bg:#fff;--fg:#1d2329;--dim:#68727d;--line:#c9d0d6;--local:#56b4e9;--synced:#009e73;--running:#e69f00;\
--step:#b58900;--wrong:#d55e00}
@media (prefers-color-scheme:dark){.ddpviz{--bg:#14181c;--fg:#e4e8ec;--dim:#8d98a3;--line:#3a434b;--step:#f0e442;\
--wrong:#ff7f3f;--synced:#14b88a}}
.ddpviz text{font:12px ui-monospace,SFMono-Regular,Menlo,Consolas,monospace;fill:var(--fg)}
.ddpviz .dim{fill:var(--dim)}
.ddpviz .local{fill:url(#ddpviz-local);stroke:var(--local)}
.ddpviz .synced{fill:var(--synced)}
.ddpviz .partial{fill:url(#ddpviz-partial);stroke:var(--synced)}
.ddpviz .unfinished,.ddpviz .mixed{fill:none;stroke:var(--wrong);stroke-width:2}
.ddpviz .running{fill:none;stroke:var(--running);stroke-dasharray:3 2}
.ddpviz .absent{fill:none;stroke:var(--line);stroke-dasharray:1 3}
.ddpviz .step{fill:var(--step)}
.ddpviz .cross{stroke:var(--wrong);stroke-width:2.5;fill:none}
.ddpviz .window{stroke:var(--line)}
"""
_DEFS = (
    '<defs><pattern id="ddpviz-local" width="5" height="5" patternUnits="userSpaceOnUse" patternTransform="rotate(45)">'
    '<rect width="2" height="5" fill="#56b4e9"/></pattern>'
    '<pattern id="ddpviz-partial" width="6" height="6" patternUnits="userSpaceOnUse">'
    '<rect width="6" height="3" fill="#009e73"/></pattern></defs>'
)


def to_svg(tl: m.Timeline) -> str:
    """The timelines of all modules under each other, as one standalone SVG document."""
    parts, height, width = [], 0, 960
    for module in tl.modules:
        body, wide, high = module_timeline(tl, module)
        parts.append(f'<g transform="translate(0 {height})">{body}</g>')
        height, width = height + high, max(width, wide)
    if not parts:
        nothing = escape(_("no DistributedDataParallel module was seen in this run"))
        parts, height = [f'<text x="10" y="24">{nothing}</text>'], 40
    legend, high = legend_row(height)
    height += high
    title = escape(clean(f"ddpviz: {tl.run.title or tl.run.id}"))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="ddpviz" viewBox="0 0 {width} {height}" width="{width}" '
        f'height="{height}" role="img"><title>{title}</title><style>{STYLE}</style>{_DEFS}'
        f'<rect width="100%" height="100%" style="fill:var(--bg)"/>{"".join(parts)}{legend}</svg>\n'
    )


def legend_row(y: int) -> tuple[str, int]:
    """The meaning of the shapes; the body and its height."""
    x, parts = 10, []
    for kind, english in LEGEND:
        word = _(english)
        parts.append(_cell(kind, x, y + 4, 14, ""))
        parts.append(f'<text class="dim" x="{x + 19}" y="{y + 16}">{escape(word)}</text>')
        x += 34 + 8 * len(word)
    parts.append(f'<path class="step" d="{_triangle(x + 6, y + 11)}"/>')
    right, wrong = escape(_("step")), escape(_("step on gradients not averaged"))
    parts.append(f'<text class="dim" x="{x + 16}" y="{y + 16}">{right}</text>')
    parts.append(f'<path class="cross" d="{_cross(x + 70, y + 11)}"/>')
    parts.append(f'<text class="dim" x="{x + 80}" y="{y + 16}">{wrong}</text>')
    return "".join(parts), 28


def module_timeline(tl: m.Timeline, module: m.Module) -> tuple[str, int, int]:
    """One module's rows: SVG body, width, height."""
    count = module.passes
    bins = min(count, COLUMNS)
    edges = np.linspace(0, count, bins + 1).astype(np.int64) if bins else np.zeros(1, np.int64)
    pitch = min(20.0, 1080 / max(bins, 1))
    size = pitch - min(_GAP, pitch / 4)
    name = escape(clean(words.module_name(tl, module)))
    told = str(words.plural(count, "micro-step"))
    if count > bins:
        told += _(", one cell = about {passes}", passes=words.plural(round(count / bins), "pass"))
    told = f'<tspan class="dim" dx="12">{escape(told)}</tspan>'
    parts = [f'<text x="10" y="18">{name}{told}</text>']
    rows = grouped(module)
    labels = [_names(r) + (f" ({len(r)})" if len(r) > 1 else "") for r in rows]
    labels = [label if len(label) <= 28 else f"{label[:12]}… ({len(r)})" for label, r in zip(labels, rows, strict=True)]
    left = 24 + _CHARACTER * max((len(label) for label in labels), default=0)
    top = 30
    for number, ranks in enumerate(rows):
        y = top + number * _ROW
        parts.append(f'<text x="10" y="{y + 13}">{escape(labels[number])}<title>{escape(_names(ranks))}</title></text>')
        lane, stack = module.lanes[ranks[0]], tl.ranks[ranks[0]].stack if ranks[0] in tl.ranks else None
        inside = stack.pass_index if stack is not None and stack.module == module.id else -1
        parts.extend(_row(lane, labels[number], edges, left, pitch, size, y, inside))
    bottom = top + len(rows) * _ROW
    parts.extend(_windows(module, edges, left, pitch, top, bottom))
    parts.extend(
        f'<text class="dim" x="{left + column * pitch:.1f}" y="{bottom + 8}">{int(edges[column])}</text>'
        for column in range(0, bins, max(1, round(60 / pitch)))
    )
    return "".join(parts), int(left + bins * pitch + 20), bottom + 24


def grouped(module: m.Module) -> list[list[int]]:
    """The ranks of each row: one each, or where there are many, those together that did the same."""
    ranks = sorted(module.lanes)
    if len(ranks) <= ROWS:
        return [[rank] for rank in ranks]
    alike: dict[tuple[bytes, bytes, bytes], list[int]] = {}
    for rank in ranks:
        lane = module.lanes[rank]
        key = (lane.sync.tobytes(), lane.steps["after"].tobytes(), lane.gradients.tobytes())
        alike.setdefault(key, []).append(rank)
    return sorted(alike.values(), key=lambda group: group[0])


def _row(
    lane: m.Lane, label: str, edges: npt.NDArray[np.int64], left: float, pitch: float, size: float, y: int, inside: int
) -> Iterator[str]:
    wrong = (lane.gradients != m.Gradients.SYNCED) & (lane.gradients != m.Gradients.NONE)
    after = lane.steps["after"]
    for column in range(len(edges) - 1):
        lo, hi = int(edges[column]), int(edges[column + 1])
        x = left + column * pitch
        kinds = lane.sync[lo:hi]
        kind = int(np.bincount(kinds).argmax()) if len(kinds) else int(m.Sync.ABSENT)
        bad = next((b for b in _BAD if (kinds == b).any()), None)
        if lo <= inside < hi:
            bad = m.Sync.UNFINISHED  # the rank stands in this pass
        shown = m.Sync(bad if bad is not None else kind)
        yield _cell(_CLASS[shown], x, y, size, escape(_told(lane, label, lo, hi, shown)))
        if hi - lo > 1 and shown is m.Sync.LOCAL and (share := float(np.mean(kinds == m.Sync.SYNCED))):
            yield f'<rect class="synced" x="{x:.1f}" y="{y + 16 * (1 - share):.1f}" width="{size:.1f}" '
            yield f'height="{16 * share:.1f}"/>'
        here = (after >= lo) & (after < hi)
        if here.any():
            bad_step = bool((here & wrong).any())
            if not bad_step and hi - lo > 1:
                continue  # right steps are everywhere then, and hide the wrong ones
            centre = x + pitch - 1
            shape = ("cross", _cross(centre, y + 22, 4)) if bad_step else ("step", _triangle(centre, y + 22, 4))
            wrongly = _("{rank}: step on gradients not averaged", rank=label)
            told = escape(wrongly if bad_step else _("{rank}: optimizer step", rank=label))
            yield f'<path class="{shape[0]}" d="{shape[1]}"><title>{told}</title></path>'


def _told(lane: m.Lane, label: str, lo: int, hi: int, kind: m.Sync) -> str:
    """The words behind one cell."""
    if hi - lo > 1:
        counts = np.bincount(lane.sync[lo:hi], minlength=8)
        parts = ", ".join(f"{counts[k]} {_(words.PASS_WORDS[k])}" for k in m.Sync if counts[k])
        return _("{rank}, micro-steps {first}-{last}: {counts}", rank=label, first=lo, last=hi - 1, counts=parts)
    text = _("{rank}, micro-step {index}: {sync}", rank=label, index=lo, sync=_(words.PASS_WORDS[kind]))
    if lo < len(lane.passes):
        row = lane.passes[lo]
        if int(row["flags"]) & r.PassFlag.HAS_LOCAL_NORM:
            text += _(", local norm {value}", value=words.number(float(row["local_norm"])))
        if int(row["flags"]) & r.PassFlag.HAS_NORM:
            text += _(", norm {value}", value=words.number(float(row["norm"])))
    return text


def _windows(
    module: m.Module, edges: npt.NDArray[np.int64], left: float, pitch: float, top: int, bottom: int
) -> Iterator[str]:
    """A bar where the gradients were cleared, while cells are single passes."""
    lane = next((module.lanes[rank] for rank in sorted(module.lanes) if len(module.lanes[rank].passes)), None)
    if lane is None or len(edges) - 1 < module.passes:
        return
    for index in (np.flatnonzero(np.diff(lane.passes["window"].astype(np.int64))) + 1).tolist():
        x = left + index * pitch - 1
        yield f'<line class="window" x1="{x:.1f}" x2="{x:.1f}" y1="{top - 3}" y2="{bottom - 14}"/>'


def _cell(kind: str, x: float, y: float, size: float, title: str) -> str:
    inside = f"<title>{title}</title>" if title else ""
    if kind in ("unfinished", "mixed"):
        return f'<path class="{kind}" d="{_cross(x + size / 2, y + 9, size / 2)}">{inside}</path>'
    return f'<rect class="{kind}" x="{x:.1f}" y="{y}" width="{size:.1f}" height="16" rx="1.5">{inside}</rect>'


def _names(ranks: list[int]) -> str:
    return str(numbered("rank", ranks, words.ranges(ranks)))


def _triangle(x: float, y: float, size: float = 5) -> str:
    return f"M{x:.1f} {y - size:.1f}l{size} {2 * size}h{-2 * size}z"


def _cross(x: float, y: float, size: float = 5) -> str:
    return (
        f"M{x - size:.1f} {y - size:.1f}l{2 * size:.1f} {2 * size:.1f}m0 {-2 * size:.1f}l{-2 * size:.1f} {2 * size:.1f}"
    )
