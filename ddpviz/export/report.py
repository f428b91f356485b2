"""The report: what `check --json` and `export --to json` write. Its shape is a contract that scripts depend on.

NaN and Inf are the strings "nan", "inf" and "-inf"; null means "not measured" and nothing else. Times are nanoseconds
since the run's start. Readers ignore fields that they do not know, so fields may be added and none renamed.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

import msgspec
import numpy as np

from ddpviz.export import words
from ddpviz.export.columns import tuples
from ddpviz.findings.model import Finding
from ddpviz.language import english
from ddpviz.timeline import model as m
from ddpviz.timeline.timing import Arrivals, arrivals, communication
from ddpviz.timeline.trends import agreement, noise_scale, traffic
from ddpviz.trace import records as r

SCHEMA = "ddpviz.report/1"
_READABLE = 30_000  # rank-passes
_AT_ONCE = 1 << 14  # rank-passes, or steps, in memory as Python objects
Json = dict[str, Any]


def to_json(tl: m.Timeline, findings: Sequence[Finding]) -> bytes:
    """The report as UTF-8 JSON with a newline at the end; indented where a person may still read it."""
    return b"".join(in_parts(tl, findings))


def in_parts(tl: m.Timeline, findings: Sequence[Finding]) -> Iterator[bytes]:
    """The bytes of `to_json` one after the other: a long run's report never is in memory whole."""
    if sum(len(lane.passes) for module in tl.modules for lane in module.lanes.values()) < _READABLE:
        yield msgspec.json.format(msgspec.json.encode(report(tl, findings)), indent=1) + b"\n"
        return
    yield msgspec.json.encode({"schema": SCHEMA, "run": run_part(tl)})[:-1] + b',"modules":['
    for number, module in enumerate(tl.modules):
        head, tail = module_head(module), module_tail(module)
        yield b"," * (number > 0) + msgspec.json.encode(head)[:-1] + b',"backwards":['
        yield from _in_blocks(backwards(module))
        yield b"]," + msgspec.json.encode(tail)[1:]
    yield b'],"steps":['
    yield from _in_blocks(step_part(tl, step) for step in tl.steps)
    yield b'],"skipped_steps":['
    yield from _in_blocks(step_part(tl, step) for step in tl.skipped)
    yield b'],"findings":' + msgspec.json.encode([finding_part(finding) for finding in findings]) + b"}\n"


def _in_blocks(items: Iterator[Json]) -> Iterator[bytes]:
    """The items of a JSON list, without its brackets."""
    comma = b""
    while block := list(islice(items, 1024)):
        yield comma + msgspec.json.encode(block)[1:-1]
        comma = b","


def report(tl: m.Timeline, findings: Sequence[Finding]) -> Json:
    """The whole report as plain dicts and lists, ready for any JSON encoder."""
    return {
        "schema": SCHEMA,
        "run": run_part(tl),
        "modules": [module_part(module) for module in tl.modules],
        "steps": [step_part(tl, step) for step in tl.steps],
        "skipped_steps": [step_part(tl, step) for step in tl.skipped],
        "findings": [finding_part(finding) for finding in findings],
    }


def plain(value: float) -> float | str:
    """A number as JSON can hold it: NaN and Inf as the strings "nan", "inf" and "-inf"."""
    return value if math.isfinite(value) else str(value)


def measured(value: float, known: int) -> float | str | None:
    return plain(value) if known else None


# --- the run ---------------------------------------------------------------------------------------------------------


def run_part(tl: m.Timeline) -> Json:
    run = tl.run
    return {
        "id": run.id,
        "command": list(run.command),
        "title": run.title,
        "world_size": run.world_size,
        "backend": run.backend,
        "backend_reason": run.backend_reason,
        "torch": run.torch,
        "ddpviz": run.ddpviz,
        "status": "running" if run.status == "starting" else run.status,
        "exit_code": run.exit_code,
        "observed_by": run.observed_by,
        "sampling": sampling(tl),
        "redirected": run.redirected,
        "notes": list(run.notes),
        "clocks": [clock_part(host, clock) for host, clock in sorted(tl.clocks.items())],
        "ranks": [rank_part(tl, rank) for rank in sorted({*range(run.world_size), *tl.ranks})],
    }


def clock_part(host: str, clock: m.HostClock) -> Json:
    """How another host's clock was set, and by how much its times may be off."""
    return {
        "host": host,
        "offset_ns": clock.offset_ns,
        "drift_ppm": clock.drift * 1e6,
        "error_ns": clock.error_ns,
        "all_reduces": clock.shared,
    }


def sampling(tl: m.Timeline) -> Json | None:
    """What share of the passes had norms and checksums taken, and within which budget; None if all were to be."""
    if tl.run.budget is None:
        return None
    flags = [lane.passes["flags"] for module in tl.modules for lane in module.lanes.values()]
    return {
        "budget_percent": tl.run.budget,
        "passes": sum(len(f) for f in flags),
        "sampled": sum(int(np.count_nonzero(f & int(r.PassFlag.SAMPLED))) for f in flags),
    }


@english()
def rank_part(tl: m.Timeline, rank: int) -> Json:
    """One rank; a rank that never spoke stands here too, as "missing"."""
    state = tl.ranks.get(rank) or m.RankState(rank)
    last_word = state.exit
    code = state.exit_code if state.exit_code is not None else last_word.code if last_word is not None else None
    return {
        "rank": rank,
        "host": state.host,
        "pid": state.pid or None,
        "device": state.device,
        "status": words.rank_status(tl, rank),
        "exit_code": code,
        "signal": state.signal,
        "last_event": words.last_event(tl, rank) or None,
        "waiting_for": words.waiting_for(tl, state),
        "stack": list(state.stack.frames) if state.stack is not None else None,
        "dropped": state.dropped,
        "error": (last_word.error or None) if last_word is not None else None,
        "traceback": (last_word.traceback or None) if last_word is not None else None,
    }


# --- modules ---------------------------------------------------------------------------------------------------------


def module_part(module: m.Module) -> Json:
    return {**module_head(module), "backwards": list(backwards(module)), **module_tail(module)}


def module_head(module: m.Module) -> Json:
    names = [p.name for p in module.params]
    return {
        "id": module.id,
        "name": module.name,
        "parameters": sum(p.managed for p in module.params),
        "numel": module.numel,
        "dtype": module.dtype,
        "ranks": list(module.ranks),
        "where": {"file": module.site.file or None, "line": module.site.line or None},
        "comm_hook": module.hook or None,
        "unmanaged": [{"name": p.name, "reason": p.reason} for p in module.params if not p.managed],
        "buckets": [
            {
                "index": index,
                "layout": number,
                "bytes": size,
                "parameters": [names[p] for p in params if 0 <= p < len(names)],
            }
            for number, layout in enumerate(module.layouts)
            for index, (params, size) in enumerate(zip(layout.buckets, layout.bytes, strict=False))
        ],
    }


def module_tail(module: m.Module) -> Json:
    synced, saved = traffic(module)
    came = arrivals(module)
    return {
        "bytes_synced": synced,
        "bytes_saved": saved,
        "agreement": measured_or_none(agreement(module)),
        "noise_scale": measured_or_none(noise_scale(module)),
        "communication": [communication_part(lane, came) for lane in module.lanes.values()],
    }


def communication_part(lane: m.Lane, came: Arrivals) -> Json:
    """One rank's all-reduce time: hidden behind the backward or exposed after it, and how late the rank came to it."""
    spent = communication(lane)
    return {
        "rank": lane.rank,
        "passes_timed": len(spent.passes),
        "hidden_share": spent.share_hidden,
        "exposed_ns_median": float(np.median(spent.exposed)) if len(spent.exposed) else None,
        "late_ns_median": came.median_late(lane.rank) if lane.rank in came.ranks else None,
        "last_in": int(np.count_nonzero(came.last == lane.rank)),
    }


def measured_or_none(value: float | None) -> float | str | None:
    return None if value is None else plain(value)


def verdicts(module: m.Module) -> list[str]:
    """The word for each pass across ranks. A pass that some rank has not ended is "unfinished" in a report."""
    open_ended = (m.Sync.RUNNING, m.Sync.ABSENT)
    kinds = [m.Sync(v) for v in module.verdicts.tolist()]
    return [(m.Sync.UNFINISHED if kind in open_ended else kind).word for kind in kinds]


# Plain ints: a flag enum's `&` costs more than the rest of a row.
_FORWARD_OFF, _BACKWARD_OFF = int(r.PassFlag.NO_SYNC_FORWARD), int(r.PassFlag.NO_SYNC_BACKWARD)
_SAMPLED, _HAS_LOSS = int(r.PassFlag.SAMPLED), int(r.PassFlag.HAS_LOSS)
_HAS_LOCAL_NORM, _HAS_NORM = int(r.PassFlag.HAS_LOCAL_NORM), int(r.PassFlag.HAS_NORM)
_BUCKET_LOCAL, _BUCKET_NORM = int(r.BucketFlag.HAS_LOCAL_NORM), int(r.BucketFlag.HAS_NORM)
_SYNC_WORDS = {int(kind): kind.word for kind in m.Sync}


def lane_columns(lane: m.Lane, low: int, high: int) -> list[Json]:
    """One rank's passes from `low` up to `high` as they stand in the report, in order."""
    buckets = bucket_columns(lane, low, high)
    rows = tuples(lane.passes[low:high], "index window flags collective local_norm norm loss memory begin end")
    return [
        {
            "rank": lane.rank,
            "sync": _SYNC_WORDS[sync],
            "no_sync_forward": flags & _FORWARD_OFF != 0,
            "no_sync_backward": flags & _BACKWARD_OFF != 0,
            "collective": collective,
            "sampled": flags & _SAMPLED != 0,
            "local_norm": measured(local, flags & _HAS_LOCAL_NORM),
            "norm": measured(norm, flags & _HAS_NORM),
            "loss": measured(loss, flags & _HAS_LOSS),
            "memory_bytes": memory or None,
            "begin_ns": begin,
            "end_ns": end,
            "buckets": buckets.get(index, []),
            "window": window,  # the lane's own; `backward_part` takes it out
        }
        for (index, window, flags, collective, local, norm, loss, memory, begin, end), sync in zip(
            rows, lane.sync[low:high].tolist(), strict=True
        )
    ]


def bucket_columns(lane: m.Lane, low: int, high: int) -> dict[int, list[Json]]:
    """One rank's buckets of the passes from `low` up to `high`, by pass."""
    found: dict[int, list[Json]] = {}
    passes = lane.buckets["pass"]
    rows = tuples(
        lane.buckets[bisect_left(passes, low) : bisect_left(passes, high)],
        "pass index layout flags ready launch done wire_bytes local_norm norm",
    )
    for number, index, layout, flags, ready, launch, done, wire, local, norm in rows:
        found.setdefault(number, []).append(
            {
                "index": index,
                "layout": layout,
                "ready_ns": ready or None,
                "launch_ns": launch or None,
                "done_ns": done or None,
                "bytes": 0,
                "wire_bytes": wire,
                "local_norm": measured(local, flags & _BUCKET_LOCAL),
                "norm": measured(norm, flags & _BUCKET_NORM),
            }
        )
    return found


def backwards(module: m.Module) -> Iterator[Json]:
    """Each pass over the ranks, in order."""
    told = verdicts(module)
    at_once = max(1, _AT_ONCE // max(1, len(module.lanes)))
    for low in range(0, len(told), at_once):
        columns = {rank: lane_columns(lane, low, low + at_once) for rank, lane in module.lanes.items()}
        for at, verdict in enumerate(told[low : low + at_once]):
            yield backward_part(module, low + at, verdict, columns, at)


def backward_part(module: m.Module, index: int, verdict: str, columns: dict[int, list[Json]], at: int) -> Json:
    ranks: list[Json] = []
    window = None
    for rank in dict.fromkeys(module.ranks):
        if at >= len(columns.get(rank, ())):
            continue  # this rank never ended such a pass
        entry = columns[rank][at]
        own = entry.pop("window")
        window = own if window is None else window
        for bucket in entry["buckets"]:
            bucket["bytes"] = bucket_bytes(module, bucket["layout"], bucket["index"])
        ranks.append(entry)
    return {"index": index, "window": window, "sync": verdict, "ranks": ranks}


def bucket_bytes(module: m.Module, layout: int, index: int) -> int | None:
    if layout < len(module.layouts) and index < len(module.layouts[layout].bytes):
        return module.layouts[layout].bytes[index]
    return None


# --- steps and findings ----------------------------------------------------------------------------------------------


def step_part(tl: m.Timeline, step: m.Step) -> Json:
    """One `optimizer.step`. Where it spans several modules, `after_backward` is the first one's; `parts` has each."""
    parts = [
        {
            "module": part.module,
            "after_backward": list(part.after),
            "gradients": part.gradients.word,
            "gradients_by_rank": [None if g is None else g.word for g in part.by_rank],
            "gradients_equal": part.grads_equal,
            "replicas": part.replicas.word,
        }
        for part in step.parts
    ]
    return {
        "index": step.index,
        "module": step.parts[0].module if len(step.parts) == 1 else None,
        "modules": [part.module for part in step.parts],
        "after_backward": list(step.parts[0].after) if step.parts else [],
        "gradients": step.gradients.word,
        "replicas": step.replicas.word,
        "optimizer": step.optimizer,
        "where": {"file": step.site.file or None, "line": step.site.line or None},
        "begin_ns": step.begin,
        "end_ns": step.end,
        "parts": parts,
    }


def finding_part(finding: Finding) -> Json:
    return {
        "rule": finding.rule,
        "severity": finding.severity.word,
        "module": finding.module,
        "ranks": list(finding.ranks),
        "count": finding.count,
        "first": {"backward": finding.backward, "step": finding.step},
        "where": {"file": finding.file or None, "line": finding.line or None},
        "message": finding.message,
        "advice": finding.advice,
        "code": finding.code or None,
        "via": finding.via or None,
        "backwards": list(finding.backwards),
        "steps": list(finding.steps),
    }
