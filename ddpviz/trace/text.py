"""Text out of a trace or a log, made safe to show: no name, message or print of a job may drive a terminal."""

from __future__ import annotations

import re
import unicodedata

# CSI, OSC/DCS/SOS/PM/APC (with their text, ended by BEL or ST or the line), and two-character escapes.
_ESCAPE = re.compile(
    r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]"
    r"|(?:\x1b[\]PX^_]|[\x9d\x90\x98\x9e\x9f])[^\x07\x1b\x9c\n]*(?:\x07|\x1b\\|\x9c)?"
    r"|\x1b[ -/]*[0-~]?"
)
_HIDDEN = {
    "Cc",
    "Cf",
    "Cs",
    "Zl",
    "Zp",
}  # controls, bidirectional overrides and zero-width marks, surrogates, separators


def clean(text: str, *, newlines: bool = False) -> str:
    """`text` without escape sequences, control and invisible characters; tabs become spaces.

    Line ends become spaces too, unless `newlines` keeps them (as a plain line feed).
    """
    if text.isascii() and text.isprintable():
        return text
    text = _ESCAPE.sub("", text.replace("\r\n", "\n"))
    kept = []
    for char in text:
        if char in "\n\r\v\f\u2028\u2029\x85":
            kept.append("\n" if newlines else " ")
        elif char == "\t":
            kept.append("    " if newlines else " ")
        elif char == "\u200d" or unicodedata.category(char) not in _HIDDEN:
            kept.append(char)
    return "".join(kept)
