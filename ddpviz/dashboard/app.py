"""The app: a header, the views and a footer. It moves the cursor and hands the feed's snapshots to what is in sight.

It owns the cursor and nothing else; what is true comes from the feed. Never imports torch.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import traceback
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from rich.markup import escape
from textual.app import App, SystemCommand
from textual.binding import BindingType
from textual.screen import Screen
from textual.theme import Theme

from ddpviz import language
from ddpviz.dashboard import narration
from ddpviz.dashboard.feed import Feed
from ddpviz.dashboard.keymap import remapped
from ddpviz.dashboard.main import Main
from ddpviz.dashboard.messages import Chosen
from ddpviz.dashboard.settings import Settings
from ddpviz.dashboard.state import Cursor, Demo
from ddpviz.dashboard.themes import THEMES, defaults
from ddpviz.language import _
from ddpviz.phrases import counted

if TYPE_CHECKING:
    from ddpviz.launch import Job, JobSpec
    from ddpviz.launch.control import Controller

INTERRUPTED = 130
UNREADABLE = 5
ORDERS_EVERY = 1 / 30  # seconds between two looks at what the ranks answer to live orders


class Dashboard(App[int]):
    """Watches one run: a job it starts, a run that is being written, or a recording."""

    TITLE = "ddpviz"
    ENABLE_COMMAND_PALETTE = True
    COMMAND_PALETTE_BINDING = "ctrl+p"
    BINDINGS: ClassVar[list[BindingType]] = []
    _ours: dict[str, Theme] | None = None

    def __init__(
        self,
        run_dir: Path | None,
        job: Job | None = None,
        *,
        demos: Sequence[Demo] | None = None,
        motion: bool = True,
        present: bool = False,
        settings: Settings | None = None,
        narrate: str = "",
    ) -> None:
        super().__init__()
        self.job = job
        self.run_dir = job.run_dir if job is not None else run_dir
        self.demos = tuple(demos or ())
        self.settings = settings if settings is not None else Settings.load()
        narration.speak(narrate or self.settings.narration)
        self.present = present  # begin in presenter's mode
        self.motion = motion and self.settings.motion and os.environ.get("TEXTUAL_ANIMATIONS", "").lower() != "none"
        self.keymap, problems = remapped(self.settings.keys)
        self._problems = tuple(problems)
        self.feed: Feed | None = None
        self.pair: list[Feed] = []  # of two runs that are compared
        self.beside: tuple[Path, Path] | None = None  # two recordings to compare
        self.controller: Controller | None = None  # of a job that takes live orders
        self.ended_by_user = False
        for theme in THEMES:
            self.register_theme(theme)
        self.theme = self._first_theme()

    def get_theme_variable_defaults(self) -> dict[str, str]:
        return defaults(self.current_theme.dark)

    def _first_theme(self) -> str:
        if self.settings.theme in {theme.name for theme in THEMES}:
            return self.settings.theme
        few = os.environ.get("TERM", "") in ("linux", "xterm", "screen", "vt100", "ansi")
        return "ddpviz-ansi" if few and "truecolor" not in os.environ.get("COLORTERM", "") else "ddpviz-dark"

    def on_mount(self) -> None:
        self._obey_signals()
        self.set_interval(ORDERS_EVERY, self._give_orders)
        self.set_keymap(self.keymap)
        if self.beside is not None:
            self.watch_both(self.beside, (self.beside[0].name, self.beside[1].name))
        elif self.run_dir is not None:
            self.watch_run(self.run_dir, self.job)
        elif self.demos:
            from ddpviz.dashboard.views.picker import DemoPicker

            self.push_screen(DemoPicker(self.demos))

    def watch_run(self, run_dir: Path, job: Job | None) -> None:
        """Start to follow a run, and show it."""
        self.run_dir, self.job = run_dir, job
        self.controller = None
        if job is not None and job.spec.control is not None and job.ranks is not None:
            from ddpviz.launch.control import Controller

            self.controller = Controller(run_dir, job.ranks)
        self.feed = Feed(run_dir, job)
        self.feed.start()
        screen = Main(self.feed, Cursor(speed=self.settings.speed), motion=self.motion)
        if len(self.screen_stack) > 1:  # the picker gives way
            self.switch_screen(screen)
        else:
            self.push_screen(screen)

    def watch_both(self, runs: Sequence[Path | Job], names: tuple[str, str]) -> None:
        """Two runs one above the other; jobs among them are started, and end with the app."""
        from ddpviz.dashboard.compare import Compare, feeds_of

        self.pair = feeds_of(runs)
        for feed in self.pair:
            feed.start()
        screen = Compare(self.pair, names)
        if len(self.screen_stack) > 1:
            self.switch_screen(screen)
        else:
            self.push_screen(screen)

    def start_again(self, spec: JobSpec) -> None:
        """End the job and start it anew, as a run of its own, with what it cannot change while it runs."""
        self.notify(_("the job is started again"), timeout=3)
        self.run_worker(self._again(spec), exclusive=True)

    async def _again(self, spec: JobSpec) -> None:
        from ddpviz.launch import Job, JobError

        await asyncio.to_thread(self.close_job)
        try:
            job = Job(spec)
        except JobError as error:
            self.notify(str(error), severity="error", timeout=8)
            return
        self.watch_run(job.run_dir, job)
        self.notify(
            _(
                "started again: {value}, {ranks}",
                value=" ".join(job.spec.args) or _("the same options"),
                ranks=counted(job.ranks or 1, "rank"),
            ),
            timeout=6,
        )

    def _give_orders(self) -> None:
        if self.controller is not None:
            if self.job is not None and self.job.poll() is not None:
                self.controller.close()
            self.controller.tick()

    def on_chosen(self, message: Chosen) -> None:
        """The picker's answer: make the job and watch it."""
        from ddpviz.launch import JobError

        message.stop()
        demo = next(demo for demo in self.demos if demo.name == message.name)
        try:
            if message.beside and demo.other is not None:
                self.watch_both([demo.job(), demo.other()], (demo.name, f"{demo.name}, {demo.other_label}"))
                return
            job = demo.job()
        except JobError as error:
            self.notify(str(error), severity="error", timeout=8)
            return
        self.watch_run(job.run_dir, job)

    def say_problems(self) -> None:
        """What of the settings could not be taken, once."""
        if problems := (*self.settings.problems, *self._problems):  # in one box: several would hide the screen
            self.notify(escape("\n".join(problems)), title=_("settings"), severity="warning", timeout=10)
        self.settings.problems = self._problems = ()

    def _obey_signals(self) -> None:
        """A terminal that closes or a `kill` ends the app the right way: screen restored, the job's processes gone."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
            with contextlib.suppress(NotImplementedError, RuntimeError, ValueError):
                loop.add_signal_handler(number, self.leave)

    def leave(self) -> None:
        """Quit. If a job of ours still runs, that ended it."""
        jobs = [self.job, *(feed.job for feed in self.pair)]
        running = any(job is not None and job.poll() is None for job in jobs)
        self.ended_by_user = running
        self.exit(INTERRUPTED if running else 0)

    def keep(self, **changes: Any) -> None:
        """Remember settings."""
        for name, value in changes.items():
            setattr(self.settings, name, value)
        self.settings.save()

    def watch_theme(self, theme_name: str) -> None:
        if self.is_running and theme_name in {theme.name for theme in THEMES}:
            self.keep(theme=theme_name)

    def next_theme(self) -> None:
        names = [theme.name for theme in THEMES]
        self.theme = names[(names.index(self.theme) + 1) % len(names)] if self.theme in names else names[0]

    def speak(self, wanted: str) -> None:
        """Another language from now on, and at the next start: the screen is made anew where it stood."""
        language.use(wanted)
        self.keep(language=wanted)
        before = self.screen
        if isinstance(before, Main):
            self.present = before.presenting
            fresh = Main(before.feed, before.cursor, motion=before.motion)
            self.switch_screen(fresh)
            if before.view != fresh.view:
                self.call_later(fresh.action_view, before.view)

    def get_system_commands(self, screen: Screen[Any]) -> Iterable[SystemCommand]:
        if isinstance(screen, Main):
            for key in screen.commands():
                yield SystemCommand(
                    _(key.help).rstrip("."), _("key {shown}", shown=key.shown), lambda a=key.action: self._do(screen, a)
                )
            for code, name in language.LANGUAGES.items():
                if code != language.current():
                    what, told = _("Language: {name}", name=name), _("at once, and kept in the settings")
                    yield SystemCommand(what, told, lambda code=code: self.speak(code))
        for command in super().get_system_commands(screen):
            if command.title in ("Theme", "Change theme"):
                yield command

    def _do(self, screen: Screen[Any], action: str) -> None:
        self.call_later(screen.run_action, action)

    @property
    def available_themes(self) -> dict[str, Theme]:
        """Ours alone, once they are registered: the others know nothing of the colour roles."""
        if self._ours is None:  # asked for some hundred times a frame
            themes = super().available_themes
            ours = {theme.name: theme for theme in THEMES if theme.name in themes}
            if self.theme not in ours:
                return themes
            self._ours = ours
        return self._ours

    def run_to_exit(self) -> int:
        """Run in this terminal; afterwards the terminal is as it was and no process of our job is left."""
        code: int | None = None
        try:
            code = self.run()
        finally:
            ended = self.close_job()
        if self.return_code not in (0, None) and code is None:
            return self.return_code  # Textual printed what went wrong
        if self.job is None:
            return code or 0
        return INTERRUPTED if self.ended_by_user else ended if ended is not None else code or 0

    def _handle_exception(self, error: Exception) -> None:
        """A fault of ours ends in one line for the user; the traceback is kept beside the run."""
        if self.is_headless:  # the tests see it as it is
            super()._handle_exception(error)
            return
        if isinstance(error, BrokenPipeError):  # who looked on is gone: there is nobody to tell
            self.exit(1, return_code=1)
            return
        kept = ""
        if self.run_dir is not None:
            path = self.run_dir / "dashboard-crash.txt"
            with contextlib.suppress(OSError):
                path.write_text("".join(traceback.format_exception(error)), "utf-8")
                kept = _("; details in {path}", path=path)
        self.exit(
            1,
            return_code=1,
            message=_(
                "ddpviz: the dashboard failed ({name}: {error}){kept}",
                name=type(error).__name__,
                error=error,
                kept=kept,
            ),
        )

    def close_job(self) -> int | None:
        """Stop following, end the job's whole process tree if it still runs, and return its exit code."""
        if self.feed is not None:
            self.feed.stop()
        for feed in self.pair:
            feed.stop()
            if feed.job is not None:
                feed.job.stop()
                feed.job.finish()
        if self.job is None:
            return None
        if self.job.poll() is None:
            self.job.stop()
        return self.job.finish()
