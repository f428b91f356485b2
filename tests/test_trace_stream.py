"""A run as a stream: what `cat` sends, `watch -` sees, live too; a hostile stream writes nowhere else."""

from __future__ import annotations

import io
import os
import threading
import time
from pathlib import Path

import pytest

from ddpviz.trace import records as r, stream
from ddpviz.trace.reader import RunError, RunReader
from ddpviz.trace.rundir import create_run, update_run
from ddpviz.trace.writer import TraceFile


@pytest.fixture
def run(tmp_path: Path) -> Path:
    run = create_run(tmp_path / "runs", {"title": "t", "status": "running"})
    (run / "logs" / "rank-0.log").write_text("hello\n")
    trace = TraceFile(run / "trace", "j", segment_bytes=500)
    for n in range(20):
        trace.records([r.Note(text=f"note {n}", at=n)])
    return run


def notes(reader: RunReader) -> list[str]:
    return [
        record.text
        for batch in reader.read()
        for _, block in batch.blocks
        for record in block
        if isinstance(record, r.Note)
    ]


def mirrored(data: bytes, folder: Path) -> stream.Mirror:
    mirror = stream.Mirror(io.BytesIO(data), folder)
    mirror.start()
    assert mirror.ended.wait(20)
    return mirror


def sent(run: Path) -> bytes:
    out = io.BytesIO()
    stream.send(run, out)
    return out.getvalue()


def test_a_whole_run_arrives(run: Path, tmp_path: Path) -> None:
    mirror = mirrored(sent(run), tmp_path / "copy")
    assert mirror.problem == ""
    for path in run.rglob("*"):
        if path.is_file():
            assert (tmp_path / "copy" / path.relative_to(run)).read_bytes() == path.read_bytes()
    reader = RunReader(tmp_path / "copy")
    assert notes(reader) == [f"note {n}" for n in range(20)]
    assert reader.problems == []


def test_a_live_run_is_followed_to_its_end(run: Path, tmp_path: Path) -> None:
    ours, theirs = os.pipe()
    mirror = stream.Mirror(os.fdopen(ours, "rb"), tmp_path / "copy")
    mirror.start()

    def cat() -> None:
        with os.fdopen(theirs, "wb") as out:
            stream.send(run, out, follow=True, pause=lambda _: time.sleep(0.01))

    sender = threading.Thread(target=cat)
    sender.start()
    assert mirror.begun.wait(20)
    reader, seen = RunReader(tmp_path / "copy"), []
    later = TraceFile(run / "trace", "k")
    for n in range(20, 30):
        later.records([r.Note(text=f"note {n}", at=n)])
        time.sleep(0.01)
        seen += notes(reader)
    update_run(run, status="finished")
    sender.join(20)
    assert mirror.ended.wait(20)
    seen += notes(reader)
    assert seen == [f"note {n}" for n in range(30)]
    assert reader.info()["status"] == "finished"
    assert (mirror.problem, reader.problems) == ("", [])


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b"", "this is no stream of `ddpviz cat`"),
        (b"hello, world, hello, world", "this is no stream of `ddpviz cat`"),
        (stream._OPENING.pack(stream.MAGIC, 9, 0), "the stream was written by a newer ddpviz"),
        (stream._OPENING.pack(stream.MAGIC, 1, 0), "the stream ended before the run did"),
        (
            stream._OPENING.pack(stream.MAGIC, 1, 0) + stream._FRAME.pack(2, 5, 0, 2**32 - 1, 0) + b"x" * 99,
            "the stream ended in the middle",
        ),
    ],
)
def test_what_is_no_stream_gets_one_line(data: bytes, problem: str, tmp_path: Path) -> None:
    assert mirrored(data, tmp_path / "copy").problem == problem


def test_a_cut_stream_keeps_what_came_and_says_so(run: Path, tmp_path: Path) -> None:
    data = sent(run)
    for cut in range(0, len(data), 97):
        folder = tmp_path / f"cut{cut}"
        mirror = mirrored(data[:cut], folder)
        assert mirror.problem
        if (folder / "run.json").exists():
            reader = RunReader(folder)
            assert reader.info()["notes"] == [mirror.problem]
            seen = notes(reader)
            assert seen == [f"note {n}" for n in range(len(seen))]


def test_a_flipped_byte_is_noticed(run: Path, tmp_path: Path) -> None:
    data = bytearray(sent(run))
    data[len(data) // 2] ^= 1
    assert mirrored(bytes(data), tmp_path / "copy").problem in (
        "the stream is damaged: a checksum fails",
        "the stream ended in the middle",
    )


def test_a_hostile_stream_writes_nowhere_else(tmp_path: Path) -> None:
    names = ["../evil", "/tmp/evil", "trace/../../evil.ddpv", "trace/..", "logs/a/b.log", "trace/.x.ddpv", "evil", ""]
    out = io.BytesIO()
    out.write(stream._OPENING.pack(stream.MAGIC, 1, 0))
    for name in names:
        for kind in (1, 2, 77):
            stream._frame(out, kind, name, 0, b"evil")
    stream._frame(out, 3, "", 0, b"")
    home = tmp_path / "a" / "copy"
    assert mirrored(out.getvalue(), home).problem == ""
    assert sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*")) == [
        "a",
        "a/copy",
        "a/copy/logs",
        "a/copy/trace",
    ]


def test_sending_what_is_no_run_raises(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="no such run"):
        stream.send(tmp_path / "nowhere", io.BytesIO())
