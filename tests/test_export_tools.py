"""Exports into other tools' own formats, read back with these tools: Parquet, TensorBoard, Weights & Biases offline."""

from __future__ import annotations

import importlib.util
import math
import subprocess
import sys
from pathlib import Path

import pytest
import synth

from ddpviz.export import tidy
from ddpviz.export.load import load
from ddpviz.headless.export import export_run


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return synth.write_run(tmp_path_factory.mktemp("run"), "nan", ranks=2, modules=2)


def test_parquet_holds_what_the_csv_tables_hold(run: Path, tmp_path: Path) -> None:
    polars = pytest.importorskip("polars")
    parquet = pytest.importorskip("pyarrow.parquet")
    assert export_run(run, to="parquet", output=f"{tmp_path}/tables/") == 0
    for name, (header, rows) in tidy.tables(load(run)).items():
        file = tmp_path / "tables" / f"{name}.parquet"
        frame = polars.read_parquet(file)
        assert frame.columns == header
        want = list(rows)
        assert len(frame) == len(want) > 0
        for mine, theirs in zip(want, frame.iter_rows(), strict=True):
            for a, b in zip(mine, theirs, strict=True):
                assert a == b or (isinstance(a, float) and math.isnan(a) and math.isnan(b)), (name, a, b)
        assert parquet.read_table(file).num_rows == len(want)
    passes = polars.read_parquet(tmp_path / "tables" / "passes.parquet")
    assert passes["local_norm"].is_nan().any()
    assert passes.schema["sampled"] == polars.Boolean
    assert passes.schema["begin_ns"] == polars.Int64


def test_parquet_goes_through_a_pipe(run: Path, tmp_path: Path) -> None:
    polars = pytest.importorskip("polars")
    pytest.importorskip("pyarrow")
    command = [sys.executable, "-m", "ddpviz", "export", str(run), "--to", "parquet"]
    out = subprocess.run(command, capture_output=True, timeout=60)
    assert (out.returncode, out.stderr) == (0, b"")
    (tmp_path / "p.parquet").write_bytes(out.stdout)
    assert len(polars.read_parquet(tmp_path / "p.parquet")) == 2 * 2 * 16


def test_tensorboard_reads_its_events(run: Path, tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    assert export_run(run, to="tensorboard", output=str(tmp_path)) == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["findings", "rank-0", "rank-1"]
    tl = load(run)
    for rank in (0, 1):
        events = EventAccumulator(str(tmp_path / f"rank-{rank}")).Reload()
        tags = events.Tags()["scalars"]
        assert {tag.split("/")[1] for tag in tags} == {
            *("all-reduced", "backward_ms", "local_norm", "norm", "loss", "step_grad_norm")
        }
        lane = tl.modules[0].lanes[rank]
        points = events.Scalars("MLP-0/local_norm")
        assert [point.step for point in points] == lane.passes["index"].tolist()
        assert [point.value for point in points] == pytest.approx(lane.passes["local_norm"], rel=1e-6, nan_ok=True)
        begin = synth.Cluster(1).info()["started_wall_ns"] / 1e9
        assert all(begin < point.wall_time < begin + 60 for point in points)
    told = EventAccumulator(str(tmp_path / "findings")).Reload().Tensors("findings")
    assert b"nonfinite-gradient" in told[0].tensor_proto.string_val[0]


def test_wandb_gets_an_offline_run(run: Path, tmp_path: Path) -> None:
    if importlib.util.find_spec("wandb") is None:
        pytest.skip("wandb is not installed")
    command = [sys.executable, "-m", "ddpviz", "export", str(run), "--to", "wandb", "-o", str(tmp_path)]
    out = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert (out.returncode, out.stdout, out.stderr) == (0, "", "")
    (file,) = tmp_path.glob("wandb/offline-run-*/run-*.wandb")
    data = file.read_bytes()
    for word in (b"rank-1/MLP-0/local_norm", b"rank-0/Critic-1/loss", b"nonfinite-gradient"):
        assert word in data


@pytest.mark.parametrize(("to", "module"), [("parquet", "pyarrow"), ("tensorboard", "tensorboard"), ("wandb", "wandb")])
def test_without_the_extra_one_line_says_which(
    run: Path, tmp_path: Path, to: str, module: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    real = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *rest: None if name == module else real(name, *rest))
    assert export_run(run, to=to, output=str(tmp_path)) == 2
    assert capfd.readouterr().err == f"ddpviz: --to {to} needs an extra: pip install 'ddpviz[{to}]'\n"


def test_what_is_a_folder_needs_a_name(run: Path, capfd: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("tensorboard")
    assert export_run(run, to="tensorboard") == 2
    assert capfd.readouterr().err == "ddpviz: --to tensorboard writes a folder: name it with -o\n"
