"""`--cpu`: scripts that name NCCL and CUDA run on gloo and the CPU, in that job alone, and it is said."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.jobs import run_ddpviz, run_ranks

SCRIPTS = Path(__file__).parent / "scripts"


@pytest.mark.parametrize(
    ("script", "code", "sync", "rules"),
    [
        ("cuda_unsynced.py", 1, ["local"] * 2, {"unsynced-step", "replicas-diverged"}),
        ("cuda_last_syncs.py", 0, ["local"] * 4 + ["synced"], set()),
        ("cuda_accumulate.py", 0, (["local"] * 3 + ["synced"]) * 4, set()),
        ("cuda_everything.py", 0, ["synced"] * 2, set()),
    ],
)
def test_a_script_for_cuda_is_watched_on_the_cpu(
    script: str, code: int, sync: list[str], rules: set[str], tmp_path: Path
) -> None:
    report_file = tmp_path / "report.json"
    done = run_ddpviz(
        "check", "--cpu", "-n", "2", "--run-dir", str(tmp_path / "run"), "--json", str(report_file),
        str(SCRIPTS / script), limit=180,
    )  # fmt: skip
    assert done.code == code, done.output
    assert done.left == []
    report = json.loads(report_file.read_text())
    assert report["run"]["redirected"] is True
    assert report["run"]["backend"] == "gloo"
    assert [b["sync"] for b in report["modules"][0]["backwards"]] == sync
    assert {f["rule"] for f in report["findings"] if f["severity"] != "info"} == rules


@pytest.mark.parametrize(
    ("script", "line", "words"),
    [("cuda_graph.py", 6, "torch.cuda.CUDAGraph"), ("cuda_sync_batchnorm.py", 10, "SyncBatchNorm")],
)
def test_what_has_no_counterpart_ends_in_one_line(script: str, line: int, words: str, tmp_path: Path) -> None:
    done = run_ddpviz("run", "--no-ui", "--cpu", "-n", "2", "--run-dir", str(tmp_path / "run"), str(SCRIPTS / script))
    assert done.code == 1, done.output
    assert re.search(rf"ddpviz --cpu: \S*{script}:{line} uses {re.escape(words)}: ", done.output), done.output
    assert "Traceback" not in done.output
    assert done.left == []


def test_without_cpu_nothing_is_redirected(tmp_path: Path) -> None:
    done = run_ranks(SCRIPTS / "cuda_unsynced.py", 1)
    torch = pytest.importorskip("torch")
    if torch.cuda.is_available():
        assert done.code == 0
    else:
        assert done.code == 1
        assert "came through" not in done.output
