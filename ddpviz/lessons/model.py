"""What a lesson is: data, and functions of a timeline. The lesson's script is a demo of the same name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ddpviz.timeline.model import Timeline

Fact = Callable[[Timeline], str]  # one sentence in numbers of this very run; an empty string where nothing was measured


@dataclass(frozen=True, slots=True)
class Knob:
    """Something that may be changed while the lesson runs: an option of its script."""

    name: str  # as in the script's `args`: "batch_size" of --batch-size
    label: str
    values: tuple[str, ...]  # to choose from, as they stand on a command line
    default: str  # the script's own
    live: bool = True  # the script reads it anew for every micro-step; else the job has to be started again

    @property
    def option(self) -> str:
        return "--" + self.name.replace("_", "-")


@dataclass(frozen=True, slots=True)
class Lesson:
    name: str  # of the demo, such as "accumulate-long"
    group: str  # the heading under which it stands in a list
    title: str
    look: tuple[str, ...]  # what to look at, said first
    seen: tuple[Fact, ...]  # what was seen, said at the end
    teaches: tuple[str, ...] = ()  # rules whose findings (errors and warnings) it shows; none: a right script
    other: tuple[str, ...] = ()  # arguments of the variant to compare it with
    other_label: str = ""
    knobs: tuple[Knob, ...] = ()
