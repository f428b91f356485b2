"""What a class costs: a job of two ranks watched in N tabs, against the same job with none.

    python tests/benchmarks/tabs.py [--tabs N] [--seconds N]

One server, one job, each tab a viewer of its own. Printed are the CPU time and memory of all viewers while they follow,
and the median time of an optimizer step with and without them, in blocks that alternate within the one job.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import os
import statistics
import subprocess
import sys
import tempfile
import textwrap
import time
from pathlib import Path

import aiohttp
import psutil

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from ddpviz.timeline.fold import Fold
from ddpviz.trace.reader import RunReader
from tests.test_cli_serve import free_port, serving

SCRIPT = """
    import sys, time, torch, torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel as DDP
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    model = DDP(torch.nn.Sequential(torch.nn.Linear(500, 900), torch.nn.ReLU(), torch.nn.Linear(900, 50)))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    batch = torch.randn(64, 500)
    flag = torch.zeros(1)
    began = time.time()
    while flag.item() == 0:
        for micro in range(4):
            model.require_backward_grad_sync = micro == 3
            model(batch).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        flag.fill_(time.time() - began > float(sys.argv[1]))
        dist.all_reduce(flag, dist.ReduceOp.MAX)
        time.sleep(0.02)
"""


def steps(run: Path) -> list[int]:
    """When each step began, in nanoseconds of the monotonic clock of this host."""
    reader, fold = RunReader(run), Fold()
    fold.run(reader.info())
    while batches := reader.read():
        fold.feed(batches)
    base = int(reader.info().get("started_monotonic_ns", 0))
    return [base + int(row["begin"]) for row in fold.timeline.modules[0].lanes[0].steps]


async def drain(socket: aiohttp.ClientWebSocketResponse) -> None:
    async for _ in socket:
        pass


async def watch(port: int, server: psutil.Process, tabs: int, seconds: float) -> list[tuple[bool, int, int]]:
    """(with tabs, from, to) of each block."""
    blocks = []
    async with aiohttp.ClientSession() as session:
        for _ in range(2):
            begun = time.monotonic_ns()
            await asyncio.sleep(seconds)
            blocks.append((False, begun, time.monotonic_ns()))
            address = f"ws://127.0.0.1:{port}/ws?width=140&height=40"
            sockets = [
                await session.ws_connect(address, headers={"Origin": f"http://127.0.0.1:{port}"}) for _ in range(tabs)
            ]
            draining = [asyncio.create_task(drain(socket)) for socket in sockets]
            await asyncio.sleep(max(10, tabs * 1.5))  # they start: Python and Textual are imported
            before = sum(sum(p.cpu_times()[:2]) for p in server.children(recursive=True))
            begun = time.monotonic_ns()
            await asyncio.sleep(seconds)
            blocks.append((True, begun, time.monotonic_ns()))
            viewers = [p for p in server.children(recursive=True) if p.memory_info().rss > 30 << 20]
            cpu = sum(sum(p.cpu_times()[:2]) for p in server.children(recursive=True)) - before
            memory = sum(p.memory_info().rss for p in viewers) >> 20
            print(f"{len(viewers)} viewers: {cpu / seconds:.2f} of a core, {memory} MB", flush=True)
            for socket in sockets:
                await socket.close()
            for task in draining:
                task.cancel()
            await asyncio.sleep(3)
    return blocks


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tabs", type=int, default=30)
    parser.add_argument("--seconds", type=float, default=12.0)
    args = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="ddpviz-tabs-"))
    (folder / "job.py").write_text(textwrap.dedent(SCRIPT))
    run, port = folder / "run", free_port()
    length = 2 * (2 * args.seconds + max(10, args.tabs * 1.5) + 3) + 10
    job = subprocess.Popen(
        [sys.executable, "-m", "ddpviz", "run", "--no-ui", "-n", "2", "--backend", "gloo", "--run-dir", str(run),
         str(folder / "job.py"), str(length)],
        env=os.environ | {"OMP_NUM_THREADS": "1"}, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    while not any((run / "trace").glob("*")):
        time.sleep(0.2)
    time.sleep(5)
    with serving(run, port, folder) as server:
        blocks = asyncio.run(watch(port, psutil.Process(server.pid), args.tabs, args.seconds))
    job.wait()
    at = steps(run)
    times: dict[bool, list[int]] = {True: [], False: []}
    for tabs, begin, end in blocks:
        inside = [t for t in at if begin <= t <= end]
        times[tabs] += [b - a for a, b in itertools.pairwise(inside)]
    plain, watched = (statistics.median(times[tabs]) / 1e6 for tabs in (False, True))
    print(f"a step: {plain:.2f} ms with no tab, {watched:.2f} ms with {args.tabs}: {watched / plain:.3f}")


if __name__ == "__main__":
    main()
