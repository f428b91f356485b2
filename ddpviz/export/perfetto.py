"""A Chrome trace-event file that ui.perfetto.dev and Perfetto's trace_processor open.

A process track a rank; in it a thread track a module for its forwards, one for its backwards, one a bucket for its
all-reduces, one for optimizer steps, one for the other collectives, and a counter a module for the norms. Arrows run
from the rank that arrived last in an all-reduce to the end of that all-reduce on every other rank: who waited for whom.
Times are microseconds from the run's start on the common clock. Format: "Trace Event Format", the JSON that Chrome's
tracing wrote.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import islice
from typing import Any

import msgspec
import numpy as np

from ddpviz.export import words
from ddpviz.export.columns import tuples
from ddpviz.export.report import bucket_bytes, plain
from ddpviz.timeline import model as m
from ddpviz.trace import records as r

Event = dict[str, Any]

# Plain ints and strings: enums cost more than the rest of a row.
_HAS_LOCAL_NORM, _HAS_NORM = int(r.PassFlag.HAS_LOCAL_NORM), int(r.PassFlag.HAS_NORM)
_HAS_LOSS, _SENT = int(r.PassFlag.HAS_LOSS), int(r.BucketFlag.SENT)
_SYNC_WORDS = {int(kind): kind.word for kind in m.Sync}
_PASS_WORDS = {int(kind): word for kind, word in words.PASS_WORDS.items()}

STEPS, COLLECTIVES, MODULES = 1, 2, 100  # thread ids: each module has a hundred, its buckets from the third on


def to_perfetto(tl: m.Timeline) -> bytes:
    """The whole trace as UTF-8 JSON."""
    return b"".join(in_parts(tl))


def in_parts(tl: m.Timeline) -> Iterator[bytes]:
    """The bytes of `to_perfetto` one after the other."""
    other = {"ddpviz": tl.run.ddpviz, "run": tl.run.id, "command": " ".join(tl.run.command)}
    yield msgspec.json.encode({"displayTimeUnit": "ms", "otherData": other})[:-1] + b',"traceEvents":['
    found, comma = events(tl), b""
    while block := list(islice(found, 4096)):
        yield comma + msgspec.json.encode(block)[1:-1]
        comma = b","
    yield b"]}"


def events(tl: m.Timeline) -> Iterator[Event]:
    for rank, state in sorted(tl.ranks.items()):
        where = f" on {state.host}" if state.host else ""
        yield _meta("process_name", rank, 0, name=f"rank {rank}{where}")
        yield _meta("process_sort_index", rank, 0, sort_index=rank)
        yield _meta("thread_name", rank, STEPS, name="optimizer steps")
        yield _meta("thread_sort_index", rank, STEPS, sort_index=STEPS)
    for module in tl.modules:
        for lane in module.lanes.values():
            yield from _passes(tl, module, lane)
            yield from _buckets(tl, module, lane)
            yield from _steps(tl, module, lane)
        yield from _flows(module)
    yield from _collectives(tl)


def _passes(tl: m.Timeline, module: m.Module, lane: m.Lane) -> Iterator[Event]:
    thread = MODULES * (module.id + 1)
    name = f"{module.name} #{module.id}" if len(tl.modules) > 1 else module.name
    yield _meta("thread_name", lane.rank, thread, name=f"{name}: backward")
    yield _meta("thread_sort_index", lane.rank, thread, sort_index=thread)
    lines = {site: tl.site(lane.rank, site).short for site in np.unique(lane.passes["backward_site"]).tolist()}
    forwards, before = thread + 1, 0  # a track of their own: two may come before their two backwards
    if lane.passes["forward"].any():
        yield _meta("thread_name", lane.rank, forwards, name=f"{name}: forward")
        yield _meta("thread_sort_index", lane.rank, forwards, sort_index=thread - 1)
    fields = "index window flags begin end local_norm norm loss backward_site forward forward_end"
    rows = zip(tuples(lane.passes, fields), lane.sync.tolist(), strict=True)
    for (index, window, flags, begin, end, local, norm, loss, site, forward, forward_end), sync in rows:
        args: dict[str, Any] = {"window": window, "sync": _SYNC_WORDS[sync], "line": lines[site]}
        counters = {}
        if flags & _HAS_LOCAL_NORM:
            args["local_norm"] = plain(local)
            counters["local"] = local
        if flags & _HAS_NORM:
            args["norm"] = plain(norm)
            counters["averaged"] = norm
        if flags & _HAS_LOSS:
            args["loss"] = plain(loss)
        if 0 != forward <= forward_end and forward >= before:
            before = forward_end
            yield _slice(f"forward {index}", lane.rank, forwards, forward, forward_end, "forward", {"backward": index})
        yield _slice(f"backward {index} ({_PASS_WORDS[sync]})", lane.rank, thread, begin, end, "backward", args)
        counters = {key: value for key, value in counters.items() if math.isfinite(value)}
        if counters:
            yield {"ph": "C", "name": f"{name}: norm", "pid": lane.rank, "ts": _us(end), "args": counters}


def _buckets(tl: m.Timeline, module: m.Module, lane: m.Lane) -> Iterator[Event]:
    named: set[int] = set()
    layers: dict[tuple[int, int], str] = {}
    rows = tuples(lane.buckets, "pass index layout flags ready launch done wire_bytes")
    for number, index, layout, flags, ready, launch, end, wire in rows:
        begin = launch or ready
        if not flags & _SENT or not begin or end < begin:
            continue
        thread = _thread(module, index)
        if index not in named:
            named.add(index)
            yield _meta("thread_name", lane.rank, thread, name=f"{module.name}: bucket {index} all-reduce")
            yield _meta("thread_sort_index", lane.rank, thread, sort_index=thread)
        if (layout, index) not in layers:
            layers[layout, index] = words.bucket_layers(module, layout, index, limit=12)
        args = {
            "backward": number,
            "layers": layers[layout, index],
            "bytes": bucket_bytes(module, layout, index),
            "wire_bytes": wire,
            "ready_us": _us(ready) if ready else None,
        }
        yield _slice(f"all-reduce bucket {index}", lane.rank, thread, begin, end, "all-reduce", args)


def _steps(tl: m.Timeline, module: m.Module, lane: m.Lane) -> Iterator[Event]:
    for rows, skipped in ((lane.steps, False), (lane.skipped, True)):
        for number, row in enumerate(rows):
            used = m.Gradients(int(lane.gradients[number])).word if not skipped else "skipped by GradScaler"
            yield {
                "ph": "i",
                "s": "p",
                "name": f"step {int(row['index'])} ({used})",
                "cat": "step",
                "pid": lane.rank,
                "tid": STEPS,
                "ts": _us(int(row["end"])),
                "args": {"module": module.id, "line": tl.site(lane.rank, int(row["site"])).short},
            }


def _flows(module: m.Module) -> Iterator[Event]:
    """From the last rank to arrive in each all-reduce to its end on the others."""
    meetings: dict[tuple[int, int], list[tuple[int, int, int]]] = {}
    for lane in module.lanes.values():
        for index, flags, count, ready, launch, end in tuples(lane.buckets, "index flags count ready launch done"):
            begin = launch or ready
            if flags & _SENT and begin and end > begin and count != r.NO_INDEX:
                meetings.setdefault((count, index), []).append((begin, end, lane.rank))
    for (count, index), arrivals in meetings.items():
        last, _, who = max(arrivals)
        for begin, end, rank in arrivals:
            if rank == who or not begin <= last < end:
                continue
            common = {
                "name": "waited for",
                "cat": "flow",
                "id": f"{module.id}.{count}.{index}.{rank}",
                "tid": _thread(module, index),
            }
            yield {"ph": "s", **common, "pid": who, "ts": _us(last)}
            yield {"ph": "f", "bp": "e", **common, "pid": rank, "ts": _us(end - 1)}


def _collectives(tl: m.Timeline) -> Iterator[Event]:
    for group in tl.groups.values():
        for rank, rows in group.collectives.items():
            thread = COLLECTIVES + group.key % (MODULES - COLLECTIVES)
            if len(rows):
                yield _meta("thread_name", rank, thread, name=f"other collectives, group {group.name or group.key}")
                yield _meta("thread_sort_index", rank, thread, sort_index=thread)
            for row in rows:
                begin, end = int(row["begin"]), int(row["end"])
                args = {
                    "count": int(row["count"]),
                    "elements": int(row["numel"]),
                    "line": tl.site(rank, int(row["site"])).short,
                }
                title = words.kind_word(int(row["kind"]))
                yield _slice(title, rank, thread, begin, max(begin, end), "collective", args)


def _thread(module: m.Module, bucket: int) -> int:
    return MODULES * (module.id + 1) + 2 + bucket % (MODULES - 2)


def _us(ns: int) -> float:
    return ns / 1000


def _slice(name: str, pid: int, tid: int, begin: int, end: int, category: str, args: dict[str, Any]) -> Event:
    return {
        "ph": "X",
        "name": name,
        "cat": category,
        "pid": pid,
        "tid": tid,
        "ts": _us(begin),
        "dur": _us(max(end - begin, 0)),
        "args": args,
    }


def _meta(kind: str, pid: int, tid: int, **args: object) -> Event:
    return {"ph": "M", "name": kind, "pid": pid, "tid": tid, "args": args}
