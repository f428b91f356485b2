"""What `pip install` brings: a wheel that works from any folder, with the demos and the injected file in it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A site-packages folder with ddpviz installed into it from a copy of the checkout."""
    source = tmp_path_factory.mktemp("source")
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    for name in ("ddpviz", "demos"):
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    target = tmp_path_factory.mktemp("env") / "site-packages"
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation"]
    subprocess.run([*pip, "--target", target, source], check=True, timeout=200)
    return target


def ddpviz(installed: Path, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PYTHONPATH": str(installed), "XDG_STATE_HOME": str(folder / "state"), "HOME": str(folder)}
    return subprocess.run(
        [sys.executable, "-m", "ddpviz", *arguments],
        cwd=folder,
        env=env,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )


def test_what_is_in_it(installed: Path) -> None:
    package = installed / "ddpviz"
    for name in ("py.typed", "probe/site/sitecustomize.py", "demos/unsynced_step.py", "launch/rank.py"):
        assert (package / name).is_file(), name
    assert (installed / "bin" / "ddpviz").is_file()
    assert sorted(path.name for path in installed.iterdir() if "." not in path.name) == ["bin", "ddpviz"]


def test_a_demo_is_watched_from_any_folder(installed: Path, tmp_path: Path) -> None:
    done = ddpviz(installed, tmp_path, "demo", "unsynced-step", "--no-ui")
    assert done.returncode == 0, done.stderr
    assert "error  unsynced-step" in done.stderr
    assert f"{installed}/ddpviz/demos/unsynced_step.py:" in done.stderr
    assert ddpviz(installed, tmp_path, "list").stdout.count("finished") == 1
