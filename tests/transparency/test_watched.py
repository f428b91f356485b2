"""The whole probe, by `ddpviz run` and by `attach`, early and late, changes no bit of what a job computes."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from ddpviz.trace import records as r
from ddpviz.trace.reader import RunReader
from tests.jobs import run_ddpviz, run_ranks
from tests.transparency.drawn import Case, draw
from tests.transparency.test_by_hand import JOB, differing, switches

Results = list[dict[str, Any]]


def cases() -> dict[str, Case]:
    """The product of the reducer's switches, and each other feature once, over several buckets."""
    small: Case = {"bucket_cap_mb": 0.002}
    return switches() | {
        "scaler": small | {"scaler": True, "accumulation": 2},
        "autocast": small | {"autocast": True, "scaler": True},
        "in backward": small | {"optimizer": "in-backward"},
        "closure": small | {"optimizer": "lbfgs"},
        "zero": small | {"optimizer": "zero", "gradient_as_bucket_view": True},
        "clipped": small | {"optimizer": "adam", "clip": True, "accumulation": 2},
        "checkpoint, reentrant": small | {"model": "checkpoint-reentrant"},
        "checkpoint": small | {"model": "checkpoint-plain"},
        "create_graph": {"create_graph": True, "steps": 1},
        "autograd.grad": small | {"autograd_grad": True},
        "two forwards": small | {"forwards": 2},
        "frozen": small | {"frozen": True},
        "copies": small | {"copy": True},
        "compiled": {"compile": "aot_eager"},
        "compiled, several buckets": small | {"compile": "aot_eager"},
        "late": small | {"late_attach": True, "accumulation": 2},
        "late, views": small | {"late_attach": True, "gradient_as_bucket_view": True, "set_to_none": False},
    }


def few() -> dict[str, Case]:
    """Of the product of switches one corner, the one that differs most from the defaults; every other feature."""
    return {n: c for n, c in cases().items() if "views=" not in n or "views=1 none=0" in n}


def within(plain: Results, wanted: dict[str, Case]) -> Results:
    return [{name: rank[name] for name in wanted} for rank in plain]


def plainly(
    folder: Path, wanted: dict[str, Case], ranks: int, *watch: str, env: dict[str, str] | None = None
) -> Results:
    """Run the job as ranks of its own, with `--watch` or nothing."""
    file, out = _written(folder, wanted)
    done = run_ranks(JOB, ranks, [str(file), str(out), *watch], limit=220, env=env)
    assert done.code == 0, done.output
    return _read(out, ranks)


def watched(
    folder: Path,
    wanted: dict[str, Case],
    ranks: int,
    observe: str,
    *options: str,
    env: dict[str, str] | None = None,
) -> Results:
    """Run the job under `ddpviz run`; the probe must have seen passes and must have had no fault."""
    file, out = _written(folder, wanted)
    done = run_ddpviz(
        "run", "--no-ui", "-n", str(ranks), "--backend", "gloo", "--run-dir", str(folder / "run"), *options,
        str(JOB), str(file), str(out), env=(env or {}) | ({"DDPVIZ_OBSERVE": observe} if observe else {}), limit=220,
    )  # fmt: skip
    assert done.code == 0, done.output
    assert done.left == []
    assert faults(folder / "run") == []
    return _read(out, ranks)


def faults(run_dir: Path) -> list[str]:
    """What the probe says it could not record; asserts that it saw anything at all."""
    said: list[str] = []
    passes = 0
    for batch in RunReader(run_dir).read():
        for kind, block in batch.blocks:
            passes += kind == r.RowKind.PASS
            if kind == r.RowKind.RECORDS:
                said += [x.text for x in block if isinstance(x, r.Note) and "could not" in x.text]
                said += [f"{x.count} dropped: {x.why}" for x in block if isinstance(x, r.Dropped)]
    assert passes > 0
    return said


def _written(folder: Path, wanted: dict[str, Case]) -> tuple[Path, Path]:
    folder.mkdir(exist_ok=True)
    (folder / "cases.json").write_text(json.dumps(wanted))
    return folder / "cases.json", folder / "out"


def _read(out: Path, ranks: int) -> Results:
    return [json.loads((out / f"{rank}.json").read_text()) for rank in range(ranks)]


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Results:
    results = plainly(tmp_path_factory.mktemp("plain"), cases(), 3)
    refused = [name for name, result in results[0].items() if "error" in result]
    assert len(refused) < 8, refused
    return results


@pytest.mark.parametrize("observe", ["", "comm-hook"])
def test_run_changes_no_bit(plain: Results, observe: str, tmp_path: Path) -> None:
    assert differing(plain, watched(tmp_path, cases(), 3, observe, "--budget", "full")) == []


def test_run_within_its_budget_changes_no_bit(plain: Results, tmp_path: Path) -> None:
    assert differing(within(plain, few()), watched(tmp_path, few(), 3, "")) == []


@pytest.mark.parametrize("watch", ["attach", "attach-late"])
def test_attach_changes_no_bit(plain: Results, watch: str, tmp_path: Path) -> None:
    run_dir = {"DDPVIZ_RUN_DIR": str(tmp_path / "run")}
    assert differing(within(plain, few()), plainly(tmp_path, few(), 3, "--watch", watch, env=run_dir)) == []
    assert faults(tmp_path / "run") == []


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_other_numbers_of_ranks(ranks: int, tmp_path: Path) -> None:
    some = {
        n: c for n, c in cases().items() if n.startswith(("plain", "join", "static", "hook fp16", "scaler", "late"))
    }
    expected = plainly(tmp_path / "plain", some, ranks)
    assert differing(expected, watched(tmp_path / "watched", some, ranks, "", "--budget", "full")) == []


@pytest.mark.parametrize(("seed", "observe"), [(1, ""), (2, "comm-hook")])
def test_drawn_combinations(seed: int, observe: str, tmp_path: Path) -> None:
    some = draw(seed, 40)
    expected = plainly(tmp_path / "plain", some, 3)
    assert sum("error" not in result for result in expected[0].values()) > 20
    assert differing(expected, watched(tmp_path / "watched", some, 3, observe, "--budget", "full")) == []


@pytest.mark.skipif(shutil.which("g++") is None, reason="no compiler for inductor")
def test_inductor(tmp_path: Path) -> None:
    """Compiled to machine code: the same bits, graphs and graph breaks."""
    case: dict[str, Case] = {"inductor": {"compile": "inductor", "accumulation": 2}}
    cache = {"TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "cache"), "TORCHINDUCTOR_COMPILE_THREADS": "1"}
    expected = plainly(tmp_path / "plain", case, 2, env=cache)
    assert "error" not in expected[0]["inductor"], expected[0]
    assert differing(expected, watched(tmp_path / "watched", case, 2, "", "--budget", "full", env=cache)) == []
