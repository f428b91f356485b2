"""Line charts drawn by plotext, thinned first so that they stay fast. Pure: numbers in, characters out.

Coordinates are cells of the plot: x from 0 to its width, y from 0 (below) to its height.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import plotext

from ddpviz.dashboard.views.canvas import Canvas

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]
plotext.terminal.limit(False, False)  # else plotext clips to the terminal that ddpviz was started in


class Line(NamedTuple):
    """One line of a chart. It breaks before each point whose `joined` is False."""

    x: Floats
    y: Floats
    joined: Bools
    look: str


_RUN = re.compile(r"\x1b\[([\d;]*)m([^\x1b]*)")


def raster(canvas: Canvas, left: int, top: int, width: int, height: int, lines: Sequence[Line]) -> None:
    """Draw the lines in braille, the later above the earlier, into a rectangle of the canvas."""
    if width <= 0 or height <= 0:
        return
    figure = plotext.figure  # plotext keeps one figure for the process; all drawing happens on the UI's thread
    figure.clear.all()
    figure.plot_size(width, height).axes(False).canvas("default").legend(False)
    for axis, limit in ((0, width), (1, height)):
        figure.ruler(axis).frequency(0).alignment(lim="edge").lim(0, limit)
    for number, line in enumerate(lines):
        if len(line.x) == 0:
            continue
        # The number of the line travels as the colour and comes back with every cell.
        marker = plotext.marker("braille", plotext.pixel(foreground=(number, 0, 0)))
        signal = figure.signal(line.x.tolist(), line.y.tolist(), marker=marker).lines(True)
        for gap in np.flatnonzero(~line.joined).tolist():
            signal.line(gap, False)
        figure.draw(signal)
    for y, row in enumerate(figure.build().string().split("\n")[:height]):
        x = left
        for codes, text in _RUN.findall(row):
            look = lines[int(codes.split(";")[2])].look if codes.startswith("38;2;") else ""
            for char in text:
                if char not in " \u2800":
                    canvas.put(x, top + y, char, look)
                x += 1


def thin(x: Floats, y: Floats, joined: Bools, width: int) -> tuple[Floats, Floats, Bools]:
    """At most two points a column, the lowest and the highest, so that no peak is lost. Few points stay as they are."""
    if len(x) <= 2 * width:
        return x, y, joined
    column = x.astype(np.int64)
    starts = np.flatnonzero(np.diff(column, prepend=column[0] - 1))
    low, high = np.minimum.reduceat(y, starts), np.maximum.reduceat(y, starts)
    whole = np.logical_or.reduceat(joined, starts)  # a column joins the one before if any of its points did
    xs = np.repeat(column[starts] + 0.5, 2)
    # Enter each column at the end nearer to where the last one was left: up, down, up.
    flip = np.arange(len(starts)) % 2 == 1
    ys = np.stack([np.where(flip, high, low), np.where(flip, low, high)], axis=1).ravel()
    links = np.ones(len(xs), bool)
    links[0::2] = whole
    return xs, ys, links


def ticks(low: float, high: float, count: int) -> list[float]:
    """About `count` round numbers that cover low..high, the first at or below `low`, the last at or above `high`."""
    if not high > low:
        high = low + (abs(low) or 1.0)
    rough = (high - low) / max(count - 1, 1)
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * m for m in (1, 2, 2.5, 5, 10) if power * m >= rough * 0.999)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [i * step for i in range(first, last + 1)]


def tick_words(values: Sequence[float]) -> list[str]:
    """Labels with the same number of decimals each, in powers of ten where plain numbers would be long."""
    if len(values) < 2:
        return [f"{v:g}" for v in values]
    step, top = abs(values[1] - values[0]), max(abs(v) for v in values)
    if top >= 1e5 or step < 1e-3:
        return [
            "0" if v == 0 else f"{v:.1e}".replace("e+0", "e").replace("e-0", "e-").replace("e+", "e") for v in values
        ]
    places = max(0, -math.floor(math.log10(step) + 1e-9))
    if not math.isclose(round(step, places), step, rel_tol=1e-6):
        places += 1
    return [f"{v:.{places}f}" for v in values]
