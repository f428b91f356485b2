"""Unmodified scripts of each launcher and framework are watched, with the framework's own way to accumulate."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from tests.jobs import run_ddpviz

HERE = Path(__file__).parent
BIN = Path(sys.executable).parent
WINDOWS_OF_3 = ["local", "local", "synced"] * 2
WINDOWS_OF_2 = ["local", "synced"] * 2
ACCELERATE = [str(BIN / "accelerate"), "launch", "--multi_gpu", "--num_processes", "2", "--num_machines", "1"]
ACCELERATE += ["--mixed_precision", "no", "--dynamo_backend", "no"]
TORCHRUN = [str(BIN / "torchrun"), "--standalone", "--nproc-per-node", "2"]


@pytest.mark.parametrize(
    ("command", "pattern", "steps"),
    [
        ([*TORCHRUN, "with_fabric.py"], WINDOWS_OF_3, 2),
        ([sys.executable, "with_spawn.py"], WINDOWS_OF_3, 2),
        ([sys.executable, "with_spawn.py", "--fork"], WINDOWS_OF_3, 2),
        ([*ACCELERATE, "with_accelerate.py"], [*WINDOWS_OF_3, "local", "synced"], 3),
        ([sys.executable, "with_fabric.py"], WINDOWS_OF_3, 2),
        ([sys.executable, "with_trainer.py", "OUT"], WINDOWS_OF_2, 2),
        ([*TORCHRUN, "with_hf.py", "OUT"], WINDOWS_OF_2, 2),
    ],
    ids=["torchrun", "spawn", "fork", "accelerate", "fabric", "lightning", "transformers"],
)
def test_watched_as_they_are(tmp_path: Path, command: list[str], pattern: list[str], steps: int) -> None:
    words = [str(HERE / w) if w.endswith(".py") else str(tmp_path / "out") if w == "OUT" else w for w in command]
    report = tmp_path / "report.json"
    path = os.pathsep.join([str(BIN), os.environ.get("PATH", "")])
    env = {"PATH": path, "DDPVIZ_RUN_DIR": str(tmp_path / "run"), "HF_HUB_OFFLINE": "1"}
    done = run_ddpviz("check", "--json", str(report), "--", *words, env=env, limit=200)
    assert done.code == 0, done.output
    assert done.left == []
    data = json.loads(report.read_text())
    assert data["run"]["status"] == "finished"
    assert [r["status"] for r in data["run"]["ranks"]] == ["finished", "finished"]
    assert len(data["modules"]) == 1
    assert [b["sync"] for b in data["modules"][0]["backwards"]] == pattern
    assert [(s["gradients"], s["replicas"]) for s in data["steps"]] == [("synced", "equal")] * steps
    assert data["findings"] == []


def test_an_elastic_restart_shows_the_newest_attempt(tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    words = [*TORCHRUN, "--max-restarts", "1", str(HERE / "dies_once.py")]
    for turn in range(3):
        done = run_ddpviz(
            "check", "--json", str(report), "--hang-after", "20", "--", *words,
            env={"DDPVIZ_RUN_DIR": str(tmp_path / f"run{turn}")}, limit=60,
        )  # fmt: skip
        if "connectFullMesh failed" not in done.output:  # gloo's own, in a second life that meets ports of the first
            break
    data = json.loads(report.read_text())
    assert done.code == 0, done.output
    assert [b["sync"] for b in data["modules"][0]["backwards"]] == ["synced"] * 4
