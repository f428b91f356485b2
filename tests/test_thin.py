"""Thinning: old segments become small; verdicts, steps and findings stay, for a reader in the middle of them too."""

from __future__ import annotations

import io
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import synth
from recorded import FOLDER

from ddpviz.export.load import load
from ddpviz.findings import find
from ddpviz.timeline.fold import Fold
from ddpviz.timeline.model import Sync, Timeline
from ddpviz.trace import format as fmt, records as r, stream
from ddpviz.trace.reader import RunReader
from ddpviz.trace.rundir import create_run, max_size
from ddpviz.trace.thin import detailed, thin
from ddpviz.trace.writer import TraceFile


def thin_all(run: Path, only: str = "*") -> None:
    for path in sorted((run / "trace").glob(f"{only}.ddpv")):
        for _ in thin(path):
            pass


def size(run: Path) -> int:
    return sum(path.stat().st_size for path in (run / "trace").iterdir())


def facts(tl: Timeline) -> object:
    """What thinning never touches."""
    return [
        (
            *(rank, module.verdicts.tolist(), lane.sync.tolist(), lane.gradients.tolist(), lane.counts.tolist()),
            *(lane.passes[name].tolist() for name in ("index", "window", "begin", "end", "collective", "touched")),
            *(lane.steps.tobytes(), lane.clears.tobytes()),
            lane.buckets[["pass", "index", "count", "wire_bytes"]].tolist(),
        )
        for module in tl.modules
        for rank, lane in module.lanes.items()
    ]


@pytest.mark.parametrize(
    "mistake", [None, *(k for k in synth.MISTAKES if k not in ("identical", "straggler")), *synth.RIGHT], ids=str
)
def test_verdicts_steps_and_findings_stay(tmp_path: Path, mistake: str | None) -> None:
    """Every pass of these runs but the first 16 loses its details; NaN keeps them."""
    run = synth.write_run(tmp_path, mistake, ranks=3, modules=2, windows=8, at=5)
    before = load(run)
    whole, found = size(run), find(before)
    thin_all(run)
    after = load(run)
    assert after.run.notes == before.run.notes
    assert facts(after) == facts(before)
    assert [(f.rule, f.backward, f.step, f.line) for f in find(after)] == [
        (f.rule, f.backward, f.step, f.line) for f in found
    ]
    assert size(run) < whole / 2
    for module in after.modules:
        for lane in module.lanes.values():
            sampled = lane.passes["flags"] & int(r.PassFlag.SAMPLED) != 0
            were = before.modules[module.id].lanes[lane.rank].passes
            dull = np.isfinite(were["local_norm"]) & np.isfinite(were["norm"])
            late = lane.passes["index"] >= 16
            assert sampled[~late].all()
            assert not sampled[late & dull].any()
            assert not lane.passes["local_norm"][late & dull].any()
            dull = np.isfinite(lane.layers["local_norm"]) & np.isfinite(lane.layers["norm"])
            assert (lane.layers["pass"][dull] < 16).all()


def test_the_same_passes_keep_their_details_on_every_rank() -> None:
    kept = [index for index in range(4096) if detailed(index)]
    assert kept == [1024 * n + k for n in range(4) for k in range(16)]


@pytest.mark.parametrize("calls", [1, 2, 3, 4, 5])
def test_a_reader_in_the_middle_of_it_sees_every_row_once(tmp_path: Path, calls: int) -> None:
    run = synth.write_big(tmp_path, 1, 6_600, block=64)
    whole = load(run)
    reader, fold = RunReader(run), Fold()
    fold.run(reader.info())
    for _ in range(calls):
        fold.feed(reader.read(100_000))
    seen = fold.timeline.modules[0].lanes[0].passes["index"].tolist()
    assert 0 < len(seen) < 6_600
    thin_all(run)
    while batches := reader.read(100_000):
        fold.feed(batches)
    assert facts(fold.timeline) == facts(whole)
    assert reader.problems == []
    assert reader.read() == []
    assert not fold.timeline.modules[0].lanes[0].passes["local_norm"][-100:].any()  # from the summary
    assert fold.timeline.modules[0].lanes[0].passes["local_norm"][16:60].all()  # from before it


def test_a_long_run_stays_within_its_limit_and_keeps_its_newest_detail(tmp_path: Path) -> None:
    limit = 4 << 20
    cluster = synth.Cluster(1)
    run = create_run(tmp_path, cluster.info())
    trace = TraceFile(run / "trace", "j", limit=limit)
    most = 0
    for _, _, blocks in synth.big_batches(1, 60_000, block=64, wrong=[123]):
        for kind, payload in blocks:
            if kind is r.RowKind.RECORDS:
                trace.records(payload)
            else:
                trace.rows(kind, payload, len(payload) // fmt.WIDTH[kind])
        trace.thin_some()
        most = max(most, size(run))
    trace.close()
    assert most < limit * 1.3  # while a segment is made small, the next ones go on
    assert most > limit * 0.7
    tl = load(run)
    lane = tl.modules[0].lanes[0]
    assert len(lane.passes) == 60_000
    assert len(lane.steps) == 15_000
    assert not lane.passes["local_norm"][1_100:2_000].any()
    assert lane.passes["local_norm"][-3_000:].all()
    assert tl.run.notes == []
    assert lane.sync[4 * 122 + 3 : 4 * 125 : 4].tolist() == [Sync.SYNCED, Sync.LOCAL, Sync.SYNCED]


def test_a_stream_that_is_followed_takes_the_summary(tmp_path: Path) -> None:
    run = synth.write_big(tmp_path / "a", 1, 3_000, block=64)
    (path,) = (run / "trace").iterdir()
    whole, facts_of_all = path.read_bytes(), facts(load(run))
    path.write_bytes(whole[: len(whole) // 2])
    out, mirror = io.BytesIO(), tmp_path / "b"
    info = json.loads((run / "run.json").read_text())
    (run / "run.json").write_text(json.dumps({**info, "status": "running", "host": "elsewhere"}))

    def goes_on(_: float) -> None:
        path.write_bytes(whole)
        thin_all(run)
        (run / "run.json").write_text(json.dumps({**info, "status": "finished"}))

    stream.send(run, out, follow=True, pause=goes_on)
    receiver = stream.Mirror(io.BytesIO(out.getvalue()), mirror)
    receiver.start()
    assert receiver.ended.wait(20)
    assert receiver.problem == ""
    assert facts(load(mirror)) == facts_of_all


def test_an_older_reader_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = synth.write_run(tmp_path)
    thin_all(run)
    monkeypatch.setattr(fmt, "NEWEST", 1)
    reader = RunReader(run)
    assert reader.read() == []
    assert all("was written by a newer ddpviz (trace version 2, this one reads 1)" in line for line in reader.problems)
    assert len(reader.problems) == 2


@pytest.mark.parametrize(
    ("count", "columns"), [(3, bytes(71)), (3, bytes(73)), (1 << 31, b""), (100, bytes(24 * 100 + 1))]
)
def test_a_packed_block_that_lies_is_damage(tmp_path: Path, count: int, columns: bytes) -> None:
    run = create_run(tmp_path, {})
    data = fmt.file_header(fmt.SUMMARY) + fmt.packed(int(r.RowKind.CLEAR), 24, 0, count, count, columns)
    (run / "trace" / "j.0000.ddpv").write_bytes(data)
    reader = RunReader(run)
    assert reader.read() == []
    assert len(reader.problems) == 1


def test_packed_blocks_cannot_fill_the_memory(tmp_path: Path) -> None:
    run = create_run(tmp_path, {})
    bomb = fmt.packed(int(r.RowKind.CLEAR), 24, 0, 1_000_000, 1_000_000, bytes(24_000_000))
    (run / "trace" / "j.0000.ddpv").write_bytes(fmt.file_header(fmt.SUMMARY) + bomb * 20)
    reader = RunReader(run)
    reader.read()
    assert reader.problems == [
        "j.0000.ddpv: it unpacks to more than any segment holds; the rest of this segment is left out"
    ]


def test_what_cannot_be_thinned_stays_and_the_job_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import os

    trace = TraceFile(tmp_path, "j", limit=1 << 20)
    row = bytes(24 * 1000)
    for _ in range(40):
        trace.rows(r.RowKind.CLEAR, row, 1000)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    before = sorted((path.name, path.stat().st_size) for path in tmp_path.iterdir())
    monkeypatch.setattr(os, "replace", full)
    for _ in range(60):
        trace.thin_some()
    monkeypatch.undo()
    after = sorted((path.name, path.stat().st_size) for path in tmp_path.iterdir())
    assert after == before
    trace.rows(r.RowKind.CLEAR, row, 1000)


def test_the_golden_summary(tmp_path: Path) -> None:
    """`recordings/thinned` is the recording `sampled` as version 2 of the format had it when it was new."""
    shutil.copytree(FOLDER / "sampled", tmp_path / "run")
    thin_all(tmp_path / "run")
    old, new = load(FOLDER / "thinned"), load(tmp_path / "run")
    assert facts(old) == facts(new) == facts(load(FOLDER / "sampled"))
    for path in (FOLDER / "thinned" / "trace").iterdir():
        assert fmt.version_of(path.read_bytes()) == fmt.SUMMARY


@pytest.mark.parametrize(
    ("text", "size"), [("500M", 500 << 20), ("2 GiB", 2 << 30), ("1.5k", 1536), ("1024", 1024), ("none", None)]
)
def test_sizes_in_words(text: str, size: int | None) -> None:
    assert max_size(text) == size
    with pytest.raises(ValueError, match="is no size"):
        max_size("much")
