"""The rules on real jobs: forty right loops that stay silent, and thirty mistakes that each get their findings."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from jobs import run_ddpviz

HERE = Path(__file__).parent / "findings"

# of each module class in wrong.py: its errors and warnings; replicas-diverged follows from most errors
EXPECTED = {
    "Stale": {"stale-sync-step", "replicas-diverged"},
    "Never": {"unsynced-step", "replicas-diverged"},
    "EverySecond": {"unsynced-step", "replicas-diverged"},
    "Retained": {"stale-sync-step", "replicas-diverged"},
    "Metric": {"no-sync-split", "redundant-sync"},
    "HookQuiet": {"unsynced-step", "hook-not-mean", "replicas-diverged"},
    "HookTwice": {"hook-not-mean"},
    "HookOwn": {"hook-not-mean", "gradients-changed-after-sync", "replicas-diverged"},
    "Unfrozen": {"unmanaged-parameter", "replicas-diverged"},
    "Outside": {"unmanaged-parameter", "replicas-diverged"},
    "ScaledByRank": {"gradients-changed-after-sync", "replicas-diverged"},
    "SkipsAlone": {"replicas-diverged"},
    "Edited": {"replicas-diverged"},
    "ClearsInBranches": {"lost-micro-steps"},
    "ClearsBeforeStep": {"lost-micro-steps"},
    "LeftOver": {"lost-micro-steps"},
    "Carried": {"carried-window", "lost-micro-steps"},
    "ClipsValues": {"clipped-before-sync"},
    "UnusedHead": {"never-used-parameter"},
    "NotANumber": {"nonfinite-gradient"},
    "Disagrees": {"rank-disagreement", "stale-sync-step", "replicas-diverged"},
    "SameData": {"identical-batches"},
    "TwoLosses": {"redundant-sync"},
    "LateRank": set(),
    "Bypassed": {"ddp-bypassed", "unsynced-step", "replicas-diverged"},
    "StepsInHooks": {"gradients-changed-after-sync", "replicas-diverged"},
    "AveragedTwice": {"averaged-twice"},
    "Momentum": {"replicas-diverged"},
    "ScalerAlone": {"replicas-diverged"},
    "StateOfOne": {"replicas-diverged"},
    "CopyStepped": {"never-stepped"},
}
# what the message has to say beside that
SAYS = {
    "SkipsAlone": "Rank 0 took the step after micro-step 1 and rank 1 did not.",
    "StepsInHooks": "ran inside the backward of micro-step 0",
    "AveragedTwice": "every gradient is 2 times the mean",
    "Momentum": "the optimizer's momentum is what differs: 0.8 on rank 0 and 0.9 on rank 1",
    "ScalerAlone": "GradScaler skipped it there, on an Inf that only that rank had",
    "StateOfOne": "the optimizer's state is not the same (loaded on one rank)",
}


def check(tmp_path: Path, script: str, *options: str, limit: float = 200) -> tuple[int | None, dict[str, Any]]:
    """Exit code and report of `ddpviz check`."""
    report = tmp_path / "report.json"
    done = run_ddpviz(
        "check", "-n", "2", "--backend", "gloo", "--json", str(report), *options, str(HERE / script),
        env={"DDPVIZ_RUN_DIR": str(tmp_path / "runs")}, limit=limit,
    )  # fmt: skip
    assert not done.timed_out, done.output
    assert done.left == []
    assert report.exists(), done.output
    return done.code, json.loads(report.read_text())


@pytest.mark.timeout(240)
def test_right_loops_raise_no_alarm(tmp_path: Path) -> None:
    code, report = check(tmp_path, "right.py")
    loud = [(f["rule"], report["modules"][f["module"]]["name"]) for f in report["findings"] if f["severity"] != "info"]
    assert loud == []
    assert code == 0
    local = {report["modules"][f["module"]]["name"] for f in report["findings"] if f["rule"] == "unsynced-step"}
    assert local == {"LocalSgd", "PostLocal"}


@pytest.fixture(scope="module")
def wrong(tmp_path_factory: pytest.TempPathFactory) -> tuple[int | None, dict[str, Any]]:
    return check(tmp_path_factory.mktemp("wrong"), "wrong.py")


@pytest.mark.timeout(240)
@pytest.mark.parametrize("name", EXPECTED)
def test_each_mistake_has_its_findings(wrong: tuple[int | None, dict[str, Any]], name: str) -> None:
    _, report = wrong
    module = next(m["id"] for m in report["modules"] if m["name"] == name)
    found = [f for f in report["findings"] if f["module"] == module and f["severity"] != "info"]
    assert {f["rule"] for f in found} == EXPECTED[name]
    assert SAYS.get(name, "") in " ".join(f["message"] for f in found)
    for finding in found:
        assert finding["where"]["file"].endswith(("wrong.py", "common.py"))
        assert finding["where"]["line"] > 0
        assert finding["message"].endswith((".", ")"))
        assert finding["advice"].endswith(".")


@pytest.mark.timeout(240)
def test_nobody_else_is_accused(wrong: tuple[int | None, dict[str, Any]]) -> None:
    code, report = wrong
    assert code == 1
    assert {m["name"] for m in report["modules"]} == set(EXPECTED)
    assert [f for f in report["findings"] if f["module"] is None] == []


@pytest.mark.timeout(240)
def test_a_late_rank_is_information(wrong: tuple[int | None, dict[str, Any]]) -> None:
    _, report = wrong
    late = [f for f in report["findings"] if f["rule"] == "straggler"]
    assert [(report["modules"][f["module"]]["name"], f["ranks"], f["severity"]) for f in late] == [
        ("LateRank", [1], "info")
    ]
