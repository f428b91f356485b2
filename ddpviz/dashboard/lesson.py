"""A lesson on the screen: what to look at before anything moves, what was seen at the end, and both in one panel."""

from __future__ import annotations

from typing import ClassVar

from rich.style import Style
from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import Static

from ddpviz.dashboard.feed import Feed
from ddpviz.dashboard.themes import roles
from ddpviz.language import _
from ddpviz.lessons import Lesson, lesson, told
from ddpviz.timeline.model import Timeline


def lesson_of(tl: Timeline) -> Lesson | None:
    """The lesson that this is a run of."""
    return lesson(tl.run.lesson)


def look_text(one: Lesson, ink: dict[str, Style]) -> Text:
    """Its title, and what to look at."""
    text = Text()
    text.append(one.title + "\n", ink["strong"] + Style(bold=True))
    for sentence in one.look:
        text.append("› ", ink["local"])
        text.append(sentence + "\n", ink["text"])
    return text


def seen_text(one: Lesson, tl: Timeline, ink: dict[str, Style], *, lines: int = 1000, width: int = 76) -> Text:
    """What was seen, in numbers of this run: as many sentences as there are lines for."""
    text = Text()
    for sentence in told(one, tl):
        needed = -(-(len(sentence) + 4) // max(width, 1))
        if lines < needed and text:
            break
        lines -= needed
        text.append("› ", ink["local"])
        text.append(sentence + "\n", ink["text"])
    text.rstrip()
    return text


class LessonScreen(ModalScreen[None]):
    """The lesson so far, over the dashboard; it goes on being told while the job runs."""

    DEFAULT_CSS = """
    LessonScreen { align: center middle; background: $background 60%; }
    LessonScreen:ansi { background: ansi_default; }
    LessonScreen > VerticalScroll {
        width: 76; max-width: 100%; height: auto; max-height: 92%;
        border: round $local; background: $panel; padding: 1 2;
        border-title-color: $strong; border-title-style: bold;
        scrollbar-size-vertical: 1; scrollbar-background: $panel; scrollbar-color: $border;
    }
    LessonScreen Static { height: auto; width: 1fr; background: $panel; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,l,q,enter", "dismiss(None)", show=False)]

    def __init__(self, one: Lesson, feed: Feed) -> None:
        super().__init__()
        self._lesson, self._feed = one, feed
        self._shown, self._text = Static(), Text()

    def compose(self) -> ComposeResult:
        box = VerticalScroll(self._shown)
        box.border_title = _("The lesson")
        box.border_subtitle = _("Esc closes")
        yield box

    def on_mount(self) -> None:
        self._tell()
        self.set_interval(1, self._tell)

    def _tell(self) -> None:
        snap = self._feed.latest
        if snap is None:
            return
        with self._feed.lock:
            text = self._told(snap.tl)
        if text != self._text:
            self._text = text
            self._shown.update(text)

    def _told(self, tl: Timeline) -> Text:
        ink = roles(self.app)
        text = look_text(self._lesson, ink)
        seen = seen_text(self._lesson, tl, ink)
        over = tl.run.status not in ("starting", "running")
        if seen.plain:
            text.append("\n" + (_("What was seen") if over else _("What was seen so far")) + "\n", ink["strong"])
            text.append_text(seen)
        if self._lesson.other:
            text.append(_("\n\nv in the list of demos runs it beside: ") + self._lesson.other_label, ink["dim"])
        return text
