"""A titled frame round what is drawn."""

from __future__ import annotations

from textual.containers import Vertical
from textual.widget import Widget


class Panel(Vertical):
    """A titled frame."""

    DEFAULT_CSS = """
    Panel {
        border: round $border;
        border-title-color: $strong;
        border-title-style: bold;
        border-subtitle-color: $dim;
        padding: 0 1;
        background: $background;
    }
    Panel.-wrong { border: round $wrong; border-title-color: $wrong; }
    Panel.-waiting { border: round $waiting; border-title-color: $waiting; }
    """

    def __init__(self, title: str, *children: Widget, id: str) -> None:
        super().__init__(*children, id=id)
        self.border_title = title
