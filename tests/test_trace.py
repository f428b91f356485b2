"""The trace: what is written is read, live and later, and damage costs no more than it must."""

from __future__ import annotations

import os
import stat
import struct
from pathlib import Path

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from ddpviz.trace import format as fmt, records as r
from ddpviz.trace.reader import Batch, RunError, RunReader
from ddpviz.trace.rundir import create_run
from ddpviz.trace.writer import TraceFile

CLEAR = struct.Struct(r.struct_format(r.RowKind.CLEAR))
any_tmp = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=60)


def clears(first: int, count: int) -> bytes:
    return b"".join(CLEAR.pack(0, 1, n, n, n * 1000, 7) for n in range(first, first + count))


def windows(batches: list[Batch]) -> list[int]:
    """The `window` column of all clear rows, in the order in which they were read."""
    found = []
    for batch in batches:
        for kind, block in batch.blocks:
            if kind is r.RowKind.CLEAR:
                assert isinstance(block, bytes)
                found += [row[2] for row in CLEAR.iter_unpack(block)]
    return found


def records_of(batches: list[Batch]) -> list[r.Record]:
    return [
        record
        for batch in batches
        for kind, block in batch.blocks
        if kind is r.RowKind.RECORDS
        for record in block
        if isinstance(record, r.Record)
    ]


def read_slowly(reader: RunReader, limit: int | None = None) -> list[Batch]:
    batches = []
    while more := reader.read(limit):
        batches += more
    return batches


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return create_run(tmp_path / "runs", {"title": "a test"})


def only_file(run: Path) -> Path:
    (path,) = (run / "trace").iterdir()
    return path


class TestRoundTrip:
    def test_records_and_rows_come_back_in_order(self, run: Path) -> None:
        trace = TraceFile(run / "trace", "job-0-1")
        said = [r.Note(text="first", at=1), r.RankIs(rank=1, world_size=2, local_rank=1, backend="gloo", at=2)]
        trace.records(said)
        trace.rows(r.RowKind.CLEAR, clears(0, 3), 3)
        trace.records([r.Exit(at=9, code=0, reason="finished")])
        (batch,) = RunReader(run).read()
        assert batch.source == "job-0-1"
        assert [kind for kind, _ in batch.blocks] == [r.RowKind.RECORDS, r.RowKind.CLEAR, r.RowKind.RECORDS]
        assert records_of([batch]) == [*said, r.Exit(at=9, code=0, reason="finished")]
        assert windows([batch]) == [0, 1, 2]

    def test_following_gives_each_block_once(self, run: Path) -> None:
        reader, trace = RunReader(run), TraceFile(run / "trace", "job-0-1")
        assert reader.read() == []
        for n in range(5):
            trace.rows(r.RowKind.CLEAR, clears(n, 1), 1)
            assert windows(reader.read()) == [n]
            assert reader.read() == []

    @pytest.mark.parametrize("limit", [None, 1, 1000, 200_000])
    def test_segments_keep_the_order(self, run: Path, limit: int | None) -> None:
        reader, seen = RunReader(run), []
        traces = [TraceFile(run / "trace", f"job-0-{rank}", segment_bytes=2000) for rank in range(3)]
        for n in range(0, 600, 30):
            for trace in traces:
                trace.rows(r.RowKind.CLEAR, clears(n, 30), 30)
            if n % 90 == 0:
                seen += read_slowly(reader, limit)
        seen += read_slowly(reader, limit)
        for rank in range(3):
            assert windows([batch for batch in seen if batch.source == f"job-0-{rank}"]) == list(range(600))
        assert len(list((run / "trace").glob("job-0-0.*"))) > 5
        assert reader.problems == []

    def test_a_limit_bounds_what_one_call_returns(self, run: Path) -> None:
        trace = TraceFile(run / "trace", "job-0-1")
        for n in range(0, 100_000, 1000):
            trace.rows(r.RowKind.CLEAR, clears(n, 1000), 1000)
        reader = RunReader(run)
        first = windows(reader.read(100_000))
        assert 1000 <= len(first) <= 10_000
        assert first + windows(read_slowly(reader, 100_000)) == list(range(100_000))

    def test_huge_batches_are_split_into_blocks(self, run: Path) -> None:
        trace = TraceFile(run / "trace", "job-0-1")
        trace.rows(r.RowKind.CLEAR, clears(0, 100_000), 100_000)
        notes = [r.Note(text="x" * 100_000, at=n) for n in range(40)]
        trace.records(notes)
        batches = RunReader(run).read()
        assert windows(batches) == list(range(100_000))
        assert records_of(batches) == notes
        assert len(batches[0].blocks) > 5

    def test_every_record_type_survives(self) -> None:
        """One of each type, its required fields filled by type: what the probe may say, the viewer understands."""
        filler = {int: 3, str: "s", float: 0.5, bool: True}
        made = []
        for kind in r.AnyRecord.__args__:
            fields = {}
            for field in msgspec.structs.fields(kind):
                if field.required:
                    origin = getattr(field.type, "__origin__", None)
                    fields[field.encode_name] = {list: [], dict: {}}.get(origin, filler.get(field.type))
            made.append(kind(**fields))
        assert fmt.decode_records(fmt.encode_records(made)) == (made, [])

    def test_names_that_are_no_utf8_can_be_written(self) -> None:
        name = os.fsdecode(b"tr\xff.py")
        said = [r.Site(id=1, file=name, line=2, function="f"), r.Note(text="lone \ud800", at=1)]
        (site, note), problems = fmt.decode_records(fmt.encode_records(said))
        assert (site.file.startswith("tr\ufffd"), problems) == (True, [])  # type: ignore[attr-defined]
        assert note.text.startswith("lone ")  # type: ignore[attr-defined]

    def test_row_widths_are_as_written_down(self) -> None:
        for kind, width in fmt.WIDTH.items():
            assert width == struct.calcsize(r.struct_format(r.RowKind(kind)))

    def test_wrong_size_is_refused_by_the_writer(self, run: Path) -> None:
        with pytest.raises(ValueError, match="2 rows of CLEAR are"):
            TraceFile(run / "trace", "j").rows(r.RowKind.CLEAR, clears(0, 1), 2)


class TestPrivacyAndNames:
    @pytest.mark.parametrize("umask", [0o000, 0o022, 0o277])
    def test_modes_whatever_the_umask(self, tmp_path: Path, umask: int) -> None:
        old = os.umask(umask)
        try:
            run = create_run(tmp_path / "runs", {"title": "t"})
            TraceFile(run / "trace", "j").records([r.Note(text="", at=0)])
        finally:
            os.umask(old)
        for path in (run, run / "trace", run / "logs"):
            assert stat.S_IMODE(path.stat().st_mode) == 0o700, path
        for path in (run / "run.json", only_file(run)):
            assert stat.S_IMODE(path.stat().st_mode) == 0o600, path

    def test_nothing_is_created_before_the_first_block(self, run: Path) -> None:
        TraceFile(run / "trace", "j").records([])
        assert list((run / "trace").iterdir()) == []

    def test_two_processes_with_one_name_do_not_mix(self, run: Path) -> None:
        for n in range(3):
            TraceFile(run / "trace", "job-0-7").records([r.Note(text=str(n), at=0)])
        batches = RunReader(run).read()
        assert sorted(batch.source for batch in batches) == ["job-0-7", "job-0-7~2", "job-0-7~3"]


class TestFaultsOfTheDisk:
    def test_a_removed_run_raises_and_stays_removed(self, run: Path) -> None:
        import shutil

        trace = TraceFile(run / "trace", "j")
        trace.records([r.Note(text="", at=0)])
        shutil.rmtree(run)
        for _ in range(2):
            with pytest.raises(OSError):  # noqa: PT011
                trace.records([r.Note(text="", at=0)])
        assert not run.exists()

    @pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
    def test_a_block_that_fails_half_way_leaves_no_torn_bytes(self, run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        trace = TraceFile(run / "trace", "j")
        trace.rows(r.RowKind.CLEAR, clears(0, 10), 10)
        real, full = os.write, os.open("/dev/full", os.O_WRONLY)

        def half(fd: int, data: bytes) -> int:
            if len(data) > 20:
                return real(fd, data[:20])
            return real(full, data)  # the system's own ENOSPC

        monkeypatch.setattr(os, "write", half)
        with pytest.raises(OSError, match="No space left"):
            trace.rows(r.RowKind.CLEAR, clears(10, 1), 1)
        monkeypatch.undo()
        os.close(full)
        trace.rows(r.RowKind.CLEAR, clears(11, 5), 5)
        reader = RunReader(run)
        assert windows(reader.read()) == [*range(10), *range(11, 16)]
        assert reader.problems == []

    def test_a_full_disk_gets_no_trail_of_empty_segments(self, run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        trace = TraceFile(run / "trace", "j", segment_bytes=100)
        trace.rows(r.RowKind.CLEAR, clears(0, 10), 10)

        def full(fd: int, data: bytes) -> int:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(os, "write", full)
        for _ in range(5):
            with pytest.raises(OSError, match="No space left"):
                trace.rows(r.RowKind.CLEAR, clears(10, 1), 1)
        monkeypatch.undo()
        assert [path.name for path in (run / "trace").iterdir()] == ["j.0000.ddpv"]
        trace.rows(r.RowKind.CLEAR, clears(11, 5), 5)
        reader = RunReader(run)
        assert windows(reader.read()) == [*range(10), *range(11, 16)]
        assert reader.problems == []

    def test_where_cutting_back_fails_too_a_new_segment_goes_on(
        self, run: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        trace = TraceFile(run / "trace", "j")
        trace.rows(r.RowKind.CLEAR, clears(0, 10), 10)
        real = os.write

        def torn(fd: int, data: bytes) -> int:
            real(fd, data[: len(data) // 2])
            raise OSError(5, "Input/output error")

        def refuses(fd: int, length: int) -> None:
            raise OSError(5, "Input/output error")

        monkeypatch.setattr(os, "write", torn)
        monkeypatch.setattr(os, "ftruncate", refuses)
        with pytest.raises(OSError, match="Input/output"):
            trace.rows(r.RowKind.CLEAR, clears(10, 1), 1)
        monkeypatch.undo()
        trace.rows(r.RowKind.CLEAR, clears(11, 5), 5)
        reader = RunReader(run)
        assert windows(reader.read()) == [*range(10), *range(11, 16)]
        assert reader.problems == ["j.0000.ddpv ends inside a block; the next segment goes on"]


def a_trace(run: Path, *, blocks: int = 6) -> bytes:
    trace = TraceFile(run / "trace", "j")
    for n in range(blocks):
        trace.rows(r.RowKind.CLEAR, clears(n * 2, 2), 2)
        trace.records([r.Note(text=f"note {n}", at=n)])
    trace.close()
    return only_file(run).read_bytes()


class TestDamage:
    @any_tmp
    @given(data=st.data())
    def test_any_prefix_is_read_as_far_as_it_goes_and_the_rest_when_it_comes(
        self, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
    ) -> None:
        run = create_run(tmp_path_factory.mktemp("runs"), {})
        whole = a_trace(run)
        cuts = sorted(data.draw(st.lists(st.integers(0, len(whole)), min_size=1, max_size=4)))
        path = only_file(run)
        path.write_bytes(b"")
        reader = RunReader(run)
        seen: list[Batch] = []
        for cut in [*cuts, len(whole)]:
            path.write_bytes(whole[:cut])
            seen += reader.read()
            assert windows(seen) == list(range(len(windows(seen))))
        assert windows(seen) == list(range(12))
        assert [note.text for note in records_of(seen) if isinstance(note, r.Note)] == [f"note {n}" for n in range(6)]
        assert reader.problems == []

    @any_tmp
    @given(data=st.data())
    def test_a_flipped_bit_is_noticed_and_nothing_wrong_is_returned(
        self, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
    ) -> None:
        run = create_run(tmp_path_factory.mktemp("runs"), {})
        whole = bytearray(a_trace(run))
        at = data.draw(st.integers(0, len(whole) - 1))
        whole[at] ^= 1 << data.draw(st.integers(0, 7))
        only_file(run).write_bytes(whole)
        (run / "trace" / "k.0000.ddpv").write_bytes(fmt.file_header())
        TraceFile(run / "trace", "other").rows(r.RowKind.CLEAR, clears(0, 3), 3)
        reader = RunReader(run)
        batches = reader.read()
        seen = windows([batch for batch in batches if batch.source == "j"])
        assert seen == list(range(len(seen)))
        assert windows([batch for batch in batches if batch.source == "other"]) == [0, 1, 2]
        reserved = at in range(10, 16)  # bytes of the file's header that mean nothing yet
        older = at in (8, 9) and whole[8] + 256 * whole[9] <= fmt.NEWEST
        assert len(reader.problems) == (0 if reserved or older else 1)
        assert reader.read() == []

    @any_tmp
    @given(junk=st.binary(max_size=300), opened=st.booleans())
    def test_any_bytes_at_all_never_raise(
        self, tmp_path_factory: pytest.TempPathFactory, junk: bytes, opened: bool
    ) -> None:
        run = create_run(tmp_path_factory.mktemp("runs"), {})
        (run / "trace" / "x.0000.ddpv").write_bytes(fmt.file_header() + junk if opened else junk)
        reader = RunReader(run)
        assert reader.read() == []
        assert len(reader.problems) <= 1

    def test_a_damaged_block_costs_the_rest_of_its_segment_only(self, run: Path) -> None:
        trace = TraceFile(run / "trace", "j", segment_bytes=300)
        for n in range(0, 40, 4):
            trace.rows(r.RowKind.CLEAR, clears(n, 4), 4)
        first, second, *_ = sorted((run / "trace").iterdir())
        data = bytearray(second.read_bytes())
        data[40] ^= 255
        second.write_bytes(data)
        reader = RunReader(run)
        seen = windows(reader.read())
        per_segment = 8
        assert seen == [n for n in range(40) if not per_segment <= n < 2 * per_segment]
        assert reader.problems == [
            f"{second.name}: the block at byte 16 fails its checksum; the rest of this segment is left out"
        ]
        assert first.exists()

    def test_foreign_and_newer_files_are_named_and_left_out(self, run: Path) -> None:
        (run / "trace" / "a.0000.ddpv").write_bytes(b"PK\x03\x04 a zip file")
        (run / "trace" / "b.0000.ddpv").write_bytes(fmt.FILE_HEADER.pack(fmt.MAGIC, 9, 0, 0) + b"whatever")
        (run / "trace" / "notes.txt").write_text("not ours")
        TraceFile(run / "trace", "c").records([r.Note(text="here", at=0)])
        reader = RunReader(run)
        assert records_of(reader.read()) == [r.Note(text="here", at=0)]
        assert sorted(reader.problems) == [
            "a.0000.ddpv is no trace of ddpviz and is left out",
            "b.0000.ddpv was written by a newer ddpviz (trace version 9, this one reads 2) and is left out",
        ]

    def test_a_pipe_or_folder_among_the_traces_does_not_block(self, run: Path) -> None:
        os.mkfifo(run / "trace" / "p.0000.ddpv")
        (run / "trace" / "d.0000.ddpv").mkdir()
        assert RunReader(run).read() == []

    def test_a_file_that_becomes_shorter_is_said(self, run: Path) -> None:
        a_trace(run)
        reader = RunReader(run)
        reader.read()
        only_file(run).write_bytes(fmt.file_header())
        assert reader.read() == []
        assert reader.problems == ["j.0000.ddpv became shorter while it was read; what was read before is kept"]

    def test_a_run_removed_while_it_is_followed_is_said(self, run: Path) -> None:
        import shutil

        reader = RunReader(run)
        shutil.rmtree(run)
        assert reader.read() == []
        assert reader.problems == [f"the run folder is gone: {run}"]


class TestOtherVersions:
    def block_file(self, run: Path, *blocks: bytes) -> RunReader:
        (run / "trace" / "j.0000.ddpv").write_bytes(fmt.file_header() + b"".join(blocks))
        return RunReader(run)

    def test_newer_columns_are_cut_off_and_missing_ones_are_zero(self, run: Path) -> None:
        row = CLEAR.pack(1, 2, 3, 4, 5, 6)
        wide = fmt.block(r.RowKind.CLEAR, CLEAR.size + 4, 2, (row + b"new!") * 2)
        narrow = fmt.block(r.RowKind.CLEAR, CLEAR.size - 4, 2, row[:-4] * 2)
        ((_, blocks),) = self.block_file(run, wide, narrow).read()
        assert blocks == [
            (r.RowKind.CLEAR, row * 2),
            (r.RowKind.CLEAR, CLEAR.pack(1, 2, 3, 4, 5, 0) * 2),
        ]

    def test_unknown_kinds_and_records_are_skipped_and_new_fields_ignored(self, run: Path) -> None:
        said = [
            {"record": "Note", "text": "known", "at": 1, "colour": "blue"},
            {"record": "Telepathy", "at": 2},
            {"record": "Note", "text": "too", "at": 3},
        ]
        reader = self.block_file(
            run,
            fmt.block(99, 8, 1, b"12345678"),  # type: ignore[arg-type]
            fmt.block(r.RowKind.RECORDS, 0, 3, msgspec.msgpack.encode(said)),
        )
        assert records_of(reader.read()) == [r.Note(text="known", at=1), r.Note(text="too", at=3)]
        assert reader.problems == []

    def test_a_record_with_wrong_types_is_said_and_the_others_are_kept(self, run: Path) -> None:
        said = [{"record": "Note", "text": 5, "at": 1}, {"at": 2}, {"record": "Note", "text": "fine", "at": 3}]
        reader = self.block_file(run, fmt.block(r.RowKind.RECORDS, 0, 3, msgspec.msgpack.encode(said)))
        assert records_of(reader.read()) == [r.Note(text="fine", at=3)]
        assert len(reader.problems) == 2
        assert all(problem.startswith("j.0000.ddpv: a record") for problem in reader.problems)

    @pytest.mark.parametrize(
        ("width", "count", "length"),
        [(0, 3, 72), (24, 2, 72), (7, 10, 72)],
        ids=["no width", "count and length disagree", "width and length disagree"],
    )
    def test_impossible_sizes_are_damage(self, run: Path, width: int, count: int, length: int) -> None:
        reader = self.block_file(run, fmt.block(r.RowKind.CLEAR, width, count, bytes(length)))
        assert reader.read() == []
        assert len(reader.problems) == 1


class TestWhatIsNoRun:
    def test_each_gets_one_clear_line(self, tmp_path: Path) -> None:
        cases = {
            "missing": "no such run: ",
            "file": "is a file",
            "empty": "it has no run.json and no traces",
            "foreign": "it has no ddpviz.run schema",
            "broken": "it is not JSON",
            "newer": "was written by a newer ddpviz (ddpviz.run/7",
        }
        (tmp_path / "file").write_text("")
        for name, text in {"foreign": '{"name": "npm"}', "broken": "{", "newer": '{"schema": "ddpviz.run/7"}'}.items():
            (tmp_path / name).mkdir()
            (tmp_path / name / "run.json").write_text(text)
        (tmp_path / "empty").mkdir()
        for name, words in cases.items():
            with pytest.raises(RunError) as caught:
                RunReader(tmp_path / name)
            assert words in str(caught.value)
            assert "\n" not in str(caught.value)

    @pytest.mark.parametrize("info", [None, "{", "\xff"])
    def test_traces_without_a_readable_run_json_still_open(self, run: Path, info: str | None) -> None:
        TraceFile(run / "trace", "j").records([r.Note(text="here", at=0)])
        (run / "run.json").unlink()
        if info is not None:
            (run / "run.json").write_text(info, encoding="latin-1")
        reader = RunReader(run)
        assert records_of(reader.read()) == [r.Note(text="here", at=0)]
        assert reader.info() == {}
        assert len(reader.problems) == 1

    def test_info_follows_run_json(self, run: Path) -> None:
        from ddpviz.trace.rundir import update_run

        reader = RunReader(run)
        assert reader.info()["status"] == "starting"
        update_run(run, status="running", world_size=2)
        assert (reader.info()["status"], reader.info()["world_size"]) == ("running", 2)
        (run / "run.json").unlink()
        assert reader.info()["status"] == "running"
