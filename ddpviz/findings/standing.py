"""Where one rank stands: whether it lives, waits or answers, what it is blocked in and what it did last, in words.

Pure functions of a Timeline, for `hang` and the rules.
"""

from __future__ import annotations

import re

from ddpviz.findings import words
from ddpviz.language import N_, _
from ddpviz.timeline.model import Module, RankState, Timeline
from ddpviz.trace import records as r

# gloo 2.13.0 and 2.14.1, when the other end of a connection is gone
PEER_GONE = re.compile(r"Connection closed by peer|Connection reset by peer|Broken pipe")
# ... and when a process group's time-out ends the wait: gloo's words, and the watchdog's of NCCL
TIMED_OUT = re.compile(r"Timed out waiting \d+ms for (?:recv|send)|Watchdog caught collective operation timeout")
SETUP = ("init_process_group", "DDP constructor", "new_group", "store barrier", "destroy_process_group")


def waits(state: RankState, tl: Timeline) -> bool:
    return state.stack is not None and state.stack.doing not in ("", "computing") and alive(state, tl)


def alive(state: RankState, tl: Timeline) -> bool:
    """Whether it still runs, or ran until the job was ended because it hung."""
    if state.exit is not None:
        return tl.run.status == "hung" and state.exit.reason == "signal"
    return tl.run.status == "hung" or (state.signal is None and state.exit_code is None)


def quiet_since(state: RankState) -> int:
    since = state.stack.since if state.stack is not None else 0
    return max(since, state.progress_ns)


def silent(state: RankState, now: int, limit: int) -> bool:
    """Whether its interpreter has not answered for so long: C code holds the GIL, or the process is frozen."""
    return state.beat_ns > 0 and now - max(state.beat_ns, state.progress_ns) >= max(limit, 3_000_000_000)


def thrown_out(state: RankState) -> bool:
    """Whether it ended with an error of its connections: because another rank was gone."""
    return state.exit is not None and PEER_GONE.search(state.exit.error) is not None


def finished(state: RankState) -> bool:
    """Whether it came to the end of its script, and all was well."""
    return state.exit is not None and state.exit.reason in ("finished", "detached") and not state.exit.code


def ending(state: RankState) -> str:
    """How a process ended: `signal 9`, `exit code 1`, `without a last word`."""
    if state.signal is not None:
        return _("signal {signal}", signal=state.signal)
    code = state.exit.code if state.exit is not None and state.exit.code is not None else state.exit_code
    return _("exit code {code}", code=code) if code is not None else _("without a last word")


def operation(tl: Timeline, stack: r.Stack) -> str:
    """What a rank is blocked in: `the all-reduce of bucket 0 (fc.weight, fc.bias) in micro-step 4`."""
    module = tl.modules[stack.module] if 0 <= stack.module < len(tl.modules) else None
    if stack.doing == "all-reduce" and module is not None and stack.pass_index >= 0:
        index, of = stack.pass_index, words.of(tl, module)
        if stack.bucket < 0:
            return _("the all-reduce in micro-step {index}{of}", index=index, of=of)
        names = bucket_layers(module, stack.bucket)
        return _(
            "the all-reduce of bucket {bucket}{names} in micro-step {index}{of}",
            bucket=stack.bucket,
            names=f" ({names})" if names else "",
            index=index,
            of=of,
        )
    if stack.doing == "forward broadcast":
        return _("the broadcast of buffers at a DDP forward") + (words.of(tl, module) if module is not None else "")
    if stack.doing == "bucket rebuild":
        return _("the broadcast of DDP's bucket layout, at the forward after the first all-reduced micro-step")
    if stack.doing == "DDP constructor":
        return _("the constructor of DistributedDataParallel, which compares the models of all ranks")
    if stack.doing in SETUP:
        return f"{stack.doing}()" if "_" in stack.doing else _article(stack.doing)
    sub = tl.groups.get(stack.group)
    of = (
        _(" of {ranks}", ranks=words.ranks(sub.ranks))
        if sub is not None and 0 < len(sub.ranks) < tl.run.world_size
        else ""
    )
    return _article(stack.doing) + of


def _article(collective: str) -> str:
    """`an all-reduce`, `a barrier`."""
    if collective[:1] in "aeiou":
        return _("an {collective}", collective=collective)
    return _("a {collective}", collective=collective)


def bucket_layers(module: Module, bucket: int) -> str:
    layout = module.layouts[-1] if module.layouts else None
    return words.layers(module, layout.buckets[bucket]) if layout is not None and bucket < len(layout.buckets) else ""


def last_event(tl: Timeline, rank: int) -> str:
    """The newest thing that a rank is known to have done, in words."""
    events: list[tuple[int, str]] = []
    for module in tl.modules:
        lane = module.lanes.get(rank)
        if lane is None:
            continue
        of = words.of(tl, module)
        if len(lane.passes):
            row = lane.passes[-1]
            kind = _(_ENDS[int(lane.sync[-1])])
            site = words.at(tl.site(rank, int(row["backward_site"])))
            events.append(
                (
                    int(row["end"]),
                    _("micro-step {index}{of}, {kind}{site}", index=int(row["index"]), of=of, kind=kind, site=site),
                )
            )
        elif module.layouts:
            events.append(
                (module.layouts[0].at, _("wrapped {name} in DDP{at}", name=module.name, at=words.at(module.site)))
            )
        if len(lane.steps):
            row = lane.steps[-1]
            site = words.at(tl.site(rank, int(row["site"])))
            events.append((int(row["end"]), _("step {index}{of}{site}", index=int(row["index"]), of=of, site=site)))
    for group in tl.groups.values():
        rows = group.collectives.get(rank)
        state = tl.ranks.get(rank)
        stack = state.stack if state is not None else None
        if rows is not None and stack is not None and stack.group == group.key and stack.count >= 0:
            rows = rows[rows["count"] < stack.count]  # not the one that it is in
        if rows is not None and len(rows):
            row = rows[-1]
            name = _article(_KINDS.get(int(row["kind"]), "collective"))
            events.append((int(row["begin"]), f"{name}{words.at(tl.site(rank, int(row['site'])))}"))
    return max(events)[1] if events else ""


_ENDS = (N_("local"), N_("all-reduced"), N_("partly all-reduced"), "", N_("unfinished"), "", "")
_KINDS = {int(k): k.name.lower().replace("_", "-") for k in r.CollectiveKind if k is not r.CollectiveKind.UNKNOWN}
