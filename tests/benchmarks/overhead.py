"""What watching costs: attached / plain time of a training loop, as a ratio within one job.

    torchrun --nproc-per-node 2 tests/benchmarks/overhead.py [--blocks N] [--size small,layers,10m,50m]

Blocks of steps alternate between a plain and a watched copy of one model in one job (gloo); before a plain block every
patch and hook of ddpviz is taken off. The machine's speed drifts, so only the ratio of neighbouring blocks counts: the
median over the blocks is printed, with the quartiles, and the same for the CPU time of all threads. Budgets: 0 (what
happened, no numbers), 2 % (default), full. Above the table: what a no_sync pass over 300 parameters costs the training
thread, in CPU time, with no numbers and with all of them.
"""

from __future__ import annotations

import argparse
import copy
import math
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

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


def timed(
    ddp: DistributedDataParallel, optimizer: torch.optim.Optimizer, batch: torch.Tensor, windows: int
) -> tuple[float, float]:
    """Seconds a window: on the clock, and of CPU in all threads of this rank."""
    dist.barrier()
    began, cpu = time.perf_counter(), time.process_time()
    for _ in range(windows):
        window(ddp, optimizer, batch)
    return (time.perf_counter() - began) / windows, (time.process_time() - cpu) / windows


def watched(ddp: DistributedDataParallel, optimizer: Any, batch: Any, windows: int, state: session.Session) -> Any:
    """`timed` with everything of ddpviz in place, which is taken away again."""
    inject.install(state)
    found = forwards.watch(state, ddp, 0)
    window(ddp, optimizer, batch)  # a look at the module that a new watch takes, and the first sample, are not timed
    try:
        return timed(ddp, optimizer, batch, windows)
    finally:
        inject.uninstall()
        if found is not None:
            found.detach()
            state.modules.remove(found)


def measure(name: str, budget: float | None, blocks: int, seconds: float, state: session.Session) -> list[Any]:
    """Ratios watched / plain on this rank, of the time and of the CPU's work.

    Two copies of a model can differ by a few percent for where they lie in memory: each is watched in its turn while
    the other is plain, and a ratio is the geometric mean of both.
    """
    torch.manual_seed(0)
    model = MODELS[name]()
    batch = torch.randn(BATCH, INPUTS[name])
    state.budget = type(state.budget)(budget)
    inject.uninstall()
    pairs = [DistributedDataParallel(m) for m in (copy.deepcopy(model), model)]
    both = [(d, torch.optim.SGD(d.parameters(), lr=1e-6), batch) for d in pairs]
    one = torch.tensor([timed(*x, 3)[0] for x in both for _ in range(2)]).min()
    dist.all_reduce(one)
    windows = max(1, round(seconds / (one.item() / dist.get_world_size())))
    ratios = []
    for _ in range(blocks):
        runs = [(timed(*both[k], windows), watched(*both[1 - k], windows, state)) for k in (0, 1)]
        ratios.append([math.sqrt(math.prod(w[i] / p[i] for p, w in runs)) for i in (0, 1)])
    return ratios


def of_a_pass(budget: float | None, blocks: int, state: session.Session) -> float:
    """Milliseconds of the training thread's CPU that watching adds to a no_sync pass over 300 small parameters."""
    state.budget = type(state.budget)(budget)
    inject.uninstall()
    ddp = DistributedDataParallel(nn.Sequential(*[nn.Linear(16, 16) for _ in range(150)]))
    batch = torch.randn(4, 16)

    def passes() -> float:
        with ddp.no_sync():
            ddp(batch).square().mean().backward()
            began = time.thread_time()
            for _ in range(40):
                ddp(batch).square().mean().backward()
        ddp.zero_grad()
        return (time.thread_time() - began) / 40 * 1e3

    differences = []
    for _ in range(blocks):
        plain = passes()
        inject.install(state)
        found = forwards.watch(state, ddp, 0)
        try:
            differences.append(passes() - plain)
        finally:
            inject.uninstall()
            if found is not None:
                found.detach()
                state.modules.remove(found)
    return statistics.median(differences)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--blocks", type=int, default=40)
    parser.add_argument("--seconds", type=float, default=0.15, help="length of a block")
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
    for budget in (0.0, None):
        cost = of_a_pass(budget, args.blocks, state)
        if dist.get_rank() == 0:
            print(f"a no_sync pass of 300 parameters, {'no' if budget is not None else 'all'} numbers: {cost:.2f} ms")
    if dist.get_rank() == 0:
        print(f"{'model':<16}{'budget':>8}{'median':>9}{'quartiles':>18}{'of CPU':>9}")
    for name in args.models.split(","):
        for text in args.budgets.split(","):
            budget = None if text == "full" else float(text)
            ratios = measure(name, budget, args.blocks, args.seconds, state)
            if dist.get_rank() == 0:
                low, middle, high = statistics.quantiles([clock for clock, _ in ratios], n=4)
                work = statistics.median(cpu for _, cpu in ratios)
                print(f"{name:<16}{text:>8}{middle:>9.3f}{low:>12.3f} {high:.3f}{work:>9.3f}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
