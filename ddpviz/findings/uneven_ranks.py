"""uneven-ranks: the ranks drift apart in their number of passes or all-reduces.

Measured: each rank's own count of backward passes and of passes whose collectives it issued, which pass met which (the
k-th collective of a group pairs with the k-th on every other rank), forwards that no backward followed, and what each
rank was doing when the job ended or hung.

Fires when
- an all-reduce of one window met that of another window, so that gradients of different steps were averaged; or
- the job ended or hangs, and a rank issued fewer all-reduces than the others because it is done with its passes: it
  finished, or waits in another collective than the others.
The message says since when, as far as it shows: the first micro-steps of different index that were averaged together,
or the batch that one rank skipped.

Does not fire for a rank that finished under `join`; for windows of different length that each close with one
all-reduce, in step with the others; for a rank that failed or was killed (rank-died); for one that is merely slow.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from ddpviz.findings import facts, standing, words
from ddpviz.findings.model import Finding, Severity
from ddpviz.language import _
from ddpviz.timeline.model import Lane, Module, Site, Sync, Timeline


@dataclass(frozen=True, slots=True)
class Drift:
    behind: tuple[int, ...]  # ranks that issued fewer all-reduces, or fell out of step
    ahead: int  # a rank of the others
    pair: tuple[int, int] | None  # first micro-steps of different index averaged together: of `ahead`, of behind[0]
    ended: bool  # the numbers differ at the end


def check(tl: Timeline) -> Iterator[Finding]:
    for module in facts.shared(tl):
        drift = drifted(tl, module)
        if drift is None:
            continue
        rank, ahead = drift.behind[0], drift.ahead
        of = words.of(tl, module)
        skipped = _skipped(tl, module, drift)
        lane = module.lanes[ahead]
        counts = {k: _begun(tl, module, module.lanes[k]) for k in (ahead, rank)}
        parts = []
        if drift.ended and counts[ahead] > counts[rank]:  # else they drifted apart by what they synchronised
            parts.append(
                _(
                    "Rank {ahead} began {micro_steps}{of} and rank {rank} only {fewer}: the ranks ran different "
                    "numbers of backward passes.",
                    ahead=ahead,
                    micro_steps=words.plural(counts[ahead], "micro-step"),
                    of=of,
                    rank=rank,
                    fewer=counts[rank],
                )
            )
        else:
            parts.append(_("The ranks are out of step{of}.", of=of))
        site = tl.site(ahead, int(lane.passes[-1]["backward_site"])) if len(lane.passes) else module.site
        backward = counts[rank]
        if drift.pair is not None:
            backward = drift.pair[1]
            parts.append(
                _(
                    "Since then gradients of different micro-steps are averaged: micro-step {theirs} of rank {ahead} "
                    "with micro-step {mine} of rank {rank}.",
                    theirs=drift.pair[0],
                    ahead=ahead,
                    mine=drift.pair[1],
                    rank=rank,
                )
            )
        if skipped is not None:
            who, after, place = skipped
            site, backward = place, after + 1
            parts.append(
                _(
                    "Rank {who} skipped a batch: its forward{at} after micro-step {after} had no backward. From there "
                    "its micro-steps are one batch ahead of the others', and gradients of different batches are "
                    "averaged.",
                    who=who,
                    at=words.at(place),
                    after=after,
                )
                if after >= 0
                else _(
                    "Rank {who} skipped its first batch: that forward{at} had no backward. From there its micro-steps "
                    "are one batch ahead of the others'.",
                    who=who,
                    at=words.at(place),
                )
            )
        elif drift.ended and drift.pair is None:
            parts.append(_("They agree up to micro-step {last}.", last=counts[rank] - 1) if counts[rank] else "")
        parts.append(_thrown_out(tl, drift, counts[ahead] - 1))
        yield Finding(
            "uneven-ranks",
            Severity.ERROR,
            " ".join(p for p in parts if p),
            _(
                "Give every rank the same number of batches (DistributedSampler, drop_last=True), and skip a batch "
                "on all ranks or on none: all-reduce the condition first. For data that is uneven by nature use "
                "`with model.join():`."
            ),
            module=module.id,
            ranks=drift.behind,
            backward=backward,
            file=site.file,
            line=site.line,
            code=site.code,
            via=site.via,
        )


def drifted(tl: Timeline, module: Module) -> Drift | None:
    """Whether the module's ranks are apart, and how; None while they are in step."""
    gone = facts.joined(tl, module)
    lanes = [lane for lane in facts.lanes(module) if lane.rank not in gone]
    if len(lanes) < 2:
        return None
    sent = {lane.rank: facts.issued(lane) for lane in lanes}
    most = max(lanes, key=lambda lane: (len(sent[lane.rank]) + _inside(tl, module, lane.rank), -lane.rank))
    for lane in lanes:
        mine, theirs = sent[lane.rank], sent[most.rank]
        n = min(len(mine), len(theirs))
        other = np.flatnonzero(mine[:n] != theirs[:n])
        if not len(other) or lane is most:
            continue
        windows = facts.segments(lane)[0][mine[:n]], facts.segments(most)[0][theirs[:n]]
        if not np.array_equal(*windows):  # different windows met
            at = int(other[0])
            return Drift((lane.rank,), most.rank, (int(theirs[at]), int(mine[at])), False)
    if not facts.ended(tl.run):
        return None
    total = {lane.rank: len(sent[lane.rank]) + _inside(tl, module, lane.rank) for lane in lanes}
    few = [rank for rank, n in total.items() if n < total[most.rank] and _done(tl, module, rank)]
    if not few:
        return None
    mine, theirs = sent[few[0]], sent[most.rank]
    n = min(len(mine), len(theirs))
    other = np.flatnonzero(mine[:n] != theirs[:n])
    pair = (int(theirs[other[0]]), int(mine[other[0]])) if len(other) else None
    return Drift(tuple(few), most.rank, pair, True)


def _inside(tl: Timeline, module: Module, rank: int) -> bool:
    """Whether the rank is in an all-reduce of a pass of this module that has no row yet, or failed in its last one."""
    if _failed_inside(module.lanes[rank]):
        return True
    state = tl.ranks.get(rank)
    stack = state.stack if state is not None else None
    return stack is not None and stack.module == module.id and stack.pass_index >= len(module.lanes[rank].passes)


def _failed_inside(lane: Lane) -> bool:
    """Whether its last pass had sent something and then raised."""
    return len(lane.passes) > 0 and lane.sync[-1] == int(Sync.UNFINISHED) and int(lane.passes[-1]["launched"]) > 0


def _begun(tl: Timeline, module: Module, lane: Lane) -> int:
    return len(lane.passes) + (_inside(tl, module, lane.rank) and not _failed_inside(lane))


def _thrown_out(tl: Timeline, drift: Drift, index: int) -> str:
    """What became of the others where a rank ended its script before them."""
    rank, ahead = tl.ranks.get(drift.behind[0]), tl.ranks.get(drift.ahead)
    if rank is None or ahead is None or not standing.finished(rank) or not standing.thrown_out(ahead):
        return ""
    last = standing.last_event(tl, rank.rank)
    return _(
        "Rank {rank} had come to the end of its script by then (exit code 0{last}), and rank "
        "{ahead} failed in the all-reduce of micro-step {index} because the connection to it was gone.",
        rank=rank.rank,
        last=_("; the last it did: {last}", last=last) if last else "",
        ahead=ahead.rank,
        index=index,
    )


def _done(tl: Timeline, module: Module, rank: int) -> bool:
    """Whether the rank is done with its passes: it ended well, or waits in something else than such a pass.

    Where nobody ends a hang, the process group's time-out does, and the rank has failed in what it waited in.
    """
    state = tl.ranks.get(rank)
    if state is None:
        return False
    if standing.finished(state):
        return True
    stack = state.stack
    timed_out = state.exit is not None and standing.TIMED_OUT.search(state.exit.error) is not None
    return (
        (tl.run.status == "hung" or timed_out)
        and stack is not None
        and stack.doing not in ("computing", "init_process_group")
        and not _inside(tl, module, rank)
    )


def _skipped(tl: Timeline, module: Module, drift: Drift) -> tuple[int, int, Site] | None:
    """The first forward without a backward that only one rank has: rank, micro-step before it, place."""
    ahead, rank = module.lanes[drift.ahead], module.lanes[drift.behind[0]]
    theirs = [u.after for u in ahead.unanswered]
    for record in rank.unanswered:
        if record.after in theirs:
            theirs.remove(record.after)
        else:
            return rank.rank, record.after, tl.site(rank.rank, record.site)
    return None
