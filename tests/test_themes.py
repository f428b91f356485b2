"""Colours: every role stands out from the grounds it is drawn on, in every theme with colours of its own."""

from __future__ import annotations

import pytest
from textual.color import Color
from textual.theme import Theme

from ddpviz.dashboard.marks import M
from ddpviz.dashboard.themes import ROLES, THEMES

COLOURED = [theme for theme in THEMES if not theme.ansi]  # the others take the terminal's
STATES = sorted({mark.role for mark in M} - {"dim"})


def luminance(colour: Color) -> float:
    """WCAG 2.2, relative luminance."""
    parts = [c / 255 for c in colour.rgb]
    r, g, b = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts)
    return 0.2126 * r + 0.7152 * g + 0.0722 * b


def contrast(one: str, other: str) -> float:
    low, high = sorted((luminance(Color.parse(one)), luminance(Color.parse(other))))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("theme", COLOURED, ids=lambda theme: theme.name)
def test_every_state_stands_out_from_its_ground(theme: Theme) -> None:
    grounds = [theme.background, theme.surface, theme.panel, theme.variables["cursor"]]
    for ground in grounds:
        assert ground is not None
        for role in STATES:  # graphical objects: 3 to 1
            assert contrast(theme.variables[role], ground) >= 3, (role, ground)
        for role in ("text", "strong"):  # body text: 4.5 to 1
            assert contrast(theme.variables[role], ground) >= 4.5, (role, ground)
    for ground in grounds[:3]:
        assert contrast(theme.variables["dim"], str(ground)) >= 3
        assert contrast(theme.variables["track"], str(ground)) < 3  # what is empty stands back


@pytest.mark.parametrize("theme", COLOURED, ids=lambda theme: theme.name)
def test_states_differ_in_colour_where_they_differ_in_meaning(theme: Theme) -> None:
    assert set(ROLES) <= set(theme.variables)
    shown = [theme.variables[role].lower() for role in STATES if role != "waiting"]  # running and waiting are one
    assert len(set(shown)) == len(shown)
