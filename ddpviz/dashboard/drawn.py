"""A widget of lines that are drawn beforehand, kept as Strips; text in it can be selected with the mouse and copied."""

from __future__ import annotations

from typing import ClassVar

from rich.segment import Segment
from rich.style import Style
from textual.geometry import Region
from textual.selection import Selection
from textual.strip import Strip
from textual.widget import Widget


class Drawn(Widget):
    """Draws `_lines`. A subclass fills them, and refreshes what has changed."""

    ALLOW_SELECT: ClassVar[bool] = True

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._lines: list[Strip] = []
        self._painting = False

    def render_lines(self, crop: Region) -> list[Strip]:
        self._painting = True
        try:
            return super().render_lines(crop)
        finally:
            self._painting = False

    def render_line(self, y: int) -> Strip:
        if not 0 <= y < len(self._lines):
            return Strip.blank(self.size.width, self.rich_style)
        line = self._lines[y]
        selection = self.text_selection
        if selection is not None and (span := selection.get_span(y)) is not None:
            line = highlighted(line, span, self.screen.get_component_rich_style("screen--selection"))
        # Where each character is concerns the mouse alone, which asks for a line by itself. After the cutting: a part
        # of a segment has an offset of its own.
        return line if self._painting else line.apply_offsets(0, y)

    def get_selection(self, selection: Selection) -> tuple[str, str] | None:
        return selection.extract("\n".join(line.text.rstrip() for line in self._lines)), "\n"

    def selection_updated(self, selection: Selection | None) -> None:
        self.refresh()


def highlighted(line: Strip, span: tuple[int, int], marked: Style) -> Strip:
    """The line with the cells of `span` (its end -1: to the last) on the ground of a selection."""
    start, end = span
    length = line.cell_length
    start, end = min(start, length), length if end == -1 else min(end, length)
    if start >= end:
        return line
    before, chosen, after = line.crop(0, start), line.crop(start, end), line.crop(end)
    return Strip.join([before, Strip([Segment(s.text, (s.style or Style()) + marked) for s in chosen]), after])
