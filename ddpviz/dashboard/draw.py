"""Lines of a Line API widget from pieces of styled text. Pure."""

from __future__ import annotations

from rich.segment import Segment
from rich.style import Style
from textual.strip import Strip

from ddpviz.trace.text import clean

Piece = tuple[str, Style]


def strip(pieces: list[Piece], width: int, fill: Style) -> Strip:
    """One line, exactly `width` cells on the ground `fill`; neighbours of equal style are joined."""
    segments: list[Segment] = []
    text, style = "", Style()
    for piece, its in pieces:
        piece = piece if piece.isprintable() else clean(piece)  # names come from a trace, maybe a stranger's
        if its is style or its == style:
            text += piece
        else:
            if text:
                segments.append(Segment(text, fill + style))
            text, style = piece, its
    if text:
        segments.append(Segment(text, fill + style))
    return Strip(segments).adjust_cell_length(width, fill)
