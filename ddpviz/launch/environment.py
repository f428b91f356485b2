"""The environment of a job: what injects the probe, what marks its processes, two defaults of torchrun's."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from ddpviz.launch.spec import JobSpec

MARK = "DDPVIZ_JOB"  # unique to one job; whoever carries it belongs to the job, whatever became of its parent
_PACKAGE = Path(__file__).resolve().parents[1]


def job_environment(
    base: Mapping[str, str], spec: JobSpec, run_dir: Path, mark: str, *, ranks: int | None, hide_cuda: bool
) -> dict[str, str]:
    """`base` with what a job needs: the probe on PYTHONPATH, where to write, how much to measure."""
    env = {key: value for key, value in base.items() if not key.startswith("DDPVIZ_") or key == "DDPVIZ_OBSERVE"}
    env["DDPVIZ_RUN_DIR"] = str(run_dir)
    env["DDPVIZ_BUDGET"] = "full" if spec.budget is None else f"{spec.budget:g}"
    env[MARK] = mark
    if spec.max_size or base.get("DDPVIZ_MAX_SIZE"):
        env["DDPVIZ_MAX_SIZE"] = spec.max_size or base["DDPVIZ_MAX_SIZE"]
    if spec.observe:
        env["DDPVIZ_OBSERVE"] = spec.observe
    if spec.control is not None:
        env["DDPVIZ_CONTROL"] = ",".join(spec.control)
    if spec.cpu:
        env["DDPVIZ_REDIRECT"] = "1"
    if hide_cuda:
        env["CUDA_VISIBLE_DEVICES"] = ""
    env.setdefault("PYTHONUNBUFFERED", "1")  # what a rank printed before it hung or died is in its log
    if ranks is not None and ranks > 1:
        env.setdefault("OMP_NUM_THREADS", "1")  # as torchrun does, which would warn about it
    path = [str(_PACKAGE / "probe" / "site")]  # its sitecustomize installs the probe where torch is imported
    if base.get("PYTHONPATH"):
        path.append(base["PYTHONPATH"])
    if _PACKAGE.parent.name not in ("site-packages", "dist-packages"):
        path.append(
            str(_PACKAGE.parent)
        )  # a checkout; an installed ddpviz is found without, and stays behind the stdlib
    env["PYTHONPATH"] = os.pathsep.join(path)
    return env
