"""What watching costs: attached / plain time of a training loop, as a ratio within one job.

    torchrun --nproc-per-node 2 tests/benchmarks/overhead.py [--blocks N] [--size small,layers,10m,50m]

Blocks of steps alternate between a plain and a watched copy of one model in one job (gloo); before a plain block every
patch and hook of ddpviz is taken off. The machine's speed drifts, so only the ratio of neighbouring blocks counts: the
median over the blocks is printed, with the quartiles. Budgets: 0 (what happened, no numbers), 2 % (default), full.
"""

from __future__ import annotations

import argparse
import copy
import statistics
import tempfile
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from ddpviz.probe import forwards, inject, session

MODELS = {
    "1M": lambda: nn.Sequential(nn.Linear(1000, 900), nn.ReLU(), nn.Linear(900, 100)),
    "1M/100 layers": lambda: nn.Sequential(*[m for _ in range(100) for m in (nn.Linear(100, 100), nn.Tanh())]),
    "10M": lambda: nn.Sequential(nn.Linear(1000, 5000), nn.ReLU(), nn.Linear(5000, 1000)),
    "50M": lambda: nn.Sequential(nn.Linear(2000, 12500), nn.ReLU(), nn.Linear(12500, 2000)),
}
INPUTS = {"1M": 1000, "1M/100 layers": 100, "10M": 1000, "50M": 2000}
BATCH = 64
ACCUMULATION = 4


def window(ddp: DistributedDataParallel, optimizer: torch.optim.Optimizer, batch: torch.Tensor) -> None:
    """One accumulation window: three local passes, one all-reduced, the step."""
    for micro in range(ACCUMULATION):
        if micro < ACCUMULATION - 1:
            with ddp.no_sync():
                ddp(batch).square().mean().backward()
        else:
            ddp(batch).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()


def timed(ddp: DistributedDataParallel, optimizer: torch.optim.Optimizer, batch: torch.Tensor, windows: int) -> float:
    dist.barrier()
    began = time.perf_counter()
    for _ in range(windows):
        window(ddp, optimizer, batch)
    return (time.perf_counter() - began) / windows


def measure(name: str, budget: float | None, blocks: int, seconds: float, state: session.Session) -> list[float]:
    """Ratios watched / plain of neighbouring blocks on this rank."""
    torch.manual_seed(0)
    model = MODELS[name]()
    batch = torch.randn(BATCH, INPUTS[name])
    inject.uninstall()
    plain = DistributedDataParallel(copy.deepcopy(model))
    watched = DistributedDataParallel(model)
    pairs = [(d, torch.optim.SGD(d.parameters(), lr=1e-6)) for d in (plain, watched)]
    state.budget = type(state.budget)(budget)
    inject.install(state)
    forwards.watch(state, watched, 0)
    for _ in range(3):
        window(*pairs[1], batch)
    inject.uninstall()
    one = torch.tensor(timed(*pairs[0], batch, 3))
    dist.all_reduce(one)
    windows = max(1, round(seconds / (one.item() / dist.get_world_size())))
    ratios = []
    for _ in range(blocks):
        before = timed(*pairs[0], batch, windows)
        inject.install(state)
        with_probe = timed(*pairs[1], batch, windows)
        inject.uninstall()
        after = timed(*pairs[0], batch, windows)
        ratios.append(with_probe / ((before + after) / 2))
    found = forwards.watched_of(state, watched)
    if found is not None:
        found.detach()
        state.modules.remove(found)
    return ratios


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--blocks", type=int, default=15)
    parser.add_argument("--seconds", type=float, default=0.5, help="length of a block")
    parser.add_argument("--models", default="1M,1M/100 layers,10M,50M")
    parser.add_argument("--budgets", default="0,2,full")
    args = parser.parse_args()
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    folder = Path(tempfile.mkdtemp(prefix="ddpviz-overhead-"))
    (folder / "trace").mkdir()
    state = session.start(folder, 2.0)
    inject.install(state)
    state.open()
    if dist.get_rank() == 0:
        print(f"torch {torch.__version__}, gloo x{dist.get_world_size()}, observed by {state.observe}")
        print(f"{'model':<16}{'budget':>8}{'median':>9}{'quartiles':>18}")
    for name in args.models.split(","):
        for text in args.budgets.split(","):
            budget = None if text == "full" else float(text)
            ratios = measure(name, budget, args.blocks, args.seconds, state)
            if dist.get_rank() == 0:
                low, middle, high = statistics.quantiles(ratios, n=4)
                print(f"{name:<16}{text:>8}{middle:>9.3f}{low:>10.3f} {high:.3f}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
