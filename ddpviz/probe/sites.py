"""Where in the user's code: the innermost frame outside site-packages, the standard library and ddpviz.

Pure Python, no torch. A site is interned once and named by a small number afterwards; a look costs about a microsecond.
"""

from __future__ import annotations

import linecache
import os
import sys
import types
from collections.abc import Callable

from ddpviz.probe.callers import is_library
from ddpviz.trace.records import Site


class Sites:
    """Interns sites of one process. `emit` gets each new Site record once."""

    def __init__(self, emit: Callable[[Site], None]) -> None:
        self._emit = emit
        self._ids: dict[tuple[str, int], int] = {}
        self._user: dict[str, bool] = {}

    def is_user(self, filename: str) -> bool:
        """Whether a file is the user's own: the main script always is, libraries and ddpviz never."""
        known = self._user.get(filename)
        if known is None:
            known = self._user[filename] = self._decide(filename)
        return known

    @staticmethod
    def _decide(filename: str) -> bool:
        main = getattr(sys.modules.get("__main__"), "__file__", None)
        if main and os.path.abspath(filename) == os.path.abspath(main):
            return not filename.endswith(("torch/distributed/run.py", "torch/distributed/launch.py"))
        return not is_library(filename)

    def here(self, depth: int = 2) -> int:
        """Id of the user's place that called us, `depth` frames up; 0 if no frame is the user's."""
        frame: types.FrameType | None
        try:
            frame = sys._getframe(depth)
        except ValueError:
            return 0
        return self.of(frame)

    def of(self, frame: types.FrameType | None) -> int:
        """Id of the innermost user frame at or above `frame`; 0 if there is none."""
        framework: types.FrameType | None = None
        user = self._user
        while frame is not None:
            filename = frame.f_code.co_filename
            known = user.get(filename)
            if known is None:
                known = self.is_user(filename)
            if known:
                return self._intern(frame, framework)
            framework = frame
            frame = frame.f_back
        return 0

    def _intern(self, frame: types.FrameType, framework: types.FrameType | None) -> int:
        key = (frame.f_code.co_filename, frame.f_lineno)
        site = self._ids.get(key)
        if site is None:
            site = self._ids[key] = len(self._ids) + 1
            code = linecache.getline(key[0], key[1]).strip()
            self._emit(
                Site(
                    id=site,
                    file=os.path.abspath(key[0]),
                    line=key[1],
                    function=frame.f_code.co_name,
                    code=code[:200],
                    via=_framework_call(framework),
                )
            )
        return site


def _framework_call(frame: types.FrameType | None) -> str:
    """The framework function that the user's line called, such as `accelerate.accelerator.Accelerator.backward`."""
    if frame is None:
        return ""
    module = str(frame.f_globals.get("__name__", ""))
    if not module or module.split(".")[0] in ("torch", "ddpviz", "contextlib", "functools", "runpy", "importlib"):
        return ""
    name = getattr(frame.f_code, "co_qualname", frame.f_code.co_name)
    return f"{module}.{name}"
