"""The overview: Sync timeline, Levels, Norms where there is room, what just happened, findings; and the start.

How the panels share the screen is `plan`, a pure function of the size and the number of ranks.
"""

from __future__ import annotations

from time import monotonic
from typing import NamedTuple, cast

from rich.text import Text
from textual.app import ComposeResult
from textual.containers import Container
from textual.widget import Widget
from textual.widgets import Static

from ddpviz.dashboard.brief import clipped, findings_text, height_of, story_text, title_of_findings
from ddpviz.dashboard.feed import Snapshot
from ddpviz.dashboard.levels_view import LevelsView
from ddpviz.dashboard.panel import Panel
from ddpviz.dashboard.situation import Situation, State
from ddpviz.dashboard.starting import starting_text
from ddpviz.dashboard.state import Cursor, module_of
from ddpviz.dashboard.sync import SyncTimeline
from ddpviz.dashboard.themes import roles
from ddpviz.dashboard.view import View
from ddpviz.language import _
from ddpviz.trace.text import clean

CHART_EVERY, CHART_SHARE = 0.2, 40  # seconds between two drawings of the chart, which takes one part in 40 of them
WIDE, TALL = 100, 28  # cells and lines from which panels stand side by side
SOLOS = ("", "sync", "levels", "norms", "story")  # what `z` fills the screen with, in turn


class Plan(NamedTuple):
    """Heights of the rows, borders included, and whether panels stand side by side."""

    wide: bool
    sync: int
    levels: int
    story: int


def plan(width: int, height: int, ranks: int, trouble: bool = False, wanted: int = 0) -> Plan:
    """Share `height` lines: the timeline takes what its ranks need, Levels what shows them well, the text the rest.

    With `trouble` there is a finding, a hang or a failure to tell of, which takes more text: `wanted` lines of it,
    where they are to be had without hiding anything else.
    """
    wide = width >= WIDE and height >= TALL
    most = max(height * 2 // 5, 3)
    ranks = max(ranks, 1) if ranks <= most else max(most // 2, 3)  # more ranks than lines share rows by what they do
    story = 8 if trouble else 6 if wide else 5
    if wide and trouble and height >= 32:
        story = 10
    if height >= 48:
        story = 12 if trouble else 8
    bare = ranks + 5  # borders, ruler, steps, whole run, legend: a line a rank
    if trouble:
        story = max(story, min(wanted + 2, height - bare - (13 if wide else 5)))
    left = height - story
    if left - bare >= 3 * ranks + 8:
        sync = ranks * 3 + 6
    elif left - bare >= 2 * ranks + 6:
        sync = ranks * 2 + 6
    else:
        sync = bare + 1 if left - bare - 1 >= 5 else bare
    sync = min(sync, max(left - 5, left * 3 // 5, 6))
    if left - sync < 4:
        sync = left  # no room for Levels at all
    if wide and left - sync > 30 and ranks <= 4:
        sync = 4 * ranks + 7
    return Plan(wide, sync, left - sync, story)


def _title(panel: Panel, title: str) -> None:
    if panel.border_title != title:
        panel.border_title = title


class Overview(Container):
    DEFAULT_CSS = """
    Overview { layout: vertical; width: 1fr; height: 1fr; background: $background; }
    Overview .row { layout: horizontal; height: auto; }
    Overview #starting-panel { width: 1fr; height: 1fr; display: none; }
    Overview.-starting .row, Overview.-starting #sync-panel { display: none; }
    Overview.-starting #starting-panel { display: block; }
    Overview Static { height: 1fr; }
    Overview #overview-norms { background: $background; overflow: hidden; }  /* drawn to fit */
    Overview #levels-panel { width: 1fr; }
    Overview #norms-panel { width: 1fr; }
    Overview #story-panel { width: 1fr; }
    Overview #findings-panel { width: 1fr; }
    Overview.-narrow #norms-panel, Overview.-narrow #findings-panel { display: none; }
    """

    def __init__(self, *, id: str) -> None:
        super().__init__(id=id)
        self.sync = SyncTimeline(id="sync")
        self.levels = LevelsView(id="levels")
        self._story = Static(id="story")
        self._found = Static(id="found")
        self._start = Static(id="starting")
        self._norms: Widget | None = None
        self._norms_key: object = None
        self._norms_at = 0.0
        self._norms_due = False
        self._solo = 0
        self._plan: Plan | None = None
        self._wanted = self._needed = 0  # lines of text that the panel grows to hold; that the text last took
        self._found_before: object = None
        self._texts: dict[str, object] = {}
        self._told: tuple[Snapshot, Cursor, Situation, str] | None = None

    def compose(self) -> ComposeResult:
        yield Panel(_("Starting"), self._start, id="starting-panel")
        yield Panel(_("Sync timeline"), self.sync, id="sync-panel")
        with Container(classes="row", id="middle"):
            yield Panel(_("Levels: accumulated gradient norm"), self.levels, id="levels-panel")
            yield Panel(_("Norms"), id="norms-panel")
        with Container(classes="row", id="bottom"):
            yield Panel(_("What just happened"), self._story, id="story-panel")
            yield Panel(_("Findings"), self._found, id="findings-panel")

    # -- drawing --------------------------------------------------------------------------------------------------

    def tell(self, snap: Snapshot, cursor: Cursor, here: Situation, trends: str) -> None:
        """Draw a snapshot at a cursor."""
        self._told = (snap, cursor, here, trends)
        tl = snap.tl
        module = module_of(tl, cursor)
        starting = module is None or module.passes == 0
        self.set_class(starting, "-starting")
        if starting:
            self._tell_start(snap, here)
            return
        assert module is not None
        trouble = here.state in (State.WAITING, State.FAILED) or any(f.severity.word != "info" for f in snap.findings)
        found = tuple((f.rule, f.message) for f in snap.findings)
        if found != self._found_before:
            self._found_before, self._wanted = found, 0
        self._arrange(len(module.ranks), trouble)
        self.sync.show(tl, cursor, snap.findings)
        self.levels.show(tl, cursor, snap.findings)
        self._tell_norms(snap, cursor)
        self._tell_words(snap, cursor, here, trends)
        if self._needed > max(self._wanted, self._room) and trouble:
            self._wanted = self._needed
            self._arrange(len(module.ranks), trouble)
            self._tell_words(snap, cursor, here, trends)
        panel = self.query_one("#sync-panel", Panel)
        subtitle = self.sync.subtitle()
        if panel.border_subtitle != subtitle:
            panel.border_subtitle = subtitle

    @property
    def _room(self) -> int:
        """Lines of text in the lowest panels."""
        if self._plan is None:
            return 5
        return (self.size.height if SOLOS[self._solo] == "story" else self._plan.story) - 2

    def _tell_words(self, snap: Snapshot, cursor: Cursor, here: Situation, trends: str) -> None:
        """The two panels of text; what does not fit is said to be elsewhere."""
        ink = roles(self.app)
        wide = self._plan is not None and self._plan.wide
        room, width = self._room, self._width()
        more = Text(_("… 5 shows it whole"), ink["dim"])
        title, role, text = story_text(
            snap, cursor, here, ink, with_findings=not wide, lines=room, width=width, now=self.levels.now
        )
        story = self.query_one("#story-panel", Panel)
        self._needed = height_of(text, width)
        self._put(self._story, "story", clipped(text, room, width, more))
        _title(story, title)
        story.set_class(role == "wrong", "-wrong")
        story.set_class(role == "waiting", "-waiting")
        if wide:
            found = self.query_one("#findings-panel", Panel)
            errors = any(f.severity.word == "error" for f in snap.findings)
            _title(found, title_of_findings(snap.findings) if snap.judged else _("Findings"))
            found.set_class(errors, "-wrong")
            text = findings_text(snap, cursor, ink, lines=room, trends=trends, width=width)
            self._needed = max(self._needed, height_of(text, width))
            self._put(self._found, "found", clipped(text, room, width, more))

    def _tell_norms(self, snap: Snapshot, cursor: Cursor) -> None:
        """The chart is the dearest to draw and says nothing new inside a pass: a few times a second are enough."""
        if self._norms is None:
            return
        if not self._norms.region.width:  # not laid out yet: it draws this when it gets its size
            cast(View, self._norms).show(snap.tl, cursor, snap.findings)
            return
        key = (snap.serial, cursor.index, cursor.module, self.app.theme, self._norms.region.size)
        if key != self._norms_key and monotonic() >= self._norms_at:
            begun = monotonic()
            cast(View, self._norms).show(snap.tl, cursor, snap.findings)
            spent = monotonic() - begun
            self._norms_key, self._norms_at = key, begun + max(CHART_EVERY, min(spent * CHART_SHARE, 0.5))
        elif key != self._norms_key and not self._norms_due:
            self._norms_due = True
            self.set_timer(max(self._norms_at - monotonic(), 0.01), self._norms_again)

    def _norms_again(self) -> None:
        self._norms_due = False
        if self._told is not None:
            self._tell_norms(self._told[0], self._told[1])

    def _width(self) -> int:
        return (self.size.width // 2 if self._plan is not None and self._plan.wide else self.size.width) - 4

    def _tell_start(self, snap: Snapshot, here: Situation) -> None:
        panel = self.query_one("#starting-panel", Panel)
        title, role, text = starting_text(snap, here, roles(self.app), height=self.size.height - 2)
        _title(panel, title)
        panel.set_class(role == "wrong", "-wrong")
        panel.set_class(role == "waiting", "-waiting")
        self._put(self._start, "start", text)

    def _put(self, where: Static, name: str, text: Text) -> None:
        """Update a text only if it is another one."""
        if not text.plain.replace("\n", "").isprintable():  # words come from a trace, maybe a stranger's
            text = Text(clean(text.plain, newlines=True))
        key = (text.plain, tuple(text.spans))
        if self._texts.get(name) != key:
            self._texts[name] = key
            where.update(text, layout=False)

    def retell(self) -> None:
        self._plan = None
        self._wanted = 0
        self._texts.clear()
        if self._told is not None:
            self.tell(*self._told)

    def on_resize(self) -> None:
        self.retell()

    def _arrange(self, ranks: int, trouble: bool) -> None:
        wanted = plan(self.size.width, self.size.height, ranks, trouble, self._wanted)
        if wanted == self._plan or not self.size.height:
            return
        self._plan = wanted
        self.set_class(not wanted.wide, "-narrow")
        solo = SOLOS[self._solo]
        middle, bottom = self.query_one("#middle"), self.query_one("#bottom")
        sync = self.query_one("#sync-panel")
        sync.display = solo in ("", "sync")
        middle.display = solo in ("", "levels", "norms") and (wanted.levels > 0 or bool(solo))
        bottom.display = solo in ("", "story")
        self.query_one("#levels-panel").display = solo in ("", "levels")
        self.query_one("#norms-panel").display = solo == "norms" or (solo == "" and wanted.wide)
        full = self.size.height
        sync.styles.height = full if solo else wanted.sync
        middle.styles.height = full if solo else wanted.levels
        bottom.styles.height = full if solo else wanted.story
        for panel in ("#levels-panel", "#norms-panel", "#story-panel", "#findings-panel"):
            self.query_one(panel).styles.height = "100%"
        if (wanted.wide or solo == "norms") and self._norms is None:
            self._mount_norms()

    def _mount_norms(self) -> None:
        from ddpviz.dashboard.views.norms import NormsView

        self._norms = NormsView(id="overview-norms")
        self.query_one("#norms-panel").mount(self._norms)

    def maximise(self) -> None:
        """The next panel fills the screen; after the last, all of them share it again."""
        self._solo = (self._solo + 1) % len(SOLOS)
        self.retell()

    def restore(self) -> bool:
        """All panels again; False if they were there."""
        if not self._solo:
            return False
        self._solo = 0
        self.retell()
        return True
