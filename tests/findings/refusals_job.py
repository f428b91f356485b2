"""Provokes PyTorch's own DDP errors, two forked ranks a case, and prints {case: [error of rank 0, of rank 1]} as JSON.

torch is imported once; every rank is a fork of that. What dies without a word is given as "(died: signal 11)".
"""

import datetime
import json
import os
import signal
import socket
import sys
import tempfile
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.checkpoint import checkpoint

torch.set_num_threads(1)
X = torch.ones(3, 5)


def init(rank, seconds=40):
    limit = datetime.timedelta(seconds=seconds)
    dist.init_process_group("gloo", rank=rank, world_size=2, timeout=limit)


class Dead(nn.Module):
    def __init__(self):
        super().__init__()
        self.used, self.leftover = nn.Linear(5, 5), nn.Linear(5, 5)

    def forward(self, x, both=False):
        return self.used(x) + self.leftover(x) if both else self.used(x)


class Reentrant(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.body = nn.Linear(5, 5), nn.Linear(5, 5)

    def forward(self, x):
        h = self.first(x)
        for _ in range(2):
            h = checkpoint(self.body, h, use_reentrant=True)
        return h


def unused(rank):
    init(rank)
    model = DDP(Dead())
    for _ in range(2):
        model(X).sum().backward()


def twice(rank):
    init(rank)
    model = DDP(Reentrant())
    model(X).sum().backward()


def static_no_sync(rank):
    init(rank)
    model = DDP(nn.Linear(5, 5), static_graph=True)
    with model.no_sync():
        model(X).sum().backward()


def static_unused(rank):
    init(rank)
    model = DDP(Dead(), static_graph=True)
    for i in range(3):
        model(X, both=i == 0).sum().backward()


def static_changed(rank):
    init(rank)
    model = DDP(Dead(), static_graph=True)
    for i in range(3):
        model(X, both=i > 0).sum().backward()


def models_count(rank):
    init(rank)
    DDP(nn.Sequential(*[nn.Linear(5, 5) for _ in range(1 + rank)]))


def models_shape(rank):
    init(rank)
    DDP(nn.Linear(5, 5 + rank))


def monitored(rank):
    init(rank)
    if rank == 0:
        dist.monitored_barrier(timeout=datetime.timedelta(seconds=4))
    else:
        time.sleep(9)


def timeout(rank):
    init(rank)
    dist.barrier()  # both are there, however long that took
    model = DDP(nn.Linear(5, 5), process_group=dist.new_group(timeout=datetime.timedelta(seconds=8)))
    if rank == 0:
        model(X).sum().backward()
    else:
        time.sleep(13)


def hook(rank):
    init(rank)
    model = DDP(nn.Linear(5, 5))
    for _ in range(2):
        model.register_comm_hook(None, default_hooks.allreduce_hook)


def no_group(rank):
    DDP(nn.Linear(5, 5))


def no_env(rank):
    for name in ("RANK", "WORLD_SIZE"):
        os.environ.pop(name, None)
    dist.init_process_group("gloo")


def nccl(rank):
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    dist.init_process_group("nccl", rank=rank, world_size=2)


def frozen(rank):
    init(rank)
    DDP(nn.Linear(5, 5).requires_grad_(False))


def devices(rank):
    init(rank)
    DDP(nn.Linear(5, 5), device_ids=[rank])


def clients(rank):
    if rank == 0:
        init(rank, 8)


def detail(rank):
    os.environ["TORCH_DISTRIBUTED_DEBUG"] = "DETAIL"
    dist.set_debug_level_from_env()
    init(rank)
    DDP(nn.Linear(5, 5))


CASES = [
    unused, twice, static_no_sync, static_unused, static_changed, models_count, models_shape, monitored, timeout, hook,
    no_group, no_env, nccl, frozen, devices, clients, detail,
]  # fmt: skip


def start(case, folder):
    """Forks the two ranks of a case; returns their process ids. The cases run side by side: most only wait."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    pids = []
    for rank in (0, 1):
        pid = os.fork()
        if pid == 0:
            signal.alarm(60)
            os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK=str(rank), WORLD_SIZE="2")
            text = ""
            try:
                case(rank)
            except BaseException as error:
                text = f"{type(error).__name__}: {error}"
            (folder / f"{case.__name__}.{rank}").write_text(text)
            os._exit(0)
        pids.append(pid)
    return pids


def ended(case, pids, folder):
    """What each rank said, once both are gone."""
    found = []
    for rank, pid in enumerate(pids):
        _, status = os.waitpid(pid, 0)
        path = folder / f"{case.__name__}.{rank}"
        found.append(f"(died: signal {status & 127})" if status & 127 else path.read_text())
    return found


with tempfile.TemporaryDirectory() as name:
    folder = Path(name)
    started = [(case, start(case, folder)) for case in CASES]
    print("RESULT " + json.dumps({case.__name__: ended(case, pids, folder) for case, pids in started}), flush=True)
sys.exit(0)
