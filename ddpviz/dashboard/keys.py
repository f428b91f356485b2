"""The one table of keys: bindings, the footer and the help are all made from it.

Never ctrl+b (tmux), ctrl+i, ctrl+m, ctrl+s, ctrl+q, ctrl+z: terminals and multiplexers keep those for themselves.
"""

from __future__ import annotations

from typing import NamedTuple

from ddpviz.language import N_

VIEWS = ("overview", "norms", "backward", "layers", "findings", "output", "job", "source")


VIEW_NAMES = {
    "overview": N_("Overview"),
    "norms": N_("Norms"),
    "backward": N_("Backward"),
    "layers": N_("Layers"),
    "findings": N_("Findings"),
    "output": N_("Output"),
    "job": N_("Job"),
    "source": N_("Source"),
}


class Key(NamedTuple):
    keys: str  # Textual names, comma separated
    action: str
    shown: str  # how a person writes the key
    label: str  # one or two words, for the footer; empty: help only
    help: str
    topic: str
    rank: int = 0  # the footer shows the lowest first, and what does not fit is left out
    pair: str = ""  # how the footer writes it, where it stands for its opposite too


KEYS = (
    Key("space", "pause", "space", "pause", "Pause and look, or play on from here. The job itself runs on.", "Time", 0),
    Key("left", "step(-1)", "←", "step", "The micro-step (backward pass) before.", "Time", 1, "←→"),
    Key("right", "step(1)", "→", "", "The next micro-step.", "Time"),
    Key(
        "shift+left",
        "moment(-1)",
        "⇧←",
        "",
        "The recorded moment before: a bucket ready, sent, averaged; a step.",
        "Time",
    ),
    Key("shift+right", "moment(1)", "⇧→", "", "The next recorded moment.", "Time"),
    Key("left_curly_bracket", "event(-1)", "{", "", "The event before: a finding, else an optimizer step.", "Time"),
    Key(
        "right_curly_bracket",
        "event(1)",
        "}",
        "event",
        "The next event: a finding, else an optimizer step.",
        "Time",
        2,
        "{ }",
    ),
    Key("comma", "window(-1)", ",", "", "The window (accumulation) before.", "Time"),
    Key("full_stop", "window(1)", ".", "", "The next window.", "Time"),
    Key("home", "first", "Home", "", "The first micro-step.", "Time"),
    Key("end", "live", "End", "live", "The newest one; follow the job live.", "Time", 3),
    Key("left_square_bracket", "speed(-1)", "[", "", "Play slower: down to a hundredth of real time.", "Time"),
    Key("right_square_bracket", "speed(1)", "]", "", "Play faster: up to a hundred times real time.", "Time"),
    Key("o", "one_a_second", "o", "", "Play one pass a second, however fast it was.", "Time"),
    Key("g", "goto", "g", "", "Go to an optimizer step by its number.", "Time"),
    *(Key(str(i), f"view('{name}')", str(i), "", VIEW_NAMES[name], "Views") for i, name in enumerate(VIEWS, start=1)),
    Key("enter", "drill", "Enter", "open", "Open the pass under the cursor (Backward).", "Views", 5),
    Key("escape", "back", "Esc", "", "Back to where you were.", "Views"),
    Key("z", "zoom_panel", "z", "maximise", "One panel fills the screen; again: all of them.", "Views", 7),
    Key("m", "module", "m", "", "The next DDP module, if there are several.", "Views"),
    Key("slash", "filter", "/", "filter", "Filter ranks, layers and output by text.", "Views", 8),
    Key("plus,equals_sign", "zoom(1)", "+", "", "Zoom in on the timeline.", "Timeline"),
    Key("minus", "zoom(-1)", "-", "zoom", "Zoom out: a cell covers more micro-steps.", "Timeline", 6, "+ -"),
    Key("up", "rank(-1)", "↑", "", "The rank above.", "Timeline"),
    Key("down", "rank(1)", "↓", "", "The rank below.", "Timeline"),
    Key("h", "by_host", "h", "", "A row a host, where there are several; and back.", "Timeline"),
    Key("p", "hold_job", "p", "", "Hold the job itself where no rank is in a collective, or let it go on.", "Demos"),
    Key("j", "control", "j", "", "The control panel: step and pace the job, change what its lesson exposes.", "Demos"),
    Key("l", "lesson", "l", "", "The lesson of this demo: what to look at, and what was seen so far.", "Demos"),
    Key("w,f5", "present", "w", "", "Presenter's mode: large marks, one sentence; and back.", "On the wall"),
    Key(
        "pagedown",
        "tour(1)",
        "PgDn",
        "",
        "There: on to the next moment worth telling (a clicker).",
        "On the wall",
    ),
    Key("pageup", "tour(-1)", "PgUp", "", "There: back to the moment before.", "On the wall"),
    Key("question_mark,f1", "help", "?", "help", "This help.", "Everything else", -2),
    Key("a", "motion", "a", "", "Motion of Levels on or off.", "Everything else"),
    Key("e", "narration", "e", "", "Tell less or more: quiet, normal, teacher (says why, too).", "Everything else"),
    Key("ctrl+p", "command_palette", "ctrl+p", "", "Every command by name, themes, the language.", "Everything else"),
    Key("t", "next_theme", "t", "", "The next theme: dark, light, contrast, 16 colours.", "Everything else"),
    Key("s", "screenshot_svg", "s", "", "Save a picture of the screen (SVG).", "Everything else"),
    Key("q", "quit_job", "q", "quit", "Quit. A job that ddpviz started ends with it.", "Everything else", -1),
    Key(
        "ctrl+c",
        "interrupt",
        "ctrl+c",
        "",
        "Copy the text selected with the mouse; with none, quit.",
        "Everything else",
    ),
)
