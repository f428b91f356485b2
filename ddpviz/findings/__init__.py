"""What is wrong, where, and what to do: a Timeline in, findings out.

One rule a file, each a function `check(tl)`; `find` runs them all. No rule knows another's state; causes come before
their consequences in RULES, which is the order of findings of one severity.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from ddpviz.findings import (
    averaged_twice,
    buffers_diverged,
    carried_window,
    clipped_before_sync,
    collective_hang,
    ddp_bypassed,
    exposed_communication,
    facts,
    gradients_changed_after_sync,
    hook_not_mean,
    identical_batches,
    lost_micro_steps,
    never_stepped,
    never_used_parameter,
    no_sync_split,
    nonfinite_gradient,
    rank_died,
    rank_disagreement,
    redundant_sync,
    replicas_diverged,
    stale_sync_step,
    straggler,
    torch_refused,
    uneven_ranks,
    unmanaged_parameter,
    unsynced_step,
)
from ddpviz.findings.model import Finding, Severity
from ddpviz.language import _, english
from ddpviz.timeline.model import Timeline

__all__ = ["RULES", "Finding", "Severity", "find", "find_in_english"]

Rule = Callable[[Timeline], Iterable[Finding]]

RULES: dict[str, Rule] = {
    "torch-refused": torch_refused.check,
    "rank-died": rank_died.check,
    "uneven-ranks": uneven_ranks.check,
    "rank-disagreement": rank_disagreement.check,
    "collective-hang": collective_hang.check,
    "ddp-bypassed": ddp_bypassed.check,
    "unmanaged-parameter": unmanaged_parameter.check,
    "stale-sync-step": stale_sync_step.check,
    "unsynced-step": unsynced_step.check,
    "nonfinite-gradient": nonfinite_gradient.check,
    "gradients-changed-after-sync": gradients_changed_after_sync.check,
    "replicas-diverged": replicas_diverged.check,
    "hook-not-mean": hook_not_mean.check,
    "averaged-twice": averaged_twice.check,
    "no-sync-split": no_sync_split.check,
    "clipped-before-sync": clipped_before_sync.check,
    "lost-micro-steps": lost_micro_steps.check,
    "never-stepped": never_stepped.check,
    "carried-window": carried_window.check,
    "identical-batches": identical_batches.check,
    "redundant-sync": redundant_sync.check,
    "buffers-diverged": buffers_diverged.check,
    "never-used-parameter": never_used_parameter.check,
    "straggler": straggler.check,
    "exposed-communication": exposed_communication.check,
}


def find(tl: Timeline) -> list[Finding]:
    """Everything that is wrong, the worst first; of one severity, causes before consequences.

    A rule that fails on a timeline that nobody thought of says so as information and hides no other rule's finding.
    """
    found: list[Finding] = []
    for name, rule in RULES.items():
        try:
            found += rule(tl)
        except Exception as error:
            found.append(
                Finding(
                    name,
                    Severity.INFO,
                    _("This rule could not be judged: {name}: {error}.", name=type(error).__name__, error=error),
                    _("This is a fault of ddpviz, not of your script; please report it with the run folder."),
                )
            )
    facts.forget()
    return sorted(found, key=lambda f: -f.severity)


def find_in_english(tl: Timeline) -> list[Finding]:
    """The same for programs, whatever language is spoken: the report and annotations are read by other tools."""
    with english():
        return find(tl)
