"""Writes lines to a stream that may be a terminal, a file, a full disk or a closed pipe. Knows nothing of runs.

Colour and links only on a terminal (and no colour with NO_COLOR); a stream that fails is reported once on stderr and
then silent, since a closed pipe must not end the job that is being watched.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TextIO

from ddpviz.language import _

_STYLES = {"bold": "1", "dim": "2", "error": "1;31", "warning": "33", "info": "36", "good": "32"}
_PLAIN = str.maketrans({"✗": "x", "▲": "!", "→": "->", "│": "|", "·": "-", "●": "*", "✓": "+", "›": ">"})


class Console:
    """Lines to one stream."""

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream
        self.failed: OSError | None = None
        try:
            self.terminal = stream.isatty()
        except ValueError:  # closed before we began
            self.terminal = False
        dumb = os.environ.get("TERM") == "dumb"
        self.colour = self.terminal and not dumb and not os.environ.get("NO_COLOR")
        self.links = self.terminal and not dumb
        try:
            "✗▲→│·".encode(stream.encoding or "ascii")
            self.unicode = True
        except (UnicodeEncodeError, LookupError):
            self.unicode = False

    def line(self, text: str = "") -> None:
        """One line, at once. Text from a job has to be clean already."""
        self.write(text + "\n")

    def write(self, text: str) -> None:
        if self.failed is not None:
            return
        if not self.unicode:
            text = text.translate(_PLAIN)
            text = text.encode(self.stream.encoding or "ascii", "backslashreplace").decode(
                self.stream.encoding or "ascii"
            )
        try:
            self.stream.write(text)
            self.stream.flush()
        except UnicodeEncodeError:
            self.unicode = False
            self.write(text)
        except ValueError:
            self._fail(OSError(_("the stream is closed")))
        except OSError as error:
            self._fail(error)

    def data(self, parts: Iterable[bytes]) -> None:
        """Text in UTF-8 for another program, whatever the terminal speaks."""
        raw = getattr(self.stream, "buffer", None)
        if raw is None:
            self.write(b"".join(parts).decode())
            return
        try:
            self.stream.flush()
            for part in parts:
                raw.write(part)
            raw.flush()
        except OSError as error:
            self._fail(error)

    def paint(self, text: str, style: str) -> str:
        return f"\x1b[{_STYLES[style]}m{text}\x1b[0m" if self.colour and style else text

    def link(self, text: str, file: str, line: int) -> str:
        """`text`, opening `file` where the terminal supports OSC 8 links."""
        if not self.links or not file or not os.path.isabs(file):
            return text
        return f"\x1b]8;;{Path(file).as_uri()}#L{line}\x1b\\{text}\x1b]8;;\x1b\\"

    def _fail(self, error: OSError) -> None:
        """Go silent, and keep the interpreter from trying again when it flushes at its end."""
        self.failed = error
        name = {sys.stdout: _("the output"), sys.stderr: _("the error output")}.get(self.stream, _("the output"))
        try:
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, self.stream.fileno())
            os.close(null)
        except (OSError, ValueError):
            pass
        if self.stream is not sys.stderr:
            complain(_("{name} cannot be written any more: {reason}", name=name, reason=reason(error)))


def complain(text: str) -> None:
    """One line on stderr."""
    try:
        print(f"ddpviz: {text}", file=sys.stderr, flush=True)
    except (OSError, ValueError):
        pass


def reason(error: OSError) -> str:
    """The system's words for it, without Python's."""
    return (error.strerror or str(error)).lower()
