"""The keys that move through time, and the presenter's: part of the main screen."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from textual.screen import Screen

from ddpviz.dashboard import playback as play, tour
from ddpviz.dashboard.prompt import Prompt
from ddpviz.dashboard.state import ONE_PASS_A_SECOND, Cursor
from ddpviz.language import _
from ddpviz.timeline.model import Timeline

if TYPE_CHECKING:
    from ddpviz.dashboard.app import Dashboard
    from ddpviz.dashboard.feed import Snapshot


class TimeKeys(Screen[None]):
    """Actions on the cursor. What they move is the main screen's."""

    cursor: Cursor
    motion: bool
    presenting: bool
    _snap: Snapshot | None

    @property
    def dashboard(self) -> Dashboard:
        raise NotImplementedError

    def _move(self, cursor: Cursor | None) -> None:
        raise NotImplementedError

    def _with(self, move: Callable[[Timeline], Cursor | None], otherwise: str = "") -> None:
        raise NotImplementedError

    def action_pause(self) -> None:
        self._with(lambda tl: play.toggle(tl, self.cursor))

    def action_step(self, by: int) -> None:
        self._with(lambda tl: play.step(tl, self.cursor, by))

    def action_moment(self, by: int) -> None:
        self._with(lambda tl: play.step_event(tl, self.cursor, by))

    def action_window(self, by: int) -> None:
        self._with(lambda tl: play.step_window(tl, self.cursor, by))

    def action_event(self, by: int) -> None:
        findings = self._snap.findings if self._snap else []
        way = "later" if by > 0 else "earlier"
        self._with(lambda tl: play.step_marked(tl, self.cursor, findings, by), _("nothing {way} to jump to", way=way))

    def action_first(self) -> None:
        self._with(lambda tl: play.goto(tl, self.cursor, 0))

    def action_live(self) -> None:
        over = self._snap is not None and not self._snap.running and self._snap.complete
        self._with(lambda tl: (play.closing if over else play.follow)(tl, self.cursor))

    def action_speed(self, by: int) -> None:
        self._set_speed(play.change_speed(self.cursor, by))

    def action_one_a_second(self) -> None:
        self._set_speed(replace(self.cursor, speed=ONE_PASS_A_SECOND))

    def _set_speed(self, cursor: Cursor) -> None:
        self._move(cursor)
        self.dashboard.keep(speed=cursor.speed)
        self.notify(_("playback at {speed_text}", speed_text=play.speed_text(cursor)), timeout=1.5)

    def action_goto(self) -> None:
        def went(answer: str | None) -> None:
            if answer and answer.isdecimal():
                self._with(
                    lambda tl: play.goto_step(tl, self.cursor, int(answer)),
                    _("there is no step {answer} here", answer=answer),
                )
            elif answer:
                self.notify(_("a step has a number"), timeout=2)

        self.app.push_screen(Prompt(_("Go to optimizer step"), "", _("its number")), went)

    def action_tour(self, by: int) -> None:
        findings = self._snap.findings if self._snap else []
        ends = _("this is the last moment so far") if by > 0 else _("this is where it begins")
        self._with(lambda tl: tour.onward(tl, self.cursor, findings, by, motion=self.motion), ends)
