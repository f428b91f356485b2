"""How a viewer of `ddpviz serve` writes: as Textual does for a browser, and it says where a whole frame begins."""

from __future__ import annotations

from typing import Any

from textual.drivers.web_driver import WebDriver

from ddpviz.cli.tab import step_back
from ddpviz.dashboard.main import Main

LOOK = 0.05  # seconds between two looks whether the run is on the screen
TOGETHER = 0.2  # seconds: a class comes at once, and one whole frame does for all


class Announcing(WebDriver):
    """Its output goes to tabs that come and go; one that comes needs its terminal set up, and then a whole frame."""

    _asked = False

    def start_application_mode(self) -> None:
        super().start_application_mode()
        self.write_meta({"type": "set-up"})
        self._app.call_later(self._until_ready)

    def on_meta(self, packet_type: str, payload: dict[str, Any]) -> None:
        if packet_type == "repaint":
            self._app.call_later(self._soon)
        else:
            super().on_meta(packet_type, payload)

    def _soon(self) -> None:
        if not self._asked:
            self._asked = True
            self._app.set_timer(TOGETHER, self._whole)

    def _ready(self) -> bool:
        return any(isinstance(screen, Main) and screen.settled for screen in self._app.screen_stack)

    def _until_ready(self) -> None:
        if self._ready():
            self._app.call_later(self._whole)
            step_back()
        else:
            self._app.set_timer(LOOK, self._until_ready)

    def _whole(self) -> None:
        self._asked = False
        self.write_meta({"type": "frame", "ready": self._ready()})
        self._app.refresh()
