"""Themes, and the colour roles that every widget draws with. Colours are Okabe-Ito: told apart by colour-blind eyes.

In CSS a role is `$local`, `$synced`, `$running`, `$waiting`, `$partial`, `$step`, `$wrong`, `$dim`, `$track`,
`$cursor`, `$text`, `$strong`. Line API widgets take `roles(self.app)`, a Rich style for each of them, and clear what
they cached when the theme changes (`self.app.theme` is a good part of a cache's key).
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any

from rich.style import Style
from textual.color import Color
from textual.theme import BUILTIN_THEMES, Theme

if TYPE_CHECKING:
    from textual.app import App

DARK = {
    "local": "#56B4E9",  # sky blue
    "synced": "#12B886",  # bluish green, lifted for a dark ground
    "running": "#E69F00",  # orange
    "waiting": "#E69F00",
    "partial": "#D58DB8",  # reddish purple, lifted
    "step": "#F0E442",  # yellow
    "wrong": "#FF6B35",  # vermilion, lifted likewise
    "dim": "#6B7785",
    "track": "#27313B",  # the empty part of a bar, window rulers
    "cursor": "#33414F",  # ground of the selected column
    "text": "#D8DEE4",
    "strong": "#FFFFFF",
}
LIGHT = {
    "local": "#0072B2",  # blue: sky blue is too pale on white
    "synced": "#00805C",
    "running": "#B26F00",
    "waiting": "#B26F00",
    "partial": "#93407A",
    "step": "#8A7500",
    "wrong": "#C73E00",
    "dim": "#7C8792",
    "track": "#DDE3E8",
    "cursor": "#CFE3F2",
    "text": "#1F2933",
    "strong": "#000000",
}
ANSI = {
    "local": "ansi_bright_cyan",
    "synced": "ansi_green",
    "running": "ansi_yellow",
    "waiting": "ansi_yellow",
    "partial": "ansi_magenta",
    "step": "ansi_bright_yellow",
    "wrong": "ansi_bright_red",
    "dim": "ansi_bright_black",
    "track": "ansi_bright_black",
    "cursor": "ansi_bright_black",
    "text": "ansi_default",
    "strong": "ansi_bright_white",
}
ANSI_LIGHT = {
    **ANSI,
    "local": "ansi_blue",
    "step": "ansi_magenta",
    "wrong": "ansi_red",
    "cursor": "ansi_white",
    "track": "ansi_white",
    "strong": "ansi_black",
}
ROLES = tuple(DARK)

THEMES = (
    Theme(
        name="ddpviz-dark",
        primary="#56B4E9",
        secondary="#12B886",
        warning="#E69F00",
        error="#FF6B35",
        success="#12B886",
        accent="#56B4E9",
        foreground="#D8DEE4",
        background="#0F1419",
        surface="#141B22",
        panel="#1B242D",
        dark=True,
        variables={**DARK, "border": "#33414F", "border-blurred": "#27313B", "footer-key-foreground": "#56B4E9"},
    ),
    Theme(
        name="ddpviz-light",
        primary="#0072B2",
        secondary="#00805C",
        warning="#B26F00",
        error="#C73E00",
        success="#00805C",
        accent="#0072B2",
        foreground="#1F2933",
        background="#FBFCFD",
        surface="#F3F6F8",
        panel="#E7ECF0",
        dark=False,
        variables={**LIGHT, "border": "#B8C4CE", "border-blurred": "#D5DDE4", "footer-key-foreground": "#0072B2"},
    ),
    Theme(
        name="ddpviz-contrast",
        primary="#7FD0FF",
        secondary="#2EE6A8",
        warning="#FFB000",
        error="#FF7A45",
        success="#2EE6A8",
        accent="#7FD0FF",
        foreground="#FFFFFF",
        background="#000000",
        surface="#000000",
        panel="#101010",
        dark=True,
        variables={
            "local": "#7FD0FF",
            "synced": "#2EE6A8",
            "running": "#FFB000",
            "waiting": "#FFB000",
            "partial": "#F0A8D0",
            "step": "#FFF04D",
            "wrong": "#FF7A45",
            "dim": "#A8B0B8",
            "track": "#3A3A3A",
            "cursor": "#404040",
            "text": "#FFFFFF",
            "strong": "#FFFFFF",
            "border": "#8A8A8A",
            "border-blurred": "#6A6A6A",
        },
    ),
    Theme(
        name="ddpviz-ansi",  # 16 colours, on the terminal's own ground
        ansi=True,
        primary="ansi_cyan",
        secondary="ansi_green",
        warning="ansi_yellow",
        error="ansi_red",
        success="ansi_green",
        accent="ansi_cyan",
        foreground="ansi_default",
        background="ansi_default",
        surface="ansi_default",
        panel="ansi_default",
        boost="ansi_default",
        dark=True,
        variables={
            **BUILTIN_THEMES["ansi-dark"].variables,
            **ANSI,
            "border": "ansi_bright_black",
            "border-blurred": "ansi_bright_black",
        },
    ),
    Theme(
        name="ddpviz-ansi-light",
        ansi=True,
        primary="ansi_blue",
        secondary="ansi_green",
        warning="ansi_yellow",
        error="ansi_red",
        success="ansi_green",
        accent="ansi_blue",
        foreground="ansi_default",
        background="ansi_default",
        surface="ansi_default",
        panel="ansi_default",
        boost="ansi_default",
        dark=False,
        variables={
            **BUILTIN_THEMES["ansi-light"].variables,
            **ANSI_LIGHT,
            "border": "ansi_white",
            "border-blurred": "ansi_white",
        },
    ),
)


def defaults(dark: bool) -> dict[str, str]:
    """The roles' colours under a theme that is not ours."""
    return DARK if dark else LIGHT


def roles(app: App[Any]) -> dict[str, Style]:
    """A foreground style for every role, under the theme in force."""
    variables = app.theme_variables
    return _styles(tuple(variables[role] for role in ROLES))


@lru_cache(maxsize=16)
def _styles(colours: tuple[str, ...]) -> dict[str, Style]:
    return {role: Style(color=Color.parse(colour).rich_color) for role, colour in zip(ROLES, colours, strict=True)}
