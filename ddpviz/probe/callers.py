"""Whose code is calling: the user's own, or a library's. Pure Python, no torch."""

from __future__ import annotations

import functools
import os
import sys
import sysconfig
from types import FrameType

_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_DEMOS = os.path.join(_PACKAGE, "demos") + os.sep
_STDLIB = tuple(os.path.abspath(p) + os.sep for p in {sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib")})


@functools.lru_cache(maxsize=4096)
def is_library(filename: str) -> bool:
    """Whether a source file belongs to an installed package, the standard library, or ddpviz itself."""
    if filename.startswith("<"):
        return True
    path = os.path.abspath(filename)
    if path.startswith(_DEMOS):
        return False
    return path.startswith((_PACKAGE, *_STDLIB)) or f"{os.sep}site-packages{os.sep}" in path or "dist-packages" in path


def called_by_user(depth: int = 2) -> bool:
    """Whether the frame `depth` up is the user's own code."""
    return not is_library(sys._getframe(depth).f_code.co_filename)


def user_frame(frame: FrameType | None) -> FrameType | None:
    """The innermost frame at or above `frame` that is the user's own; None if there is none."""
    while frame is not None and is_library(frame.f_code.co_filename):
        frame = frame.f_back
    return frame


def place_of(frame: FrameType | None) -> str:
    """`file:line` of a frame, for a message."""
    return "this script" if frame is None else f"{frame.f_code.co_filename}:{frame.f_lineno}"
