"""Run folders: made privately, found by a part of their name, listed even when half of them are broken."""

from __future__ import annotations

import errno
import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ddpviz.trace.reader import RunError
from ddpviz.trace.rundir import create_run, find_run, list_runs, live_status, new_id, runs_base, update_run
from ddpviz.trace.text import clean

FIELDS = {
    *("schema", "id", "title", "command", "status", "exit_code", "world_size", "backend", "backend_reason", "host"),
    *("started_wall_ns", "started_monotonic_ns", "ended_wall_ns", "ddpviz", "budget", "redirected", "observe"),
    *("notes", "ranks", "logs", "pid"),
}


class TestMaking:
    def test_a_run_has_every_documented_field(self, tmp_path: Path) -> None:
        run = create_run(tmp_path, {"title": "train", "world_size": 2})
        info = json.loads((run / "run.json").read_text())
        assert set(info) == FIELDS
        assert (info["schema"], info["id"], info["world_size"]) == ("ddpviz.run/1", run.name, 2)

    def test_ids_are_readable_sortable_and_different(self) -> None:
        early, late = (new_id("Train it!/x.py", now) for now in (1_700_000_000, 1_700_000_060))
        assert early < late
        assert early.split("-", 2)[2].startswith("train-it-x-py-")
        assert len({new_id("a") for _ in range(50)}) > 45
        assert "-run-" in new_id("日本")

    def test_the_default_place_is_the_users_state_folder(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
        run = create_run(None, {"title": "t"})
        assert run.parent == runs_base()
        assert (tmp_path / "state") in run.parents or sys.platform != "linux"

    def test_a_folder_of_ones_own_has_to_be_empty(self, tmp_path: Path) -> None:
        named = tmp_path / "deep" / "mine"
        assert create_run(None, {}, run_dir=named) == named
        with pytest.raises(RunError, match="is not empty"):
            create_run(None, {}, run_dir=named)

    def test_where_none_can_be_made_one_line_says_so(self, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("")
        for base, run_dir in ((tmp_path / "file", None), (None, tmp_path / "file"), (None, tmp_path / "file" / "x")):
            with pytest.raises(RunError, match=r"no run folder can be made at .*--run-dir") as caught:
                create_run(base, {}, run_dir=run_dir)
            assert "\n" not in str(caught.value)

    def test_the_process_own_random_numbers_stay_as_they_were(self, tmp_path: Path) -> None:
        import random

        random.seed(5)
        before = random.getstate()
        create_run(tmp_path, {})
        assert random.getstate() == before


class TestUpdating:
    def test_a_reader_never_sees_half_of_run_json(self, tmp_path: Path) -> None:
        run = create_run(tmp_path, {"title": "t"})
        writer = subprocess.Popen(
            [
                sys.executable,
                "-c",
                "import sys; from pathlib import Path; from ddpviz.trace.rundir import update_run\n"
                "for n in range(400): update_run(Path(sys.argv[1]), notes=['x' * 20_000], exit_code=n)",
                str(run),
            ]
        )
        reads = 0
        while writer.poll() is None:
            assert json.loads((run / "run.json").read_text())["id"] == run.name
            reads += 1
        assert writer.returncode == 0
        assert reads > 10
        assert sorted(path.name for path in run.iterdir()) == ["logs", "run.json", "trace"]

    def test_a_damaged_run_json_is_replaced_by_a_good_one(self, tmp_path: Path) -> None:
        run = create_run(tmp_path, {"title": "t"})
        (run / "run.json").write_text("{")
        update_run(run, status="finished")
        assert json.loads((run / "run.json").read_text())["status"] == "finished"

    def test_a_full_disk_still_takes_the_new_status(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """A second file does not fit any more; the first one's own block does."""
        run = create_run(tmp_path, {"title": "t"})
        real = os.open

        def no_new_files(path: str, flags: int, mode: int = 0o777) -> int:
            if flags & os.O_CREAT:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)
            return real(path, flags, mode)

        monkeypatch.setattr(os, "open", no_new_files)
        update_run(run, status="finished", notes=["a line"])
        assert json.loads((run / "run.json").read_text())["status"] == "finished"
        with pytest.raises(OSError, match="No space left"):
            update_run(run, notes=["too much " * 1000])
        assert json.loads((run / "run.json").read_text())["notes"] == ["a line"]
        with pytest.raises(RunError, match="No space left"):
            create_run(tmp_path, {"title": "t"})
        assert sorted(path.name for path in run.iterdir()) == ["logs", "run.json", "trace"]


class TestFinding:
    @pytest.fixture
    def base(self, tmp_path: Path) -> Path:
        for number, title in enumerate(["train", "evaluate", "train-long"]):
            run = create_run(tmp_path, {"title": title, "started_wall_ns": 10**18 + number, "status": "finished"})
            run.rename(tmp_path / f"1201-000{number}-{title}-aaaa")
        return tmp_path

    def test_by_id_start_part_and_path(self, base: Path) -> None:
        first = base / "1201-0000-train-aaaa"
        assert find_run("1201-0000-train-aaaa", base) == first
        assert find_run("1201-0000", base) == first
        assert find_run("evaluate", base).name == "1201-0001-evaluate-aaaa"
        assert find_run(str(first), base) == first

    def test_none_is_the_latest(self, base: Path) -> None:
        assert find_run(None, base).name == "1201-0002-train-long-aaaa"

    def test_what_fits_none_or_several_is_said(self, base: Path) -> None:
        for name, words in {
            "train": "2 runs fit train",
            "nothing": "no run is called nothing",
            "": "the name of a run is empty",
            "./nothing": "no such run",
            str(base): "is no run of ddpviz",
            "\x1b[2Jx": "no run is called x",
        }.items():
            with pytest.raises(RunError, match=words):
                find_run(name, base)
        with pytest.raises(RunError, match="there are no runs yet"):
            find_run(None, base / "empty")

    def test_half_broken_runs_are_listed_as_such(self, base: Path) -> None:
        for name, text in {
            "broken": "{",
            "newer": '{"schema": "ddpviz.run/9"}',
            "strange": '{"schema": "ddpviz.run/1", "status": 7, "title": null, "started_wall_ns": "now", "pid": "x"}',
        }.items():
            (base / name).mkdir()
            (base / name / "run.json").write_text(text)
        (base / "empty").mkdir()
        (base / "a file").write_text("")
        (base / "dangling").symlink_to(base / "nowhere")
        runs = {run.id: run for run in list_runs(base)}
        assert set(runs) == {
            *(f"1201-000{n}-{title}-aaaa" for n, title in enumerate(["train", "evaluate", "train-long"])),
            "broken",
            "newer",
            "strange",
            "empty",
        }
        assert {name for name, run in runs.items() if run.status == "broken"} == {"broken", "newer", "empty"}
        assert "newer ddpviz" in runs["newer"].problem
        assert (runs["strange"].status, runs["strange"].title) == ("", "")  # what is of no use counts as left out

    def test_a_folder_that_is_missing_has_no_runs(self, tmp_path: Path) -> None:
        assert list_runs(tmp_path / "nowhere") == []


class TestLiveStatus:
    def test_a_run_whose_ddpviz_is_gone_was_interrupted(self) -> None:
        gone = subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, check=True)
        here = {"status": "running", "host": socket.gethostname()}
        assert live_status({**here, "pid": os.getpid()}) == "running"
        assert live_status({**here, "pid": int(gone.stdout)}) == "interrupted"
        assert live_status({**here, "pid": -1}) == "interrupted"
        assert live_status({**here, "host": "elsewhere", "pid": 1}) == "running"
        assert live_status({**here, "status": "finished", "pid": int(gone.stdout)}) == "finished"


class TestClean:
    @pytest.mark.parametrize(
        ("dirty", "shown"),
        [
            ("plain", "plain"),
            ("\x1b[31mred\x1b[0m", "red"),
            ("\x1b]0;title\x07text", "text"),
            ("\x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\", "link"),
            ("\x1b]52;c;ZXZpbA==\x07", ""),
            ("\x9b2Jx", "x"),
            ("a\x1b", "a"),
            ("\x1bPsixel\x1b\\b", "b"),
            ("a\rb\nc\td", "a b c d"),
            ("name\u202egnp.py", "namegnp.py"),
            ("zero\u200bwidth", "zerowidth"),
            ("été 日本 ✗ ░", "été 日本 ✗ ░"),
            ("lone \ud800 surrogate", "lone  surrogate"),
            ("\x00\x01\x7f", ""),
        ],
    )
    def test_nothing_drives_the_terminal(self, dirty: str, shown: str) -> None:
        assert clean(dirty) == shown

    def test_lines_can_be_kept(self) -> None:
        assert clean("a\r\nb\rc\x1b[K\n", newlines=True) == "a\nb\nc\n"

    def test_long_hostile_text_takes_no_long(self) -> None:
        began = time.process_time()
        clean("\x1b]" * 50_000 + "\x1b[" * 50_000 + "\x1b[" + "0" * 100_000)
        assert time.process_time() - began < 20  # a quadratic pattern takes minutes
