"""Without a screen: exit codes, the text of a CI log, annotations, narration, streams; on real jobs at the end."""

from __future__ import annotations

import io
import json
import os
import re
import signal
import subprocess
import sys
import textwrap
import time
import uuid
from pathlib import Path
from typing import Any

import jobs
import jsonschema
import pytest
import synth

from ddpviz.export.load import load
from ddpviz.findings import find
from ddpviz.findings.model import Finding, Severity
from ddpviz.headless import github, text
from ddpviz.headless.console import Console
from ddpviz.headless.follow import Ended, Logs, ending_signals
from ddpviz.headless.hints import hint
from ddpviz.headless.narrate import DETAIL, Narrator
from ddpviz.headless.outcome import Outcome
from ddpviz.timeline.fold import Fold
from ddpviz.timeline.model import Timeline
from ddpviz.trace.reader import RunReader

SCHEMA = json.loads((Path(__file__).parent / "report.schema.json").read_text())
EVIL = "\x1b[2J\x1b]0;owned\x07\x1b[31mred"


def finding(**fields: Any) -> Finding:
    made: dict[str, Any] = {"rule": "unsynced-step", "severity": Severity.ERROR, "message": "what", "advice": "do"}
    return Finding(**{**made, **fields})


def outcome_of(tl: Timeline, run: Path, findings: list[Finding] | None = None, **fields: Any) -> Outcome:
    logs = Logs(run)
    logs.files({"0": "logs/rank-0.log", "1": "logs/rank-1.log"})
    return Outcome(tl, find(tl) if findings is None else findings, run, logs, **fields)


def shown(outcome: Outcome) -> str:
    return "\n".join(text.verdict(outcome, Console(io.StringIO())))


# --- exit codes ------------------------------------------------------------------------------------------------------

ERROR, WARNING, INFO = finding(), finding(severity=Severity.WARNING), finding(severity=Severity.INFO)


@pytest.mark.parametrize(
    ("status", "findings", "modules", "fail_on", "code"),
    [
        ("failed", [ERROR], True, "error", 3),  # the first that applies
        ("hung", [], True, "never", 3),
        ("finished", [ERROR], True, "error", 1),
        ("finished", [WARNING], True, "error", 0),
        ("finished", [WARNING, INFO], True, "warning", 1),
        ("finished", [INFO], True, "warning", 0),
        ("finished", [ERROR], True, "never", 0),
        ("finished", [], False, "error", 4),
        ("finished", [ERROR], False, "error", 1),
        ("finished", [], True, "warning", 0),
    ],
)
def test_exit_codes_in_their_order(
    status: str, findings: list[Finding], modules: bool, fail_on: str, code: int, tmp_path: Path
) -> None:
    tl = synth.cluster_of(windows=1).timeline()
    tl.run.status = status
    if not modules:
        tl.modules.clear()
    outcome = outcome_of(tl, tmp_path, findings)
    assert outcome.code(fail_on) == code
    assert outcome_of(tl, tmp_path, findings, signum=signal.SIGINT).code(fail_on) == 130


# --- text ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mistake", [None, *synth.MISTAKES, *synth.RIGHT], ids=str)
def test_every_kind_of_run_reads(tmp_path: Path, mistake: str | None) -> None:
    run = synth.write_run(tmp_path, mistake, ranks=3, modules=2)
    outcome = outcome_of(load(run), run)
    said = shown(outcome)
    assert "\n\n\n" not in said
    assert not said.startswith("\n")
    assert all(f.rule in said and f.message in said for f in outcome.findings)
    assert said.splitlines()[-1].split(":")[0].split(" ")[0] in ("OK", "FAILED", "HUNG")


def test_a_finding_shows_its_line_in_place(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("with model.no_sync():\n    loss.backward()\noptimizer.step()\n")
    lines = list(
        text.finding_lines(
            finding(file=str(script), line=3, code="optimizer.step()", count=4, via="lightning step"),
            Console(io.StringIO()),
        )
    )
    assert lines == [
        f"✗ error  unsynced-step  {script}:3  (4 times)",
        "  what",
        "      1 | with model.no_sync():",
        "      2 |     loss.backward()",
        "    > 3 | optimizer.step()",
        "  called through lightning step",
        "  → do",
    ]


def test_a_failed_rank_shows_its_traceback_and_the_end_of_its_log(tmp_path: Path) -> None:
    run = synth.write_run(tmp_path, "failed", ranks=2)
    (run / "logs").mkdir(exist_ok=True)
    (run / "logs" / "rank-1.log").write_text("epoch 0\n10%\r20%\rloading\n::error::not a command\n")
    said = shown(outcome_of(load(run), run))
    assert re.search(
        r"✗ rank 1 failed with exit code 1 \(\w+: .*\); last: backward 5 of MLP, local at train.py:18", said
    )
    assert "  │ loading" in said
    assert "10%" not in said
    assert "  │ ::error::not a command" in said  # a runner of GitHub takes a line for a command only at its start
    assert "✗ rank 0" not in said  # it only waited


def test_our_own_frames_are_not_in_a_users_traceback() -> None:
    probe = os.path.join(os.sep, "x", "ddpviz", "probe", "engine.py")
    trace = textwrap.dedent(f"""\
        Traceback (most recent call last):
          File "/u/train.py", line 7, in <module>
            loss.backward()
          File "{probe}", line 48, in _engine_run_backward
            return original(*args)
                   ^^^^^^^^^^^^^^^
          File "/torch/graph.py", line 9, in run
            run()
        RuntimeError: no""").splitlines()
    assert text.without_probe(trace) == [*trace[:3], *trace[6:]]


def test_nothing_from_a_job_drives_the_terminal(tmp_path: Path) -> None:
    run = synth.write_run(tmp_path, "failed", ranks=2)
    tl = load(run)
    tl.modules[0].name = tl.run.title = EVIL
    tl.run.notes, tl.run.command = [EVIL], (EVIL,)
    (run / "logs").mkdir(exist_ok=True)
    (run / "logs" / "rank-1.log").write_text(EVIL + "\n")
    found = [finding(message=EVIL, advice=EVIL, file=EVIL, line=3, code=EVIL, via=EVIL)]
    outcome = outcome_of(tl, run, found)
    told = [shown(outcome), *github.annotate(outcome), *Narrator().lines(tl, 0, final=True)]
    assert not any("\x1b" in line or "\x07" in line for line in told)
    assert any("red" in line for line in told)


# --- github ----------------------------------------------------------------------------------------------------------


def test_annotations_are_escaped_as_the_runner_reads_them(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / ".git").mkdir()
    monkeypatch.delenv("GITHUB_WORKSPACE", raising=False)
    file = tmp_path / "src" / "a,b:c.py"
    made = github.annotation(finding(message="50% wrong\nsecond", file=str(file), line=19))
    assert made == "::error file=src/a%2Cb%3Ac.py,line=19,title=unsynced-step::50%25 wrong%0Asecond%0A→ do"
    assert github.annotation(WARNING).startswith("::warning title=unsynced-step::")
    assert github.annotation(INFO).startswith("::notice ")


def test_paths_are_relative_to_the_repository(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = tmp_path / "work" / "repo" / "x.py"
    monkeypatch.setenv("GITHUB_WORKSPACE", str(tmp_path / "work"))
    assert github.in_repository(str(file)) == "repo/x.py"
    monkeypatch.delenv("GITHUB_WORKSPACE")
    (tmp_path / "work" / "repo" / ".git").mkdir(parents=True)
    assert github.in_repository(str(file)) == "x.py"
    assert github.in_repository("/nowhere/y.py") == "/nowhere/y.py"


def test_a_failed_job_is_annotated_even_without_a_finding(tmp_path: Path) -> None:
    tl = synth.cluster_of("failed").timeline()
    assert list(github.annotate(outcome_of(tl, tmp_path, []))) == [
        "::error title=ddpviz::the job failed with exit code 1"
    ]


# --- streams ---------------------------------------------------------------------------------------------------------


class Terminal(io.StringIO):
    encoding = "utf-8"

    def isatty(self) -> bool:
        return True


def test_colour_and_links_on_a_terminal_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    for stream, colour, links in ((Terminal(), True, True), (io.StringIO(), False, False)):
        out = Console(stream)
        assert ("\x1b[1;31m" in out.paint("x", "error")) is colour
        assert ("\x1b]8;;file:///a/b.py#L3" in out.link("b.py:3", "/a/b.py", 3)) is links
    monkeypatch.setenv("NO_COLOR", "1")
    out = Console(Terminal())
    assert out.paint("x", "error") == "x"
    assert out.links
    monkeypatch.setenv("TERM", "dumb")
    assert not Console(Terminal()).links


def test_a_stream_that_knows_ascii_alone(tmp_path: Path) -> None:
    raw = io.BytesIO()
    out = Console(io.TextIOWrapper(raw, encoding="ascii"))
    out.line("✗ rank 0 → café")
    assert raw.getvalue() == b"x rank 0 -> caf\\xe9\n"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full")
def test_a_full_disk_is_said_once(capsys: pytest.CaptureFixture[str]) -> None:
    with open("/dev/full", "w") as stream:
        out = Console(stream)
        for _ in range(3):
            out.line("x" * 100_000)
    assert capsys.readouterr().err == "ddpviz: the output cannot be written any more: no space left on device\n"


def test_signals_become_one_exception_and_are_then_left_alone() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(Ended) as caught, ending_signals():  # noqa: PT012 (the second statement is where it arrives)
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(5)
    assert caught.value.code == 143
    assert signal.getsignal(signal.SIGTERM) is before


# --- narration -------------------------------------------------------------------------------------------------------


def told_live(run: Path, seconds: float) -> list[str]:
    """What a narrator says while the trace grows bit by bit, over so many seconds of its clock."""
    reader, fold, narrator, said = RunReader(run), Fold(), Narrator(), []
    fold.run({**reader.info(), "status": "running"})
    chunks = []
    while batches := reader.read(8 << 10):
        chunks.append(batches)
    for number, batches in enumerate(chunks):
        fold.feed(batches)
        said += narrator.lines(fold.timeline, seconds * number / len(chunks))
    fold.run(reader.info())
    said += narrator.lines(fold.timeline, seconds, final=True)
    return said


def test_each_micro_step_and_step_of_a_short_job_has_a_line(tmp_path: Path) -> None:
    said = told_live(synth.write_run(tmp_path, "unsynced", ranks=2, windows=2), 1)
    micro = [line for line in said if line.startswith("micro-step ")]
    assert [line.split()[1] for line in micro] == [str(n) for n in range(8)]
    assert re.fullmatch(r"micro-step 0  local \(no_sync\)  norms \S+ \| \S+  train.py:18", micro[0])
    assert re.fullmatch(r"micro-step 3  all-reduced  norms \S+ \| \S+ -> \S+  train.py:18", micro[3])
    steps = [line for line in said if line.startswith("step ")]
    assert steps[0].startswith("step 0  synced  replicas equal  train.py:")
    assert steps[1].startswith("step 1  local  replicas diverged  train.py:")
    assert said.index(steps[0]) < said.index(micro[4])
    assert sum(line.startswith("rank ") and "is up" in line for line in said) == 2


def test_a_fast_job_is_thinned_and_nothing_is_left_out(tmp_path: Path) -> None:
    said = told_live(synth.write_run(tmp_path, None, ranks=2, windows=500, layers=False), 6)
    assert len(said) < DETAIL + 6 + 2 * 12
    covered: list[int] = []
    for line in said:
        if match := re.match(r"micro-steps? (\d+)(?:-(\d+))?  ", line):
            first, last = int(match[1]), int(match[2] or match[1])
            covered += range(first, last + 1)
    assert covered == list(range(2000))


def test_logs_are_told_line_by_line_as_one_would_see_them(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    file = tmp_path / "logs" / "rank-0.log"
    logs = Logs(tmp_path)
    logs.files({"0": "logs/rank-0.log", "1": "logs/rank-1.log"})
    assert list(logs.lines()) == []  # not there yet
    file.write_bytes(b"one\n 1%\r 50%\r100%\nhal")
    assert list(logs.lines()) == [("0", "one"), ("0", "100%")]
    with open(file, "ab") as stream:
        stream.write(b"f\n\xff\x1b[31mred\x1b[0m\nend")
    assert list(logs.lines()) == [("0", "half"), ("0", "\ufffdred")]
    assert list(logs.lines(final=True)) == [("0", "end")]
    assert logs.end_of("0", 2) == ["\ufffdred", "end"]
    assert logs.end_of("1") == []


# --- what to do ------------------------------------------------------------------------------------------------------

PROVOKE = """
import torch, torch.distributed as dist
calls = [
    lambda: torch.randn(2).cuda(), lambda: torch.zeros(1, device="cuda"), lambda: torch.cuda.set_device(0),
    lambda: torch.cuda.current_device(), lambda: torch.cuda.Stream(),
    lambda: dist.init_process_group("nccl", rank=0, world_size=1, store=dist.HashStore()),
    lambda: dist.init_process_group(), lambda: dist.get_rank(),
]
for call in calls:
    try:
        call()
        print("fine")
    except Exception as error:
        print(type(error).__name__, str(error).replace(chr(10), " "))
"""


def test_what_pytorch_says_without_cuda_or_launcher_gets_an_advice() -> None:
    env = {k: v for k, v in os.environ.items() if k not in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")}
    out = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", PROVOKE],
        capture_output=True,
        text=True,
        timeout=120,
        env={**env, "CUDA_VISIBLE_DEVICES": ""},
    )
    said = out.stdout.splitlines()
    assert len(said) == 8, out.stderr
    advice = [hint(line, verb="check", script="train.py") for line in said]
    assert all(a is not None and "ddpviz check --cpu train.py" in a for a in advice[:6]), said
    assert advice[6] is not None
    assert "ddpviz check -n 2 train.py" in advice[6]
    assert advice[7] is not None
    assert "init_process_group" in advice[7]
    assert hint(said[0], redirected=True) is None
    assert hint("ValueError: the data is gone") is None


# --- real jobs -------------------------------------------------------------------------------------------------------


def ddpviz(tmp_path: Path, *args: str | Path) -> subprocess.CompletedProcess[str]:
    """Run the command; no process of its job may be left when it has ended."""
    mark = uuid.uuid4().hex
    done = subprocess.run(
        [sys.executable, "-m", "ddpviz", *map(str, args)],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=150,
        cwd=tmp_path,
        env=jobs.environment(mark, {"XDG_STATE_HOME": str(tmp_path / "state")}),
    )
    assert jobs.leftovers(mark) == []
    assert "Traceback (most recent call last)" not in done.stderr
    return done


def script(folder: Path, body: str) -> Path:
    head = """\
        import torch
        import torch.distributed as dist
        from torch.nn.parallel import DistributedDataParallel as DDP
        dist.init_process_group("gloo")
        rank = dist.get_rank()
        torch.manual_seed(0)
        model = DDP(torch.nn.Linear(4, 2))
        """
    path = folder / "train.py"
    path.write_text(textwrap.dedent(head) + textwrap.dedent(body))
    return path


def test_check_finds_the_mistake_at_its_line_and_writes_the_report(tmp_path: Path) -> None:
    (tmp_path / ".git").mkdir()
    path = script(
        tmp_path,
        """        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with model.no_sync():
            model(torch.full((2, 4), rank + 1.0)).sum().backward()
        print("about to step", flush=True)
        optimizer.step()
        dist.barrier()
        dist.destroy_process_group()
        """,
    )
    done = ddpviz(tmp_path, "check", "-n", "2", "--json", "report.json", "--format", "github", path)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "about to step" not in done.stdout.splitlines()  # the job's own output is in its log
    assert "✗ error  unsynced-step  train.py:12" in done.stdout
    assert "    > 12 | optimizer.step()" in done.stdout
    assert re.search(r"^::error file=train.py,line=12,title=unsynced-step::", done.stdout, re.M)
    assert "1 step: 1 on gradients never averaged; replicas diverged after step 0" in done.stdout
    found = json.loads((tmp_path / "report.json").read_text())
    jsonschema.validate(found, SCHEMA)
    assert [b["sync"] for b in found["modules"][0]["backwards"]] == ["local"]
    assert [(s["gradients"], s["replicas"]) for s in found["steps"]] == [("local", "diverged")]
    assert (found["run"]["status"], found["run"]["exit_code"]) == ("finished", 0)
    assert found["findings"][0]["where"] == {"file": str(path), "line": 12}


def test_check_of_a_right_script_ends_with_0_and_json_on_stdout(tmp_path: Path) -> None:
    path = script(
        tmp_path,
        """        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with model.no_sync():
            model(torch.full((2, 4), rank + 1.0)).sum().backward()
        model(torch.full((2, 4), rank + 2.0)).sum().backward()
        optimizer.step()
        dist.barrier()
        dist.destroy_process_group()
        """,
    )
    done = ddpviz(tmp_path, "check", "-n", "3", "--json", "-", "--fail-on", "warning", path)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(done.stdout)
    jsonschema.validate(found, SCHEMA)
    assert [b["sync"] for b in found["modules"][0]["backwards"]] == ["local", "synced"]
    assert found["steps"][0]["replicas"] == "equal"
    assert done.stderr.splitlines()[-1].startswith("OK")  # the text steps aside for the data


def test_a_job_that_raises_is_3_with_the_ranks_own_traceback(tmp_path: Path) -> None:
    path = script(
        tmp_path,
        """        print("loading", flush=True)
        model(torch.ones(2, 4)).sum().backward()
        if rank == 1:
            raise ValueError("the data is gone")
        model(torch.ones(2, 4)).sum().backward()
        """,
    )
    done = ddpviz(tmp_path, "check", "-n", "2", path)
    assert done.returncode == 3
    assert "✗ rank 1 failed with exit code 1 (ValueError: the data is gone)" in done.stdout
    assert '  │     raise ValueError("the data is gone")' in done.stdout
    assert "  │ loading" in done.stdout
    assert "✗ rank 0 " not in done.stdout
    assert done.stdout.splitlines()[-1].startswith("FAILED: the job ended with exit code 1")


def test_a_job_that_hangs_is_ended_and_says_who_waits_for_whom(tmp_path: Path) -> None:
    path = script(
        tmp_path,
        """        for i in range(2 + rank):
            model(torch.ones(2, 4)).sum().backward()
        dist.barrier()
        """,
    )
    done = ddpviz(tmp_path, "check", "-n", "2", "--hang-after", "4", "--json", "report.json", path)
    assert done.returncode == 3, done.stdout
    assert "collective-hang" in done.stdout
    assert re.search(r"rank 1 has waited \S+ s in all-reduce #\d+ of bucket 0", done.stdout)
    assert done.stdout.splitlines()[-1].startswith("HUNG")
    found = json.loads((tmp_path / "report.json").read_text())
    jsonschema.validate(found, SCHEMA)
    assert found["run"]["status"] == "hung"
    assert all(rank["waiting_for"] and rank["stack"] for rank in found["run"]["ranks"])
    recorded = next((tmp_path / "state" / "ddpviz" / "runs").iterdir())
    assert json.loads((recorded / "run.json").read_text())["status"] == "hung"
    assert load(recorded).run.status == "hung"


def test_a_script_without_ddp_is_4_and_a_report_that_cannot_be_written_is_2(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text("print('no model here')\n")
    done = ddpviz(tmp_path, "check", "-n", "1", path)
    assert done.returncode == 4, done.stdout
    assert done.stdout.splitlines()[-1].startswith("no DistributedDataParallel module was seen")
    for wrong in (tmp_path, tmp_path / "no" / "where.json"):
        done = ddpviz(tmp_path, "check", "-n", "1", "--json", wrong, path)
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr.startswith("ddpviz: the report cannot be written to ")
        assert len(done.stderr.splitlines()) == 1


def test_run_without_a_terminal_prints_the_facts_and_ends_with_the_jobs_code(tmp_path: Path) -> None:
    path = script(
        tmp_path,
        """        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for i in range(2):
            with model.no_sync():
                model(torch.full((2, 4), rank + 1.0)).sum().backward()
            model(torch.full((2, 4), rank + 2.0)).sum().backward()
            print("loss", i, flush=True)
            optimizer.step()
            optimizer.zero_grad()
        dist.barrier()
        raise SystemExit(7)
        """,
    )
    done = ddpviz(tmp_path, "run", "-n", "2", "--budget", "full", path)
    assert done.returncode == 1  # torchrun's own: it does not pass on what its workers ended with
    assert sorted(done.stdout.splitlines()) == sorted(f"[rank {r}] loss {i}" for r in range(2) for i in range(2))
    said = done.stderr.splitlines()
    assert "2 ranks, gloo (no CUDA device)" in said[0] or "gloo" in said[0]
    assert any(re.fullmatch(r"ddpviz: micro-step 0  local \(no_sync\)  norms \S+ \| \S+  train.py:11", s) for s in said)
    assert any(
        re.fullmatch(r"ddpviz: micro-step 1  all-reduced  norms \S+ \| \S+ -> \S+  train.py:12", s) for s in said
    )
    assert any(re.fullmatch(r"ddpviz: step 1  synced  replicas equal  train.py:14", s) for s in said)
    assert said[-1].startswith("ddpviz: failed with exit code 1: ")


@pytest.mark.parametrize(("signum", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
@pytest.mark.parametrize("verb", ["run", "check"])
def test_a_signal_ends_the_whole_tree(tmp_path: Path, verb: str, signum: int, code: int) -> None:
    path = tmp_path / "train.py"
    path.write_text("import time\nprint('started', flush=True)\nopen('up', 'w').close()\ntime.sleep(100)\n")
    mark = uuid.uuid4().hex
    process = subprocess.Popen(
        [sys.executable, "-m", "ddpviz", verb, "-n", "1", str(path)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        cwd=tmp_path,
        env=jobs.environment(mark, {"XDG_STATE_HOME": str(tmp_path / "state")}),
    )
    try:
        deadline = time.monotonic() + 60
        while not (tmp_path / "up").exists() and time.monotonic() < deadline:
            time.sleep(0.1)
        process.send_signal(signum)
        out, _ = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == code, out
    assert jobs.leftovers(mark) == []
    assert b"Traceback" not in out
    recorded = next((tmp_path / "state" / "ddpviz" / "runs").iterdir())
    assert json.loads((recorded / "run.json").read_text())["status"] == "interrupted"
