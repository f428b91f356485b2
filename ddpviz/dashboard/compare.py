"""Two runs one above the other, live or recorded: their Sync timelines, and below in sentences how they differ."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from rich.style import Style
from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.screen import Screen
from textual.widgets import Static

from ddpviz.dashboard import playback as play
from ddpviz.dashboard.feed import Feed, Snapshot
from ddpviz.dashboard.keys import Key
from ddpviz.dashboard.messages import GoTo, Open
from ddpviz.dashboard.panel import Panel
from ddpviz.dashboard.situation import chip, situation
from ddpviz.dashboard.state import Cursor, module_of
from ddpviz.dashboard.sync import SyncTimeline
from ddpviz.dashboard.themes import roles
from ddpviz.export.compare import compare, figures
from ddpviz.language import _
from ddpviz.trace.text import clean

if TYPE_CHECKING:
    from ddpviz.launch import Job

FRAME = 1 / 10  # seconds between two looks at both runs
SENTENCES_EVERY = 1.0
LETTERS = ("A", "B")


def sentences(snaps: Sequence[Snapshot], names: Sequence[str]) -> list[str]:
    """How B differs from A, as `ddpviz compare` says it; nothing before both have a pass."""
    if len(snaps) < 2 or not all(any(m.passes for m in snap.tl.modules) for snap in snaps):
        return []
    made = [figures(snap.tl, snap.findings, name) for snap, name in zip(snaps, names, strict=True)]
    return [line for line in list(compare(*made))[3:] if line]  # A and B are named above each timeline


class Compare(Screen[None]):
    """Two runs. It follows both; the app owns their jobs and ends them."""

    KEYS = (
        Key("up,k,pageup", "scroll(-1)", "↑", "", "The sentences, up.", "Compare"),
        Key("down,j,pagedown,space", "scroll(1)", "↓", "sentences", "The sentences, down.", "Compare"),
        Key("plus,equals_sign", "zoom(1)", "+", "", "Zoom in on both timelines.", "Compare"),
        Key("minus", "zoom(-1)", "-", "zoom", "Zoom out.", "Compare"),
        Key("m", "module", "m", "module", "The next DDP module, if there are several.", "Compare"),
        Key("t", "theme", "t", "theme", "The next theme.", "Compare"),
        Key("q,escape,ctrl+c", "leave", "q", "quit", "Quit. Jobs that ddpviz started end with it.", "Compare"),
    )
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding(k.keys, k.action, k.label, show=False, priority=True) for k in KEYS
    ]
    DEFAULT_CSS = """
    Compare { layout: vertical; background: $background; }
    Compare #panel-b, Compare #panel-a { height: 8; }
    Compare #differ { height: 1fr; }
    Compare VerticalScroll { scrollbar-size-vertical: 1; scrollbar-background: $background; }
    Compare VerticalScroll Static { height: auto; }
    Compare #keys { height: 1; background: $panel; padding: 0 1; }
    """

    def __init__(self, feeds: Sequence[Feed], names: Sequence[str]) -> None:
        super().__init__()
        self.feeds, self.names = tuple(feeds), tuple(names)
        self._sync = (SyncTimeline(id="sync-a"), SyncTimeline(id="sync-b"))
        self._cursors = [Cursor(), Cursor()]
        self._words = Static()
        self._ranks = 0
        self._said: tuple[tuple[int, bool, str], ...] = ()
        self._due = 0.0

    def compose(self) -> ComposeResult:
        for letter, sync in zip("ab", self._sync, strict=True):
            yield Panel("", sync, id=f"panel-{letter}")
        yield Panel(_("What differs"), VerticalScroll(self._words, can_focus=False), id="differ")
        yield Static(id="keys")

    def on_mount(self) -> None:
        hints = [f"[b $primary]{key.shown}[/] {_(key.label)}" for key in self.KEYS if key.label]
        self.query_one("#keys", Static).update("   ".join(hints))
        self._tick()
        self.set_interval(FRAME, self._tick)

    def _tick(self) -> None:
        for number, feed in enumerate(self.feeds):
            snap = feed.latest
            if snap is not None:
                self._show(number, feed, snap)
        snaps = [feed.latest for feed in self.feeds if feed.latest is not None]
        state = tuple((snap.serial, snap.running, snap.tl.run.status) for snap in snaps)
        self._due -= FRAME
        if state != self._said and self._due <= 0:
            self._said, self._due = state, SENTENCES_EVERY
            self._say()

    def _show(self, number: int, feed: Feed, snap: Snapshot) -> None:
        cursor = self._cursors[number] = play.settle(snap.tl, self._cursors[number], motion=False)
        with feed.lock:
            self._sync[number].show(snap.tl, cursor, snap.findings)
            present = feed.present()
            state, _rest = chip(situation(snap.tl, present, snap.running, error=snap.error), snap.tl, present)
            panel = self.query_one(f"#panel-{'ab'[number]}", Panel)
            title = f"{LETTERS[number]}: {clean(self.names[number])}"
            if panel.border_title != title:
                panel.border_title = title
            if panel.border_subtitle != state:
                panel.border_subtitle = state
            module = module_of(snap.tl, cursor)
            ranks = len(module.ranks) if module is not None else snap.tl.run.world_size or 2
        if ranks > self._ranks:
            self._ranks = ranks
            self._arrange()

    def _arrange(self) -> None:
        height = max(min(self._ranks + 6, (self.size.height - 6) // 2), 5)
        for letter in "ab":
            self.query_one(f"#panel-{letter}").styles.height = height

    def on_resize(self) -> None:
        self._arrange()

    def _say(self) -> None:
        ink, text = roles(self.app), Text()
        snaps = [feed.latest for feed in self.feeds if feed.latest is not None]
        with self.feeds[0].lock, self.feeds[1].lock:
            lines = sentences(snaps, self.names)
        errors = [snap.error for snap in snaps if snap.error]
        for error in errors:
            text.append(clean(error) + "\n", ink["wrong"])
        if not lines and not errors:
            text.append(_("both have to run a backward pass before there is anything to compare"), ink["dim"])
        for line in lines:
            differs = line.startswith("- ")
            text.append("› " if differs else "  ", ink["local"] + Style(bold=True))
            text.append(clean(line.removeprefix("- ")) + "\n", ink["text"] if differs else ink["dim"])
        self._words.update(text)

    # -- keys -----------------------------------------------------------------------------------------------------

    def action_scroll(self, by: int) -> None:
        self.query_one(VerticalScroll).scroll_relative(y=by * 2, animate=False)

    def action_zoom(self, by: int) -> None:
        for sync in self._sync:
            sync.zoom(by)

    def action_module(self) -> None:
        for number, feed in enumerate(self.feeds):
            if feed.latest is not None and len(feed.latest.tl.modules) > 1:
                following = (self._cursors[number].module + 1) % len(feed.latest.tl.modules)
                self._cursors[number] = Cursor(module=following)

    def action_theme(self) -> None:
        if hasattr(self.app, "next_theme"):
            self.app.next_theme()
        self._said = ()

    def action_leave(self) -> None:
        if hasattr(self.app, "leave"):
            self.app.leave()
        else:
            self.app.exit(0)

    def on_go_to(self, message: GoTo) -> None:
        message.stop()  # a click on a cell: there is no other view here

    def on_open(self, message: Open) -> None:
        message.stop()


def feeds_of(runs: Sequence[Path | Job]) -> list[Feed]:
    """A feed for each run: of a recording or of a job that it starts."""
    return [Feed(run) if isinstance(run, Path) else Feed(run.run_dir, run) for run in runs]
