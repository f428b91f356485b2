"""The quiz: a dozen questions on recordings of the lessons (`tests/make_quiz.py` makes them). Data, and facts of a run.

A question is answered by pointing at a pass, which is right or wrong by what was recorded there, or by choosing a line.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass

from ddpviz.language import _
from ddpviz.timeline.model import Gradients, Lane, Sync, Timeline

RUNS = os.path.join(os.path.dirname(__file__), "runs")

Points = Callable[[Lane, int], bool]


@dataclass(frozen=True, slots=True)
class Question:
    """`right` is the number of the right choice; a question without choices asks for a pass, and `points` judges it."""

    run: str  # the lesson that was recorded
    ask: str
    why: str  # said after the answer
    choices: tuple[str, ...] = ()
    right: int = -1
    points: Points | None = None

    def fits(self, tl: Timeline, index: int) -> bool:
        """Whether pointing at this pass answers the question."""
        lane = next((lane for module in tl.modules for lane in module.lanes.values()), None)
        return self.points is not None and lane is not None and 0 <= index < len(lane.sync) and self.points(lane, index)


def synced(lane: Lane, index: int) -> bool:
    return int(lane.sync[index]) == Sync.SYNCED


def local(lane: Lane, index: int) -> bool:
    return int(lane.sync[index]) == Sync.LOCAL


def before_a_wrong_step(lane: Lane, index: int) -> bool:
    """The last pass before a step whose gradients were never averaged."""
    return any(int(row["after"]) == index for row in lane.steps[lane.gradients == int(Gradients.LOCAL)])


def added_too_late(lane: Lane, index: int) -> bool:
    """A local pass behind an all-reduced one of the same window."""
    window = lane.passes["window"]
    return local(lane, index) and any(synced(lane, i) for i in range(index) if window[i] == window[index])


def left_over(lane: Lane, index: int) -> bool:
    """Left over from an epoch's end: of those that make a window longer than the first, or behind the last step."""
    if index > int(lane.steps["after"].max(initial=-1)):
        return True
    window = lane.passes["window"]
    usual = int((window == window[0]).sum())
    return bool((window == window[index]).sum() > usual) and int((window[:index] == window[index]).sum()) < 2


def questions() -> tuple[Question, ...]:
    """All questions, in the language of the moment."""
    return (
        Question(
            "last-one-syncs",
            _("Point at a pass that was all-reduced."),
            _("Its cell is full: every bucket's all-reduce was sent and completed. The others stayed local (no_sync)."),
            points=synced,
        ),
        Question(
            "last-one-syncs",
            _("The fifth pass is the only one that was all-reduced. What does its all-reduce carry?"),
            _("Gradients add up in .grad, and the reducer averages what is there: the sum of all five."),
            (_("the gradients of the fifth pass"), _("the sum of all five passes"), _("the sum of the first four")),
            1,
        ),
        Question(
            "accumulate",
            _("Point at a pass in which nothing was sent."),
            _("Local passes are the light cells: each rank adds its own gradients to what it has."),
            points=local,
        ),
        Question(
            "accumulate",
            _("What changes if no_sync() is left out here?"),
            _(
                "The mean of a sum is the sum of the means: the steps stay the same, up to rounding, and every "
                "pass pays."
            ),
            (_("only time and bytes sent"), _("the replicas part"), _("the effective batch becomes smaller")),
            0,
        ),
        Question(
            "unsynced-step",
            _("Point at the last pass before a step on gradients that were never averaged."),
            _("The red mark behind it says so: all passes of the window are local, and then came the step."),
            points=before_a_wrong_step,
        ),
        Question(
            "unsynced-step",
            _("Which line of the script is wrong?"),
            _(
                "The condition never lets the last micro-batch out of no_sync(): the step itself stands where it "
                "should."
            ),
            (
                "with nullcontext() if synchronise else ddp_model.no_sync():",
                "loss.backward()",
                "optimizer.step()",
            ),
            0,
        ),
        Question(
            "unsynced-step",
            _("All later gradients are averaged. Do the replicas become equal again?"),
            _("SGD moves different parameters by the same amount if the gradients are equal: they stay as far apart."),
            (_("yes, after the next step"), _("yes, but slowly"), _("no")),
            2,
        ),
        Question(
            "first-syncs",
            _("Point at a pass whose gradients came too late for the all-reduce of their window."),
            _("They were added behind the full cell: what comes after the all-reduce stays on its own rank."),
            points=added_too_late,
        ),
        Question(
            "first-syncs",
            _("Which pass of a window has to synchronise?"),
            _("Only then does the all-reduce carry everything that the step will use."),
            (_("the first"), _("the last"), _("any one of them"), _("all of them")),
            1,
        ),
        Question(
            "forward-outside",
            _("The backward stands inside no_sync(), yet every cell is full. Why?"),
            _("DDP arms its reducer in the forward; the flag at the backward means nothing."),
            (
                _("no_sync() works on GPUs only"),
                _("the forward was outside, and it decides"),
                _("the loss is too large"),
            ),
            1,
        ),
        Question(
            "short-window",
            _("Point at a pass that was left over from the end of an epoch."),
            _(
                "No step followed it in its epoch: the next epoch's first window is longer by two, and the last two of "
                "the run are in no step at all."
            ),
            points=left_over,
        ),
        Question(
            "same-data",
            _("The ranks' levels are always equal, before anything is averaged. What is wrong?"),
            _(
                "Equal norms to the last bit mean equal batches: a DistributedSampler, or a seed that differs, "
                "is missing."
            ),
            (_("nothing: that is what DDP is for"), _("the learning rate"), _("every rank sees the same data")),
            2,
        ),
    )
