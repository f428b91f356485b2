"""The user's source lines around a place, read from disk where the file is still as it was when it was recorded.

A trace may come from a stranger: only a regular file that holds the recorded line at its number is shown at all.
"""

from __future__ import annotations

import os
from typing import NamedTuple

from ddpviz.trace.text import clean

_LIMIT = 4 << 20  # bytes of a source file that are looked at


class Line(NamedTuple):
    number: int
    text: str  # clean, tabs expanded, at most 200 characters
    here: bool  # the line that is meant


def source(file: str, line: int, code: str = "", around: int = 2) -> list[Line]:
    """The line with `around` neighbours on each side; the recorded `code` alone if the file has changed or is gone."""
    if not file or line < 1:
        return []
    try:
        if not os.path.isfile(file):
            raise OSError
        with open(file, encoding="utf-8", errors="replace") as stream:
            lines = stream.read(_LIMIT).splitlines()
    except (OSError, ValueError):
        lines = []
    here = line - 1
    if here >= len(lines) or not code or lines[here].strip() != code.strip():
        return [Line(line, clean(code), True)] if code else []
    first, last = max(here - around, 0), min(here + around, len(lines) - 1)
    return [Line(n + 1, clean(lines[n].expandtabs(4))[:200].rstrip(), n == here) for n in range(first, last + 1)]
