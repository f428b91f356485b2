"""Levels on screen: a bar a rank, or a column a rank where there are more ranks than lines. Draws `levels.py`."""

from __future__ import annotations

import math

from rich.style import Style

from ddpviz.dashboard.draw import Piece, strip
from ddpviz.dashboard.drawn import Drawn
from ddpviz.dashboard.format import norm, shorten
from ddpviz.dashboard.levels import Level, Levels, Phase, levels, scale
from ddpviz.dashboard.marks import M
from ddpviz.dashboard.names import layers_of
from ddpviz.dashboard.state import Cursor, module_of
from ddpviz.dashboard.themes import roles
from ddpviz.findings.model import Finding
from ddpviz.language import _
from ddpviz.timeline.model import Module, Timeline

EIGHTHS = "▁▂▃▄▅▆▇█"
GLYPH = {Phase.LOCAL: "▒", Phase.MOVING: "▓", Phase.SYNCED: "█", Phase.WRONG: "╳"}
ROLE = {Phase.LOCAL: "local", Phase.MOVING: "running", Phase.SYNCED: "synced", Phase.WRONG: "wrong"}
VALUE = 9  # cells of a number


class LevelsView(Drawn):
    DEFAULT_CSS = """
    LevelsView { width: 1fr; height: 1fr; }
    """

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._told: tuple[Timeline, Cursor, list[Finding]] | None = None
        self._key: object = None
        self.now: Levels | None = None  # as drawn last

    def show(self, tl: Timeline, cursor: Cursor, findings: list[Finding]) -> None:
        self._told = (tl, cursor, findings)
        self._rebuild()

    def on_resize(self) -> None:
        self._rebuild()

    def notify_style_update(self) -> None:
        super().notify_style_update()
        self._key = None
        if self.is_mounted:
            self._rebuild()

    def _rebuild(self) -> None:
        if self._told is None or not self.size.width or not self.size.height:
            return
        tl, cursor, findings = self._told
        key = (
            id(tl),
            tl.version,
            cursor.time,
            cursor.index,
            cursor.module,
            cursor.rank,
            self.size,
            self.app.theme,
            len(findings),
        )
        if key == self._key:
            return
        self._key = key
        module = module_of(tl, cursor)
        old, self._lines, self.now = self._lines, [], None
        if module is not None:
            now = self.now = levels(tl, module, cursor.time, findings, cursor.index)
            width, height = self.size
            ink, fill = roles(self.app), self.rich_style
            pieces = draw(now, module, scale(module, max(now.index, 0)), width, height, ink, cursor.rank)
            self._lines = [strip(line, width, fill) for line in pieces[:height]]
        if self._lines != old:
            self.refresh()


def draw(
    now: Levels, module: Module, top: float, width: int, height: int, ink: dict[str, Style], chosen: int | None
) -> list[list[Piece]]:
    """The lines of the panel: bars where every rank gets a line, else columns; under them what it means."""
    room = max(height - 1, 1)
    lines = (_bars if len(now.levels) <= room else _columns)(now, top, width, room, ink, chosen)
    lines += [[] for _rest in range(room - len(lines))]
    return [*lines[:room], _meaning(now, module, width, ink)]


def _bars(
    now: Levels, top: float, width: int, height: int, ink: dict[str, Style], chosen: int | None
) -> list[list[Piece]]:
    gutter = max((len(_("rank {rank}", rank=level.rank)) for level in now.levels), default=6) + 1
    room = max(width - gutter - VALUE - 1, 4)
    count = max(len(now.levels), 1)
    gap = 1 if height >= 2 * count - 1 and count > 1 else 0
    thick = max((height - gap * (count - 1)) // count, 1)
    if thick > 4 and count > 1:
        gap = thick // 3
        thick = (height - gap * (count - 1)) // count
    thick = min(thick, 8)
    at = None if all(level.empty for level in now.levels) else _place(now.mean, top, room)
    out: list[list[Piece]] = []
    for number, level in enumerate(now.levels):
        bar = _bar(level, top, room, at, ink)
        bold = Style(bold=True)
        name = ink["strong"] + bold if chosen == level.rank else ink["text"]
        value = _value(level)
        for line in range(thick):
            head = _("rank {rank}", rank=level.rank).ljust(gutter) if line == 0 else " " * gutter
            tail = f" {value:>{VALUE}}" if line == (thick - 1) // 2 else ""
            out.append([(head, name), *bar, (tail, ink[ROLE[level.phase]] + bold if level.value else ink["dim"])])
        if number < count - 1:
            out += [[(" " * gutter, ink["dim"]), *_marker(at, room, ink)] for _rest in range(gap)]
    return out


def _value(level: Level) -> str:
    if level.empty:
        return _("empty")
    return _("not read") if level.value is None else norm(level.value)


def _place(value: float | None, top: float, room: int) -> int | None:
    if value is None or not math.isfinite(value):
        return None
    return min(int(value / top * room), room - 1)


def _bar(level: Level, top: float, room: int, mean: int | None, ink: dict[str, Style]) -> list[Piece]:
    """The filled part in the colours of its buckets, then the empty track; the mean's place on top of both."""
    cells: list[Piece] = [("·", ink["track"])] * room
    if level.value is not None and not math.isfinite(level.value):
        cells = [(M.NONFINITE.glyph, ink["wrong"])] * room
    elif level.value:
        filled = min(level.value / top, 1.0) * room
        total = sum(part.square for part in level.parts) or 1.0
        edge, at = 0.0, 0
        for part in level.parts:
            edge += part.square / total * filled
            stop = min(round(edge), room)
            for i in range(at, stop):
                cells[i] = (GLYPH[part.phase], ink[ROLE[part.phase]])
            at = max(at, stop)
        if at == 0:
            cells[0] = ("▏", ink[ROLE[level.phase]])
    if mean is not None and cells[mean][0] == "·":
        cells[mean] = ("┊", ink["synced"])
    return cells


def _marker(mean: int | None, room: int, ink: dict[str, Style]) -> list[Piece]:
    return [] if mean is None else [(" " * mean, ink["dim"]), ("┊", ink["synced"])]


def _columns(
    now: Levels, top: float, width: int, height: int, ink: dict[str, Style], chosen: int | None
) -> list[list[Piece]]:
    """A column a rank, rising; several ranks share one (the greatest shows) where the screen is narrower than them."""
    share = -(-len(now.levels) // max(width, 1))
    shown = [
        max(now.levels[i : i + share], key=lambda level: level.value or 0.0) for i in range(0, len(now.levels), share)
    ]
    wide = min(width / max(len(shown), 1), 9.0)
    gap = 1 if wide >= 3 else 0
    spans = [int((i + 1) * wide) - int(i * wide) - gap for i in range(len(shown))]
    room = height - 1 if wide >= 3 else height
    drawn: list[tuple[int, str, Style, int]] = []
    for level, span in zip(shown, spans, strict=True):
        value, phase = level.value or 0.0, level.phase
        filled = min(value / top, 1.0) * room * 8 if math.isfinite(value) else room * 8
        drawn.append((round(filled), GLYPH[phase], ink[ROLE[phase]], span))
    out: list[list[Piece]] = []
    for line in range(room):
        floor = (room - 1 - line) * 8
        pieces: list[Piece] = []
        for filled, full, colour, span in drawn:
            eighths = min(max(filled - floor, 0), 8)
            glyph = full if eighths == 8 else EIGHTHS[eighths - 1] if eighths else "·" if floor == 0 else " "
            pieces.append((glyph * span + " " * gap, colour if eighths else ink["track"]))
        out.append(pieces)
    if wide >= 3:
        named = zip(shown, spans, strict=True)
        out.append([(str(level.rank).center(span) + " " * gap, ink["dim"]) for level, span in named])
    return out


def _meaning(now: Levels, module: Module, width: int, ink: dict[str, Style]) -> list[Piece]:
    """One line under the bars: where the levels stand."""
    phases = {level.phase for level in now.levels if level.value}
    if now.moving:
        layers = layers_of(module, now.layout, now.moving[0])
        head = _("▓ bucket {moving} moves round {count} ranks", moving=now.moving[0], count=len(module.ranks))
        count = _("  {done} of {buckets} done", done=now.done, buckets=now.buckets) if now.buckets > 1 else ""
        room = width - len(head) - len(count) - 3
        middle = f" ({shorten(layers, room)})" if layers and room > 8 else ""
        return [(head + middle, ink["running"]), (count, ink["dim"])]
    role, bold, texts = _standing(now, phases)
    text = next((text for text in texts if len(text) <= width), texts[-1])
    return [(text, ink[role] + Style(bold=bold))]


def _standing(now: Levels, phases: set[Phase]) -> tuple[str, bool, tuple[str, ...]]:
    """Role, weight and wordings (the longest first) of what the levels say while nothing moves."""
    if Phase.WRONG in phases:
        return (
            "wrong",
            True,
            (_("╳ stepped with these, never averaged: the ranks part"), _("╳ stepped with, never averaged")),
        )
    if now.apart_since is not None:
        since = _("≠ replicas differ since step {apart_since}", apart_since=now.apart_since)
        return "wrong", True, (_("{since}, and stay apart", since=since), since)
    if phases == {Phase.SYNCED}:
        where = f" {norm(now.mean)}" if now.mean is not None else ""
        return "synced", False, (_("█ all ranks hold the mean{where}", where=where),)
    if Phase.SYNCED in phases:
        return "synced", False, (_("█ averaged on some ranks so far"),)
    if phases:
        return "local", False, (_("▒ each rank's own sum, nothing sent"),)
    if now.levels and all(level.empty for level in now.levels):
        return "dim", False, (_("emptied: the next window starts from zero"),)
    if any(level.value is None for level in now.levels) and now.index >= 0:
        return (
            "dim",
            False,
            (_("norms of this pass were not read (the budget samples windows)"), _("norms were not read here")),
        )
    return "dim", False, (_("no backward pass yet"),)
