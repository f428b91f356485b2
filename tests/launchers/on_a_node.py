"""One rank of a job over two nodes. The second node's clocks are others: it says it is another host, up for longer."""

import os
import socket
import time

if os.environ["GROUP_RANK"] == "1":  # the node's number, from torchrun
    monotonic, wall = time.monotonic_ns, time.time_ns
    time.monotonic_ns = lambda: monotonic() + 77_000_000_000_000
    time.time_ns = lambda: wall() + 3_000_000_000
    socket.gethostname = lambda: "node-b"
else:
    socket.gethostname = lambda: "node-a"

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
torch.manual_seed(0)
model = DistributedDataParallel(torch.nn.Linear(64, 8))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for _ in range(40):
    with model.no_sync():
        model(torch.randn(4, 64)).sum().backward()
    model(torch.randn(4, 64)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
dist.barrier()
dist.destroy_process_group()
