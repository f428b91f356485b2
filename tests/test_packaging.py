"""What `pip install` brings: an sdist, and the wheel made of it in a new venv, that work from any folder."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from ddpviz.version import __version__

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site-packages folder of a new venv into which the sdist of a copy of the checkout was installed.

    What ddpviz needs comes from the surrounding environment, behind the venv's own packages.
    """
    source = tmp_path_factory.mktemp("source")
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    for name in ("ddpviz", "demos"):
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    sdist = "import hatchling.build as b; print(b.build_sdist('dist'))"
    made = subprocess.run([sys.executable, "-c", sdist], cwd=source, check=True, capture_output=True, text=True)
    archive = source / "dist" / made.stdout.split()[-1]
    assert archive.name.startswith("ddpviz-")
    env = tmp_path_factory.mktemp("env") / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", env], check=True, timeout=100)
    (site,) = env.glob("lib/python*/site-packages")
    (site / "surrounding.pth").write_text("\n".join(path for path in sys.path if path.endswith("-packages")) + "\n")
    pip = [sys.executable, "-m", "pip", "--python", env, "install", "--quiet", "--no-deps", "--no-build-isolation"]
    subprocess.run([*pip, archive], check=True, timeout=200)
    return site


def ddpviz(installed: Path, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "XDG_STATE_HOME": str(folder / "state"), "HOME": str(folder)}
    env.pop("PYTHONPATH", None)
    return subprocess.run(
        [installed.parents[2] / "bin" / "ddpviz", *arguments],
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
    assert (installed.parents[2] / "bin" / "ddpviz").is_file()
    assert sorted(path.name for path in installed.iterdir() if "." not in path.name) == ["ddpviz"]
    assert (installed / f"ddpviz-{__version__}.dist-info" / "licenses" / "LICENSE").is_file()


def test_a_demo_is_watched_from_any_folder(installed: Path, tmp_path: Path) -> None:
    done = ddpviz(installed, tmp_path, "demo", "unsynced-step", "--no-ui")
    assert done.returncode == 0, done.stderr
    assert "error  unsynced-step" in done.stderr
    assert f"{installed}/ddpviz/demos/unsynced_step.py:" in done.stderr
    assert ddpviz(installed, tmp_path, "list").stdout.count("finished") == 1
