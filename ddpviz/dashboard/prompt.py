"""The two small screens over the dashboard: a line to type in (filter, step number), and the help."""

from __future__ import annotations

import textwrap
from itertools import groupby
from typing import ClassVar

from rich.style import Style
from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical, VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import Input, Static

from ddpviz.dashboard.keys import Key
from ddpviz.dashboard.marks import M
from ddpviz.dashboard.settings import place
from ddpviz.dashboard.themes import roles
from ddpviz.language import N_, _

MARKS = (
    M.LOCAL, M.SYNCED, M.RUNNING, M.WAITING, M.STEP, M.WRONG_STEP, M.STALE_STEP, M.LOCAL_STEP, M.SKIPPED,
    M.PARTIAL, M.MIXED, M.UNFINISHED, M.ABSENT, M.DEAD, M.NONFINITE,
)  # fmt: skip
MOUSE = (
    (N_("click"), N_("Puts the cursor on a cell; twice opens its pass.")),
    (N_("wheel"), N_("Scrolls the timeline; with ctrl it zooms.")),
)
WORDS = (
    (N_("micro-step"), N_("one backward pass of a DDP module, counted from 0")),
    (N_("window"), N_("the micro-steps between two clearings of the gradients (zero_grad)")),
    (N_("level"), N_("the L2 norm of the gradients a rank has accumulated, summed over its layers")),
    (N_("bucket"), N_("some layers' gradients that are all-reduced together")),
    (N_("replicas"), N_("the ranks' copies of the model; after a right step they are equal, bit for bit")),
)


class Prompt(ModalScreen[str | None]):
    """One line of text; Enter takes it, Esc leaves everything as it was (None)."""

    DEFAULT_CSS = """
    Prompt { align: center bottom; background: transparent; }
    Prompt > Vertical { height: 3; width: 100%; border: round $local; background: $panel; padding: 0 1; }
    Prompt Input, Prompt Input:focus { border: none; height: 1; padding: 0; background: $panel; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "dismiss(None)", show=False)]

    def __init__(self, title: str, value: str, hint: str) -> None:
        super().__init__()
        self._title, self._value, self._hint = title, value, hint

    def compose(self) -> ComposeResult:
        box = Vertical(Input(self._value, placeholder=self._hint))
        box.border_title = self._title
        box.border_subtitle = _("Enter takes it, Esc leaves it")
        yield box

    def on_input_submitted(self, event: Input.Submitted) -> None:
        self.dismiss(event.value.strip())


def help_text(ink: dict[str, Style], its: tuple[Key, ...], width: int) -> Text:
    """The keys by topic, the marks, and the words: from the tables that bind and draw them."""
    text, bold = Text(), Style(bold=True)

    def row(what: str, style: Style, meaning: str, column: int = 11) -> None:
        text.append(f"  {what}".ljust(column), style)
        rest = textwrap.wrap(meaning, max(width - column, 20))
        text.append(f"\n{' ' * column}".join(rest) + "\n", ink["text"])

    def head(topic: str) -> None:
        text.append(("\n" if text else "") + f"{_(topic)}\n", ink["local"] + bold)

    for topic, keys in groupby(its, key=lambda key: key.topic):
        head(topic)
        for key in keys:
            row(key.shown, ink["strong"] + bold, _(key.help))
    head(N_("Mouse"))
    for what, meaning in MOUSE:
        row(_(what), ink["strong"] + bold, _(meaning))
    head(N_("Marks"))
    for mark in MARKS:
        row(mark.glyph, ink[mark.role] + bold, mark.meaning)
    head(N_("Words"))
    for word, meaning in WORDS:
        row(_(word), ink["strong"] + bold, _(meaning), 16)
    head(N_("Settings"))
    row(
        _("file"),
        ink["strong"] + bold,
        _("{place}: theme, speed, motion, language, keys (see the README)", place=place()),
    )
    return text


class Help(ModalScreen[None]):
    DEFAULT_CSS = """
    Help { align: center middle; background: $background 60%; }
    Help:ansi { background: ansi_default; }
    Help > VerticalScroll {
        width: 76; max-width: 100%; height: auto; max-height: 92%;
        border: round $local; background: $panel; padding: 1 2;
        border-title-color: $strong; border-title-style: bold;
        scrollbar-size-vertical: 1; scrollbar-background: $panel; scrollbar-color: $border;
    }
    Help Static { height: auto; width: 1fr; background: $panel; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,question_mark,f1,q", "dismiss(None)", show=False)]

    def __init__(self, keys: tuple[Key, ...]) -> None:
        super().__init__()
        self._its = keys

    def compose(self) -> ComposeResult:
        box = VerticalScroll(Static(help_text(roles(self.app), self._its, min(self.app.size.width, 76) - 8)))
        box.border_title = _("Help")
        box.border_subtitle = _("Esc closes")
        yield box
