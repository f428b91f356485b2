"""The API for a team's own tests: it passes where the command would end with 0, and else fails with its text."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import pytest

import ddpviz
from ddpviz.headless.testing import CheckFailed


def train(sync_last: bool) -> None:
    """A training step as a team may have one: two micro-batches, then the step."""
    import contextlib

    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = DistributedDataParallel(torch.nn.Linear(4, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for last in (False, True):
        with contextlib.nullcontext() if last and sync_last else model.no_sync():
            model(torch.full((2, 4), dist.get_rank() + 1.0)).sum().backward()
    optimizer.step()
    dist.barrier()
    dist.destroy_process_group()


def right() -> None:
    train(sync_last=True)


def wrong() -> None:
    train(sync_last=False)


def test_a_right_function_passes_and_says_what_it_did(tmp_path: Path) -> None:
    checked = ddpviz.check(right, nproc=2, backend="gloo", fail_on="warning", run_dir=tmp_path / "run")
    assert checked.syncs == ["local", "synced"]
    assert checked.report["steps"][0]["replicas"] == "equal"
    assert checked.code == 0
    assert (checked.run_dir / "run.json").exists()


def test_a_wrong_one_fails_with_the_commands_text(tmp_path: Path) -> None:
    with pytest.raises(CheckFailed) as caught:
        ddpviz.check(wrong, nproc=2, backend="gloo", run_dir=tmp_path / "run")
    said = str(caught.value)
    line = 1 + next(n for n, text in enumerate(Path(__file__).read_text().splitlines()) if "optimizer.step()" in text)
    assert "✗ error  unsynced-step" in said
    assert f"test_testing.py:{line}" in said
    assert f"    > {line} |     optimizer.step()" in said
    assert caught.value.checked.findings[0].rule == "unsynced-step"


def test_what_cannot_be_run_is_one_clear_line(tmp_path: Path) -> None:
    wrong_calls: list[tuple[Any, dict[str, Any]]] = [
        (tmp_path / "nothing.py", {}),
        (lambda: None, {}),
        (right, {"nproc": 0}),
        (right, {"fail_on": "sometimes"}),
        (["no-such-command-anywhere"], {}),
    ]
    for target, options in wrong_calls:
        with pytest.raises(ValueError, match=r"^[^\n]+$"):
            ddpviz.check(target, **{"run_dir": tmp_path / "run", **options})


TEAM = """
def test_step(ddpviz_check, tmp_path):
    script = tmp_path / "train.py"
    script.write_text("print('no model')")
    ddpviz_check(script, nproc=1, backend="gloo")
"""


def test_the_fixture_in_a_teams_own_suite(tmp_path: Path) -> None:
    (tmp_path / "test_team.py").write_text(TEAM)
    installed = any(e.name == "ddpviz" for e in entry_points(group="pytest11"))  # else, in a bare checkout, by name
    plugin = [] if installed else ["-p", "ddpviz.headless.pytest_plugin"]
    command = [sys.executable, "-m", "pytest", "-q", *plugin, "-p", "no:cacheprovider", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=tmp_path)
    assert done.returncode == 1, done.stdout
    assert "no DistributedDataParallel module was seen in this job" in done.stdout
    assert "CheckFailed" in done.stdout


def test_the_plugin_and_the_name_cost_nothing() -> None:
    """A user's every pytest session loads the plugin, and every script may import ddpviz."""
    code = (
        "import sys, ddpviz, ddpviz.headless.pytest_plugin; "
        "print([m for m in ('numpy', 'msgspec', 'torch', 'textual', 'ddpviz.launch') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "[]", done.stderr
