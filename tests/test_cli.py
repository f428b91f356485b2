"""The command line, as a shell sees it: what it prints, where, and with which exit code."""

from __future__ import annotations

import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from ddpviz.cli import main
from ddpviz.cli.arguments import parse
from ddpviz.lessons import catalogue
from ddpviz.trace import records as r
from ddpviz.trace.rundir import create_run, find_run, list_runs
from ddpviz.trace.writer import TraceFile

COMMANDS = ("demo", "run", "check", "watch", "list", "export", "compare", "quiz", "cat", "serve")


@pytest.fixture(autouse=True)
def private_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("DDPVIZ_RUN_DIR", "DDPVIZ_DEBUG"):
        monkeypatch.delenv(name, raising=False)


def ddpviz(*arguments: str | Path, cwd: Path | None = None, **options: object) -> subprocess.CompletedProcess[str]:
    """Run it without a terminal."""
    return subprocess.run(
        [sys.executable, "-m", "ddpviz", *map(str, arguments)],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=200,
        cwd=cwd,
        **options,  # type: ignore[call-overload]
    )


def one_line(done: subprocess.CompletedProcess[str]) -> str:
    """Its one line on stderr; nothing on stdout."""
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1, done.stderr
    assert done.stderr.startswith("ddpviz")
    return done.stderr


def script(folder: Path, text: str, name: str = "train.py") -> Path:
    path = folder / name
    path.write_text(textwrap.dedent(text))
    return path


class TestHelp:
    def test_it_appears_at_once(self) -> None:
        """Processor time, the best of five: what a loaded machine adds to the wall clock is not ours."""
        times = []
        for _ in range(5):
            before = resource.getrusage(resource.RUSAGE_CHILDREN)
            done = ddpviz("--help")
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
            times.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
            assert done.returncode == 0
        assert min(times) < 0.2

    def test_it_imports_nothing_heavy(self) -> None:
        heavy = "torch numpy textual rich plotext psutil msgspec platformdirs asyncio subprocess"
        code = (
            "import sys\nfrom ddpviz.cli import main\n"
            "try: main(['run', '--help'])\nexcept SystemExit: pass\n"
            f"print([name for name in {heavy!r}.split() if name in sys.modules], file=sys.stderr)"
        )
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        assert done.stderr == "[]\n"

    def test_every_command_is_named_and_explained(self) -> None:
        overview = ddpviz("--help").stdout
        for command in COMMANDS:
            assert f"\n    {command} " in overview
            done = ddpviz(command, "--help")
            assert (done.returncode, done.stderr) == (0, "")
            assert done.stdout.startswith(f"usage: ddpviz {command} ")
            assert "exit code" in done.stdout
            assert max(map(len, done.stdout.splitlines())) <= 120

    def test_without_a_command_the_help_is_the_answer(self) -> None:
        done = ddpviz()
        assert (done.returncode, done.stdout) == (2, ddpviz("--help").stdout)

    def test_version(self) -> None:
        from ddpviz import __version__

        assert ddpviz("--version").stdout == f"ddpviz {__version__}\n"


class TestWhatBelongsToTheJob:
    @pytest.mark.parametrize(
        ("arguments", "job", "own"),
        [
            (["run", "t.py"], ["t.py"], {"nproc": None, "budget": 2.0, "cpu": False}),
            (["run", "-n", "3", "t.py", "-n", "5", "--cpu"], ["t.py", "-n", "5", "--cpu"], {"nproc": 3, "cpu": False}),
            (["run", "-n3", "--cpu", "t.py", "--", "x"], ["t.py", "--", "x"], {"nproc": 3, "cpu": True}),
            (["run", "--run-dir", "d", "--", "torchrun", "-n", "2"], ["--", "torchrun", "-n", "2"], {"nproc": None}),
            (["run", "--budget=full", "t.py", "--help"], ["t.py", "--help"], {"budget": None}),
            (["run", "--budget", "1.5%", "t.py"], ["t.py"], {"budget": 1.5}),
            (["check", "t.py"], ["t.py"], {"budget": None, "hang_after": 30.0, "fail_on": "error", "format": "text"}),
            (["check", "--json", "-", "t.py", "-"], ["t.py", "-"], {"json": "-"}),
            (
                ["demo", "accumulate", "-n", "3", "--", "--epochs", "3"],
                ["--epochs", "3"],
                {"nproc": 3, "name": "accumulate"},
            ),
            (["demo", "--no-ui", "accumulate"], [], {"no_ui": True, "name": "accumulate"}),
            (["demo", "--list"], [], {"list": True, "name": None}),
        ],
    )
    def test_from_the_script_on_everything(self, arguments: list[str], job: list[str], own: dict[str, object]) -> None:
        options = parse(arguments)
        assert options.job == job
        assert {name: getattr(options, name) for name in own} == own


class TestMisuse:
    @pytest.mark.parametrize(
        ("arguments", "words"),
        [
            ("bogus", "invalid choice: 'bogus'"),
            ("--bogus", "unrecognized arguments"),
            ("run", "name a SCRIPT.py, or a command behind --"),
            ("run --", "the command behind -- is missing"),
            ("run -n", "argument -n/--nproc: expected one argument"),
            ("run -n two train.py", "'two' is no whole number"),
            ("run -n 0 train.py", "-n 0: a job has at least one rank"),
            ("run -n 99999 train.py", "at most"),
            ("run --cp train.py", "unrecognized arguments: --cp"),
            ("run --budget lots train.py", "'lots' is neither full nor a percentage"),
            ("run --budget nan train.py", "'nan' is neither full nor a percentage"),
            ("run --backend mpi train.py", "invalid choice: 'mpi'"),
            ("run nosuch.py", "no such script: nosuch.py"),
            ("run .", ". is a folder, not a script"),
            ("run ls", "put -- before it"),
            ("run -- nosuchcommand", "no such command: nosuchcommand"),
            ("run -n 2 -- ls", "-n and --backend are for a SCRIPT.py"),
            ("run --cpu --backend nccl train.py", "contradict each other"),
            ("run --run-dir . train.py", "is not empty"),
            ("run --run-dir train.py train.py", "no run folder can be made"),
            ("check --hang-after 0 train.py", "'0' is no number of seconds above 0"),
            ("check --hang-after inf train.py", "'inf' is no number of seconds above 0"),
            ("check --fail-on sometimes train.py", "invalid choice"),
            ("check --json nowhere/x.json train.py", "nowhere"),
            ("check nosuch.py", "no such script"),
            ("demo nope", "no demo is called nope; there are"),
            ("demo accumulate --epochs 3", "unrecognized arguments: --epochs 3"),
            ("demo -n 0 accumulate", "-n 0"),
            ("export", "the following arguments are required"),
            ("export x --to xml", "invalid choice: 'xml'"),
            ("serve run", "it serves demo or watch, not run"),
            ("serve demo", "name one of the demos"),
            ("serve watch -", "a run, not a stream"),
            ("list a b", "unrecognized arguments: b"),
            ("watch - a", "a stream and folders do not go together"),
            ("serve watch a b", "it serves one run"),
            ("compare a", "the following arguments are required"),
        ],
    )
    def test_one_line_and_exit_code_2(self, arguments: str, words: str, tmp_path: Path) -> None:
        script(tmp_path, "print('ran', flush=True)")
        done = ddpviz(*arguments.split(), cwd=tmp_path)
        assert words in one_line(done)
        assert done.returncode == 2

    @pytest.mark.parametrize("command", ["watch {}", "export {} --to json", "compare {} {}", "cat {}"])
    def test_what_is_no_run_is_5(self, command: str, tmp_path: Path) -> None:
        (tmp_path / "empty").mkdir()
        for name in ("nosuch", "./nosuch", str(tmp_path), str(tmp_path / "empty")):
            done = ddpviz(*command.format(name, name).split(), cwd=tmp_path)
            assert "run" in one_line(done)
            assert done.returncode == 5

    def test_our_own_faults_are_one_line_and_a_file(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        from ddpviz.trace import rundir

        def fault(base: Path | None = None) -> None:
            raise RuntimeError("oh no")

        monkeypatch.setenv("TMPDIR", str(tmp_path))
        monkeypatch.setattr("tempfile.tempdir", None)
        monkeypatch.setattr(rundir, "list_runs", fault)
        assert main(["list"]) == 70
        line = capsys.readouterr().err
        assert line.startswith("ddpviz: a fault in ddpviz itself (RuntimeError: oh no); details: ")
        assert "in fault" in Path(line.split("details: ")[1].strip()).read_text()

    def test_a_reader_that_has_enough_ends_it_quietly(self, tmp_path: Path) -> None:
        run = create_run(tmp_path / "state" / "ddpviz" / "runs", {"title": "t"})
        trace = TraceFile(run / "trace", "j")
        trace.records([r.Note(text="x" * 100_000, at=0)] * 20)
        command = f"{sys.executable} -m ddpviz cat t | head -c 10 >/dev/null; echo ${{PIPESTATUS[0]}}"
        done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=True)
        assert (done.stdout, done.stderr) == ("0\n", "")

    def test_short_output_into_a_closed_pipe(self, tmp_path: Path) -> None:
        create_run(tmp_path, {"title": "t"})
        command = f"{sys.executable} -m ddpviz list {tmp_path} | true; echo ${{PIPESTATUS[0]}}"
        done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=True)
        assert (done.stdout, done.stderr) == ("0\n", "")

    def test_closed_streams(self, tmp_path: Path) -> None:
        create_run(tmp_path, {"title": "t"})
        command = f"{sys.executable} -m ddpviz list {tmp_path} <&- >&- 2>&-"
        assert subprocess.run(["bash", "-c", command], check=False).returncode == 0

    def test_a_locale_without_the_characters(self, tmp_path: Path) -> None:
        create_run(tmp_path, {"title": "t", "command": ["größe ✗.py", "\udcff"]})
        env = {**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "PYTHONIOENCODING": ""}
        done = ddpviz("list", tmp_path, env=env)
        assert (done.returncode, done.stderr) == (0, "")
        assert "gr??e ?.py" in done.stdout


class TestDemoList:
    def test_the_list_says_what_each_shows(self) -> None:
        done = ddpviz("demo", "--list")
        assert (done.returncode, done.stderr) == (0, "")
        lines = [line.strip() for line in done.stdout.splitlines() if line.startswith("  ")]
        names = [line.split("  ")[0] for line in lines]
        assert names == [one.name for one in catalogue()]  # in the order of the lessons
        assert {"unsynced-step", "last-one-syncs", "accumulate", "accumulate-long"} <= set(names)
        assert all(len(line.split("  ", 1)[1].strip()) > 20 for line in lines)
        heads = [line for line in done.stdout.splitlines() if line and not line.startswith(" ")]
        assert heads == list(dict.fromkeys(one.group for one in catalogue()))

    def test_without_a_terminal_the_picker_is_the_list(self) -> None:
        done = ddpviz("demo")
        assert (done.returncode, done.stdout) == (0, ddpviz("demo", "--list").stdout)
        assert done.stderr == "ddpviz: start one with `ddpviz demo NAME`\n"


class TestList:
    def test_runs_broken_ones_too_the_latest_first(self, tmp_path: Path) -> None:
        base = tmp_path / "state" / "ddpviz" / "runs"
        for number, title in enumerate(["first", "sec\x1b[31mond"]):
            create_run(
                base,
                {
                    "title": title,
                    "started_wall_ns": (1_700_000_000 + number) * 10**9,
                    "command": ["train.py", "--lr", "\x1b]0;evil\x07"],
                    "status": "finished",
                    "world_size": 2,
                },
            )
        (base / "broken").mkdir()
        done = ddpviz("list")
        assert (done.returncode, done.stderr) == (0, "")
        head, broken, second, first = done.stdout.splitlines()
        assert head.split() == ["RUN", "STARTED", "STATUS", "RANKS", "COMMAND"]
        assert "sec-31mond" in second
        assert second.endswith("finished  2      train.py --lr")
        assert "first" in first
        assert broken.split()[:3] == ["broken", "-", "broken"]
        assert "\x1b" not in done.stdout
        assert ddpviz("list", base).stdout == done.stdout

    def test_no_runs_yet(self, tmp_path: Path) -> None:
        done = ddpviz("list")
        assert done.returncode == 0
        assert "start one with `ddpviz demo`" in one_line(done)
        assert ddpviz("list", tmp_path / "nowhere").returncode == 5


class TestWithoutATerminal:
    def test_watch_says_what_to_do_instead(self, tmp_path: Path) -> None:
        run = create_run(tmp_path, {"title": "t"})
        done = ddpviz("watch", run)
        assert done.returncode == 2
        assert "needs a terminal" in one_line(done)

    def test_watch_of_what_is_no_stream(self) -> None:
        done = ddpviz("watch", "-", cwd=None)
        assert done.returncode == 5
        assert "no stream of `ddpviz cat`" in one_line(done)

    def test_export_goes_to_stdout_or_a_file(self, tmp_path: Path) -> None:
        create_run(tmp_path / "state" / "ddpviz" / "runs", {"title": "mine", "status": "finished"})
        printed = ddpviz("export", "mine", "--to", "json")
        assert (printed.returncode, printed.stderr) == (0, "")
        assert json.loads(printed.stdout)["schema"] == "ddpviz.report/1"
        written = ddpviz("export", "mine", "--to", "json", "-o", tmp_path / "x.json")
        assert (written.returncode, written.stdout) == (0, "")
        assert json.loads((tmp_path / "x.json").read_text()) == json.loads(printed.stdout)
        refused = ddpviz("export", "mine", "--to", "json", "-o", tmp_path / "no" / "x.json")
        assert refused.returncode == 2
        assert "x.json" in one_line(refused)


class TestJobs:
    """Jobs without torch in them: the machinery around is real. Jobs with DDP are in the tests of `check`."""

    def test_run_ends_with_the_commands_own_code_and_keeps_the_run(self, tmp_path: Path) -> None:
        path = script(tmp_path, "import sys; print('hello from the job'); sys.exit(9)")
        done = ddpviz("run", "--run-dir", tmp_path / "mine", "--", sys.executable, path)
        assert done.returncode == 9
        assert "Traceback" not in done.stderr
        (run,) = [run for run in list_runs(tmp_path) if run.id == "mine"]
        assert (run.status, run.info["exit_code"]) == ("failed", 9)
        assert (run.path / "logs" / "command.log").read_text() == "hello from the job\n"

    def test_the_run_folder_can_come_from_the_environment(self, tmp_path: Path) -> None:
        done = ddpviz("run", "--", "true", env={**os.environ, "DDPVIZ_RUN_DIR": str(tmp_path / "there")})
        assert done.returncode == 0
        assert find_run(str(tmp_path / "there")) == tmp_path / "there"

    @pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
    def test_interrupting_ends_the_job_and_says_so(self, tmp_path: Path, signum: signal.Signals) -> None:
        path = script(tmp_path, "import os, time; print(os.getpid(), flush=True); time.sleep(600)")
        run_dir = tmp_path / "mine"
        process = subprocess.Popen(
            [sys.executable, "-m", "ddpviz", "run", "--run-dir", run_dir, "--", sys.executable, path],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        log = run_dir / "logs" / "command.log"
        deadline = time.monotonic() + 60
        while not (log.exists() and log.read_text().endswith("\n")):
            assert time.monotonic() < deadline
            assert process.poll() is None, process.communicate()
            time.sleep(0.05)
        process.send_signal(signum)
        _, errors = process.communicate(timeout=60)
        assert "Traceback" not in errors
        if signum == signal.SIGINT:
            assert process.returncode == 130
        job = int(log.read_text())
        deadline = time.monotonic() + 60
        while Path(f"/proc/{job}").exists() or list_runs(tmp_path)[0].info.get("status") != "interrupted":
            assert time.monotonic() < deadline, "the job outlived ddpviz"
            time.sleep(0.05)


class TestCompletion:
    @pytest.mark.skipif(shutil.which("bash") is None, reason="no bash here")
    @pytest.mark.parametrize(
        ("typed", "offered"),
        [
            (["ex"], "export"),
            (["export", "x", "--to", "p"], "perfetto parquet"),
            (["check", "--format", ""], "text json github"),
            (["check", "--hang"], "--hang-after"),
            (["--v"], "--version"),
        ],
    )
    def test_bash_offers_what_fits(self, typed: list[str], offered: str) -> None:
        made = ddpviz("--print-completion", "bash")
        assert (made.returncode, made.stderr) == (0, "")
        words = " ".join(f"'{word}'" for word in ("ddpviz", *typed))
        ask = f'{made.stdout}\nCOMP_WORDS=({words}); COMP_CWORD={len(typed)}; _ddpviz; echo "${{COMPREPLY[*]}}"'
        done = subprocess.run(["bash", "-u", "-c", ask], capture_output=True, text=True, timeout=20)
        assert (done.stdout.strip(), done.stderr) == (offered, "")

    def test_zsh_takes_the_same(self) -> None:
        made = ddpviz("--print-completion", "zsh").stdout
        assert made.startswith("autoload -U +X bashcompinit && bashcompinit\n")
        assert made.endswith(ddpviz("--print-completion", "bash").stdout)
