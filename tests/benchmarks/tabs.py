"""What a class costs: a job of two ranks watched in N tabs, against the same job with none.

    python tests/benchmarks/tabs.py [--tabs N] [--touched N] [--seconds N]

One server, one job. First all tabs only look, then some are touched and get viewers of their own. Printed are the CPU
time and memory of the server and all viewers while they follow, and the median time of an optimizer step with and
without them, in blocks that alternate within the one job.
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
from typing import NamedTuple

import aiohttp
import psutil

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from ddpviz.timeline.fold import Fold
from ddpviz.trace.reader import RunReader
from tests.test_cli_serve import free_port, serving

NONE = "no tab"
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


received = [0]


async def drain(socket: aiohttp.ClientWebSocketResponse) -> None:
    async for message in socket:
        received[0] += len(message.data)


class Block(NamedTuple):
    what: str
    begin: int
    end: int


async def watch(port: int, server: psutil.Process, tabs: int, touched: int, seconds: float) -> list[Block]:
    """The blocks: no tab, tabs that look, and then some of them with a viewer of their own; twice."""
    blocks = []

    def processes() -> list[psutil.Process]:
        viewers = [child for child in server.children(recursive=True) if "ddpviz.cli.tab" in " ".join(child.cmdline())]
        return [server, *viewers]

    async def block(what: str) -> None:
        before = {process: sum(process.cpu_times()[:2]) for process in processes()}
        begun, received[0] = time.monotonic_ns(), 0
        await asyncio.sleep(seconds)
        blocks.append(Block(what, begun, time.monotonic_ns()))
        cpu = sum(sum(process.cpu_times()[:2]) - at for process, at in before.items()) / seconds
        memory = sum(process.memory_info().rss for process in before) >> 20
        load = f"with the server {cpu:.2f} of a core, {memory} MB; {received[0] / seconds / 1e6:.1f} MB/s to them"
        print(f"{what}: {len(before) - 1} viewers; {load}", flush=True)

    async with aiohttp.ClientSession() as session:
        for _ in range(2):
            await block(NONE)
            address, page = f"ws://127.0.0.1:{port}/ws?width=140&height=40", {"Origin": f"http://127.0.0.1:{port}"}
            sockets = [await session.ws_connect(address, headers=page, compress=15) for _ in range(tabs)]
            draining = [asyncio.create_task(drain(socket)) for socket in sockets]
            await asyncio.sleep(5)
            await block(f"{tabs} tabs that look")
            if touched:
                for socket in sockets[:touched]:
                    await socket.send_json(["stdin", "1"])  # a key, and the view stays as it is
                await asyncio.sleep(max(6, touched * 1.5))  # they start: Python and Textual are imported
                await block(f"{tabs} tabs, {touched} with a viewer of their own")
            for socket in sockets:
                await socket.close()
            for task in draining:
                task.cancel()
            await asyncio.sleep(3)
    return blocks


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tabs", type=int, default=30)
    parser.add_argument("--touched", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=12.0)
    args = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="ddpviz-tabs-"))
    (folder / "job.py").write_text(textwrap.dedent(SCRIPT))
    run, port = folder / "run", free_port()
    length = 2 * (3 * args.seconds + 8 + max(6, args.touched * 1.5)) + 15
    job = subprocess.Popen(
        [sys.executable, "-m", "ddpviz", "run", "--no-ui", "-n", "2", "--backend", "gloo", "--run-dir", str(run),
         str(folder / "job.py"), str(length)],
        env=os.environ | {"OMP_NUM_THREADS": "1"}, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    while not any((run / "trace").glob("*")):
        time.sleep(0.2)
    time.sleep(5)
    with serving(run, port, folder) as server:
        blocks = asyncio.run(watch(port, psutil.Process(server.pid), args.tabs, args.touched, args.seconds))
    job.wait()
    at = steps(run)
    times: dict[str, list[int]] = {}
    for what, begin, end in blocks:
        inside = [t for t in at if begin <= t <= end]
        times.setdefault(what, []).extend(b - a for a, b in itertools.pairwise(inside))
    plain = statistics.median(times[NONE])
    for what, lasted in times.items():
        print(f"a step, {what}: {statistics.median(lasted) / 1e6:.2f} ms, {statistics.median(lasted) / plain:.3f}")


if __name__ == "__main__":
    main()
