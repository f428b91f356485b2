"""A run as TensorBoard event files: one TensorBoard run a rank, scalars by micro-step and by step, findings as text.

Needs the extra `ddpviz[tensorboard]`. NaN and Inf stay what they are; what was not measured has no point.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.compat.proto.tensor_pb2 import TensorProto
from tensorboard.compat.proto.types_pb2 import DT_STRING
from tensorboard.plugins.text.metadata import create_summary_metadata
from tensorboard.summary.writer.event_file_writer import EventFileWriter

from ddpviz.export import scalars
from ddpviz.findings.model import Finding
from ddpviz.timeline import model as m


def write(tl: m.Timeline, findings: Iterable[Finding], folder: Path, *, started_s: float) -> None:
    """Event files under `folder`, of a run that started at `started_s` (wall clock). Raises OSError."""
    for rank in sorted(tl.ranks):
        _write(folder / f"rank-{rank}", (_event(started_s, point) for point in scalars.of_rank(tl, rank)))
    text = "\n\n".join(f"**{f.severity.word} {f.rule}** {f.message} {f.advice}" for f in findings)
    if text:
        _write(folder / "findings", [_text(started_s + tl.now_ns / 1e9, "findings", text)])


def _write(folder: Path, events: Iterable[Event]) -> None:
    out = EventFileWriter(str(folder))
    try:
        for event in events:
            out.add_event(event)
    finally:
        out.close()


def _event(started_s: float, point: scalars.Point) -> Event:
    values: Iterator[Summary.Value] = (Summary.Value(tag=tag, simple_value=v) for tag, v in point.values.items())
    return Event(wall_time=started_s + point.at_ns / 1e9, step=point.number, summary=Summary(value=values))


def _text(at_s: float, tag: str, text: str) -> Event:
    tensor = TensorProto(dtype=DT_STRING, string_val=[text.encode()])
    value = Summary.Value(tag=tag, tensor=tensor, metadata=create_summary_metadata(tag, ""))
    return Event(wall_time=at_s, step=0, summary=Summary(value=[value]))
