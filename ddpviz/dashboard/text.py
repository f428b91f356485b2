"""Numbers and names as a person reads them. Pure."""

from __future__ import annotations

import math

from rich.cells import cell_len


def si(value: float, unit: str = "") -> str:
    """`12345678, "B"` -> `12.3 MB`; three significant figures, powers of 1000."""
    if not math.isfinite(value):
        return f"{value} {unit}".rstrip()
    size = abs(value)
    for prefix, scale in (("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if size >= scale * 0.9995:
            return f"{_three(value / scale)} {prefix}{unit}"
    return f"{value:g} {unit}".rstrip() if value == int(value) else f"{_three(value)} {unit}".rstrip()


def _three(value: float) -> str:
    size = abs(value)
    return f"{value:.0f}" if size >= 99.95 else f"{value:.1f}" if size >= 9.995 else f"{value:.2f}"


def duration(ns: float) -> str:
    """Nanoseconds as `830 us`, `4.2 ms`, `31 s` or `12:05`."""
    seconds = ns / 1e9
    if abs(seconds) >= 100:
        return clock(ns)
    if abs(seconds) >= 1:
        return f"{seconds:.1f} s" if abs(seconds) < 10 else f"{seconds:.0f} s"
    if abs(seconds) >= 1e-3:
        return f"{_three(seconds * 1e3)} ms"
    return f"{seconds * 1e6:.0f} us"


def clock(ns: float) -> str:
    """Nanoseconds as `00:21` or `1:02:03`."""
    minutes, seconds = divmod(int(max(ns, 0) / 1e9), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes:02}:{seconds:02}"


def number(value: float) -> str:
    """A norm in four significant figures and never more than 9 cells: `0.8120`, `12.35`, `1.2e+07`, `nan`."""
    if not math.isfinite(value):
        return str(value)
    size = abs(value)
    if size == 0:
        return "0"
    if size >= 1e5 or size < 1e-3:
        return f"{value:.2e}"
    decimals = max(0, 3 - math.floor(math.log10(size)))
    return f"{value:.{min(decimals, 5)}f}"


def middle(name: str, width: int) -> str:
    """Shorten in the middle: `transformer.h.11.mlp.c_proj.weight` -> `transfor….c_proj.weight`; the end tells more."""
    if cell_len(name) <= width:
        return name
    if width <= 1:
        return "…"[:width]
    tail = (width - 1) * 3 // 5
    return f"{name[: width - 1 - tail]}…{name[len(name) - tail :]}"


def ranks(numbers: tuple[int, ...] | list[int], many: int = 4) -> str:
    """`rank 3`, `ranks 0 and 1`, `ranks 0-62 (63)`."""
    ordered = sorted(numbers)
    if not ordered:
        return "no rank"
    if len(ordered) == 1:
        return f"rank {ordered[0]}"
    if len(ordered) == 2:
        return f"ranks {ordered[0]} and {ordered[1]}"
    if ordered[-1] - ordered[0] == len(ordered) - 1:
        return f"ranks {ordered[0]}-{ordered[-1]}" + (f" ({len(ordered)})" if len(ordered) > many else "")
    shown = ", ".join(map(str, ordered[:many]))
    return f"ranks {shown}" + (f" and {len(ordered) - many} more" if len(ordered) > many else "")
