"""The Sync timeline: a row a rank, a cell a backward pass. The hero of the overview; draws what `cells.py` says.

Line API: all lines are built once when something changed, kept as Strips, and only those that differ are drawn again.
"""

from __future__ import annotations

from functools import partial
from time import monotonic
from typing import NamedTuple

from rich.style import Style
from textual import events
from textual.geometry import Region
from textual.strip import Strip

from ddpviz.dashboard import cells as c, sync_draw as draw
from ddpviz.dashboard.draw import Piece, strip
from ddpviz.dashboard.drawn import Drawn
from ddpviz.dashboard.format import shorten
from ddpviz.dashboard.marks import M
from ddpviz.dashboard.messages import GoTo, Open
from ddpviz.dashboard.state import Cursor, module_of
from ddpviz.dashboard.themes import roles
from ddpviz.findings.model import Finding
from ddpviz.language import _
from ddpviz.timeline.model import Module, Timeline

LARGE = 6  # columns in sight where marks are large
ROOMY, NAME = 96, 12  # from this width on a module's name has so many cells before the ruler
MAP_EVERY = 0.5  # seconds between two looks at the whole run
ZOOMS = (
    (10, 1),
    (6, 1),
    (4, 1),
    (2, 1),
    (1, 1),
    *((1, 2**i) for i in range(1, 24)),
)  # (cells of a column, passes in it)


class _Grouped(NamedTuple):
    key: object
    groups: list[tuple[int, ...]]  # the ranks of each row
    hidden: int  # groups that have no row
    alike: list[tuple[int, ...]]  # ranks of which one stands for all
    labels: list[str]


class SyncTimeline(Drawn):
    DEFAULT_CSS = """
    SyncTimeline { width: 1fr; height: 1fr; }
    """
    can_focus = False

    def __init__(self, *, id: str | None = None, large: bool = False) -> None:
        super().__init__(id=id)
        self._large = large  # to be read from afar
        self._zoom = 1
        self._first: int | None = None  # first visible pass, where the wheel moved the view off the cursor
        self._shown_first = 0
        self._told: tuple[Timeline, Cursor, list[Finding]] | None = None
        self._key: object = None
        self._rows_at: list[tuple[int, ...] | None] = []  # per line: the ranks it shows
        self._gutter = 0
        self._map_line = -1
        self._map: tuple[float, object, Strip] | None = None
        self._total = 0
        self._by_host = False
        self._grouped: _Grouped | None = None  # as long as nothing new is known

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
        return (
            _("one cell = one backward pass")
            if factor == 1
            else _("one cell = {factor} backward passes", factor=factor)
        )

    def zoom(self, by: int) -> None:
        """One level in (+1) or out (-1)."""
        farthest = next((i for i, (p, f) in enumerate(ZOOMS) if self._fits(p, f)), len(ZOOMS) - 1)
        self._zoom = min(max(self._zoom - by, 0), max(farthest, self._zoom if by > 0 else 0))
        self._first = None
        self._rebuild()

    def by_host(self) -> str:
        """A row a host, or rows by what the ranks did again; says which."""
        if self._told is None or len(self._told[0].ranks) < 2:
            return ""
        if len(c.hosts_of(self._told[0], tuple(self._told[0].ranks))) < 2:
            self._by_host = False
            return _("all ranks run on one host")
        self._by_host = not self._by_host
        self._key = None
        self._rebuild()
        return _("a row a host") if self._by_host else _("a row a rank, or for all that did the same")

    def _scale(self) -> tuple[int, int]:
        """Cells of a column, and passes in it."""
        pitch, factor = ZOOMS[self._zoom]
        if self._large and factor == 1:
            pitch = max(pitch, min((self.size.width - self._gutter) // LARGE, 24))
        return pitch, factor

    def _fits(self, pitch: int, factor: int) -> bool:
        return -(-self._total // factor) * pitch <= max(self.size.width - self._gutter, 1)

    # -- drawing --------------------------------------------------------------------------------------------------

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
        meant = c.meant_local(module, findings)
        self._total = total = c.length(tl, module)
        groups, hidden, alike, labels = self._group(tl, module, cursor, meant, max(height - 2, 1))
        named = min(len(module.name), NAME) if width >= ROOMY else 0
        self._gutter = gutter = max([7, named, *map(len, labels)]) + 1

        pitch, factor = self._scale()
        room = max((width - gutter) // pitch, 1)
        first = self._place(cursor, total, factor, room)
        grid = c.grid(tl, module, groups, first=first, factor=factor, columns=room, meant=meant, same=not self._by_host)
        frame = draw.Frame(pitch, (cursor.index - first) // factor if cursor.index >= first else -1, ink)

        spare = height - 2 - len(groups) - (hidden > 0)
        want_steps = spare >= 1  # it has the NaN and the disagreement too
        want_map = -(-total // factor) > room and spare - want_steps >= 1 and not self._large
        thick, gap = _share(height - 2 - want_map - want_steps - (hidden > 0), len(groups), self._large)

        nonfinite = {
            index
            for finding in findings
            if finding.rule == "nonfinite-gradient" and finding.module in (module.id, None)
            for index in (finding.backwards or (-1 if finding.backward is None else finding.backward,))
        }

        lines: list[list[Piece]] = []
        where: list[tuple[int, ...] | None] = []

        def put(head: str, style: Style, pieces: list[Piece], ranks: tuple[int, ...] | None = None) -> None:
            lines.append([(head.ljust(gutter), style), *pieces])
            where.append(ranks)

        put(shorten(module.name, gutter - 1), ink["dim"], draw.ruler(grid, frame, total))
        for its, text in zip(grid.rows, labels, strict=True):
            name = ink["strong"] + draw.BOLD if cursor.rank in its.ranks else ink["text"]
            for line in range(thick):
                put(
                    text if line == 0 else "",
                    name,
                    draw.row(grid, its, frame, marks=line == 0 or self._large),
                    its.ranks,
                )
            for _rest in range(gap):
                put("", name, draw.between(grid, frame), its.ranks)
        if hidden:
            more = (
                _("{hidden} more hosts: z makes room, / filters ranks", hidden=hidden)
                if self._by_host
                else _("{hidden} more groups of ranks: z makes room, / filters", hidden=hidden)
            )
            put("", ink["dim"], [(more, ink["dim"])])
        if want_steps:
            put(_("step"), ink["dim"], draw.steps(grid, frame, nonfinite))
        while len(lines) < height - 1 - want_map:
            put("", ink["dim"], [])
        self._map_line = len(lines) if want_map else -1
        if want_map:
            put(_("run"), ink["dim"], self._minimap(tl, module, alike, grid, total, meant, ink))
        lines.append(draw.legend(grid, width, ink, [M.NONFINITE] if nonfinite and want_steps else []))
        self._rows_at = where
        fill = self.rich_style
        return [strip(pieces, width, fill) for pieces in lines[:height]]

    def _group(
        self, tl: Timeline, module: Module, cursor: Cursor, meant: bool, most: int
    ) -> tuple[list[tuple[int, ...]], int, list[tuple[int, ...]], list[str]]:
        """What has a row beside the ruler and the legend, and how it is called."""
        only = _filtered(module, cursor.filter)
        key = (id(tl), tl.version, module.id, meant, most, only, self._by_host)
        if self._grouped is None or self._grouped.key != key:
            kinds = c.alike(tl, module, meant=meant, only=only) if self._by_host else []
            rows = partial(c.by_host, tl, module, kinds) if self._by_host else partial(c.group, tl, module)
            groups, hidden = rows(meant=meant, most=most, only=only)
            if hidden:
                groups, hidden = rows(meant=meant, most=max(most - 1, 1), only=only)
            alike = kinds if self._by_host else groups
            told = self._by_host or any(len(ranks) > 1 for ranks in groups)
            told = told and len(c.hosts_of(tl, module.ranks)) > 1
            labels = [draw.label(g, c.hosts_of(tl, g) if told else (), by_host=self._by_host) for g in groups]
            self._grouped = _Grouped(key, groups, hidden, alike, labels)
        return self._grouped[1:]

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
        """The whole run, looked at anew twice a second, with the part in sight on a lighter ground."""
        width = min(max(self.size.width - self._gutter, 1), total)
        key = (module.id, width, tuple(groups), self.app.theme, meant)
        now = monotonic()
        if self._map is None or self._map[1] != key or now - self._map[0] > MAP_EVERY:
            run = c.whole(tl, module, groups, total=total, columns=width, meant=meant)
            self._map = (now, key, strip(draw.whole(run, ink), width, self.rich_style))
        line = self._map[2]
        lo = min(grid.first * width // max(total, 1), width - 1)
        hi = min(max(-(-(grid.first + grid.columns * grid.factor) * width // max(total, 1)), lo + 1), width)
        tint = Style(bgcolor=ink["cursor"].color)
        parts = ((line.crop(0, lo), Style()), (line.crop(lo, hi), tint), (line.crop(hi), Style()))
        return [(text, (style or Style()) + ground) for part, ground in parts for text, style, _rest in part]

    # -- the mouse ------------------------------------------------------------------------------------------------

    def on_click(self, event: events.Click) -> None:
        at = event.get_content_offset(self)
        if at is None or self._told is None or not self._total or self.text_selection is not None:
            return
        x = at.x - self._gutter
        if at.y == self._map_line and x >= 0:
            width = min(max(self.size.width - self._gutter, 1), self._total)
            self.post_message(GoTo(min(x * self._total // width, self._total - 1)))
            return
        ranks = self._rows_at[at.y] if at.y < len(self._rows_at) else None
        rank = ranks[0] if ranks else None
        if x < 0:
            if rank is not None:
                self.post_message(GoTo(self._told[1].index, rank=rank))
            return
        pitch, factor = self._scale()
        index = self._shown_first + x // pitch * factor
        if at.y < len(self._rows_at) - 1 and index < self._total:
            self.post_message(GoTo(index, rank=rank))
            if event.chain == 2:
                self.post_message(Open("backward"))

    def _scroll(self, columns: int) -> None:
        pitch, factor = self._scale()
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


def _share(lines: int, rows: int, large: bool = False) -> tuple[int, int]:
    """Thickness of a rank's row and the gap behind it, so that `rows` of them fill `lines` well."""
    per = max(lines // max(rows, 1), 1)
    if large and per > 2:
        return per - 1, 1
    return {1: (1, 0), 2: (1, 1), 3: (2, 1)}.get(per, (min(per - 1, 3), 1))


def _filtered(module: Module, text: str) -> tuple[int, ...] | None:
    """The ranks that a filter such as `3`, `0-7` or `rank 5` names; None where it names none."""
    wanted: set[int] = set()
    for part in text.lower().replace("ranks", " ").replace("rank", " ").replace(",", " ").split():
        low, dash, high = part.partition("-")
        if low.isdecimal() and (not dash or high.isdecimal()):
            wanted.update(rank for rank in module.ranks if int(low) <= rank <= int(high or low))
    return tuple(sorted(wanted)) or None
