"""`ddpviz quiz`: questions on recorded lessons, answered on their timelines. A small app of one screen."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

from rich.style import Style
from rich.text import Text
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.widgets import Static

from ddpviz import quiz
from ddpviz.dashboard import playback as play
from ddpviz.dashboard.marks import M
from ddpviz.dashboard.messages import GoTo, Open
from ddpviz.dashboard.panel import Panel
from ddpviz.dashboard.settings import Settings
from ddpviz.dashboard.state import Cursor, module_of
from ddpviz.dashboard.sync import SyncTimeline
from ddpviz.dashboard.themes import THEMES, roles
from ddpviz.export.load import load
from ddpviz.language import _, ngettext
from ddpviz.timeline.model import Timeline


class Quiz(App[int]):
    TITLE = "ddpviz quiz"
    ENABLE_COMMAND_PALETTE = False
    CSS = """
    Screen { layout: vertical; background: $background; }
    #sync-panel { height: 9; }
    #question-panel { height: 1fr; }
    #question { height: auto; width: 1fr; background: $background; }
    #keys { height: 1; background: $panel; padding: 0 1; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("left", "step(-1)", show=False),
        Binding("right", "step(1)", show=False),
        Binding("up", "choose(-1)", show=False),
        Binding("down", "choose(1)", show=False),
        *(Binding(str(number), f"answer({number - 1})", show=False) for number in range(1, 5)),
        Binding("enter,space,pagedown", "enter", show=False, priority=True),
        Binding("q,escape", "leave", show=False),
    ]

    def __init__(self, settings: Settings | None = None) -> None:
        super().__init__()
        settings = settings if settings is not None else Settings.load()
        for theme in THEMES:
            self.register_theme(theme)
        self.theme = settings.theme if settings.theme in {theme.name for theme in THEMES} else "ddpviz-dark"
        self.questions = quiz.questions()
        self.number, self.correct, self.chosen = 0, 0, 0
        self.given: bool | None = None  # whether the answer was right, once there is one
        self.tl = Timeline()
        self.cursor = Cursor()
        self._sync = SyncTimeline(id="sync")
        self._text = Static(id="question")

    def compose(self) -> ComposeResult:
        yield Panel("", self._sync, id="sync-panel")
        yield Panel(_("Question"), VerticalScroll(self._text, can_focus=False), id="question-panel")
        yield Static(id="keys")

    def on_mount(self) -> None:
        self._open()

    @property
    def question(self) -> quiz.Question | None:
        return self.questions[self.number] if self.number < len(self.questions) else None

    def _open(self) -> None:
        """The recording of the question at hand."""
        self.given, self.chosen = None, 0
        if self.question is not None:
            self.tl = load(Path(quiz.RUNS) / self.question.run)
            self.cursor = play.goto(self.tl, Cursor(), 0)
        self._draw()

    def _draw(self) -> None:
        ink, bold, text = roles(self.app), Style(bold=True), Text()
        one = self.question
        panel = self.query_one("#sync-panel", Panel)
        panel.display = one is not None
        if one is None:
            text.append(
                ngettext(
                    "{right} of {n} answer was right.",
                    "{right} of {n} answers were right.",
                    len(self.questions),
                    right=self.correct,
                ),
                ink["strong"] + bold,
            )
            text.append("\n\n" + _("The lessons show the rest: ddpviz demo."), ink["text"])
            self._show(text, _("q quit"))
            return
        panel.border_title = one.run
        panel.border_subtitle = self._sync.subtitle()
        self._sync.show(self.tl, self.cursor, [])
        self.query_one("#question-panel").border_title = _(
            "Question {number} of {count}", number=self.number + 1, count=len(self.questions)
        )
        text.append(one.ask + "\n\n", ink["strong"] + bold)
        for number, choice in enumerate(one.choices):
            here = number == self.chosen
            known = self.given is not None and number == one.right
            text.append(f"{'▌' if here else ' '} {number + 1}  ", ink["local"] + bold)
            text.append(choice + "\n", ink["synced"] + bold if known else ink["strong"] if here else ink["text"])
        if self.given is None:
            pointing = _("←→ or the mouse point, Enter answers, q quits")
            self._show(text, _("↑↓ or 1-4 choose, Enter answers, q quits") if one.choices else pointing)
            return
        said = _("{glyph} Right.", glyph=M.GOOD.glyph) if self.given else _("{glyph} No.", glyph=M.WRONG_STEP.glyph)
        text.append(("\n" if one.choices else "") + said + " ", ink["synced" if self.given else "wrong"] + bold)
        text.append(one.why, ink["text"])
        self._show(text, _("Enter: on, q quits"))

    def _show(self, text: Text, keys: str) -> None:
        self._text.update(text)
        self.query_one("#keys", Static).update(keys)

    # -- answering --------------------------------------------------------------------------------------------------

    def action_step(self, by: int) -> None:
        if self.question is not None:
            self.cursor = play.step(self.tl, self.cursor, by)
            self._draw()

    def action_choose(self, by: int) -> None:
        if self.question is not None and self.question.choices and self.given is None:
            self.chosen = (self.chosen + by) % len(self.question.choices)
            self._draw()

    def action_answer(self, number: int) -> None:
        one = self.question
        if one is not None and number < len(one.choices) and self.given is None:
            self.chosen = number
            self._judge(number == one.right)

    def action_enter(self) -> None:
        one = self.question
        if one is None:
            return
        if self.given is not None:
            self.number += 1
            self._open()
        elif one.choices:
            self.action_answer(self.chosen)
        else:
            self._judge(one.fits(self.tl, self.cursor.index))

    def _judge(self, right: bool) -> None:
        self.given = right
        self.correct += right
        self._draw()

    def on_go_to(self, message: GoTo) -> None:
        """A click on a cell points, and where a pass is asked for it answers."""
        if self.question is None or message.index < 0 or module_of(self.tl, self.cursor) is None:
            return
        self.cursor = play.goto(self.tl, self.cursor, message.index)
        if self.given is None and not self.question.choices:
            self._judge(self.question.fits(self.tl, self.cursor.index))
        else:
            self._draw()

    def on_open(self, message: Open) -> None:
        message.stop()

    def action_leave(self) -> None:
        self.exit(0)
