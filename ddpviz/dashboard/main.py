"""The main screen: it pulls snapshots by a timer, keeps the cursor, and obeys the keys of `keys.py`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from importlib import import_module
from time import monotonic
from typing import TYPE_CHECKING, ClassVar, cast

from textual import events
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Container
from textual.widget import Widget
from textual.widgets import Static

from ddpviz.dashboard import narration, playback as play
from ddpviz.dashboard.bars import Footer, Tabs, footer_keys
from ddpviz.dashboard.brief import badge
from ddpviz.dashboard.control import ControlPanel, note as control_note
from ddpviz.dashboard.feed import Feed, Snapshot, frames_a_second
from ddpviz.dashboard.header import Header
from ddpviz.dashboard.keymap import apply, bound
from ddpviz.dashboard.keys import KEYS, VIEWS, Key
from ddpviz.dashboard.lesson import LessonScreen, lesson_of
from ddpviz.dashboard.messages import GoTo, Open
from ddpviz.dashboard.overview import Overview
from ddpviz.dashboard.prompt import Help, Prompt
from ddpviz.dashboard.situation import Situation, State, situation
from ddpviz.dashboard.stage import ON_STAGE, Stage
from ddpviz.dashboard.state import Cursor, module_of
from ddpviz.dashboard.timekeys import TimeKeys
from ddpviz.dashboard.view import View
from ddpviz.language import _
from ddpviz.timeline.model import Timeline

if TYPE_CHECKING:
    from ddpviz.dashboard.app import Dashboard
    from ddpviz.launch.control import Controller

FRAME = 1 / frames_a_second()  # seconds between two looks for something new
SMALLEST = (60, 16)
ONLY_IN = {  # actions that mean nothing in the other views
    "drill": ("overview",),
    "zoom": ("overview",),
    "by_host": ("overview",),
    "zoom_panel": ("overview",),
    "filter": ("overview", "layers", "output"),
}
ALWAYS_FIRST = ("pause", "step", "first", "live")  # these keys mean time in every view, whatever has the focus

# Imported when first opened: plotext and its like cost nothing until they are looked at.
WHERE = {
    "norms": ("ddpviz.dashboard.views.norms", "NormsView"),
    "backward": ("ddpviz.dashboard.views.backward", "BackwardView"),
    "layers": ("ddpviz.dashboard.views.layers", "LayersView"),
    "findings": ("ddpviz.dashboard.views.findings", "FindingsView"),
    "output": ("ddpviz.dashboard.views.output", "OutputView"),
    "job": ("ddpviz.dashboard.views.job", "JobView"),
    "source": ("ddpviz.dashboard.views.script", "SourceView"),
    "stage": ("ddpviz.dashboard.stage", "Stage"),
}


class Main(TimeKeys):
    DEFAULT_CSS = """
    Main { layout: vertical; background: $background; }
    Main #views { width: 1fr; height: 1fr; }
    Main #small { display: none; width: 1fr; height: 1fr; content-align: center middle; text-align: center; }
    Main.-small Header, Main.-small Tabs, Main.-small Footer, Main.-small #views { display: none; }
    Main.-small #small { display: block; }
    Main.-present Tabs { display: none; }
    """
    BINDINGS: ClassVar[list[BindingType]] = bound(KEYS, first=(*ALWAYS_FIRST, "tour"))

    def __init__(self, feed: Feed, cursor: Cursor, *, motion: bool) -> None:
        super().__init__()
        self.feed, self.cursor, self.motion = feed, cursor, motion
        self.view = VIEWS[0]
        self._snap: Snapshot | None = None
        self._here = Situation(State.STARTING)
        self._drawn: object = None
        self._drawn_at = 0.0
        self._clock = monotonic()
        self._views: dict[str, Widget] = {}
        self._been: list[tuple[str, Cursor]] = []  # where Esc goes back to
        self._shown_end = False  # the run is over, and that has been shown
        self.presenting = False

    @property
    def dashboard(self) -> Dashboard:
        return cast("Dashboard", self.app)

    def compose(self) -> ComposeResult:
        yield Header()
        yield Tabs()
        with Container(id="views"):
            overview = Overview(id="overview")
            self._views["overview"] = overview
            yield overview
        yield Footer()
        yield Static(id="small")

    def on_mount(self) -> None:
        self.set_interval(FRAME, self._tick)
        self.app.theme_changed_signal.subscribe(self, self._themed)
        self.call_after_refresh(self.dashboard.say_problems)
        if self.dashboard.present:
            self.action_present()

    def _themed(self, _theme: object) -> None:
        self._drawn = None  # texts hold colours too

    def on_resize(self, event: events.Resize) -> None:
        width, height = event.size
        small = width < SMALLEST[0] or height < SMALLEST[1]
        self.set_class(small, "-small")
        if small:
            wanted = f"{SMALLEST[0]} × {SMALLEST[1]}"
            self.query_one("#small", Static).update(
                _("{width} × {height}\nddpviz needs {wanted}\nq quits", width=width, height=height, wanted=wanted)
            )
        self._drawn = None

    # -- pulling and drawing --------------------------------------------------------------------------------------

    def _tick(self) -> None:
        now = monotonic()
        passed, self._clock = now - self._clock, now
        snap = self.feed.latest
        if snap is None:
            return
        if snap is not self._snap:
            self._snap = snap
            self.cursor = play.settle(snap.tl, self.cursor, motion=self.motion)
            if not snap.running and snap.complete and not self._shown_end:
                self._shown_end = True
                if self.cursor.live:  # nobody has moved away from the end
                    with self.feed.lock:
                        first = self.presenting and not self.dashboard.job  # a story is told from its beginning
                        self.cursor = (play.opening if first else play.closing)(snap.tl, self.cursor)
        self.cursor = play.advance(snap.tl, self.cursor, min(passed, 0.25), running=snap.running)
        self._draw()

    @property
    def settled(self) -> bool:
        """It shows the run as far as that is written."""
        return self._snap is not None and self._snap.complete and self._drawn is not None

    def _draw(self) -> None:
        """Tell what is in sight, if anything is new: nothing is drawn while nothing changes."""
        snap = self._snap
        if snap is None:
            return
        present = self.feed.present()
        second = present // 1_000_000_000 if snap.running else 0
        held = control_note(self.dashboard.controller)
        key = (snap.serial, self.cursor, self.view, held, second)
        if key == self._drawn:
            return
        self._drawn_at = monotonic()
        ticked_only = isinstance(self._drawn, tuple) and self._drawn[:4] == key[:4]
        self._drawn = key
        with self.feed.lock, self.app.batch_update():
            self._here = situation(snap.tl, present, snap.running, error=snap.error)
            speed = play.speed_text(self.cursor)
            self.query_one(Header).show(snap.tl, self.cursor, self._here, present, speed)
            if ticked_only and self._here.state is State.RUNNING:
                return
            self.query_one(Tabs).show(self.view, *badge(snap.findings))
            self.query_one(Footer).show(self._footer_keys(), "  ".join(filter(None, (held, self._note(speed)))))
            if self.has_class("-small"):
                return
            view = self._in_sight()
            if isinstance(view, Overview | Stage):
                view.tell(replace(snap, now=present), self.cursor, self._here, self.feed.trends(self.cursor))
            elif view is not None and view.is_mounted:
                cast(View, view).show(snap.tl, self.cursor, snap.findings)
            else:
                self._drawn = None  # it is being mounted: tell it at the next tick

    def _note(self, speed: str) -> str:
        notes = [f"/{self.cursor.filter}"] if self.cursor.filter else []
        if self._snap is not None and not self._snap.complete:
            notes.append(_("reading …"))
        if self._snap is not None and self._snap.problems:
            notes.append(self._snap.problems[0][:60])
        return "  ".join([*notes, speed if not self.cursor.live else ""]).strip()

    def _view_keys(self) -> tuple[Key, ...]:
        """The keys that the view in sight adds."""
        return apply(getattr(self._in_sight(), "KEYS", ()), self.dashboard.keymap)

    def _keys(self) -> tuple[Key, ...]:
        """The screen's own keys, as the user has them."""
        return apply(KEYS, self.dashboard.keymap)

    def _footer_keys(self) -> list[Key]:
        """The keys that work here: the view's own, and those of the screen that it has not taken."""
        if self.presenting:
            shown = (
                key._replace(label=ON_STAGE[key.action], rank=list(ON_STAGE).index(key.action))
                for key in self._keys()
                if key.action in ON_STAGE
            )
            return [*shown, *(key for key in self._keys() if key.rank < 0)]
        own = self._view_keys()
        taken = {name for key in own for name in key.keys.split(",")}
        general = [key for key in self._keys() if self.view in ONLY_IN.get(key.action.split("(")[0], VIEWS)]
        return footer_keys([*own, *(key for key in general if not taken & set(key.keys.split(",")))])

    def commands(self) -> list[Key]:
        """What the command palette offers."""
        return [key for key in self._keys() if key.action != "command_palette"]

    # -- where one looks ------------------------------------------------------------------------------------------

    def _move(self, cursor: Cursor | None) -> None:
        if cursor is not None and cursor != self.cursor:
            self.cursor = cursor
            if monotonic() - self._drawn_at >= FRAME:  # a key held down comes faster than a screen can be drawn
                self._draw()

    def _with(self, move: Callable[[Timeline], Cursor | None], otherwise: str = "") -> None:
        if self._snap is None or module_of(self._snap.tl, self.cursor) is None:
            return
        with self.feed.lock:
            target = move(self._snap.tl)
        if target is None:
            self.notify(otherwise, timeout=2)
        self._move(target)

    def _open(self, name: str) -> None:
        if name == self.view or name not in VIEWS:
            return
        self._been = [*self._been[-30:], (self.view, self.cursor)]
        self._show_view(name)

    def _in_sight(self) -> Widget | None:
        return self._views.get("stage" if self.presenting and self.view == "overview" else self.view)

    def _show_view(self, name: str) -> None:
        self.view = name
        if self.presenting and name == "overview":
            name = "stage"
        if name not in self._views:
            module, cls = WHERE[name]
            widget: Widget = getattr(import_module(module), cls)(id=name)
            if name == "output":
                widget.run_dir = self.feed.run_dir  # type: ignore[attr-defined]
            self._views[name] = widget
            self.query_one("#views").mount(widget)
        for other, widget in self._views.items():
            widget.display = other == name
        chosen = self._views[name]
        if chosen.focusable:
            chosen.focus()
        else:
            self.set_focus(None)
        self._drawn = None
        self.call_after_refresh(self._draw)

    def on_go_to(self, message: GoTo) -> None:
        message.stop()
        if message.view is not None:
            self._been = [*self._been[-30:], (self.view, self.cursor)]
        self._with(lambda tl: play.goto(tl, self.cursor, message.index, module=message.module, rank=message.rank))
        if message.view is not None and message.view != self.view:
            self._show_view(message.view)

    def on_open(self, message: Open) -> None:
        message.stop()
        self._open(message.view)

    # -- keys -----------------------------------------------------------------------------------------------------

    def action_filter(self) -> None:
        def filtered(answer: str | None) -> None:
            if answer is not None:
                self._move(replace(self.cursor, filter=answer))

        hint = _("ranks (3, 0-7), a layer's name, or text of the output; empty shows all")
        self.app.push_screen(Prompt(_("Filter"), self.cursor.filter, hint), filtered)

    def action_view(self, name: str) -> None:
        self._open(name)

    def action_drill(self) -> None:
        if self.view == "overview":
            self._open("backward")

    def action_back(self) -> None:
        overview = self._views["overview"]
        if isinstance(overview, Overview) and self.view == "overview" and overview.restore():
            return
        if self._been:
            name, cursor = self._been.pop()
            self.cursor = replace(cursor, speed=self.cursor.speed, filter=self.cursor.filter)
            if name != self.view:
                self._show_view(name)
        elif self.cursor.filter:
            self.cursor = replace(self.cursor, filter="")
        elif self.cursor.rank is not None:
            self.cursor = replace(self.cursor, rank=None)
        elif self.view != "overview":
            self._show_view("overview")
        self._drawn = None
        self._draw()

    def action_zoom_panel(self) -> None:
        if self.view != "overview":
            self._open("overview")
        overview = self._views["overview"]
        if isinstance(overview, Overview):
            overview.maximise()

    def action_module(self) -> None:
        if self._snap is not None and len(self._snap.tl.modules) > 1:
            following = (self.cursor.module + 1) % len(self._snap.tl.modules)
            fresh = replace(self.cursor, module=following, time=0)
            self._move(play.settle(self._snap.tl, fresh, motion=False))

    def action_zoom(self, by: int) -> None:
        overview = self._views["overview"]
        if self.view == "overview" and isinstance(overview, Overview):
            overview.sync.zoom(by)
            self._drawn = None
            self._draw()

    def action_by_host(self) -> None:
        overview = self._views["overview"]
        if isinstance(overview, Overview) and (said := overview.sync.by_host()):
            self.notify(said, timeout=2)

    def action_rank(self, by: int) -> None:
        module = module_of(self._snap.tl, self.cursor) if self._snap else None
        if module is not None and module.ranks:
            ranks = module.ranks
            here = ranks.index(self.cursor.rank) if self.cursor.rank in ranks else -1 if by > 0 else len(ranks)
            self._move(replace(self.cursor, rank=ranks[min(max(here + by, 0), len(ranks) - 1)]))

    def action_hold_job(self) -> None:
        control = self._controller()
        if control is not None:
            (control.go_on if control.paused else control.pause)()

    def action_control(self) -> None:
        control, job = self._controller(), self.dashboard.job
        if control is not None and job is not None:
            self.app.push_screen(ControlPanel(control, job.spec, control.ranks))

    def _controller(self) -> Controller | None:
        """What gives orders to the job; says so if it takes none."""
        control = self.dashboard.controller
        if control is None or control.standing().over:
            none = _("this job takes no orders: demos do, and run --control")
            self.notify(_("the job is over") if control is not None else none, timeout=3)
            return None
        return control

    def action_lesson(self) -> None:
        one = lesson_of(self._snap.tl) if self._snap is not None else None
        if one is None or self._snap is None:
            self.notify(_("this run is not one of the demos"), timeout=2)
            return
        self.app.push_screen(LessonScreen(one, self.feed))

    def action_present(self) -> None:
        """Presenter's mode on or off."""
        self.presenting = not self.presenting
        self.set_class(self.presenting, "-present")
        self._show_view("overview" if self.presenting else self.view)

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        return self.presenting if action == "tour" else super().check_action(action, parameters)

    def action_help(self) -> None:
        self.app.push_screen(Help((*self._view_keys(), *self._keys())))

    def action_command_palette(self) -> None:
        self.app.action_command_palette()

    def action_next_theme(self) -> None:
        self.dashboard.next_theme()
        self._drawn = None

    def action_motion(self) -> None:
        self.motion = not self.motion
        self.dashboard.keep(motion=self.motion)
        self.notify(_("levels move") if self.motion else _("levels jump"), timeout=1.5)

    def action_narration(self) -> None:
        following = narration.LEVELS[(narration.LEVELS.index(narration.level()) + 1) % len(narration.LEVELS)]
        narration.speak(following)
        self.dashboard.keep(narration=following)
        self.notify(_(narration.TOLD[following]), timeout=2.5)
        self._drawn = None

    def action_screenshot_svg(self) -> None:
        path = self.app.deliver_screenshot()
        if path:
            self.notify(_("saved {path}", path=path), timeout=4)

    def action_quit_job(self) -> None:
        self.dashboard.leave()

    def action_interrupt(self) -> None:
        """Ctrl+C copies text that is selected with the mouse; without any it quits."""
        selected = self.get_selected_text()
        if selected:
            self.app.copy_to_clipboard(selected)
            self.clear_selection()
            self.notify(_("copied"), timeout=1.5)
        else:
            self.dashboard.leave()
