"""What ddpviz reports against what an oracle that shares nothing with it saw: sync, norms to 1e-6, replicas."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest

from tests.jobs import ROOT, run_ddpviz
from tests.oracle import truth

KINDS = ROOT / "tests" / "scripts" / "kinds.py"


def reported(script: Path, ranks: int, folder: Path, observe: str | None = None) -> dict[str, Any]:
    done = run_ddpviz(
        "check", "-n", str(ranks), "--backend", "gloo", "--fail-on", "never",
        "--run-dir", str(folder / "run"), "--json", str(folder / "report.json"), str(script),
        env={"DDPVIZ_OBSERVE": observe} if observe else None, limit=180,
    )  # fmt: skip
    assert done.code == 0, done.output
    assert done.left == []
    report: dict[str, Any] = json.loads((folder / "report.json").read_text())
    return report


@pytest.mark.parametrize(("demo", "ranks"), [("unsynced_step", 3), ("last_one_syncs", 2), ("accumulate", 3)])
def test_the_demos_are_told_as_they_are(demo: str, ranks: int, tmp_path: Path) -> None:
    script = ROOT / "demos" / f"{demo}.py"
    real = truth.run(script, ranks, tmp_path / "oracle")
    assert truth.differences(real, reported(script, ranks, tmp_path)) == []


@pytest.mark.parametrize("ranks", [2, 3])
def test_every_kind_of_pass_is_told_as_it_is(ranks: int, tmp_path: Path) -> None:
    real = truth.run(KINDS, ranks, tmp_path / "oracle")
    syncs = {p.sync for passes in real.passes.values() for p in passes}
    assert syncs == {"local", "synced", "partial"}
    assert len(real.passes) == 30
    assert truth.differences(real, reported(KINDS, ranks, tmp_path)) == []


def test_the_comm_hook_sees_the_same(tmp_path: Path) -> None:
    """Both ways of seeing agree, but for what a user's own hook really sends, which the comm hook does not see."""
    real = truth.run(KINDS, 2, tmp_path / "oracle")
    report = reported(KINDS, 2, tmp_path, observe="comm-hook")
    assert report["run"]["observed_by"] == "comm-hook"
    quiet = list_of_kinds().index("hook-that-sends-nothing")
    wrong = truth.differences(real, report)
    assert [w for w in wrong if not w.startswith(f"module {quiet} ")] == []


def list_of_kinds() -> list[str]:
    """Names of the kinds in the order of their DDP modules (the pair of modules counts twice)."""
    lines = KINDS.read_text().splitlines()
    names = [
        after.removeprefix("def ").partition("(")[0].replace("_", "-")
        for line, after in itertools.pairwise(lines)
        if line == "@kind"
    ]
    at = names.index("maker-and-judge")
    return [*names[:at], "maker-and-judge", *names[at:]]


def test_the_oracle_knows_a_wrong_report(tmp_path: Path) -> None:
    """A report that says one thing wrong is found out, so the tests above can fail."""
    script = ROOT / "demos" / "last_one_syncs.py"
    real = truth.run(script, 2, tmp_path / "oracle")
    report = reported(script, 2, tmp_path)
    assert truth.differences(real, report) == []
    last = report["modules"][0]["backwards"][-1]
    last["sync"] = "local"
    last["ranks"][0]["norm"] *= 1.0 + 1e-5
    report["steps"][0]["replicas"] = "diverged"
    assert len(truth.differences(real, report)) == 3
