"""Facts that one lesson alone tells, as those of `seen`: each a pure function of the timeline to one sentence."""

from __future__ import annotations

import numpy as np

from ddpviz.export import words
from ddpviz.language import _, ngettext
from ddpviz.lessons.seen import first_lane
from ddpviz.timeline import model as m
from ddpviz.timeline.timing import communication
from ddpviz.timeline.trends import agreement, traffic, windows
from ddpviz.trace import records as r


def halves(tl: m.Timeline) -> str:
    """bigger-batch: peak memory of the windows in pieces against those in one piece."""
    known = first_lane(tl)
    if known is None:
        return ""
    lane = known[1]
    bounds = windows(lane)
    lengths = np.diff(bounds)
    pieces, whole = np.flatnonzero(lengths > 1), np.flatnonzero(lengths == 1)
    if not len(pieces) or not len(whole):
        return ""
    # The peak is read a moment after a pass, so the last window in pieces may already hold the next one's.
    until = int(bounds[pieces[-1]]) if len(pieces) > 1 else int(bounds[pieces[-1] + 1])
    few, all_at_once = int(lane.passes["memory"][:until].max()), int(lane.passes["memory"].max())
    if not few or not all_at_once:
        return ""
    return _(
        "Peak memory of a rank: {few} while a batch came in {pieces} pieces, {whole} once it came in one: {more} more.",
        few=words.size(few),
        pieces=int(lengths[pieces[0]]),
        whole=words.size(all_at_once),
        more=words.size(all_at_once - few),
    )


def same_gradient(tl: m.Timeline) -> str:
    """bigger-batch: the averaged gradient of the first step of both halves."""
    known = first_lane(tl)
    if known is None:
        return ""
    lane = known[1]
    bounds = windows(lane)
    lengths = np.diff(bounds)
    if not (lengths > 1).any() or not (lengths == 1).any():
        return ""
    first = lane.passes[int(bounds[int(np.argmax(lengths > 1)) + 1]) - 1]
    other = lane.passes[int(bounds[int(np.argmax(lengths == 1))])]
    if not int(first["flags"]) & int(other["flags"]) & int(r.PassFlag.HAS_NORM):
        return ""
    return _(
        "The averaged gradient of the first step has norm {first} in pieces and {other} in one piece.",
        first=format(float(first["norm"]), ".6g"),
        other=format(float(other["norm"]), ".6g"),
    )


def in_vain(tl: m.Timeline) -> str:
    """forward-outside: passes that were to stay local and were all-reduced."""
    known = first_lane(tl)
    if known is None:
        return ""
    module, lane = known
    flags = lane.passes["flags"]
    inside = (flags & int(r.PassFlag.NO_SYNC_BACKWARD)) != 0
    outside = (flags & int(r.PassFlag.NO_SYNC_FORWARD)) == 0
    count = int(np.count_nonzero(inside & outside & (lane.sync == m.Sync.SYNCED)))
    if not count:
        return ""
    each = traffic(module)[0] / max(int(np.count_nonzero(lane.sync == m.Sync.SYNCED)), 1)
    return ngettext(
        "{n} backward ran inside no_sync() and was all-reduced all the same: {sent} that a rank need not have sent.",
        "{n} backwards ran inside no_sync() and were all-reduced all the same: {sent} that a rank need not have sent.",
        count,
        sent=words.size(count * each),
    )


def batches(tl: m.Timeline) -> str:
    """How many micro-steps each rank ran, and who answered for whom."""
    for module in tl.modules:
        counts = {k: len(lane.passes) for k, lane in module.lanes.items()}
        most = max(counts.values(), default=0)
        listed = ", ".join(_("rank {rank} {value}", rank=k, value=n) for k, n in list(counts.items())[:6])
        joined = [k for k in counts if k in tl.ranks and module.id in tl.ranks[k].joined]
        shadows = sum(most - counts[k] for k in joined)
        if shadows:
            return _(
                "Micro-steps: {listed}. Ranks that were done answered {shadows} of the others with zeros, so that "
                "nobody waited for ever.",
                listed=listed,
                shadows=words.plural(shadows, "all-reduce"),
            )
        if counts and min(counts.values()) < most:
            return _("Micro-steps: {listed}. A rank with fewer batches leaves the others waiting.", listed=listed)
    return ""


def overlap(tl: m.Timeline) -> str:
    """buckets: how much of the all-reduce each way of cutting hides behind the backward."""
    told = []
    for module in tl.modules:
        spent = [communication(lane) for lane in module.lanes.values()]
        exposed = np.concatenate([s.exposed[1:] for s in spent]) if spent else np.zeros(0)
        hidden = sum(int(s.hidden[1:].sum()) for s in spent)  # the first pass of a module is like no other
        total = hidden + int(exposed.sum())
        if not len(exposed) or not total or not module.layouts:
            continue
        count = words.plural(len(module.layouts[-1].buckets), "bucket")
        told.append(
            _(
                "{name}: {count}, {hidden} of the all-reduce ran beside the backward, {exposed} a micro-step were left "
                "after it.",
                name=module.name,
                count=count,
                hidden=words.percent(hidden / total),
                exposed=words.duration(float(np.median(exposed))),
            )
        )
    return " ".join(told)


def unused(tl: m.Timeline) -> str:
    """unused-parameters: what PyTorch refused and leaves out, or what went unused in the right variant."""
    for state in tl.ranks.values():
        for refused in state.refused:
            module = next((known for known in tl.modules if known.id == refused.module), None)
            names = [module.params[i].name for i in refused.params if i < len(module.params)] if module else []
            if names:
                return _(
                    "In micro-step {index} {names} got no gradient; PyTorch raised at the next forward, and does not "
                    "say these names.",
                    index=max(refused.pass_index - 1, 0),
                    names=", ".join(names[:4]),
                )
    known = first_lane(tl)
    if known is None:
        return ""
    module, lane = known
    managed = sum(p.managed for p in module.params)
    short = lane.passes["touched"] < managed
    if not short.any():
        return ""
    fewest = managed - int(lane.passes["touched"].min())
    return _(
        "In {count} of {passes} micro-steps {unused} of {all} parameters got no gradient, and DDP went on without "
        "waiting for them.",
        count=int(np.count_nonzero(short)),
        passes=len(lane.passes),
        unused=fewest,
        all=managed,
    )


def apart(tl: m.Timeline) -> str:
    """rank-disagrees: since when all-reduces of different micro-steps meet."""
    for module in tl.modules:
        counts = {k: int(np.count_nonzero(lane.sync == m.Sync.SYNCED)) for k, lane in module.lanes.items()}
        mixed = int(np.count_nonzero(module.verdicts == m.Sync.MIXED))
        if not mixed:
            continue
        first = int(np.flatnonzero(module.verdicts == m.Sync.MIXED)[0])
        listed = ", ".join(_("rank {rank} {value}", rank=k, value=n) for k, n in list(counts.items())[:6])
        return _(
            "In {mixed}, first in micro-step {first}, some ranks all-reduced and others did not. All-reduces "
            "completed: {listed}.",
            mixed=words.plural(mixed, "micro-step"),
            first=first,
            listed=listed,
        )
    return ""


def waits(tl: m.Timeline) -> str:
    """Who waits for whom at the end."""
    told = []
    for rank, state in sorted(tl.ranks.items()):
        what = words.waiting_for(tl, state)
        if what is not None:
            told.append(_("rank {rank} in {what}", rank=rank, what=what))
    return _("At the end these waited: {listed}.", listed="; ".join(told)) if told else ""


def twins(tl: m.Timeline) -> str:
    """same-data: whether the ranks' own gradients were the same."""
    known = first_lane(tl)
    if known is None or len(known[0].ranks) < 2:
        return ""
    module = known[0]
    lanes = [module.lanes[k] for k in module.ranks if k in module.lanes]
    count = min(len(lane.passes) for lane in lanes)
    rows = np.stack([lane.passes["local_norm"][:count] for lane in lanes])
    equal = int(np.count_nonzero((rows == rows[0]).all(0) & (rows[0] > 0)))
    value = agreement(module)
    if value is None:
        return ""
    return _(
        "In {equal} of {count} micro-steps the ranks' own gradients had the same norm to the last bit. The mean is "
        "{agreement} times as long as they are: 1 is one direction, {noise} pure noise.",
        equal=equal,
        count=count,
        agreement=words.number(value),
        noise=format(1 / len(lanes) ** 0.5, ".2f"),
    )


def spread(tl: m.Timeline) -> str:
    """nan-spreads: where the first NaN or Inf was, and how far it came."""
    for module in tl.modules:
        found = [(lane.nonfinite, lane.rank) for lane in module.lanes.values() if lane.nonfinite is not None]
        if not found:
            continue
        first, rank = min(found, key=lambda pair: (pair[0].pass_index, pair[1]))
        name = module.params[first.param].name if first.param < len(module.params) else _("a parameter")
        sick = [
            lane.rank
            for lane in module.lanes.values()
            if (~np.isfinite(lane.passes["norm"]) & ((lane.passes["flags"] & int(r.PassFlag.HAS_NORM)) != 0)).any()
        ]
        kind = {"nan": "NaN", "inf": "Inf"}.get(first.kind, first.kind)
        return _(
            "The first {kind} was in {name} on rank {rank}, in micro-step {index}, before any averaging; after the "
            "all-reduce {sick} of {ranks} had it.",
            kind=kind,
            name=name,
            rank=rank,
            index=first.pass_index,
            sick=len(sick),
            ranks=words.plural(len(module.lanes), "rank"),
        )
    return ""


def compressed(tl: m.Timeline) -> str:
    """fp16-hook: bytes on the wire against bytes of the gradients."""
    known = first_lane(tl)
    if known is None or not known[0].layouts:
        return ""
    module, lane = known
    whole = sum(module.layouts[-1].bytes) * int(np.count_nonzero(lane.sync == m.Sync.SYNCED))
    wire = int(lane.buckets["wire_bytes"].astype(np.int64).sum())
    if not whole:
        return ""
    fields = {"wire": words.size(wire), "whole": words.size(whole), "share": words.percent(wire / whole)}
    if not module.hook:
        return _("A rank handed {wire} to the all-reduces for {whole} of gradients: {share}.", **fields)
    return _(
        "A rank handed {wire} to the all-reduces through {hook} for {whole} of gradients: {share}.",
        hook=module.hook,
        **fields,
    )


def each_module(tl: m.Timeline) -> str:
    """gan: what each module did."""
    told = []
    for module in tl.modules:
        synced = int(np.count_nonzero(module.verdicts == m.Sync.SYNCED))
        local = int(np.count_nonzero(module.verdicts == m.Sync.LOCAL))
        told.append(
            _("{name}: {synced} micro-steps all-reduced, {local} local.", name=module.name, synced=synced, local=local)
        )
    return " ".join(told) if len(told) > 1 else ""
