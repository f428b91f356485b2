"""Which backend a job gets, and why, decided without importing torch: by looking for CUDA devices."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ddpviz.launch.spec import JobError


@dataclass(frozen=True, slots=True)
class Backend:
    """The choice, its reason as a phrase, and whether the job must not see the CUDA devices that are there."""

    name: str
    reason: str
    hide_cuda: bool = False


def cuda_devices(env: Mapping[str, str] = os.environ) -> int:
    """CUDA devices that a process with this environment may use, as far as can be seen from outside."""
    there = _physical()
    visible = env.get("CUDA_VISIBLE_DEVICES")
    if visible is None or not there:
        return there
    count = 0
    for name in visible.split(","):  # CUDA reads up to the first name that is none
        if not ((re.fullmatch(r"\s*\d+\s*", name) and int(name) < there) or name.strip().startswith(("GPU-", "MIG-"))):
            break
        count += 1
    return count


def default_ranks(devices: int) -> int:
    return devices if devices > 1 else 2


def choose(ranks: int, devices: int, *, wanted: str = "auto", cpu: bool = False) -> Backend:
    """The backend for `ranks` ranks on `devices` CUDA devices. Raises JobError if what is wanted cannot be."""
    some = f"{devices} CUDA device{'s' if devices > 1 else ''}"
    if cpu:
        return Backend("gloo", "as asked by --cpu", hide_cuda=devices > 0)
    if wanted == "nccl":
        if devices < ranks:
            have = some if devices else "none"
            raise JobError(f"--backend nccl needs a CUDA device for each of {ranks} ranks; here is {have}")
        return Backend("nccl", "as asked")
    if wanted == "gloo":
        if devices:
            return Backend("gloo", f"as asked: on the CPU, {some} hidden from the job", hide_cuda=True)
        return Backend("gloo", "as asked: on the CPU")
    if devices == 0:
        return Backend("gloo", "no CUDA device")
    if devices < ranks:
        have = "one GPU" if devices == 1 else f"{devices} GPUs"
        return Backend("gloo", f"{have} for {ranks} ranks: gloo on the CPU", hide_cuda=True)
    return Backend("nccl", "a CUDA device for each rank" if ranks > 1 else "a CUDA device")


def _physical() -> int:
    smi = shutil.which("nvidia-smi")
    if smi is not None:
        try:
            listing = subprocess.run(
                [smi, "-L"], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=15, check=False
            )
            return len(re.findall(r"^GPU \d+:", listing.stdout, re.MULTILINE)) if listing.returncode == 0 else 0
        except (OSError, subprocess.TimeoutExpired):
            pass
    try:  # a container may have the devices without the tool
        return sum(bool(re.fullmatch(r"nvidia\d+", entry.name)) for entry in Path("/dev").iterdir())
    except OSError:
        return 0
