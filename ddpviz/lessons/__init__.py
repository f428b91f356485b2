"""The classroom's stories: what each demo teaches, what to look at, what was seen. Pure; told by whoever shows them.

`told` gives the sentences of the end, in numbers of the run itself.
"""

from __future__ import annotations

from ddpviz.lessons.catalogue import catalogue
from ddpviz.lessons.model import Knob, Lesson
from ddpviz.timeline.model import Timeline

__all__ = ["Knob", "Lesson", "catalogue", "lesson", "told"]


def lesson(name: str) -> Lesson | None:
    """The lesson of that name; None if there is none."""
    return next((one for one in catalogue() if one.name == name), None)


def told(one: Lesson, tl: Timeline) -> list[str]:
    """What was seen in this run, a sentence each. A fact that a run nobody thought of cannot give is left out."""
    sentences = []
    for fact in one.seen:
        try:
            sentences.append(fact(tl))
        except (IndexError, KeyError, ValueError, ZeroDivisionError, OverflowError):
            continue
    return [sentence for sentence in sentences if sentence]
