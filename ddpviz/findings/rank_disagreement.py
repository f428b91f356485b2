"""rank-disagreement: in one micro-step some ranks all-reduce and others do not.

Measured: which ranks issued the collectives of the same micro-step. No hang follows at once: the all-reduce meets the
next one that the others issue, whatever micro-step that is, and gradients of different batches are averaged.

Fires at the first micro-step in which ranks that stand at the same place of the same window disagree. While a job
hangs, also where a rank waits in the all-reduce of a micro-step that another finished locally.

Does not fire where the ranks drifted apart in number of passes (uneven-ranks says that); where windows have different
lengths on different ranks but each closes with one all-reduce; for a rank that finished under `join`.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ddpviz.findings import facts, uneven_ranks, words
from ddpviz.findings.model import Finding, Severity
from ddpviz.language import _
from ddpviz.timeline.model import Lane, Module, Sync, Timeline
from ddpviz.trace.records import PassFlag


def check(tl: Timeline) -> Iterator[Finding]:
    for module in facts.shared(tl):
        gone = facts.joined(tl, module)
        lanes = [lane for lane in facts.lanes(module) if lane.rank not in gone]
        if len(lanes) < 2 or uneven_ranks.drifted(tl, module):
            continue
        indices = _mixed(lanes)
        waiting = _waiting(tl, module, lanes)
        if not len(indices) and waiting is None:
            continue
        first = int(indices[0]) if len(indices) else waiting[0] if waiting else 0
        sent = [lane.rank for lane in lanes if _sent(lane, first)]
        sent += [rank for rank in (waiting[1] if waiting and waiting[0] == first else []) if rank not in sent]
        quiet = [lane.rank for lane in lanes if lane.rank not in sent]
        if not sent or not quiet:
            continue
        lane = module.lanes[quiet[0]] if first < len(module.lanes[quiet[0]].passes) else module.lanes[sent[0]]
        row = lane.passes[min(first, len(lane.passes) - 1)]
        where = tl.site(lane.rank, int(row["backward_site"]))
        flags = int(row["flags"])
        quiet_why = _(" under no_sync()") if flags & PassFlag.NO_SYNC_FORWARD and flags & PassFlag.FLAGS_KNOWN else ""
        count = max(1, len(indices))
        more = _(" It is so in {micro_steps}.", micro_steps=words.plural(count, "micro-step")) if count > 1 else ""
        yield Finding(
            "rank-disagreement",
            Severity.ERROR,
            _(
                "In micro-step {first}{of}{at} {ranks} all-reduced, and {quiet} stayed local{why}. An "
                "all-reduce needs every rank: this one meets the next that {quiet} will send, which carries "
                "another micro-step's gradients, or waits for ever.{more}",
                first=first,
                of=words.of(tl, module),
                at=words.at(where),
                ranks=words.ranks(sent),
                quiet=words.ranks(quiet),
                why=quiet_why,
                more=more,
            ),
            _(
                "Let every rank decide alike which micro-step synchronises: from the batch index and the number of "
                "batches that all ranks share, never from the rank, the data or the length of its own loader."
            ),
            module=module.id,
            ranks=tuple(quiet),
            count=count,
            backward=first,
            file=where.file,
            line=where.line,
            code=where.code,
            via=where.via,
            backwards=tuple(indices.tolist()) or (first,),
        )


def _sent(lane: Lane, index: int) -> bool:
    return index < len(lane.sync) and lane.sync[index] in (int(Sync.SYNCED), int(Sync.PARTIAL))


def _mixed(lanes: list[Lane]) -> facts.Ints:
    """Micro-steps in which ranks at the same place of the same window disagree."""
    n = min(len(lane.passes) for lane in lanes)
    if not n:
        return np.zeros(0, np.int64)
    sync = np.array([lane.sync[:n] for lane in lanes])
    sent = (sync == int(Sync.SYNCED)) | (sync == int(Sync.PARTIAL))
    mixed = sent.any(0) & (sync == int(Sync.LOCAL)).any(0)
    if not mixed.any():
        return np.zeros(0, np.int64)
    whole = [facts.segments(lane)[0] for lane in lanes]
    place = np.array([stretch[:n] for stretch in whole])
    found = np.flatnonzero(mixed & (place == place[0]).all(0))
    sizes = [np.bincount(stretch) for stretch in whole]
    # a window of another length on another rank closes with an all-reduce of its own, in step with the others'
    return found[[len({int(size[place[0, i]]) for size in sizes}) == 1 for i in found.tolist()]]


def _waiting(tl: Timeline, module: Module, lanes: list[Lane]) -> tuple[int, list[int]] | None:
    """The micro-step in whose all-reduce ranks wait although another finished it locally; and these ranks."""
    if tl.run.status != "hung":
        return None
    for lane in lanes:
        state = tl.ranks.get(lane.rank)
        stack = state.stack if state is not None else None
        if stack is None or stack.module != module.id or stack.pass_index < 0 or stack.doing == "computing":
            continue
        index = stack.pass_index
        if any(index < len(o.sync) and o.sync[index] == int(Sync.LOCAL) for o in lanes if o.rank != lane.rank):
            who = [o.rank for o in lanes if (s := tl.ranks.get(o.rank)) and s.stack and s.stack.pass_index == index]
            return index, who
    return None
