"""The Sync timeline: a row a rank, a cell a backward pass. The hero of the overview; draws what `cells.py` says.

Line API: all lines are built once when something changed, kept as Strips, and only lines that differ are drawn again.
"""

from __future__ import annotations

from time import monotonic

import numpy as np
from rich.style import Style
from textual import events
from textual.geometry import Region
from textual.strip import Strip
from textual.widget import Widget

from ddpviz.dashboard import cells as c
from ddpviz.dashboard.draw import Piece, strip
from ddpviz.dashboard.marks import M
from ddpviz.dashboard.messages import GoTo, Open
from ddpviz.dashboard.state import Cursor, module_of
from ddpviz.dashboard.themes import roles
from ddpviz.findings.model import Finding
from ddpviz.timeline.model import Module, Timeline

ZOOMS = (
    (10, 1),
    (6, 1),
    (4, 1),
    (2, 1),
    (1, 1),
    *((1, 2**i) for i in range(1, 24)),
)  # (cells of a column, passes in it)
MIX = "▁▂▃▄▅▆▇"  # part of a column's passes was all-reduced: the higher, the more

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
    M.LOCAL: "local",
    M.WRONG_STEP: "wrong step",
    M.STALE_STEP: "stale step",
    M.LOCAL_STEP: "local step",
    M.SKIPPED: "skipped",
    M.PARTIAL: "partly",
    M.UNFINISHED: "unfinished",
    M.ABSENT: "not run",
    M.DEAD: "died",
    M.MIXED: "disagree",
}
ALWAYS = (M.LOCAL, M.SYNCED, M.STEP, M.WRONG_STEP)


def label(ranks: tuple[int, ...]) -> str:
    """`rank 3`, `ranks 0-62 (63)`, `ranks 1, 5 (+4)`."""
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    if ranks[-1] - ranks[0] == len(ranks) - 1:
        return f"ranks {ranks[0]}-{ranks[-1]} ({len(ranks)})"
    return f"ranks {ranks[0]}, {ranks[1]}" + (f" (+{len(ranks) - 2})" if len(ranks) > 2 else "")


def label_every(pitch: int, factor: int, highest: int) -> int:
    """Of how many columns one can carry its number: a round count of passes, wide enough for the digits."""
    wanted = len(str(highest)) + (1 if pitch == 1 else 0) + 1
    for base in (10**e * m for e in range(9) for m in (1, 2, 5)):
        if base % factor == 0 and base // factor * pitch >= wanted:
            return base // factor
    for power in range(40):
        if 2**power * pitch >= wanted:
            return int(2**power)
    return 1


class SyncTimeline(Widget):
    DEFAULT_CSS = """
    SyncTimeline { width: 1fr; height: 1fr; }
    """
    can_focus = False

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._zoom = 1
        self._first: int | None = None  # first visible pass, where the wheel moved the view off the cursor
        self._shown_first = 0
        self._told: tuple[Timeline, Cursor, list[Finding]] | None = None
        self._key: object = None
        self._lines: list[Strip] = []
        self._rows_at: list[tuple[int, ...] | None] = []  # per line: the ranks it shows
        self._gutter = 0
        self._map_line = -1
        self._map: tuple[float, object, Strip] | None = None
        self._total = 0

    # -- what the app calls ---------------------------------------------------------------------------------------

    def show(self, tl: Timeline, cursor: Cursor, findings: list[Finding]) -> None:
        before = self._told[1] if self._told is not None else cursor
        moved = (cursor.index, cursor.module, cursor.live) != (before.index, before.module, before.live)
        if moved and not (cursor.live and before.live):
            self._first = None
        self._told = (tl, cursor, findings)
        self._rebuild()

    def subtitle(self) -> str:
        """What a cell is, for the panel's frame."""
        factor = ZOOMS[self._zoom][1]
        return "one cell = one backward pass" if factor == 1 else f"one cell = {factor} backward passes"

    def zoom(self, by: int) -> None:
        """One level in (+1) or out (-1)."""
        farthest = next((i for i, (p, f) in enumerate(ZOOMS) if self._fits(p, f)), len(ZOOMS) - 1)
        self._zoom = min(max(self._zoom - by, 0), max(farthest, self._zoom if by > 0 else 0))
        self._first = None
        self._rebuild()

    def _fits(self, pitch: int, factor: int) -> bool:
        return -(-self._total // factor) * pitch <= max(self.size.width - self._gutter, 1)

    # -- drawing --------------------------------------------------------------------------------------------------

    def render_line(self, y: int) -> Strip:
        if 0 <= y < len(self._lines):
            return self._lines[y]
        return Strip.blank(self.size.width, self.rich_style)

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
            id(tl), tl.version, cursor.index, cursor.module, cursor.live, cursor.rank, cursor.filter,
            self.size, self._zoom, self._first, self.app.theme, len(findings),
        )  # fmt: skip
        if key == self._key:
            return
        self._key = key
        module = module_of(tl, cursor)
        old = self._lines
        self._lines = [] if module is None else self._build(tl, module, cursor, findings)
        if len(old) != len(self._lines):
            self.refresh()
            return
        for y, line in enumerate(self._lines):
            if line != old[y]:
                self.refresh(Region(0, y, self.size.width, 1))

    def _build(self, tl: Timeline, module: Module, cursor: Cursor, findings: list[Finding]) -> list[Strip]:
        width, height = self.size
        ink = roles(self.app)
        ground = self.rich_style
        meant = c.meant_local(module, findings)
        self._total = total = c.length(tl, module)

        most = max(height - 2, 1)  # beside the ruler and the legend
        groups, hidden = c.group(tl, module, meant=meant, most=most, only=_filtered(module, cursor.filter))
        if hidden:
            groups, hidden = c.group(tl, module, meant=meant, most=most - 1, only=_filtered(module, cursor.filter))
        labels = [label(ranks) for ranks in groups]
        self._gutter = gutter = max([7, *map(len, labels)]) + 1

        pitch, factor = ZOOMS[self._zoom]
        room = max((width - gutter) // pitch, 1)
        first = self._place(cursor, total, factor, room)
        grid = c.grid(tl, module, groups, first=first, factor=factor, columns=room, meant=meant, hidden=hidden)
        chosen = (cursor.index - first) // factor if cursor.index >= first else -1

        spare = height - 2 - len(groups) - (1 if hidden else 0)
        partly_seen = -(-total // factor) > room
        want_map = partly_seen and spare >= 1
        want_steps = spare - want_map >= 1
        per = max((height - 2 - want_map - want_steps - (1 if hidden else 0)) // max(len(groups), 1), 1)
        thick, gap = {1: (1, 0), 2: (1, 1), 3: (2, 1)}.get(per, (min(per - 1, 3), 1))
        if thick * len(groups) + gap * len(groups) > height - 2 - want_map - want_steps:
            gap = 0

        lines: list[list[Piece]] = []
        where: list[tuple[int, ...] | None] = []

        def put(pieces: list[Piece], ranks: tuple[int, ...] | None = None) -> None:
            lines.append(pieces)
            where.append(ranks)

        put(self._ruler(grid, pitch, chosen, total, ink, module))
        for row, text in zip(grid.rows, labels, strict=True):
            selected = cursor.rank in row.ranks
            name = (text.ljust(gutter), ink["strong"] + Style(bold=True) if selected else ink["text"])
            for line in range(thick):
                head = name if line == 0 else (" " * gutter, ground)
                put([head, *self._row(grid, row, pitch, chosen, ink, first_line=line == 0)], row.ranks)
            for _ in range(gap):
                put([(" " * gutter, ground), *self._blank(grid, pitch, chosen, ink)], row.ranks)
        if hidden:
            put([(f"{hidden} more groups of ranks: z makes room, / filters".ljust(width), ink["dim"])])
        if want_steps:
            put([("step".ljust(gutter), ink["dim"]), *self._steps(grid, pitch, chosen, ink)])
        self._map_line = -1
        while len(lines) < height - 1 - want_map:
            put([])
        if want_map:
            self._map_line = len(lines)
            put([("run".ljust(gutter), ink["dim"]), *self._minimap(tl, module, groups, grid, total, meant, ink)])
        put(self._legend(grid, width, ink))
        self._rows_at = where
        fill = self.rich_style
        return [strip(pieces, width, fill) for pieces in lines[:height]]

    def _place(self, cursor: Cursor, total: int, factor: int, room: int) -> int:
        """The first visible pass: at the live end, where the wheel left it, or so that the cursor is in sight."""
        columns = -(-total // factor)
        latest = max(columns - room, 0)
        if self._first is not None:
            column = min(max(self._first // factor, 0), latest)
        elif cursor.live:
            column = latest
        else:
            at = max(cursor.index, 0) // factor
            column = min(self._shown_first // factor, latest)
            margin = min(2, (room - 1) // 2)
            if at < column + margin:
                column = max(at - margin, 0)
            elif at >= column + room - margin:
                column = min(at - room + 1 + margin, latest)
        self._shown_first = column * factor
        return self._shown_first

    def _ruler(
        self, grid: c.Grid, pitch: int, chosen: int, total: int, ink: dict[str, Style], module: Module
    ) -> list[Piece]:
        """Pass numbers, the cursor's in reverse, and the bars between windows."""
        every = label_every(pitch, grid.factor, total)
        chars = [" "] * (grid.columns * pitch)
        styles = [ink["dim"]] * len(chars)
        for column in range(grid.columns):
            if pitch >= 4 and grid.bounds[column]:
                chars[column * pitch + pitch - 1] = "│"
                styles[column * pitch + pitch - 1] = ink["track"]
        number_of = grid.first // grid.factor
        for column in range(grid.columns):
            if (column + number_of) % every == 0 and column != chosen:
                self._stamp(chars, styles, column, pitch, str(grid.first + column * grid.factor), ink["dim"], chosen)
        if 0 <= chosen < grid.columns:
            text = str(grid.first + chosen * grid.factor) if grid.factor > 1 else str(grid.first + chosen)
            self._stamp(chars, styles, chosen, pitch, text, ink["strong"] + Style(bold=True, reverse=True), -9)
        name = module.name if len(module.name) < self._gutter else module.name[: self._gutter - 2] + "…"
        return [(name.ljust(self._gutter), ink["dim"]), *zip(chars, styles, strict=True)]

    @staticmethod
    def _stamp(
        chars: list[str], styles: list[Style], column: int, pitch: int, text: str, style: Style, chosen: int
    ) -> None:
        if pitch >= 4:
            body = pitch - 2
            at = column * pitch + max((body - len(text) + (1 if pitch >= 6 else 0)) // 2, 0)
        else:
            at = column * pitch
        at = max(min(at, len(chars) - len(text)), 0)
        if chosen >= 0 and abs(column - chosen) * pitch <= len(text):
            return  # the cursor's own number stands here
        for i, char in enumerate(text):
            if at + i < len(chars):
                chars[at + i], styles[at + i] = char, style

    def _row(
        self, grid: c.Grid, row: c.Row, pitch: int, chosen: int, ink: dict[str, Style], *, first_line: bool
    ) -> list[Piece]:
        pieces: list[Piece] = []
        tint = Style(bgcolor=ink["cursor"].color)
        codes, marks, synced = row.cells.tolist(), row.ticks.tolist(), row.synced.tolist()
        for column in range(grid.columns):
            code, mark = codes[column], marks[column]
            glyph, style = " ", ink["dim"]
            if code:
                shown = MARK_OF_CELL[c.Cell(code)]
                glyph, style = shown.glyph, ink[shown.role]
                if grid.factor > 1 and code in (c.Cell.LOCAL, c.Cell.SYNCED) and 0 < synced[column] < 1:
                    glyph = MIX[min(int(synced[column] * len(MIX)), len(MIX) - 1)]
                    style = ink["synced"] + Style(bgcolor=ink["track"].color)
            sign, sign_style = " ", ink["dim"]
            if mark:
                tick = MARK_OF_TICK[c.Tick(mark)]
                sign, sign_style = tick.glyph, ink[tick.role] + Style(bold=True)
            bar = ("│" if grid.bounds[column] else " ", ink["track"])
            if pitch >= 6:
                body: list[Piece] = [
                    (" ", style),
                    (glyph * (pitch - 3), style),
                    (sign if first_line else " ", sign_style),
                    bar,
                ]
            elif pitch == 4:
                body = [(glyph * 2, style), (sign if first_line else " ", sign_style), bar]
            elif pitch == 2:
                body = [(glyph, style), (sign, sign_style) if mark and first_line else bar]
            elif mark >= c.Tick.STALE or (mark and not code):
                body = [(sign, sign_style)]
            else:
                body = [(glyph, style)]
            if column == chosen:
                body = [(text, s + tint if s.bgcolor is None else s) for text, s in body]
            pieces += body
        return pieces

    def _blank(self, grid: c.Grid, pitch: int, chosen: int, ink: dict[str, Style]) -> list[Piece]:
        pieces: list[Piece] = []
        tint = Style(bgcolor=ink["cursor"].color)
        for column in range(grid.columns):
            bar = "│" if grid.bounds[column] and pitch >= 2 else " "
            style = ink["track"] + tint if column == chosen else ink["track"]
            pieces.append((bar.rjust(pitch), style))
        return pieces

    def _steps(self, grid: c.Grid, pitch: int, chosen: int, ink: dict[str, Style]) -> list[Piece]:
        """Under the ranks: numbers of the optimizer steps, and `≠` where the ranks disagreed."""
        chars = [" "] * (grid.columns * pitch)
        styles = [ink["dim"]] * len(chars)
        for column in range(grid.columns):
            if pitch >= 2 and grid.bounds[column]:
                chars[column * pitch + pitch - 1], styles[column * pitch + pitch - 1] = "│", ink["track"]
        free = 0
        for column, number in sorted(grid.steps.items()):
            text = str(number)
            end = column * pitch + max(pitch - 1, 1)
            at = end - len(text)
            if at >= free and grid.factor == 1:
                for i, char in enumerate(text):
                    chars[at + i], styles[at + i] = char, ink["step"]
                free = end + 1
        for column in np.flatnonzero(grid.mixed[: grid.columns]).tolist():
            at = column * pitch + (1 if pitch >= 6 else 0)
            chars[at], styles[at] = M.MIXED.glyph, ink[M.MIXED.role] + Style(bold=True)
        return list(zip(chars, styles, strict=True))

    def _minimap(
        self,
        tl: Timeline,
        module: Module,
        groups: list[tuple[int, ...]],
        grid: c.Grid,
        total: int,
        meant: bool,
        ink: dict[str, Style],
    ) -> list[Piece]:
        """The whole run in one line: the mix, the worst of each part, and the part in sight on a lighter ground."""
        width = max(self.size.width - self._gutter, 1)
        factor = max(-(-total // width), 1)
        key = (module.id, width, factor, tuple(groups), self.app.theme, meant)
        now = monotonic()
        if self._map is None or self._map[1] != key or now - self._map[0] > 0.5:
            whole = c.grid(tl, module, groups, first=0, factor=factor, columns=width, meant=meant)
            self._map = (now, key, strip(self._map_pieces(whole, ink), whole.columns, self.rich_style))
        line = self._map[2]
        lo = min(grid.first // factor, line.cell_length)
        hi = min(max((grid.first + grid.columns * grid.factor) // factor, lo + 1), line.cell_length)
        tint = Style(bgcolor=ink["cursor"].color)
        before, seen, after = line.crop(0, lo), line.crop(lo, hi), line.crop(hi)
        pieces = [(s.text, s.style or Style()) for s in before]
        pieces += [(s.text, (s.style or Style()) + tint) for s in seen]
        return pieces + [(s.text, s.style or Style()) for s in after]

    def _map_pieces(self, whole: c.Grid, ink: dict[str, Style]) -> list[Piece]:
        pieces: list[Piece] = []
        if not whole.rows:
            return pieces
        codes = np.max([row.cells for row in whole.rows], axis=0).tolist()
        marks = np.max([row.ticks for row in whole.rows], axis=0).tolist()
        with np.errstate(invalid="ignore"):
            synced = np.nan_to_num(np.max([np.nan_to_num(row.synced) for row in whole.rows], axis=0)).tolist()
        for column in range(whole.columns):
            if marks[column] >= c.Tick.STALE:
                mark = MARK_OF_TICK[c.Tick(marks[column])]
                pieces.append((mark.glyph, ink[mark.role] + Style(bold=True)))
            elif codes[column] >= c.Cell.RUNNING:
                mark = MARK_OF_CELL[c.Cell(codes[column])]
                pieces.append((mark.glyph, ink[mark.role]))
            elif synced[column] > 0:
                level = min(int(synced[column] * len(MIX)), len(MIX) - 1)
                pieces.append((MIX[level] if synced[column] < 1 else "█", ink["synced"]))
            else:
                pieces.append((M.LOCAL.glyph, ink["local"]))
        return pieces

    def _legend(self, grid: c.Grid, width: int, ink: dict[str, Style]) -> list[Piece]:
        """The marks that can be met here; those in sight come first, and what does not fit is shortened."""
        seen = {MARK_OF_CELL[c.Cell(x)] for row in grid.rows for x in np.unique(row.cells).tolist() if x}
        seen |= {MARK_OF_TICK[c.Tick(x)] for row in grid.rows for x in np.unique(row.ticks).tolist() if x}
        if grid.mixed.any():
            seen.add(M.MIXED)
        marks = [m for m in M if m in seen or m in (*ALWAYS, M.RUNNING, M.WAITING)]
        for wordy in (True, False):
            for kept in (marks, [m for m in marks if m in seen or m in ALWAYS], [m for m in marks if m in seen]):
                texts = [m.meaning if wordy or m not in SHORT else SHORT[m] for m in kept]
                if grid.factor > 1:
                    texts.append("part of them all-reduced")
                if sum(len(t) + 5 for t in texts) - 3 <= width:
                    return self._legend_pieces(kept, texts, ink)
        kept = [m for m in marks if m in seen]
        return self._legend_pieces(kept, [SHORT.get(m, m.meaning) for m in kept], ink)

    @staticmethod
    def _legend_pieces(kept: list[M], texts: list[str], ink: dict[str, Style]) -> list[Piece]:
        pieces: list[Piece] = []
        for i, text in enumerate(texts):
            mark = kept[i] if i < len(kept) else None
            glyph, role = (mark.glyph, mark.role) if mark else ("▄", "synced")
            pieces += [(glyph + " ", ink[role]), (text + "   ", ink["dim"])]
        return pieces

    # -- the mouse ------------------------------------------------------------------------------------------------

    def on_click(self, event: events.Click) -> None:
        at = event.get_content_offset(self)
        if at is None or self._told is None or not self._total:
            return
        x = at.x - self._gutter
        if at.y == self._map_line and x >= 0:
            factor = max(-(-self._total // max(self.size.width - self._gutter, 1)), 1)
            self.post_message(GoTo(min(x * factor, self._total - 1)))
            return
        ranks = self._rows_at[at.y] if at.y < len(self._rows_at) else None
        rank = ranks[0] if ranks else None
        if x < 0:
            if rank is not None:
                self.post_message(GoTo(self._told[1].index, rank=rank))
            return
        pitch, factor = ZOOMS[self._zoom]
        index = self._shown_first + x // pitch * factor
        if at.y < len(self._rows_at) - 1 and index < self._total:
            self.post_message(GoTo(index, rank=rank))
            if event.chain == 2:
                self.post_message(Open("backward"))

    def _scroll(self, columns: int) -> None:
        pitch, factor = ZOOMS[self._zoom]
        room = max((self.size.width - self._gutter) // pitch, 1)
        latest = max(-(-self._total // factor) - room, 0) * factor
        first = min(max(self._shown_first + columns * factor, 0), latest)
        live = self._told is not None and self._told[1].live
        self._first = None if first == latest and live else first
        self._rebuild()

    def on_mouse_scroll_down(self, event: events.MouseScrollDown) -> None:
        event.stop()
        if event.ctrl:
            self.zoom(-1)
        else:
            self._scroll(4)

    def on_mouse_scroll_up(self, event: events.MouseScrollUp) -> None:
        event.stop()
        if event.ctrl:
            self.zoom(1)
        else:
            self._scroll(-4)


def _filtered(module: Module, text: str) -> tuple[int, ...] | None:
    """The ranks that a filter such as `3`, `0-7` or `rank 5` names; None where it names none."""
    wanted: set[int] = set()
    for part in text.lower().replace("ranks", " ").replace("rank", " ").replace(",", " ").split():
        low, dash, high = part.partition("-")
        if low.isdecimal() and (not dash or high.isdecimal()):
            wanted.update(rank for rank in module.ranks if int(low) <= rank <= int(high or low))
    return tuple(sorted(wanted)) or None
