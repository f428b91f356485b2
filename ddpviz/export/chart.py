"""A chart of the gradient norms as SVG: each rank's local norm, and the averaged one where the ranks met. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from html import escape

import numpy as np
import numpy.typing as npt

from ddpviz.export import words
from ddpviz.language import _
from ddpviz.timeline import model as m
from ddpviz.trace import records as r

_WIDTH, _HEIGHT, _LEFT, _TOP, _BOTTOM = 1180, 240, 70, 14, 26
POINTS = 600  # of a line; longer ones are thinned to the least and the greatest of each stretch
DOTS = 160  # of averaged norms
LINES = 16  # ranks with a line of their own
# Okabe-Ito, then dashes: told apart without colour too.
_COLOURS = ("#0072b2", "#e69f00", "#cc79a7", "#56b4e9", "#d55e00", "#009e73")
_DASHES = ("", "6 3", "2 3", "8 3 2 3")


def norms(module: m.Module) -> str:
    """The chart, or an empty string if no norm was measured."""
    ranks = [rank for rank in module.ranks if rank in module.lanes][:LINES]
    lines = {rank: _series(module.lanes[rank], "local_norm", r.PassFlag.HAS_LOCAL_NORM) for rank in ranks}
    met = _averaged(module, ranks)
    values = np.concatenate([met[1], *(v for _, v in lines.values())]) if lines else np.zeros(0)
    values = values[np.isfinite(values)]
    if not len(values):
        return ""
    positive = values[values > 0]
    log = len(positive) > 0 and float(positive.max()) > 100 * float(positive.min())
    low = float(positive.min()) if log else 0.0
    high = float(values.max()) or 1.0
    scale = _Scale(max(module.passes - 1, 1), low, high, log)
    parts = [*_axes(scale), *_lines(lines, scale), *_meetings(met, scale), *_key(module, lines)]
    label = escape(_("gradient norms by micro-step, {ranks}", ranks=words.plural(len(lines), "rank")))
    height = _HEIGHT + 22 * (1 + len(lines) // 7)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="ddpviz" viewBox="0 0 {_WIDTH} {height}" '
        f'width="{_WIDTH}" height="{height}" role="img" aria-label="{label}">{"".join(parts)}</svg>'
    )


class _Scale:
    def __init__(self, last: int, low: float, high: float, log: bool) -> None:
        self.last, self.low, self.high, self.log = last, low, high, log

    def x(self, index: float) -> float:
        return _LEFT + (_WIDTH - _LEFT - 20) * index / self.last

    def y(self, value: float) -> float:
        span = _HEIGHT - _TOP - _BOTTOM
        if self.log:
            width = math.log10(self.high / self.low) or 1.0
            share = math.log10(max(value, self.low) / self.low) / width
        else:
            share = (value - self.low) / (self.high - self.low)
        return _TOP + span * (1 - min(max(share, 0.0), 1.0))

    def ticks(self) -> list[float]:
        if self.log:
            first, last = math.floor(math.log10(self.low)), math.ceil(math.log10(self.high))
            step = max(1, (last - first) // 5)
            return [10.0**p for p in range(first, last + 1, step) if self.low <= 10.0**p <= self.high]
        rough = self.high / 4
        unit = 10.0 ** math.floor(math.log10(rough))
        pace = next(unit * k for k in (1.0, 2.0, 2.5, 5.0, 10.0) if unit * k >= rough)
        return [pace * k for k in range(1 + int(self.high / pace + 1e-9))]


def _series(lane: m.Lane, field: str, flag: r.PassFlag) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]]:
    rows = lane.passes
    known = (rows["flags"] & int(flag)) != 0
    return rows["index"][known].astype(np.int64), rows[field][known].astype(np.float64)


def _averaged(module: m.Module, ranks: list[int]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]]:
    if not ranks:
        return np.zeros(0, np.int64), np.zeros(0)
    index, value = _series(module.lanes[ranks[0]], "norm", r.PassFlag.HAS_NORM)
    met = module.verdicts[index] == m.Sync.SYNCED if len(index) else np.zeros(0, bool)
    return index[met], value[met]


def thin(index: npt.NDArray[np.int64], value: npt.NDArray[np.float64], points: int = POINTS) -> npt.NDArray[np.int64]:
    """Positions that keep the look of a line: the least and the greatest of each stretch, and what is not finite."""
    if len(index) <= points:
        return np.arange(len(index))
    keep: set[int] = set(np.flatnonzero(~np.isfinite(value))[:points].tolist())
    for part in np.array_split(np.arange(len(index)), points // 2):
        finite = part[np.isfinite(value[part])]
        if len(finite):
            keep.update((int(finite[value[finite].argmin()]), int(finite[value[finite].argmax()])))
    return np.array(sorted(keep), np.int64)


def _axes(scale: _Scale) -> Iterator[str]:
    for tick in scale.ticks():
        y = scale.y(tick)
        yield f'<line class="window" x1="{_LEFT}" x2="{_WIDTH - 20}" y1="{y:.1f}" y2="{y:.1f}"/>'
        yield f'<text class="dim" x="{_LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{words.number(tick)}</text>'
    for index in sorted({round(scale.last * k / 6) for k in range(7)}):
        x = scale.x(index)
        yield f'<text class="dim" x="{x:.1f}" y="{_HEIGHT - 8}" text-anchor="middle">{index}</text>'


def _lines(lines: dict[int, tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]]], scale: _Scale) -> Iterator[str]:
    for number, (rank, (index, value)) in enumerate(lines.items()):
        path, pen = [], "M"
        for k in thin(index, value).tolist():
            x = scale.x(int(index[k]))
            if not math.isfinite(value[k]):
                pen = "M"
                yield (
                    f'<path class="cross" d="M{x - 4:.1f} {_TOP}l8 8m0 -8l-8 8">'
                    f"<title>{escape(_told(rank, int(index[k]), float(value[k])))}</title></path>"
                )
                continue
            path.append(f"{pen}{x:.1f} {scale.y(float(value[k])):.1f}")
            pen = "L"
        if len(path) == 1:
            path.append("h3")
        width, pen = (1.8, _pen(number)) if len(path) < 200 else (1, _pen(number, dashed=False))
        yield f'<path d="{"".join(path)}" fill="none" stroke-width="{width}" {pen}/>'


def _meetings(met: tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]], scale: _Scale) -> Iterator[str]:
    for k in thin(*met, points=DOTS).tolist():
        index, value = int(met[0][k]), float(met[1][k])
        if math.isfinite(value):
            told = escape(_("micro-step {index}: averaged norm {value}", index=index, value=words.number(value)))
            yield (
                f'<circle class="synced" cx="{scale.x(index):.1f}" cy="{scale.y(value):.1f}" r="3.5">'
                f"<title>{told}</title></circle>"
            )


def _told(rank: int, index: int, value: float) -> str:
    return _("rank {rank}, micro-step {index}: {value}", rank=rank, index=index, value=words.number(value))


def _key(module: m.Module, lines: Mapping[int, object]) -> Iterator[str]:
    x, y = _LEFT, _HEIGHT + 12
    for number, rank in enumerate(lines):
        if x > _WIDTH - 420:
            x, y = _LEFT, y + 20
        yield f'<path d="M{x} {y - 4}h26" stroke-width="2" {_pen(number)}/>'
        name = _("rank {rank}", rank=rank)
        yield f'<text x="{x + 32}" y="{y}">{escape(name)}</text>'
        x += 110
    more = len(module.lanes) - len(lines)
    yield f'<circle class="synced" cx="{x + 6}" cy="{y - 4}" r="3.5"/>'
    said = _("averaged; not drawn: {ranks}", ranks=words.plural(more, "more rank")) if more else _("averaged")
    yield f'<text x="{x + 16}" y="{y}">{escape(said)}</text>'


def _pen(number: int, *, dashed: bool = True) -> str:
    dash = _DASHES[number // len(_COLOURS) % len(_DASHES)]
    # The first six differ in colour; from two ranks on the second is dashed as well, so that print tells them apart.
    dash = dash or ("6 3" if number % 2 else "")
    return f'stroke="{_COLOURS[number % len(_COLOURS)]}"' + (f' stroke-dasharray="{dash}"' if dash and dashed else "")
