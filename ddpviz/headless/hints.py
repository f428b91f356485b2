"""What to do where a script failed before DDP could: for want of CUDA, or of what a launcher sets. Pure."""

from __future__ import annotations

import re

from ddpviz.language import _

# Messages of PyTorch 2.13 and 2.14, with and without a CUDA build.
_NO_CUDA = re.compile(
    r"Found no NVIDIA driver on your system"
    r"|Torch not compiled with CUDA enabled"
    r"|ProcessGroupNCCL is only supported with GPUs, no GPUs found"
    r"|Distributed package doesn't have NCCL built in"
    r"|No CUDA GPUs are available"
    r"|CUDA driver version is insufficient for CUDA runtime version"
    r"|Attempting to deserialize object on a CUDA device but torch\.cuda\.is_available\(\) is False"
    r"|module 'torch\._C' has no attribute '_cuda_"
    r"|requires CUDA support"
)
_FEW_GPUS = re.compile(r"invalid device ordinal|Duplicate GPU detected")
_NO_LAUNCHER = re.compile(
    r"environment variable (RANK|WORLD_SIZE|MASTER_ADDR|MASTER_PORT) expected, but not set"
    r"|KeyError: '(LOCAL_RANK|RANK|WORLD_SIZE)'"
)
_NO_GROUP = re.compile(r"Default process group has not been initialized")


def hint(text: str, *, verb: str = "run", script: str = "SCRIPT.py", redirected: bool = False) -> str | None:
    """What a person can do about this failure, in one sentence, or None. `text` is a traceback or the end of a log."""
    if not redirected:
        again = f"ddpviz {verb} --cpu {script}"
        if _NO_CUDA.search(text):
            return _(
                "the script wants CUDA and finds none: `{again}` redirects it to gloo and the CPU, for this job",
                again=again,
            )
        if _FEW_GPUS.search(text):
            return _(
                "there are fewer GPUs than ranks: use a smaller -n, or `{again}` to run it on the CPU", again=again
            )
    if missing := _NO_LAUNCHER.search(text):
        return _(
            "{name} is set by a launcher and there is none: start the script as `ddpviz {verb} -n 2 "
            "{script}`, or with its launcher: `ddpviz {verb} -- torchrun --nproc-per-node 2 {script}`",
            name=missing[1] or missing[2],
            verb=verb,
            script=script,
        )
    if _NO_GROUP.search(text):
        return _("the script uses torch.distributed before it calls init_process_group(): call it first, on every rank")
    return None
