"""Presenter's mode, to be read from the last row: a band that says what happens, large marks, one sentence."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.style import Style
from rich.text import Text
from textual.app import ComposeResult
from textual.containers import Container
from textual.widgets import Static

from ddpviz.dashboard.brief import clipped, story_text
from ddpviz.dashboard.draw import strip
from ddpviz.dashboard.drawn import Drawn
from ddpviz.dashboard.levels_view import LevelsView
from ddpviz.dashboard.marks import OF_GRADIENTS, OF_SYNC, M
from ddpviz.dashboard.moments import gather
from ddpviz.dashboard.narration import step_behind
from ddpviz.dashboard.situation import Situation, State
from ddpviz.dashboard.starting import starting_text
from ddpviz.dashboard.state import Cursor, module_of
from ddpviz.dashboard.sync import SyncTimeline
from ddpviz.dashboard.themes import roles
from ddpviz.language import N_, _
from ddpviz.timeline.model import Gradients, Sync, Timeline

if TYPE_CHECKING:
    from ddpviz.dashboard.feed import Snapshot
    from ddpviz.dashboard.levels import Levels

WORDS = {
    M.LOCAL: N_("local: nothing is sent"),
    M.SYNCED: N_("averaged on all ranks"),
    M.PARTIAL: N_("averaged in part"),
    M.MIXED: N_("the ranks disagree"),
    M.UNFINISHED: N_("never finished"),
    M.RUNNING: N_("backward"),
    M.WAITING: N_("waiting"),
    M.STEP: N_("step on the average"),
    M.WRONG_STEP: N_("step, never averaged"),
    M.STALE_STEP: N_("step, added to after"),
    M.SKIPPED: N_("step skipped"),
    M.ABSENT: N_("not run by all"),
}
ON_STAGE = {  # what the footer says there, most wanted first
    "tour(1)": N_("on"),
    "tour(-1)": N_("back"),
    "pause": N_("play"),
    "view('source')": N_("source"),
    "present": N_("leave"),
}
SENTENCES = 3  # lines of words at the bottom


def sign(tl: Timeline, cursor: Cursor, here: Situation, now: Levels | None) -> tuple[M, str]:
    """What the band shows: a mark, and the words beside it."""
    module = module_of(tl, cursor)
    at_the_end = module is None or cursor.index >= module.passes - 1
    if at_the_end and here.state is State.WAITING:
        return M.WAITING, _(WORDS[M.WAITING])
    if at_the_end and here.state in (State.FAILED, State.LOST) and not cursor.playing:
        return M.WRONG_STEP, "failed"
    if module is None or cursor.index < 0 or now is None:
        return M.WAITING, "starting"
    index = now.index if now.index >= 0 else cursor.index
    if now.moving:
        return M.RUNNING, _("all-reduce, bucket {moving}", moving=now.moving[0])
    step = step_behind(tl, module, index, cursor.time)
    if step is not None and all(level.empty for level in now.levels):
        return M.LOCAL, _("emptied: a new window")
    if step is not None:
        part = next((part for part in step.parts if part.module == module.id), None)
        mark = OF_GRADIENTS[part.gradients if part is not None else Gradients.NONE]
        return mark, _("step") if len(module.ranks) < 2 else _(WORDS[mark])
    made = gather(module, index)
    if made is not None and cursor.time < made.end and not now.done:
        return M.RUNNING, _(WORDS[M.RUNNING])
    mark = OF_SYNC[Sync(int(module.verdicts[index]))] if index < len(module.verdicts) else M.RUNNING
    return mark, _(WORDS.get(mark, mark.text))


class Band(Drawn):
    """The sign, in the colour of its state: three lines high, the words spaced out."""

    DEFAULT_CSS = "Band { height: 3; width: 1fr; }"
    ALLOW_SELECT = False

    def __init__(self) -> None:
        super().__init__()
        self._told: tuple[M, str, str] = (M.WAITING, "", "")

    def show(self, mark: M, words: str, number: str) -> None:
        self._told = (mark, words, number)
        self._rebuild()

    def _rebuild(self) -> None:
        width, height = self.size
        mark, words, number = self._told
        style = roles(self.app)[mark.role] + Style(reverse=True, bold=True)
        wide = "   ".join(" ".join(word) for word in words.upper().split())
        said = next((text for text in (wide, words.upper()) if len(text) + 2 * len(number) + 16 <= width), words)
        left = f" {mark.glyph * 3} {number} "
        middle = (left + said.center(max(width - 2 * len(left), 0))).ljust(width - 5) + f" {mark.glyph * 3} "
        edge = f" {mark.glyph * 3} ".ljust(max(width - 5, 0)) + f" {mark.glyph * 3} "
        rows = [edge] * ((height - 1) // 2) + [middle] + [edge] * (height // 2)
        lines = [strip([(row[:width], style)], width, self.rich_style + style) for row in rows]
        if lines != self._lines:
            self._lines = lines
            self.refresh()

    def on_resize(self) -> None:
        self._rebuild()

    def notify_style_update(self) -> None:
        super().notify_style_update()
        if self.is_mounted:
            self._rebuild()


class Stage(Container):
    """What is on the wall. Told as the overview is."""

    DEFAULT_CSS = """
    Stage { layout: vertical; width: 1fr; height: 1fr; background: $background; }
    Stage SyncTimeline { margin: 1 1 0 1; }
    Stage LevelsView { margin: 1 1 0 1; }
    Stage #words { margin: 1 2 0 2; height: 3; text-style: bold; }
    Stage #stage-start { margin: 1 2; height: 1fr; display: none; }
    Stage.-short LevelsView { margin: 0 1; }
    Stage.-short #words { margin: 0 2; }
    Stage.-starting SyncTimeline, Stage.-starting LevelsView, Stage.-starting #words { display: none; }
    Stage.-starting #stage-start { display: block; }
    """

    def __init__(self, *, id: str) -> None:
        super().__init__(id=id)
        self.band, self.sync, self.levels = Band(), SyncTimeline(large=True), LevelsView()
        self._words, self._start = Static(id="words"), Static(id="stage-start")
        self._told: tuple[Snapshot, Cursor, Situation] | None = None

    def compose(self) -> ComposeResult:
        yield self.band
        yield self.sync
        yield self.levels
        yield self._words
        yield self._start

    def tell(self, snap: Snapshot, cursor: Cursor, here: Situation, _trends: str) -> None:
        """Draw a snapshot at a cursor."""
        self._told = (snap, cursor, here)
        if not self.is_mounted or not self.size.area:
            return
        tl, ink = snap.tl, roles(self.app)
        module = module_of(tl, cursor)
        starting = module is None or module.passes == 0
        self.set_class(starting, "-starting")
        if starting or module is None:
            self.band.show(*sign(tl, cursor, here, None), "")
            self._start.update(starting_text(snap, here, ink, height=self.size.height - 6)[2])
            return
        self.band.styles.height = band = 5 if self.size.height >= 36 else 3
        short = self.size.height < 27
        self.set_class(short, "-short")
        left = self.size.height - band - SENTENCES - (1 if short else 3)  # blank lines between
        self.sync.styles.height = rows = max(min(len(module.ranks) * 6 + 3, left * 13 // 20), 5)
        self.levels.styles.height = max(left - rows, 3)
        self.sync.show(tl, cursor, snap.findings)
        self.levels.show(tl, cursor, snap.findings)
        now = self.levels.now
        index = now.index if now is not None and now.index >= 0 else cursor.index  # live, what is drawn runs after
        self.band.show(*sign(tl, cursor, here, now), f"{index}" if index >= 0 else "")
        width = self.size.width - 4
        _rest, role, text = story_text(
            snap, cursor, here, ink, with_findings=False, lines=SENTENCES, width=width, now=self.levels.now
        )
        self._words.update(clipped(text, SENTENCES, width, Text("…", ink[role or "dim"])))

    def on_resize(self) -> None:
        if self._told is not None:
            self.call_after_refresh(self.tell, *self._told, "")
