"""The tabs at the top and the keys at the bottom. Both fit themselves to the width, and both can be clicked."""

from __future__ import annotations

from collections.abc import Iterable

from rich.cells import cell_len
from rich.style import Style
from textual import events
from textual.strip import Strip
from textual.widget import Widget

from ddpviz.dashboard.draw import Piece, strip
from ddpviz.dashboard.keys import KEYS, VIEW_NAMES, VIEWS, Key
from ddpviz.dashboard.messages import Open
from ddpviz.dashboard.themes import roles
from ddpviz.language import _


class _Bar(Widget):
    """One line whose parts answer to a click."""

    ALLOW_SELECT = False

    def __init__(self) -> None:
        super().__init__()
        self._line: Strip | None = None
        self._spots: list[tuple[int, int, str]] = []  # from, to, what is clicked

    def _draw(self, width: int) -> tuple[list[Piece], list[tuple[int, int, str]]]:
        raise NotImplementedError

    def update(self) -> None:
        if not self.size.width:
            return
        pieces, self._spots = self._draw(self.size.width)
        line = strip(pieces, self.size.width, self.rich_style)
        if line != self._line:
            self._line = line
            self.refresh()

    def on_resize(self) -> None:
        self.update()

    def notify_style_update(self) -> None:
        super().notify_style_update()
        if self.is_mounted:
            self.update()

    def render_line(self, y: int) -> Strip:
        return self._line if self._line is not None and y == 0 else Strip.blank(self.size.width, self.rich_style)

    def _clicked(self, event: events.Click) -> str | None:
        return next((what for start, stop, what in self._spots if start <= event.x < stop), None)


class Tabs(_Bar):
    DEFAULT_CSS = """
    Tabs { height: 1; background: $background; }
    """

    def __init__(self) -> None:
        super().__init__()
        self._active = VIEWS[0]
        self._badge = ""
        self._badge_role = "dim"

    def show(self, active: str, badge: str, badge_role: str) -> None:
        """`badge` is what stands behind Findings: how many, and of which kind."""
        if (active, badge, badge_role) != (self._active, self._badge, self._badge_role) or self._line is None:
            self._active, self._badge, self._badge_role = active, badge, badge_role
            self.update()

    def _draw(self, width: int) -> tuple[list[Piece], list[tuple[int, int, str]]]:
        ink = roles(self.app)
        for gap, short in ((" ", False), ("", False), (" ", True), ("", True)):
            pieces: list[Piece] = [(" ", ink["dim"])]
            spots: list[tuple[int, int, str]] = []
            at = 1
            for number, view in enumerate(VIEWS, start=1):
                here = view == self._active
                name = _(VIEW_NAMES[view]) if not short or here else _(VIEW_NAMES[view])[:4].rstrip()
                badge = f" {self._badge}" if view == "findings" and self._badge else ""
                mine: list[Piece]
                if here:
                    mine = [(f" {number} {name}{badge} ", ink["local"] + Style(bold=True, reverse=True))]
                else:
                    mine = [(f" {number}", ink["local"]), (f" {name}", ink["text"])]
                    mine += [(badge, ink[self._badge_role] + Style(bold=True)), (gap, ink["dim"])]
                length = sum(cell_len(text) for text, _ in mine)
                spots.append((at, at + length, view))
                at += length
                pieces += mine
            if at <= width:
                break
        return pieces, spots

    def on_click(self, event: events.Click) -> None:
        view = self._clicked(event)
        if view is not None:
            self.post_message(Open(view))


class Footer(_Bar):
    DEFAULT_CSS = """
    Footer { height: 1; background: $panel; }
    """

    def __init__(self) -> None:
        super().__init__()
        self._keys: tuple[Key, ...] = ()
        self._note = ""

    def show(self, keys: Iterable[Key], note: str) -> None:
        """The keys that work here, most wanted first, and a remark at the right (the speed, the filter)."""
        shown = tuple(keys)
        if (shown, note) != (self._keys, self._note) or self._line is None:
            self._keys, self._note = shown, note
            self.update()

    def _draw(self, width: int) -> tuple[list[Piece], list[tuple[int, int, str]]]:
        ink = roles(self.app)
        room, kept = width - cell_len(self._note) - 2, []
        for key in sorted(self._keys, key=lambda key: key.rank):
            length = _length(key)
            if length <= room:
                room -= length
                kept.append(key)
        kept.sort(key=lambda key: (key.rank < 0, key.rank))  # help and quit keep their place at the end
        pieces: list[Piece] = [(" ", ink["dim"])]
        spots: list[tuple[int, int, str]] = []
        at = 1
        for key in kept:
            length = _length(key)
            pieces += [(key.pair or key.shown, ink["local"] + Style(bold=True)), (f" {_(key.label)}  ", ink["text"])]
            spots.append((at, at + length, key.action))
            at += length
        pieces += [(" " * max(width - at - cell_len(self._note) - 1, 0), ink["dim"]), (self._note, ink["dim"])]
        return pieces, spots

    async def on_click(self, event: events.Click) -> None:
        action = self._clicked(event)
        if action is not None:
            await self.app.run_action(action)


def _length(key: Key) -> int:
    return cell_len(key.pair or key.shown) + 1 + cell_len(_(key.label)) + 2


def footer_keys(keys: Iterable[Key] = KEYS) -> list[Key]:
    """The keys with a label."""
    return [key for key in keys if key.label]
