"""Lines of the Sync timeline as pieces of styled text: ruler, ranks, steps, the whole run, legend. Pure functions."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from rich.style import Style

from ddpviz.dashboard import cells as c
from ddpviz.dashboard.draw import Piece
from ddpviz.dashboard.format import plural, shorten
from ddpviz.dashboard.marks import M
from ddpviz.language import N_, _

Inks = dict[str, Style]

MIX = "▁▂▃▄▅▆▇"  # part of a column's passes was all-reduced: the higher, the more
BOLD = Style(bold=True)
HOST = 16  # cells of a host's name
MARK_OF_CELL = {
    c.Cell.ABSENT: M.ABSENT,
    c.Cell.LOCAL: M.LOCAL,
    c.Cell.SYNCED: M.SYNCED,
    c.Cell.RUNNING: M.RUNNING,
    c.Cell.WAITING: M.WAITING,
    c.Cell.PARTIAL: M.PARTIAL,
    c.Cell.UNFINISHED: M.UNFINISHED,
    c.Cell.DEAD: M.DEAD,
}
MARK_OF_TICK = {
    c.Tick.SKIPPED: M.SKIPPED,
    c.Tick.STEP: M.STEP,
    c.Tick.LOCAL_STEP: M.LOCAL_STEP,
    c.Tick.STALE: M.STALE_STEP,
    c.Tick.WRONG: M.WRONG_STEP,
}
SHORT = {
    M.LOCAL: N_("local"),
    M.WRONG_STEP: N_("wrong step"),
    M.STALE_STEP: N_("stale step"),
    M.LOCAL_STEP: N_("local step"),
    M.SKIPPED: N_("skipped"),
    M.PARTIAL: N_("partly"),
    M.UNFINISHED: N_("unfinished"),
    M.ABSENT: N_("not run"),
    M.DEAD: N_("died"),
    M.MIXED: N_("disagree"),
}
ROUND = tuple(int(f"{m}{'0' * e}") for e in range(9) for m in (1, 2, 5))
ALWAYS = (M.LOCAL, M.SYNCED, M.STEP, M.WRONG_STEP)


@dataclass(frozen=True, slots=True)
class Frame:
    """How the visible columns are drawn: `pitch` cells each, `chosen` is the cursor's (negative: out of sight)."""

    pitch: int
    chosen: int
    ink: Inks

    @property
    def tint(self) -> Style:
        return Style(bgcolor=self.ink["cursor"].color)


def label(ranks: tuple[int, ...], hosts: Sequence[str] = (), *, by_host: bool = False) -> str:
    """`rank 3`, `ranks 0-62 (63)`, `ranks 1, 5 (+4)`; with the host, or how many, where `hosts` are worth telling."""
    if by_host and len(hosts) == 1:
        return f"{shorten(hosts[0], HOST)} ({len(ranks)})"
    text = _ranks(ranks)
    if not hosts:
        return text
    return f"{text} {shorten(hosts[0], HOST) if len(hosts) == 1 else plural(len(hosts), 'host')}"


def _ranks(ranks: tuple[int, ...]) -> str:
    if len(ranks) == 1:
        return _("rank {ranks}", ranks=ranks[0])
    if ranks[-1] - ranks[0] == len(ranks) - 1:
        return _("ranks {first}-{last} ({count})", first=ranks[0], last=ranks[-1], count=len(ranks))
    return _("ranks {first}, {last}", first=ranks[0], last=ranks[1]) + (
        f" (+{len(ranks) - 2})" if len(ranks) > 2 else ""
    )


def label_every(pitch: int, factor: int, highest: int) -> int:
    """Of how many columns one can carry its number: a round count of passes, wide enough for the digits."""
    wanted = len(str(highest)) + (2 if pitch == 1 else 1)
    for base in ROUND:
        if base % factor == 0 and base // factor * pitch >= wanted:
            return base // factor
    power = 0
    while (1 << power) * pitch < wanted:
        power += 1
    return 1 << power


class _Canvas:
    """A line of single cells that can be written over."""

    def __init__(self, length: int, style: Style) -> None:
        self.chars = [" "] * length
        self.styles = [style] * length

    def put(self, at: int, text: str, style: Style) -> None:
        for i, char in enumerate(text, start=at):
            if 0 <= i < len(self.chars):
                self.chars[i], self.styles[i] = char, style

    def pieces(self) -> list[Piece]:
        return list(zip(self.chars, self.styles, strict=True))


def _bars(grid: c.Grid, frame: Frame, least: int) -> _Canvas:
    """Window bars behind the last pass of each window, where a column has room for them."""
    line = _Canvas(grid.columns * frame.pitch, frame.ink["dim"])
    if frame.pitch >= least:
        for column in np.flatnonzero(grid.bounds[: grid.columns]).tolist():
            line.put((column + 1) * frame.pitch - 1, "│", frame.ink["track"])
    return line


def ruler(grid: c.Grid, frame: Frame, total: int) -> list[Piece]:
    """Pass numbers; the cursor's in reverse."""
    every, pitch = label_every(frame.pitch, grid.factor, total), frame.pitch
    line = _bars(grid, frame, 4)
    first = grid.first // grid.factor
    chosen = str(grid.first + frame.chosen * grid.factor)
    for column in range(grid.columns):
        text = str(grid.first + column * grid.factor)
        near = frame.chosen >= 0 and abs(column - frame.chosen) * pitch <= max(len(text), len(chosen))
        if (column + first) % every == 0 and not near:
            line.put(_stamp(column, pitch, len(text), len(line.chars)), text, frame.ink["dim"])
    if 0 <= frame.chosen < grid.columns:
        at = _stamp(frame.chosen, pitch, len(chosen), len(line.chars))
        line.put(at, chosen, frame.ink["strong"] + Style(bold=True, reverse=True))
    return line.pieces()


def _stamp(column: int, pitch: int, length: int, end: int) -> int:
    """Where a column's number starts: over the middle of its cell if that is wide, else at its start."""
    if pitch < 4:
        return max(min(column * pitch, end - length), 0)
    body = pitch - 2
    return max(min(column * pitch + max((body - length + (1 if pitch >= 6 else 0)) // 2, 0), end - length), 0)


def row(grid: c.Grid, its: c.Row, frame: Frame, *, marks: bool) -> list[Piece]:
    """A rank's cells; with `marks` the steps behind them too (a thick row has them on one of its lines)."""
    pieces: list[Piece] = []
    ink, pitch, tint = frame.ink, frame.pitch, frame.tint
    codes, ticks, synced = its.cells.tolist(), its.ticks.tolist(), its.synced.tolist()
    for column in range(grid.columns):
        glyph, style = _cell(codes[column], synced[column], grid.factor, ink)
        tick = MARK_OF_TICK[c.Tick(ticks[column])] if ticks[column] else None
        sign: Piece = (tick.glyph, ink[tick.role] + BOLD) if tick is not None and marks else (" ", style)
        bar: Piece = ("│" if grid.bounds[column] else " ", ink["track"])
        body: list[Piece]
        if pitch >= 12:
            body = [(" ", style), (glyph * (pitch - 6), style), (" ", style), (sign[0] * 2, sign[1]), (" ", style), bar]
        elif pitch >= 6:
            body = [(" ", style), (glyph * (pitch - 3), style), sign, bar]
        elif pitch == 4:
            body = [(glyph * 2, style), sign, bar]
        elif pitch == 2:
            body = [(glyph, style), sign if tick is not None and marks else bar]
        elif tick is not None and (ticks[column] >= c.Tick.STALE or glyph == " "):
            body = [(tick.glyph, ink[tick.role] + BOLD)]
        else:
            body = [(glyph, style)]
        if column == frame.chosen:
            body = [(text, s + tint if s.bgcolor is None else s) for text, s in body]
        pieces += body
    return pieces


def _cell(code: int, synced: float, factor: int, ink: Inks) -> Piece:
    if not code:
        return " ", ink["dim"]
    if factor > 1 and code in (c.Cell.LOCAL, c.Cell.SYNCED) and 0 < synced < 1:
        level = MIX[min(int(synced * len(MIX)), len(MIX) - 1)]
        return level, ink["synced"] + Style(bgcolor=ink["track"].color)
    mark = MARK_OF_CELL[c.Cell(code)]
    return mark.glyph, ink[mark.role]


def between(grid: c.Grid, frame: Frame) -> list[Piece]:
    """The empty line between two ranks: bars and cursor go through it."""
    line = _bars(grid, frame, 2)
    start = frame.chosen * frame.pitch
    if 0 <= frame.chosen < grid.columns:
        for i in range(start, start + frame.pitch):
            line.styles[i] = line.styles[i] + frame.tint
    return line.pieces()


def steps(grid: c.Grid, frame: Frame, nonfinite: Iterable[int] = ()) -> list[Piece]:
    """Under the ranks: numbers of the optimizer steps, `≠` where the ranks disagreed, `∞` in `nonfinite` passes."""
    line, pitch, free = _bars(grid, frame, 2), frame.pitch, 0
    for column, number in sorted(grid.steps.items()):
        text = str(number)
        end = column * pitch + max(pitch - 1, 1)
        if end - len(text) >= free and grid.factor == 1:
            line.put(end - len(text), text, frame.ink["step"])
            free = end + 1
    for column in np.flatnonzero(grid.mixed[: grid.columns]).tolist():
        line.put(column * pitch + (1 if pitch >= 6 else 0), M.MIXED.glyph, frame.ink[M.MIXED.role] + BOLD)
    for index in nonfinite:
        column = (index - grid.first) // grid.factor
        if 0 <= column < grid.columns:
            line.put(column * pitch + (1 if pitch >= 6 else 0), M.NONFINITE.glyph, frame.ink[M.NONFINITE.role] + BOLD)
    return line.pieces()


def whole(run: c.Whole, ink: Inks) -> list[Piece]:
    """The whole run in one line: the mix of each part, and always its worst."""
    pieces: list[Piece] = []
    for code, tick, synced in zip(run.cells.tolist(), run.ticks.tolist(), run.synced.tolist(), strict=True):
        if tick >= c.Tick.STALE:
            mark = MARK_OF_TICK[c.Tick(tick)]
            pieces.append((mark.glyph, ink[mark.role] + BOLD))
        elif code >= c.Cell.RUNNING:
            mark = MARK_OF_CELL[c.Cell(code)]
            pieces.append((mark.glyph, ink[mark.role]))
        elif 0 < synced < 1:
            pieces.append((MIX[min(int(synced * len(MIX)), len(MIX) - 1)], ink["synced"]))
        else:
            mark = M.SYNCED if synced >= 1 else M.LOCAL
            pieces.append((mark.glyph, ink[mark.role]))
    return pieces


def legend(grid: c.Grid, width: int, ink: Inks, others: Iterable[M] = ()) -> list[Piece]:
    """The marks that can be met here; words are shortened, then marks left out that are not in sight."""
    seen = {MARK_OF_CELL[c.Cell(x)] for its in grid.rows for x in np.unique(its.cells).tolist() if x}
    seen |= {MARK_OF_TICK[c.Tick(x)] for its in grid.rows for x in np.unique(its.ticks).tolist() if x}
    seen |= set(others)
    if grid.mixed.any():
        seen.add(M.MIXED)
    marks = [m for m in M if m in seen or m in (*ALWAYS, M.RUNNING, M.WAITING)]
    mix: list[tuple[str, str, str]] = [("▄", "synced", _("part of them all-reduced"))] if grid.factor > 1 else []
    told: list[tuple[str, str, str]] = []
    usual, met = [m for m in marks if m in seen or m in ALWAYS], [m for m in marks if m in seen]
    for kept, wordy in ((marks, True), (usual, True), (marks, False), (usual, False), (met, False)):
        told = [(m.glyph, m.role, m.meaning if wordy else _(SHORT.get(m, m.text))) for m in kept] + mix
        if sum(len(text) + 5 for _rest, _rest, text in told) - 3 <= width:
            return _told(told, ink, "   ")
    return _told(told, ink, " ")


def _told(told: list[tuple[str, str, str]], ink: Inks, gap: str) -> list[Piece]:
    pieces: list[Piece] = []
    for glyph, role, text in told:
        pieces += [(glyph + " ", ink[role]), (text + gap, ink["dim"])]
    return pieces
