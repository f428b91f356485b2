"""One line on a terminal that says a check is alive, rewritten in place and gone at the end; nothing anywhere else."""

from __future__ import annotations

import time

from ddpviz.export import words
from ddpviz.headless.console import Console
from ddpviz.language import _
from ddpviz.timeline.model import Timeline

_EVERY = 0.25  # seconds


class Progress:
    """The line. Silent unless its stream is a terminal that can rewrite one."""

    def __init__(self, out: Console) -> None:
        self.out = out
        self._began = self._last = time.monotonic()
        self._shown = False

    def show(self, tl: Timeline) -> None:
        now = time.monotonic()
        if not self.out.links or now - self._last < _EVERY:  # links: a terminal, and not a dumb one
            return
        self._last, self._shown = now, True
        ranks = (
            _("{count} of {world_size} ranks up", count=len(tl.ranks), world_size=tl.run.world_size)
            if tl.run.world_size
            else _("{count} ranks up", count=len(tl.ranks))
        )
        passes = sum(module.passes for module in tl.modules)
        parts = [ranks, words.plural(passes, "micro-step"), words.plural(len(tl.steps), "step")]
        seconds = words.duration((now - self._began) * 1e9)
        self.out.write(f"\r\x1b[2K{', '.join(parts)}  {seconds}")

    def clear(self) -> None:
        if self._shown:
            self.out.write("\r\x1b[2K")
