"""Starting and ending jobs: real processes, real torchrun, real signals."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import psutil
import pytest

from ddpviz.launch import Job, JobError, JobSpec, outcome
from ddpviz.launch.backend import choose, cuda_devices, default_ranks
from ddpviz.launch.demos import demo_script, demo_scripts
from ddpviz.launch.environment import MARK, job_environment
from ddpviz.trace.reader import RunReader, read_info
from ddpviz.trace.records import Exit, Note, Process, RankIs
from ddpviz.trace.rundir import create_run
from ddpviz.trace.writer import TraceFile


@pytest.fixture(autouse=True)
def private_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("DDPVIZ_RUN_DIR", raising=False)


def script(tmp_path: Path, text: str, name: str = "job.py") -> Path:
    path = tmp_path / name
    path.write_text(textwrap.dedent(text))
    return path


def command(tmp_path: Path, text: str, *args: str) -> JobSpec:
    return JobSpec(command=(sys.executable, str(script(tmp_path, text)), *args))


def wait_for(condition: object, seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.02)


def log(job: Job, name: str) -> str:
    return (job.run_dir / job.logs[name]).read_text()


def run_to_end(spec: JobSpec) -> tuple[Job, int]:
    job = Job(spec)
    job.start()
    return job, job.finish()


def marked(job: Job) -> list[int]:
    """Living processes that carry the job's mark."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get(MARK) == job._mark and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process.pid)
        except psutil.Error:
            continue
    return found


class TestBackend:
    @pytest.mark.parametrize(
        ("ranks", "devices", "wanted", "cpu", "name", "reason", "hide"),
        [
            (2, 0, "auto", False, "gloo", "no CUDA device", False),
            (2, 1, "auto", False, "gloo", "one GPU for 2 ranks: gloo on the CPU", True),
            (4, 2, "auto", False, "gloo", "2 GPUs for 4 ranks: gloo on the CPU", True),
            (2, 2, "auto", False, "nccl", "a CUDA device for each rank", False),
            (1, 1, "auto", False, "nccl", "a CUDA device", False),
            (2, 4, "nccl", False, "nccl", "as asked", False),
            (2, 4, "gloo", False, "gloo", "as asked: on the CPU, 4 CUDA devices hidden from the job", True),
            (2, 0, "gloo", False, "gloo", "as asked: on the CPU", False),
            (2, 8, "auto", True, "gloo", "as asked by --cpu", True),
        ],
    )
    def test_the_choice_and_its_reason(
        self, ranks: int, devices: int, wanted: str, cpu: bool, name: str, reason: str, hide: bool
    ) -> None:
        choice = choose(ranks, devices, wanted=wanted, cpu=cpu)
        assert (choice.name, choice.reason, choice.hide_cuda) == (name, reason, hide)

    def test_nccl_without_devices_is_refused(self) -> None:
        with pytest.raises(JobError, match="needs a CUDA device for each of 2 ranks; here is none"):
            choose(2, 0, wanted="nccl")
        with pytest.raises(JobError, match="here is 1 CUDA device"):
            choose(2, 1, wanted="nccl")

    def test_as_many_ranks_as_devices_if_more_than_one(self) -> None:
        assert [default_ranks(devices) for devices in (0, 1, 2, 8)] == [2, 2, 2, 8]

    @pytest.mark.parametrize(
        ("visible", "count"),
        [(None, 4), ("", 0), ("-1", 0), ("0", 1), ("0,2", 2), ("3,-1,0", 1), ("7", 0), ("GPU-1a,GPU-2b", 2), ("x", 0)],
    )
    def test_devices_are_counted_as_cuda_does(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, visible: str | None, count: int
    ) -> None:
        listing = "".join(
            f"GPU {n}: NVIDIA H100 (UUID: GPU-{n})\n  MIG 1g.10gb Device 0: (UUID: MIG-{n})\n" for n in range(4)
        )
        smi = tmp_path / "bin" / "nvidia-smi"
        smi.parent.mkdir()
        smi.write_text(f"#!/bin/sh\n[ $1 = -L ] && printf '{listing}'\n")
        smi.chmod(0o755)
        monkeypatch.setenv("PATH", f"{smi.parent}:{os.environ['PATH']}")
        assert cuda_devices({} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}) == count

    def test_a_broken_driver_means_no_device(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        smi = tmp_path / "nvidia-smi"
        smi.write_text("#!/bin/sh\necho 'NVIDIA-SMI has failed: no NVIDIA driver'\nexit 9\n")
        smi.chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
        assert cuda_devices({}) == 0


class TestRefusals:
    @pytest.mark.parametrize(
        ("spec", "words"),
        [
            (JobSpec(), "nothing to run"),
            (JobSpec(script=Path("nosuch.py")), "no such script: nosuch.py"),
            (JobSpec(script=Path("ls")), "to run a command, put -- before it"),
            (JobSpec(script=Path("/tmp")), "is a folder, not a script"),
            (JobSpec(script=Path("/dev/null")), "is not a file that can be read twice"),
            (JobSpec(script=Path("x\0y")), "no such script"),
            (JobSpec(script=Path(__file__), nproc=0), "-n 0: a job has at least one rank"),
            (JobSpec(script=Path(__file__), nproc=-3), "-n -3"),
            (JobSpec(script=Path(__file__), nproc=100_000), "at most"),
            (JobSpec(script=Path(__file__), cpu=True, backend="nccl"), "contradict"),
            (JobSpec(script=Path(__file__), budget=-1), "--budget -1"),
            (JobSpec(command=("nosuchcommand",)), "no such command: nosuchcommand"),
            (JobSpec(command=("",)), "is empty"),
            (JobSpec(command=("/tmp",)), "is a folder, not a command"),
            (JobSpec(command=(__file__,)), "cannot be executed; is it a script"),
            (JobSpec(command=("ls",), nproc=2), "-n and --backend are for a SCRIPT.py"),
        ],
    )
    def test_one_clear_line_and_nothing_left_behind(self, spec: JobSpec, words: str, tmp_path: Path) -> None:
        with pytest.raises(JobError) as caught:
            Job(spec)
        assert words in str(caught.value)
        assert "\n" not in str(caught.value)
        assert not (tmp_path / "state").exists()

    def test_what_is_no_python(self, tmp_path: Path) -> None:
        shell = tmp_path / "train.sh"
        shell.write_text("#!/bin/sh\necho hi\n")
        for path in (shell, Path("/bin/ls")):
            with pytest.raises(JobError, match="is no Python script; to run it as a command"):
                Job(JobSpec(script=path))

    @pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
    def test_what_may_not_be_read(self, tmp_path: Path) -> None:
        path = script(tmp_path, "pass")
        path.chmod(0)
        with pytest.raises(JobError, match="cannot be read: Permission denied"):
            Job(JobSpec(script=path))

    def test_a_run_folder_that_is_taken(self, tmp_path: Path) -> None:
        with pytest.raises(JobError, match="is not empty"):
            Job(JobSpec(command=("true",), run_dir=script(tmp_path, "").parent))


class TestEnvironment:
    def test_what_a_job_gets(self, tmp_path: Path) -> None:
        spec = JobSpec(script=Path("x.py"), budget=None, cpu=True, observe="comm-hook")
        base = {"PYTHONPATH": "/mine", "DDPVIZ_BUDGET": "9", "HOME": "/h"}
        env = job_environment(base, spec, tmp_path, "mark", ranks=2, hide_cuda=True)
        path = env["PYTHONPATH"].split(os.pathsep)
        assert (Path(path[0]) / "sitecustomize.py").is_file()
        assert path[1] == "/mine"
        del env["PYTHONPATH"]
        assert env == {
            "HOME": "/h",
            "DDPVIZ_RUN_DIR": str(tmp_path),
            "DDPVIZ_BUDGET": "full",
            "DDPVIZ_OBSERVE": "comm-hook",
            "DDPVIZ_REDIRECT": "1",
            MARK: "mark",
            "CUDA_VISIBLE_DEVICES": "",
            "PYTHONUNBUFFERED": "1",
            "OMP_NUM_THREADS": "1",
        }

    def test_what_the_user_set_stays(self, tmp_path: Path) -> None:
        base = {
            "OMP_NUM_THREADS": "8",
            "PYTHONUNBUFFERED": "",
            "CUDA_VISIBLE_DEVICES": "1",
            "DDPVIZ_OBSERVE": "comm-hook",
        }
        env = job_environment(base, JobSpec(budget=0.5), tmp_path, "m", ranks=4, hide_cuda=False)
        assert base.items() <= env.items()
        assert env["DDPVIZ_BUDGET"] == "0.5"
        assert "DDPVIZ_REDIRECT" not in env

    def test_threads_are_left_alone_where_torchrun_leaves_them(self, tmp_path: Path) -> None:
        for ranks in (1, None):
            assert "OMP_NUM_THREADS" not in job_environment({}, JobSpec(), tmp_path, "m", ranks=ranks, hide_cuda=False)


class TestDemos:
    def test_the_four_are_there_with_what_they_show(self) -> None:
        demos = {demo.name: demo for demo in demo_scripts()}
        assert {"unsynced-step", "last-one-syncs", "accumulate", "accumulate-long"} <= set(demos)
        for demo in demos.values():
            assert demo.path.is_file()
            assert len(demo.summary) > 20
            assert "ddpviz" not in demo.path.read_text()

    def test_names_are_forgiving_and_wrong_ones_are_told_the_right_ones(self) -> None:
        assert demo_script("accumulate_long.py") == demo_script("accumulate-long")
        with pytest.raises(JobError, match=r"no demo is called nope; there are .*unsynced-step"):
            demo_script("nope")


class TestCommand:
    def test_names_that_are_no_utf8(self, tmp_path: Path) -> None:
        name = os.fsdecode(b"tr\xff.py")
        path = script(tmp_path, "import sys, os; print(os.fsencode(sys.argv[1]))", name)
        job, code = run_to_end(JobSpec(command=(sys.executable, str(path), name)))
        assert (code, log(job, "command")) == (0, "b'tr\\xff.py'\n")
        assert read_info(job.run_dir)["command"][2] == "tr\ufffd.py"

    def test_output_in_order_no_terminal_and_the_exit_code(self, tmp_path: Path) -> None:
        spec = command(
            tmp_path,
            """
            import os, sys
            for n in range(3):
                print("out", n)
                print("err", n, file=sys.stderr)
            print("stdin", repr(sys.stdin.read()), sys.stdin.isatty(), sys.stdout.isatty())
            try:
                os.open("/dev/tty", os.O_RDWR)
            except OSError:
                print("no terminal")
            print("args", sys.argv[1:])
            sys.exit(7)
            """,
            "--flag",
            "a b",
        )
        job, code = run_to_end(spec)
        assert code == 7
        assert log(job, "command") == (
            "out 0\nerr 0\nout 1\nerr 1\nout 2\nerr 2\nstdin '' False False\nno terminal\nargs ['--flag', 'a b']\n"
        )
        info = read_info(job.run_dir)
        assert (info["status"], info["exit_code"], info["command"][1:]) == ("failed", 7, list(spec.command[1:]))
        assert info["ended_wall_ns"] >= info["started_wall_ns"]
        assert stat.S_IMODE((job.run_dir / "logs" / "command.log").stat().st_mode) == 0o600
        assert job.poll() == job.finish() == 7

    def test_a_signal_is_128_and_more(self, tmp_path: Path) -> None:
        job, code = run_to_end(command(tmp_path, "import os; os.kill(os.getpid(), 9)"))
        assert (code, read_info(job.run_dir)["status"]) == (137, "failed")

    def test_success(self, tmp_path: Path) -> None:
        job, code = run_to_end(command(tmp_path, "print('fine')"))
        assert (code, read_info(job.run_dir)["status"], read_info(job.run_dir)["exit_code"]) == (0, "finished", 0)

    def test_a_job_that_is_never_started_says_so(self, tmp_path: Path) -> None:
        job = Job(command(tmp_path, ""))
        assert job.poll() is None
        job.stop()
        assert job.finish() == 130
        assert read_info(job.run_dir)["status"] == "interrupted"

    def test_a_removed_run_folder_does_not_end_the_job(self, tmp_path: Path) -> None:
        import shutil

        job = Job(command(tmp_path, "import time; time.sleep(1); print(1)"))
        job.start()
        shutil.rmtree(job.run_dir)
        assert job.finish() == 0


class TestSecondNode:
    def test_it_joins_the_run_of_the_first(self, tmp_path: Path) -> None:
        run_dir = create_run(None, {"title": "t", "host": "node-1", "status": "running"}, run_dir=tmp_path / "shared")
        first = read_info(run_dir)
        path = script(tmp_path, "print('node 2'); raise SystemExit(5)")
        job, code = run_to_end(JobSpec(command=(sys.executable, str(path)), run_dir=run_dir))
        assert code == 5
        after = read_info(run_dir)
        (name,) = job.logs
        assert (run_dir / job.logs[name]).read_text() == "node 2\n"
        assert after["logs"] == {**first["logs"], **job.logs}
        assert {**after, "logs": {}} == {**first, "logs": {}}

    @pytest.mark.parametrize("info", [{"host": "node-1", "status": "finished"}, {"status": "running"}])
    def test_it_joins_no_other(self, tmp_path: Path, info: dict[str, str]) -> None:
        run_dir = create_run(None, {"title": "t", **info}, run_dir=tmp_path / "shared")
        with pytest.raises(JobError, match="is not empty"):
            Job(JobSpec(command=("true",), run_dir=run_dir))


# Parent, child in a session of its own, orphaned grandchild, one that ignores SIGTERM.
FAMILY = """
    import os, signal, subprocess, sys, time
    depth = int(sys.argv[1]) if len(sys.argv) > 1 else 0
    if depth == 2:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if depth < 3:
        subprocess.Popen([sys.executable, __file__, str(depth + 1)], start_new_session=depth == 1)
    print("up", depth, flush=True)
    if depth == 1:
        os._exit(0)
    time.sleep(600)
"""


class TestEnding:
    def up(self, job: Job) -> bool:
        path = job.run_dir / job.logs["command"]
        return path.exists() and all(f"up {depth}" in path.read_text() for depth in range(4))

    def test_stop_ends_the_whole_tree(self, tmp_path: Path) -> None:
        job = Job(command(tmp_path, FAMILY))
        job.start()
        wait_for(lambda: self.up(job))
        assert len(marked(job)) == 3
        job.stop(grace=0.5)
        assert marked(job) == []
        assert job.finish() == 130
        info = read_info(job.run_dir)
        assert (info["status"], info["exit_code"]) == ("interrupted", 130)
        assert job._guard is None

    def test_our_own_death_ends_it_too(self, tmp_path: Path) -> None:
        path = script(tmp_path, FAMILY)
        starter = textwrap.dedent(
            """
            import sys, time
            from pathlib import Path
            from ddpviz.launch import Job, JobSpec
            job = Job(JobSpec(command=(sys.executable, sys.argv[1]), run_dir=Path(sys.argv[2])))
            job.start()
            print(job._mark, flush=True)
            time.sleep(600)
            """
        )
        run_dir = tmp_path / "run"
        ddpviz = subprocess.Popen(
            [sys.executable, "-c", starter, str(path), str(run_dir)], stdout=subprocess.PIPE, text=True
        )
        assert ddpviz.stdout is not None

        class Gone:
            _mark = ddpviz.stdout.readline().strip()

        command_log = run_dir / "logs" / "command.log"
        wait_for(lambda: command_log.exists() and "up 3" in command_log.read_text())
        ddpviz.send_signal(signal.SIGKILL)
        ddpviz.wait()
        wait_for(lambda: not marked(Gone))  # type: ignore[arg-type]
        wait_for(lambda: read_info(run_dir)["status"] == "interrupted")
        info = read_info(run_dir)
        assert info["notes"] == ["ddpviz was ended while the job ran, and the job with it"]

    def test_a_job_that_has_ended_leaves_its_daemons_alone(self, tmp_path: Path) -> None:
        job, code = run_to_end(
            command(
                tmp_path,
                """
                import subprocess, sys
                subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
                """,
            )
        )
        left = marked(job)
        try:
            assert code == 0
            assert len(left) == 1
        finally:
            for pid in left:
                os.kill(pid, signal.SIGKILL)

    def test_a_launcher_that_is_killed_leaves_no_ranks_behind(self, tmp_path: Path) -> None:
        job = Job(command(tmp_path, FAMILY))
        job.start()
        wait_for(lambda: self.up(job))
        assert job._process is not None
        job._process.kill()
        assert job.finish() == 137
        assert marked(job) == []
        assert read_info(job.run_dir)["status"] == "failed"

    def test_stop_from_another_thread(self, tmp_path: Path) -> None:
        job = Job(command(tmp_path, "import time; time.sleep(600)"))
        job.start()
        stopper = threading.Timer(0.3, job.stop)
        stopper.start()
        assert job.finish() == 130
        stopper.join()

    def test_a_stopped_process_is_ended_as_well(self, tmp_path: Path) -> None:
        job = Job(command(tmp_path, "import os, signal; print('up', flush=True); os.kill(os.getpid(), signal.SIGSTOP)"))
        job.start()
        wait_for(lambda: "up" in log(job, "command"))
        job.stop(reason="hung", grace=0.3)
        job.finish()
        assert marked(job) == []
        assert read_info(job.run_dir)["status"] == "hung"


RANKS = """
    import os, sys, time
    rank = int(os.environ["RANK"])
    print("out", rank, sys.argv[1:], os.environ["WORLD_SIZE"], os.environ.get("OMP_NUM_THREADS"))
    print("err", rank, file=sys.stderr)
    print("last", rank)
    if rank == 1:
        {end}
    elif {wait}:
        time.sleep(120)
"""


class TestRanks:
    """Under the real torchrun. Its failure report is read as it prints it, never as somebody remembers it."""

    def job(
        self, tmp_path: Path, end: str, *, wait: bool = True, n: int = 2
    ) -> tuple[Job, int, list[dict[str, object]]]:
        path = script(tmp_path, RANKS.replace("{end}", end).replace("{wait}", str(wait)))
        job, code = run_to_end(JobSpec(script=path, args=("-n", "--", "x y"), nproc=n))
        return job, code, read_info(job.run_dir)["ranks"]

    def test_each_rank_has_its_own_log_in_order(self, tmp_path: Path) -> None:
        job, code, ranks = self.job(tmp_path, "pass", wait=False, n=3)
        assert (code, read_info(job.run_dir)["status"]) == (0, "finished")
        for rank in range(3):
            expected = f"out {rank} ['-n', '--', 'x y'] 3 1\nerr {rank}\nlast {rank}\n"
            assert log(job, str(rank)) == expected
            assert stat.S_IMODE((job.run_dir / job.logs[str(rank)]).stat().st_mode) == 0o600
        assert ranks == [{"rank": rank, "exit_code": 0, "signal": None, "ended_by": None} for rank in range(3)]
        assert log(job, "launcher") == ""

    def test_files_of_the_working_folder_stand_in_for_none_of_pythons(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for name in ("queue", "profile", "types", "logging", "socket"):
            (tmp_path / f"{name}.py").write_text("raise SystemExit('the wrong file')")
        (tmp_path / "src").mkdir()
        monkeypatch.chdir(tmp_path)
        script(tmp_path / "src", "print('fine')")
        job, code = run_to_end(JobSpec(script=Path("src/job.py"), nproc=1))
        assert (code, log(job, "0"), log(job, "launcher")) == (0, "fine\n", "")

    @pytest.mark.parametrize(
        ("end", "exit_code", "signum"),
        [
            ("sys.exit(3)", 3, None),
            ("os.kill(os.getpid(), 9)", None, 9),
            ("raise ValueError('boom')", 1, None),
        ],
        ids=["exit", "signal", "exception"],
    )
    def test_who_failed_and_how(self, tmp_path: Path, end: str, exit_code: int | None, signum: int | None) -> None:
        job, code, ranks = self.job(tmp_path, end)
        assert (code, read_info(job.run_dir)["status"]) == (1, "failed")
        assert ranks == [
            {"rank": 0, "exit_code": None, "signal": 15, "ended_by": "launcher"},
            {"rank": 1, "exit_code": exit_code, "signal": signum, "ended_by": None},
        ]
        if "boom" in end:
            assert "ValueError: boom" in log(job, "1")
        assert marked(job) == []

    def test_a_worker_that_aborts_after_its_last_line_is_a_finished_job_with_a_note(self, tmp_path: Path) -> None:
        """As gloo does at times: the abort comes from a C destructor, when Python has already shut down."""
        path = script(
            tmp_path,
            """
            import ctypes
            import torch.distributed as dist
            dist.init_process_group("gloo")
            dist.barrier()
            if dist.get_rank() == 1:
                libc = ctypes.CDLL(None)
                libc.__cxa_atexit(ctypes.cast(libc.abort, ctypes.c_void_p), None, None)
            print("last line")
            """,
        )
        job, code = run_to_end(JobSpec(script=path, nproc=2))
        info = read_info(job.run_dir)
        assert (code, info["exit_code"], info["status"]) == (1, 1, "finished")
        assert info["ranks"][1]["signal"] == signal.SIGABRT
        assert [note.split(",")[0] for note in info["notes"]] == ["rank 1 aborted while the interpreter shut down"]


class TestOutcome:
    FINE = Exit(at=1, code=0, reason="finished")

    def test_aborts_after_the_last_line_are_a_finished_job(self) -> None:
        verdict = outcome.judge(1, failures={1: -6, 0: -15}, words={0: self.FINE, 1: self.FINE}, world_size=2)
        assert (verdict.status, verdict.exit_code) == ("finished", 1)
        assert verdict.notes[0].startswith("rank 1 aborted while the interpreter shut down")

    @pytest.mark.parametrize(
        ("failures", "words"),
        [
            ({1: -6}, {0: FINE, 1: None}),
            ({1: -6}, {0: FINE}),
            ({1: -9}, {0: FINE, 1: FINE}),
            ({1: 3, 0: -6}, {0: FINE, 1: FINE}),
            ({1: -6}, {0: Exit(at=1, code=1, reason="exception"), 1: FINE}),
            ({0: -15}, {0: FINE, 1: FINE}),
            ({}, {}),
        ],
    )
    def test_anything_less_is_a_failed_one(self, failures: dict[int, int], words: dict[int, Exit | None]) -> None:
        assert outcome.judge(1, failures=failures, words=words, world_size=2).status == "failed"

    def test_a_command_that_aborts_itself_after_its_last_line(self) -> None:
        assert outcome.judge(-6, words={0: self.FINE}).status == "finished"
        assert outcome.judge(-6, words={}).status == "failed"

    def test_a_rank_that_raised_and_was_then_ended_by_the_launcher_raised(self) -> None:
        raised = Exit(at=1, code=1, reason="exception", error="ValueError: x")
        verdict = outcome.judge(1, failures={0: 1, 1: -15, 2: -15}, words={0: raised, 1: raised, 2: None}, world_size=3)
        assert [(end["exit_code"], end["signal"], end["ended_by"]) for end in verdict.ranks] == [
            (1, None, None),
            (1, None, None),
            (None, 15, "launcher"),
        ]

    def test_a_rank_that_only_the_trace_knows(self) -> None:
        verdict = outcome.judge(1, words={0: Exit(at=1, code=143, reason="signal"), 2: self.FINE})
        assert [(end["exit_code"], end["signal"]) for end in verdict.ranks] == [(None, 15), (None, None), (0, None)]
        assert verdict.world_size == 3

    def test_the_last_attempt_of_a_rank_counts(self, tmp_path: Path) -> None:
        (tmp_path / "trace").mkdir()

        def attempt(number: int, *more: Exit) -> None:
            process = Process(
                pid=number, host="h", job="j", attempt=number, argv=[], python="", torch="", ddpviz="", observed_by="",
                wall_ns=number, monotonic_ns=0,
            )  # fmt: skip
            ranked = RankIs(rank=0, world_size=1, local_rank=0, backend="gloo", at=0)
            TraceFile(tmp_path / "trace", f"j-{number}-1").records([process, ranked, *more])

        attempt(10, Exit(at=9, code=0, reason="detached"))
        attempt(9, Exit(at=5, code=1, reason="exception"))
        assert outcome.last_words(tmp_path) == {0: None}
        TraceFile(tmp_path / "trace", "j-10-1").records([Note(text="no rank", at=0), self.FINE])
        assert outcome.last_words(tmp_path) == {0: None}
        assert RunReader(tmp_path).problems == []
