"""The colour of each role on dark, light and 16-colour backgrounds, and of each rank in a chart. Pure data.

Okabe and Ito's colours, which colour-blind people tell apart, with a brighter or darker shade of each where the
background needs it. Themes and widgets both take them from here; shapes (marks.py) carry the meaning without them.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from rich.style import Style as RichStyle
from textual.style import Style

if TYPE_CHECKING:
    from textual.app import App

_SKY = ("#56b4e9", "#0072b2", "ansi_bright_cyan")
_GREEN = ("#1fc796", "#00795a", "ansi_green")
_ORANGE = ("#e69f00", "#9a6400", "ansi_yellow")
_YELLOW = ("#f0e442", "#7a6f00", "ansi_bright_yellow")
_VERMILION = ("#ff6e3a", "#b83c00", "ansi_bright_red")
_PURPLE = ("#cc79a7", "#93407a", "ansi_magenta")
_GREY = ("#8a8f98", "#666b73", "ansi_bright_black")

ROLES: dict[str, tuple[str, str, str]] = {  # dark, light, 16 colours
    "local": _SKY,
    "synced": _GREEN,
    "running": _ORANGE,
    "waiting": _ORANGE,
    "step": _YELLOW,
    "wrong": _VERMILION,
    "partial": _PURPLE,
    "dim": _GREY,
}
# A rank in a chart: colour and shape, both repeating at different lengths, so that neighbours differ in both.
_RANK_COLOURS = (_SKY, _ORANGE, _GREEN, _PURPLE, _YELLOW)
RANK_SHAPES = ("●", "◆", "■", "▲", "○", "◇", "□", "△")

_KINDS = ("dark", "light", "ansi")


@dataclass(frozen=True, slots=True)
class Ink:
    """The colours that suit the background in force."""

    kind: str = "dark"  # "dark" | "light" | "ansi"

    def colour(self, role: str) -> str:
        """The role's colour as Textual names it: `#rrggbb`, or `ansi_...` on a 16-colour theme."""
        return ROLES[role][_KINDS.index(self.kind)]

    def rank(self, rank: int) -> str:
        """The colour of a rank's line."""
        return _RANK_COLOURS[rank % len(_RANK_COLOURS)][_KINDS.index(self.kind)]

    def style(self, role: str, *, bold: bool | None = None, reverse: bool | None = None) -> Style:
        """A role's style for Textual's Content."""
        return Style.parse(self.colour(role)) + Style(bold=bold, reverse=reverse)

    def rich(self, role: str, *, bold: bool | None = None, reverse: bool | None = None) -> RichStyle:
        """A role's style for the segments of a Strip."""
        return _rich(self.colour(role), bold, reverse)

    def rank_style(self, rank: int) -> Style:
        return Style.parse(self.rank(rank))


@lru_cache(maxsize=256)
def _rich(colour: str, bold: bool | None, reverse: bool | None) -> RichStyle:
    return RichStyle(color=colour.removeprefix("ansi_"), bold=bold, reverse=reverse)


def ink(app: App[Any]) -> Ink:
    """The ink for the app's current theme."""
    theme = app.current_theme
    if theme.ansi:
        return Ink("ansi")
    return Ink("dark" if theme.dark else "light")
