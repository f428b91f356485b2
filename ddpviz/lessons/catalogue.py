"""The lessons, in the order in which a class takes them. Built when asked for, in the language of that moment."""

from __future__ import annotations

from ddpviz.language import _
from ddpviz.lessons import seen, special
from ddpviz.lessons.model import Knob, Lesson

_RIGHT = ("--right",)


def catalogue() -> tuple[Lesson, ...]:
    """All lessons."""
    return (*_no_sync(), *_mistakes(), *_further())


def _no_sync() -> tuple[Lesson, ...]:
    group = _("no_sync and accumulation")
    return (
        Lesson(
            "last-one-syncs",
            group,
            _("What no_sync does"),
            (
                _("Four micro-steps inside no_sync(): watch each rank's level rise by itself; nothing is sent."),
                _("The fifth is outside it: its all-reduce carries the whole sum, and the levels meet at the mean."),
            ),
            (seen.sent, seen.met, seen.used, seen.replicas),
        ),
        Lesson(
            "accumulate",
            group,
            _("Accumulation, with no_sync and without"),
            (
                _("Windows of four micro-steps: three local, the fourth all-reduced, then the step."),
                _("Run it again with -- --no-sync off: the same steps, and every micro-step pays for an all-reduce."),
            ),
            (seen.sent, seen.step_cost, seen.used, seen.replicas),
            other=("--no-sync", "off"),
            other_label=_("no_sync off"),
        ),
        Lesson(
            "bigger-batch",
            group,
            _("A larger effective batch without more memory"),
            (
                _("First each batch of 64 comes in 4 pieces of 16, then in one: compare the windows."),
                _("The averaged gradient is the same; the memory that the activations need is not."),
            ),
            (special.halves, special.same_gradient, seen.used, seen.replicas),
            other=("--accumulation", "8"),
            other_label=_("in 8 pieces"),
        ),
        Lesson(
            "accumulate-long",
            group,
            _("Accumulation at a pace that one can follow, with everything to change"),
            (
                _("j opens the control panel: pause the job, let it go step by step, and turn what you like."),
                _("Change the accumulation or no_sync and watch the windows; slow a rank down and see who waits."),
            ),
            (seen.sent, seen.step_cost, seen.late, seen.replicas),
            other=("--accumulation", "8"),
            other_label=_("accumulation 8"),
            knobs=(
                Knob("accumulation", _("accumulation steps"), ("1", "2", "4", "8", "16"), "4"),
                Knob("no_sync", _("no_sync while accumulating"), ("on", "off"), "on"),
                Knob("batch_size", _("samples in a micro-batch"), ("1", "4", "16", "64", "256"), "16"),
                Knob("lr", _("learning rate"), ("0.0001", "0.001", "0.01", "0.1"), "0.001"),
                Knob("slow_rank", _("a slower rank"), ("-1", "0", "1", "2", "3"), "-1"),
                Knob("pause", _("seconds of rest"), ("0", "0.02", "0.1", "0.5"), "0.1"),
                Knob("bucket_cap", _("bucket cap, MB"), ("0.001", "0.005", "1", "25"), "25", live=False),
            ),
        ),
    )


def _mistakes() -> tuple[Lesson, ...]:
    group = _("mistakes, shown on purpose")
    return (
        Lesson(
            "unsynced-step",
            group,
            _("A step on gradients that were never averaged"),
            (
                _("Both micro-steps are inside no_sync(): the levels never meet before the optimizer takes them."),
                _("The mark of the step is red: from here on every rank trains a model of its own."),
            ),
            (seen.levels, seen.used, seen.replicas),
            teaches=("unsynced-step", "replicas-diverged"),
            other=_RIGHT,
            other_label=_("without the mistake"),
        ),
        Lesson(
            "first-syncs",
            group,
            _("Off by one: the first micro-batch all-reduces instead of the last"),
            (
                _("Look where the full cell of each window is: first, not last. Three more are added after it."),
                _("The levels meet, and then part again before the step."),
            ),
            (seen.sent, seen.levels, seen.used, seen.replicas),
            teaches=("stale-sync-step", "replicas-diverged"),
            other=_RIGHT,
            other_label=_("without the mistake"),
        ),
        Lesson(
            "forward-outside",
            group,
            _("The forward outside the context"),
            (
                _("The script says no_sync(), and every cell is full: DDP decided in the forward, before the context."),
                _("The result is right, and the all-reduces that no_sync should have saved are paid for."),
            ),
            (special.in_vain, seen.sent, seen.replicas),
            teaches=("no-sync-split", "redundant-sync"),
            other=_RIGHT,
            other_label=_("without the mistake"),
        ),
        Lesson(
            "short-window",
            group,
            _("The last, shorter window of an epoch"),
            (
                _("Ten micro-steps in windows of four: look at the last two of the epoch, which no step follows."),
                _("The next epoch's first window is longer than the others: it swallows them."),
            ),
            (seen.window_sizes, seen.used, seen.replicas),
            teaches=("lost-micro-steps", "carried-window"),
            other=_RIGHT,
            other_label=_("without the mistake"),
        ),
        Lesson(
            "unused-parameters",
            group,
            _("Parameters that a pass does not use"),
            (
                _("Two heads in turn: the bucket that holds the unused head's gradients never becomes full."),
                _("PyTorch raises one step later, in the forward; the finding names the parameters."),
            ),
            (special.unused, seen.used, seen.replicas),
            teaches=("torch-refused", "unsynced-step", "replicas-diverged"),
            other=_RIGHT,
            other_label=_("find_unused_parameters"),
        ),
        Lesson(
            "rank-disagrees",
            group,
            _("A rank that disagrees, and a job that hangs"),
            (
                _("Rank 0 finds its window full after three micro-steps, the others after four: the rows differ."),
                _("All-reduces of different micro-steps meet, unnoticed, until one rank waits for ever."),
            ),
            (special.apart, special.waits, seen.sent, seen.replicas),
            teaches=("uneven-ranks", "collective-hang"),
            other=_RIGHT,
            other_label=_("without the mistake"),
        ),
        Lesson(
            "same-data",
            group,
            _("Every rank with the same data"),
            (
                _("The levels of all ranks rise to the same height, to the last bit, before anything is averaged."),
                _("Averaging equal gradients changes nothing: N ranks do the work of one."),
            ),
            (special.twins, seen.met, seen.replicas),
            teaches=("identical-batches",),
            other=_RIGHT,
            other_label=_("without the mistake"),
        ),
        Lesson(
            "nan-spreads",
            group,
            _("A NaN that spreads"),
            (
                _("In the third micro-step one rank's gradients are NaN, and only there."),
                _("One all-reduce later every rank has it, and the step writes it into every replica."),
            ),
            (special.spread, seen.used, seen.replicas),
            teaches=("nonfinite-gradient",),
            other=_RIGHT,
            other_label=_("without the mistake"),
        ),
    )


def _further() -> tuple[Lesson, ...]:
    group = _("further")
    return (
        Lesson(
            "uneven-join",
            group,
            _("Uneven inputs, and join"),
            (
                _("Rank 0 has fewer batches than rank 1: its row ends early, and the job goes on."),
                _("Inside join() a rank that is done answers the others' all-reduces with zeros."),
            ),
            (special.batches, seen.used, seen.replicas),
            other=("--join", "off"),
            other_label=_("without join"),
        ),
        Lesson(
            "buckets",
            group,
            _("Buckets, and communication behind the backward"),
            (
                _("3 opens the backward pass: one large bucket is sent when everything is computed;"),
                _("small ones (m shows the second network) are sent while earlier layers still compute."),
            ),
            (special.overlap, seen.used, seen.replicas),
            other=("--small", "0.5"),
            other_label=_("smaller buckets"),
        ),
        Lesson(
            "fp16-hook",
            group,
            _("A communication hook that compresses"),
            (
                _("The bytes of each all-reduce are half of what the gradients are."),
                _("What comes back is rounded, but the same on every rank: the replicas stay equal."),
            ),
            (special.compressed, seen.step_cost, seen.replicas),
            other=("--hook", "off"),
            other_label=_("without the hook"),
        ),
        Lesson(
            "gan",
            group,
            _("Two models in one job"),
            (
                _("Two DDP modules, each with micro-steps of its own: m goes from one to the other."),
                _("In the generator's turn the critic only passes gradients on: its part stays local, under no_sync."),
            ),
            (special.each_module, seen.used, seen.replicas),
        ),
    )
