"""The user's source around a line, read from disk for viewing. Says plainly when the file is gone or has changed."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import islice
from pathlib import Path
from urllib.parse import quote

from pygments.lexers.python import PythonLexer
from pygments.token import Comment, Keyword, Operator

from ddpviz.language import _

LONGEST_FILE = 20_000  # lines of a file
LONGEST = 400  # characters of a line; what is longer is no source to read


@dataclass(frozen=True, slots=True)
class Excerpt:
    """Lines `first`, `first + 1`, ... of a file, and what has to be said about them (empty: nothing)."""

    first: int = 1
    lines: tuple[str, ...] = ()
    problem: str = ""


def excerpt(file: str, line: int, code: str = "", around: int = 3) -> Excerpt:
    """The line with `around` lines before and after it. `code` is that line as it stood when the run saw it."""
    if not file or line <= 0:
        return Excerpt(problem=_("The place in the script is not known."))
    path = Path(file)
    recorded = (code,) if code else ()
    try:
        stamp = path.stat().st_mtime_ns
        first, lines = _lines(file, line, around, stamp)
    except FileNotFoundError:
        return Excerpt(line, recorded, _("The file is not on this machine; the line is shown as the run saw it."))
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or _("it is no text")
        return Excerpt(line, recorded, _("The file cannot be read here ({reason}).", reason=reason))
    at = line - first
    if not 0 <= at < len(lines):
        return Excerpt(
            line, recorded, _("The file has changed since the run: it has no line {line} any more.", line=line)
        )
    if code and lines[at].strip() != code.strip():
        return Excerpt(
            line, recorded, _("The file has changed since the run: line {line} reads otherwise now.", line=line)
        )
    return Excerpt(first, lines)


def whole(file: str, known: dict[int, str]) -> Excerpt:
    """The whole file, if every line of `known` (as the run saw them) still stands in its place; else those lines alone.

    A trace may come from a stranger: of a file that the run has recorded nothing of, nothing is shown.
    """
    alone = Excerpt(0, (), "")
    if not known:
        return Excerpt(problem=_("The run recorded no line of this file."))
    try:
        if not Path(file).is_file():
            raise FileNotFoundError
        first, lines = _lines(file, 1, LONGEST_FILE, Path(file).stat().st_mtime_ns)
    except FileNotFoundError:
        return replace(
            alone, problem=_("The script is not on this machine; these are the lines that the run recorded.")
        )
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or _("it is no text")
        return replace(
            alone, problem=_("The script cannot be read here ({reason}); these are the recorded lines.", reason=reason)
        )
    for line, code in known.items():
        if line > len(lines) or not lines[line - 1].strip().startswith(code.strip()):
            return replace(
                alone, problem=_("The script has changed since the run; these lines are as the run saw them.")
            )
    return Excerpt(first, lines)


@lru_cache(maxsize=64)
def _lines(file: str, line: int, around: int, _stamp: int) -> tuple[int, tuple[str, ...]]:
    first = max(line - around, 1)
    with open(file, encoding="utf-8", errors="replace") as text:
        rows = tuple(row.rstrip("\n").expandtabs(4)[:LONGEST] for row in islice(text, first - 1, line + around))
    return first, rows


def dedent(lines: tuple[str, ...]) -> tuple[str, ...]:
    """The lines without the blanks that all of them begin with."""
    blanks = [len(row) - len(row.lstrip()) for row in lines if row.strip()]
    return tuple(row[min(blanks, default=0) :] for row in lines)


@lru_cache(maxsize=256)
def colour(line: str) -> tuple[tuple[str, str], ...]:
    """One line of Python as (text, look) parts: keywords stand out, comments stand back."""
    parts: list[tuple[str, str]] = []
    for kind, text in PythonLexer(stripnl=False, ensurenl=False).get_tokens(line):
        if kind in Comment:
            look = "dim"
        elif kind in Keyword or kind in Operator.Word:
            look = "local"
        else:
            look = ""
        parts.append((text, look))
    return tuple(parts)


def link(file: str) -> str:
    """A look that makes the text a link to the file, in terminals that follow links."""
    return f"link:file://{quote(file)}" if file.startswith("/") else ""
