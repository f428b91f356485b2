"""Numbers and names as people read them: SI units, fixed widths, long names shortened in the middle. Pure functions."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from rich.cells import cell_len, set_cell_size

from ddpviz.language import Words
from ddpviz.phrases import counted

NOT_MEASURED = "·"
_EIGHTHS = " ▏▎▍▌▋▊▉█"
_LARGE, _SMALL = ("", "k", "M", "G", "T", "P"), ("", "m", "µ", "n", "p")


def si(value: float, unit: str = "", digits: int = 3) -> str:
    """A quantity with an SI prefix and about `digits` digits: `1.20 MB`, `312`, `45.0 k`. NaN and Inf as themselves."""
    if not math.isfinite(value):
        return nonfinite(value)
    if float(value).is_integer() and abs(value) < 1000:
        return f"{int(value)} {unit}".rstrip()
    return _scaled(value, unit, digits)


def _scaled(value: float, unit: str, digits: int) -> str:
    value = float(f"{value:.{digits}g}")  # round first, so that 999.96 carries into the next prefix
    power = 0 if value == 0 else math.floor(math.log10(abs(value)) / 3 + 1e-9)
    if power >= 0:
        power = min(power, len(_LARGE) - 1)
        prefix = _LARGE[power]
    else:
        power = max(power, 1 - len(_SMALL)) if unit else 0  # a bare number has no milli
        prefix = _SMALL[-power]
    return f"{_digits(value / 1000.0**power, digits)} {prefix}{unit}".rstrip()


def _digits(value: float, digits: int) -> str:
    """About `digits` digits of a number below 1000, without an exponent."""
    if value == 0:
        return "0"
    places = digits - 1 - math.floor(math.log10(abs(value)) + 1e-9)
    return f"{value:.{min(max(places, 0), 9)}f}"


def nonfinite(value: float) -> str:
    return "NaN" if math.isnan(value) else ("Inf" if value > 0 else "-Inf")


def size(count: float) -> str:
    """Bytes: `512 B`, `1.2 MB` (decimal, as the all-reduce's bandwidth is counted)."""
    return si(count, "B", 3)


def duration(ns: float, digits: int = 2) -> str:
    """A span of time: `3.1 ms`, `850 µs`, `12 s`, `3 min 05 s`."""
    seconds = ns / 1e9
    if abs(seconds) >= 100:
        minutes, rest = divmod(round(seconds), 60)
        hours, minutes = divmod(minutes, 60)
        return f"{hours} h {minutes:02d} min" if hours else f"{minutes} min {rest:02d} s"
    return _scaled(seconds, "s", digits) if ns else "0 ms"


def clock(ns: float) -> str:
    """Time since the start: `00:21`, `1:02:03`."""
    minutes, seconds = divmod(max(int(ns // 1_000_000_000), 0), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{seconds:02d}" if hours else f"{minutes:02d}:{seconds:02d}"


def norm(value: float | None, width: int = 0) -> str:
    """A gradient norm with four digits, right-aligned in `width`: `0.8123`, `1.2e-05`, `NaN`, `·` if not measured."""
    if value is None:
        text = NOT_MEASURED
    elif not math.isfinite(value):
        text = nonfinite(value)
    elif value == 0:
        text = "0"
    elif 1e-3 <= abs(value) < 1e4:
        text = f"{value:.{min(max(3 - math.floor(math.log10(abs(value))), 0), 4)}f}"
    elif 1e4 <= abs(value) < 1e6:
        text = f"{value:.0f}"
    else:
        text = f"{value:.1e}"
    return text.rjust(width)


def percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def plural(count: int, noun: str) -> Words:
    """`1 step`, `2 steps`."""
    return counted(count, noun, f"{count:,}".replace(",", " "))


def shorten(text: str, width: int) -> str:
    """The text in at most `width` cells; the middle goes first, since names differ at their ends."""
    if cell_len(text) <= width:
        return text
    if width <= 1:
        return "…"[:width]
    tail = (width - 1) * 3 // 5
    return _head(text, width - 1 - tail) + "…" + _tail(text, tail)


def shorten_path(path: str, width: int) -> str:
    """A path in at most `width` cells, its file name kept as long as it can be."""
    if cell_len(path) <= width:
        return path
    name = path.rsplit("/", 1)[-1]
    if cell_len(name) + 2 <= width:
        return "…" + _tail(path, width - 1)
    return shorten(name, width)


def _head(text: str, width: int) -> str:
    while cell_len(text) > width:
        text = text[: width if len(text) > width else -1]
    return text


def _tail(text: str, width: int) -> str:
    if len(text) > width:
        text = text[len(text) - width :]
    while cell_len(text) > width:
        text = text[1:]
    return text


def fit(text: str, width: int) -> str:
    """Exactly `width` cells: shortened in the middle or padded on the right."""
    return set_cell_size(shorten(text, width), width)


def ranges(numbers: Iterable[int]) -> str:
    """`0-2, 5` for 0, 1, 2, 5."""
    parts: list[str] = []
    run: list[int] = []
    for number in [*sorted(set(numbers)), None]:
        if run and (number is None or number != run[-1] + 1):
            parts.append(
                str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" if len(run) > 2 else f"{run[0]}, {run[1]}"
            )
            run = []
        if number is not None:
            run.append(number)
    return ", ".join(parts)


def bar(share: float, width: int) -> str:
    """A bar of eighth blocks, `width` cells in all; anything above zero shows at least a sliver."""
    if width <= 0:
        return ""
    share = 0.0 if not math.isfinite(share) else min(max(share, 0.0), 1.0)
    eighths = round(share * width * 8)
    if share > 0 and eighths == 0:
        eighths = 1
    full, rest = divmod(eighths, 8)
    return ("█" * full + (_EIGHTHS[rest] if rest else "")).ljust(width)


def columns(rows: Sequence[Sequence[str]], right: Iterable[int] = (), gap: int = 2) -> list[str]:
    """Rows of a table as lines, each column as wide as its widest cell; columns named in `right` are right-aligned."""
    if not rows:
        return []
    count = max(len(row) for row in rows)
    widths = [max((cell_len(row[i]) for row in rows if i < len(row)), default=0) for i in range(count)]
    aligned = set(right)
    lines = []
    for row in rows:
        cells = [
            " " * (widths[i] - cell_len(cell)) + cell if i in aligned else set_cell_size(cell, widths[i])
            for i, cell in enumerate(row)
        ]
        lines.append((" " * gap).join(cells).rstrip())
    return lines
